//! `unslow doctor --fix-plan`: the remedies as a script for `sh`, to be read before it is run. We run nothing.
//!
//! What names its server and needs no choice is a command, everything else is a comment. Words of servers stand in it:
//! none may end a comment, and a command has nothing but plain words.

use std::collections::BTreeSet;
use std::fmt::Write;

use unslow_doctor::{Remedy, Report, setting_of};

/// `set -e` alone would run on after a refusal: redis-cli ends with status 0 then (its -e is 7.0+). An alias, because
/// sh has no functions with a hyphen in their names, and the lines below are to be copied one by one.
const PREAMBLE: &str = r#"set -e
# One node after another; stops at the first one that does not answer or that refuses a command.
checked() {
    answer=$(command redis-cli --no-raw "$@") || { printf '%s\n' "$answer"; exit 1; }
    printf '%s\n' "$answer"
    case $answer in "(error)"*) exit 1 ;; esac
}
if [ -n "$BASH_VERSION" ]; then shopt -s expand_aliases; fi
alias redis-cli=checked
"#;

pub fn script(report: &Report) -> String {
    let url = &report.deployment.url;
    let mut plan = Plan { tls: url.starts_with("rediss:") || url.starts_with("valkeys:"), ..Plan::default() };
    let _ = writeln!(plan.out, "# unslow doctor {}: read it before you run it; nothing has been run", plain(url));
    plan.out +=
        "# if there is a password, set REDISCLI_AUTH=... in the environment; if there are ACL users, add --user\n";
    let commands = report.findings.iter().flat_map(|f| &f.remedies).filter(|r| r.exact).flat_map(|r| &r.commands);
    if commands.clone().any(|c| is_runnable(c)) {
        plan.out += PREAMBLE;
    }
    for (i, finding) in report.findings.iter().enumerate() {
        let _ = writeln!(plan.out, "\n# {}. {} ({})", i + 1, plain(&finding.title), plain(&finding.id));
        finding.remedies.iter().for_each(|remedy| plan.remedy(remedy));
    }
    plan.out
}

#[derive(Default)]
struct Plan {
    out: String,
    tls: bool,
    /// Lines that stand in it: what two findings share is done once.
    seen: BTreeSet<String>,
    /// Parameters of servers that have their value.
    set: BTreeSet<String>,
}

impl Plan {
    fn remedy(&mut self, remedy: &Remedy) {
        let mut text = format!("#    {}", plain(&remedy.text));
        for (name, what) in [("risk", &remedy.risk), ("way back", &remedy.rollback)] {
            if !what.is_empty() {
                let _ = write!(text, "; {name}: {}", plain(what));
            }
        }
        self.line(text);
        for command in remedy.commands.iter().filter(|c| !c.is_empty()) {
            match command.strip_prefix("redis-cli ").filter(|_| remedy.exact && is_runnable(command)) {
                // A parameter has one value: the first finding's, which costs most.
                Some(_) if setting_of(command).is_some_and(|s| !self.set.insert(s.to_string())) => {
                    self.line(format!("#      {}   (set above)", plain(command)));
                }
                Some(rest) => self.line(format!("redis-cli{} {rest}", if self.tls { " --tls" } else { "" })),
                None => self.line(format!("#      {}", plain(command))),
            }
        }
    }

    fn line(&mut self, line: String) {
        if self.seen.insert(line.clone()) {
            self.out += &line;
            self.out.push('\n');
        }
    }
}

/// A line of `redis-cli` that names its server and means to `sh` what it says: plain words, or plain words in quotes.
fn is_runnable(command: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:/@%+,=-".contains(c);
    let Some(rest) = command.strip_prefix("redis-cli -h ").or_else(|| command.strip_prefix("redis-cli -s ")) else {
        return false;
    };
    // Outside of quotes a space ends a word; inside it is one more letter.
    let parts: Vec<&str> = rest.split('"').collect();
    let balanced = parts.len() % 2 == 1;
    balanced
        && !rest.starts_with([' ', '-', '"'])
        && parts.iter().all(|part| part.chars().all(|c| plain(c) || c == ' '))
}

