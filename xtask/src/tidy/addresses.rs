//! `host:port` made by hand, without the brackets that IPv6 needs.
//!
//! `::1:6379` can be read in two ways, so one server gets two names and is not recognized under the other.

use std::collections::BTreeMap;

use super::complaint::Complaint;
use super::source::File;
use super::tokens::{Kind, Token, close_of};

/// Files that write addresses as servers do, in CLUSTER NODES without brackets: how often, and why that must stay.
const AS_SERVERS_WRITE: &[(&str, usize, &str)] = &[
    ("base/topology/src/replies.rs", 2, "CLUSTER SLOTS and SHARDS must give a node the address that NODES gives it"),
    ("explain/doctor/src/rules/replica_lag.rs", 1, "looks for both spellings"),
    ("observe/probe/src/host/mod.rs", 1, "compared with the addresses that CLUSTER NODES gives"),
];

/// Macros whose first string is a template.
const FORMATS: &[&str] = &[
    "anyhow",
    "bail",
    "ensure",
    "eprint",
    "eprintln",
    "format",
    "format_args",
    "panic",
    "print",
    "println",
    "write",
    "writeln",
];

/// How many lines above a template its form with brackets may stand.
const NEAR: usize = 3;

/// Templates that put a colon between a host and a port.
pub fn check(file: &File) -> Vec<Complaint> {
    let places = places(&file.product);
    if AS_SERVERS_WRITE.iter().any(|(path, count, _)| *path == file.path && places.len() <= *count) {
        return Vec::new();
    }
    let text = "a host and a port are joined by hand, and IPv6 needs brackets: [::1]:6379; expected \
                unslow_topology::join_host_port(host, port) or unslow_nodes::Address";
    places.into_iter().map(|line| Complaint::new(&file.path, line, text)).collect()
}

/// Exceptions that nothing needs any more.
pub fn stale(files: &[File]) -> Vec<Complaint> {
    let counts: BTreeMap<&str, usize> = files.iter().map(|f| (f.path.as_str(), places(&f.product).len())).collect();
    let mut all = Vec::new();
    for (path, count, _) in AS_SERVERS_WRITE {
        let found = counts.get(path).copied().unwrap_or(0);
        if found < *count {
            let text = format!("{count} addresses without brackets are allowed here, and there are {found}; lower it");
            all.push(Complaint::new(path, 0, text));
        }
    }
    all
}

/// The lines of templates that join a host and a port, where no form with brackets is near.
fn places(tokens: &[Token]) -> Vec<usize> {
    let bracketed: Vec<usize> =
        tokens.iter().filter(|t| t.string().is_some_and(|text| text.contains("[{"))).map(|t| t.line).collect();
    let mut all = Vec::new();
    for i in 0..tokens.len().saturating_sub(2) {
        let is_format = tokens[i].word().is_some_and(|word| FORMATS.contains(&word));
        if !is_format || !tokens[i + 1].is_mark('!') || !matches!(tokens[i + 2].kind, Kind::Open(_)) {
            continue;
        }
        let close = close_of(tokens, i + 2);
        let arguments = arguments(&tokens[i + 3..close]);
        let Some(at) = arguments.iter().position(|a| matches!(a, [one] if one.string().is_some())) else { continue };
        let (Some(template), line) = (arguments[at][0].string(), arguments[at][0].line) else { continue };
        let near = bracketed.iter().any(|b| (line.saturating_sub(NEAR)..=line).contains(b));
        if !near && joins_host_and_port(&template, &arguments[at + 1..]) {
            all.push(line);
        }
    }
    all
}

/// Arguments of a macro, split at its own commas.
fn arguments(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut all, mut from, mut i) = (Vec::new(), 0, 0);
    while i < tokens.len() {
        match tokens[i].kind {
            Kind::Open(_) => i = close_of(tokens, i),
            Kind::Mark(',') => {
                all.push(&tokens[from..i]);
                from = i + 1;
            }
            _ => {}
        }
        i += 1;
    }
    if from < tokens.len() {
        all.push(&tokens[from..]);
    }
    all
}

/// A `{..}` of a template: the words it stands for, and where it is.
struct Placeholder {
    words: Vec<String>,
    from: usize,
    to: usize,
}

fn joins_host_and_port(template: &str, arguments: &[&[Token]]) -> bool {
    let all = placeholders(template, arguments);
    all.windows(2).any(|pair| {
        let [host, port] = pair else { return false };
        // The port of the cluster bus follows in CLUSTER NODES only, which has no brackets.
        template.get(host.to..port.from) == Some(":")
            && !template[port.to..].starts_with('@')
            && host.words.iter().any(|word| is_host(word))
            && port.words.iter().any(|word| is_port(word))
    })
}

fn is_host(word: &str) -> bool {
    matches!(word, "host" | "ip" | "addr" | "address" | "hostname")
        || ["_host", "_ip", "_addr", "_address"].iter().any(|end| word.ends_with(end))
}

fn is_port(word: &str) -> bool {
    word == "port" || word.ends_with("_port")
}

fn placeholders(template: &str, arguments: &[&[Token]]) -> Vec<Placeholder> {
    let (mut all, mut from, mut next) = (Vec::new(), 0, 0);
    while let Some(open) = template[from..].find(['{', '}']).map(|n| from + n) {
        let rest = &template[open..];
        if rest.starts_with("{{") || rest.starts_with('}') {
            from = open + if rest.starts_with("{{") || rest.starts_with("}}") { 2 } else { 1 };
            continue;
        }
        let Some(length) = rest.find('}') else { break };
        let name = rest[1..length].split(':').next().unwrap_or_default().trim();
        let words = match (name, name.parse::<usize>()) {
            ("", _) => {
                next += 1;
                words_of(arguments, next - 1)
            }
            (_, Ok(number)) => words_of(arguments, number),
            (name, Err(_)) => vec![name.to_string()],
        };
        from = open + length + 1;
        all.push(Placeholder { words, from: open, to: from });
    }
    all
}

/// Names and strings in an argument: of `text("ip")` both.
fn words_of(arguments: &[&[Token]], number: usize) -> Vec<String> {
    let tokens = arguments.get(number).copied().unwrap_or_default();
    tokens.iter().filter_map(|t| t.word().map(String::from).or_else(|| t.string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(body: &str) -> Vec<usize> {
        places(&File::of("a/src/lib.rs", &format!("fn f() {{\n{body}\n}}\n")).unwrap().product)
    }

    #[test]
    fn hosts_and_ports_joined_by_hand_are_found() {
        for body in [
            "format!(\"{host}:{port}\")",
            "format!(\"redis://{}:{}/0\", self.ip, self.port)",
            "println!(\"{0}:{1:>5} is there\", server.host, bus_port)",
            "write!(f, \"{{ {}:{port}\", address.text())",
            "bail!(\"{}:{}\", text(\"ip\"), text(\"port\"))",
        ] {
            assert_eq!(lines_of(body), [2], "{body}");
        }
        let file = File::of("a/src/lib.rs", "fn f() { format!(\"{host}:{port}\") }").unwrap();
        let said = check(&file).iter().map(Complaint::to_string).collect::<Vec<_>>().join("\n");
        assert!(said.starts_with("a/src/lib.rs:1: a host and a port are joined by hand"), "{said}");
        assert!(said.contains("join_host_port(host, port)"), "{said}");
    }

    #[test]
    fn what_has_brackets_or_is_no_address_is_left_alone() {
        for body in [
            "format!(\"[{host}]:{port}\")",
            "if v6 { format!(\"[{host}]:{port}\") } else { format!(\"{host}:{port}\") }",
            "format!(\"{hour}:{minute}\")",
            "format!(\"{}:{}\", key, value)",
            "format!(\"{host}: {port}\")",
            "format!(\"{host}:{port}@{bus}\")",
            "format!(\"{path}:{line}\")",
            "key(\"{host}:{port}\")",
            "vec![host, port]",
        ] {
            assert!(lines_of(body).is_empty(), "{body}");
        }
    }

    #[test]
    fn exceptions_are_counted() {
        let (path, count, _) = AS_SERVERS_WRITE[0];
        let file = |n: usize| File::of(path, &"fn f() { format!(\"{ip}:{port}\") }\n".repeat(n)).unwrap();
        assert!(check(&file(count)).is_empty());
        assert_eq!(check(&file(count + 1)).len(), count + 1);
        let said = |n: usize| -> Vec<String> {
            let all = stale(&[file(n)]);
            all.iter().map(Complaint::to_string).filter(|text| text.starts_with(path)).collect()
        };
        assert!(said(count).is_empty());
        assert_eq!(
            said(count - 1),
            [format!(
                "{path}: {count} addresses without brackets are allowed here, and there are {}; lower it",
                count - 1
            )]
        );
    }
}