/// Without what would end its line.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || "\u{2028}\u{2029}".contains(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn recorded() -> Report {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../explain/doctor/tests/facts/big_key.json");
        let facts = unslow_facts::Facts::from_json(&std::fs::read_to_string(path).unwrap()).unwrap();
        let report = unslow_doctor::diagnose(&facts, &[]);
        assert!(report.findings.iter().any(|f| !f.remedies.is_empty()));
        report
    }

    #[test]
    fn a_parameter_of_a_server_is_set_once() {
        let set = |port: u16, ms: u32| format!("redis-cli -h 10.0.0.1 -p {port} CONFIG SET cluster-node-timeout {ms}");
        let commands = [set(1, 12501), set(2, 12501), set(1, 10001)];
        let script = script(&with(&commands.each_ref().map(String::as_str), true));
        let run: Vec<&str> = script.lines().filter(|l| l.starts_with("redis-cli ")).collect();
        assert_eq!(run, [set(1, 12501), set(2, 12501)], "{script}");
        assert!(script.contains("10001   (set above)"), "{script}");
    }

    /// A report whose only remedies have these commands.
    fn with(commands: &[&str], exact: bool) -> Report {
        let mut report = recorded();
        for finding in &mut report.findings {
            finding.remedies.truncate(1);
            for remedy in &mut finding.remedies {
                remedy.exact = exact;
                remedy.commands = commands.iter().map(ToString::to_string).collect();
            }
        }
        report
    }

    /// The lines that would be run, without what makes `redis-cli` strict.
    fn run(plan: &str) -> Vec<&str> {
        let rest = plan.strip_prefix(PREAMBLE).unwrap_or(plan);
        let rest = rest.split_once(PREAMBLE).map_or(rest, |(_, after)| after);
        rest.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).collect()
    }

    #[test]
    fn words_of_a_server_cannot_leave_their_comment() {
        let mut report = with(
            &[
                "redis-cli -h h; touch /tmp/a",
                "redis-cli -h h\ntouch /tmp/b",
                "redis-cli -h h `touch /tmp/c`",
                "redis-cli -h h $(touch /tmp/d)",
                "redis-cli -h h 'x' PING",
                "redis-cli -h h -p 1 \"$(touch /tmp/e)\"",
                "redis-cli -h h -p 1 CONFIG SET save \"",
                "redis-cli -h h > /tmp/f",
                "redis-cli -h h CONFIG SET x <bytes>",
                "redis-cli -h good -p 1 PING",
            ],
            true,
        );
        report.deployment.url = "redis://a\ntouch /tmp/url".into();
        for finding in &mut report.findings {
            finding.title = "x\ntouch /tmp/title\u{2028}touch /tmp/line".into();
            for remedy in &mut finding.remedies {
                remedy.rollback = "y\r\ntouch /tmp/way-back".into();
            }
        }
        let plan = script(&report);
        assert_eq!(run(&plan), ["redis-cli -h good -p 1 PING"], "{plan}");
    }

    #[test]
    fn what_needs_no_choice_is_run_once_and_the_rest_is_comment() {
        let commands = [
            "redis-cli -h 10.0.0.1 -p 7000 CONFIG SET save \"3600 1\"",
            "redis-cli -h 10.0.0.2 -p 7000 CONFIG SET save \"\"",
            "redis-cli -s /run/redis.sock CONFIG SET maxmemory 100",
            "redis-cli -h 10.0.0.1 -p 7000 CONFIG SET save \"3600 1\"",
            "SCAN 0 COUNT 100",
        ];
        let plan = script(&with(&commands, true));
        assert_eq!(run(&plan), &commands[..3], "{plan}");
        assert!(plan.contains("\nset -e\n") && plan.contains("#      SCAN 0 COUNT 100"), "{plan}");
        let lines: Vec<&str> = plan.lines().filter(|l| !l.is_empty()).collect();
        assert_eq!(lines.iter().collect::<BTreeSet<_>>().len(), lines.len(), "a line stands there twice: {plan}");
        let mut encrypted = with(&commands, true);
        encrypted.deployment.url = "rediss://10.0.0.1:7000".into();
        assert!(run(&script(&encrypted)).iter().all(|l| l.starts_with("redis-cli --tls -")));
        let choices = script(&with(&commands, false));
        assert!(run(&choices).is_empty() && !choices.contains("set -e"), "{choices}");
        // Nothing is said of what has no risk and no way back.
        let mut silent = with(&[], true);
        for remedy in silent.findings.iter_mut().flat_map(|f| &mut f.remedies) {
            (remedy.risk, remedy.rollback) = (String::new(), String::new());
        }
        let silent = script(&silent);
        assert!(!silent.contains("risk:") && !silent.contains("way back:"), "{silent}");
    }

    #[test]
    fn the_first_refusal_ends_the_script() {
        let dir = tempfile::tempdir().unwrap();
        let cli = dir.path().join("redis-cli");
        // As redis-cli does: an error reply is printed, and the status is 0.
        std::fs::write(
            &cli,
            "#!/bin/sh\ncase \"$*\" in *bad*) echo \"(error) ERR refused\" ;; *) echo \"OK $*\" ;; esac\n",
        )
        .unwrap();
        std::fs::set_permissions(&cli, std::fs::Permissions::from_mode(0o755)).unwrap();
        let plan = dir.path().join("plan.sh");
        let commands = [
            "redis-cli -h a -p 1 CONFIG SET save \"1 2\"",
            "redis-cli -h b -p 1 bad",
            "redis-cli -h c -p 1 CONFIG SET save \"\"",
        ];
        std::fs::write(&plan, script(&with(&commands, true))).unwrap();
        for shell in ["sh", "bash"] {
            let path = format!("{}:/usr/bin:/bin", dir.path().display());
            let ran = Command::new(shell).arg(&plan).env("PATH", path).output();
            let Ok(ran) = ran else { continue }; // no bash here
            let said = String::from_utf8_lossy(&ran.stdout).into_owned();
            assert_eq!(said, "OK --no-raw -h a -p 1 CONFIG SET save 1 2\n(error) ERR refused\n", "{shell}: {ran:?}");
            assert_eq!(ran.status.code(), Some(1), "{shell}");
        }
    }
}
