//! The differences that are allowed between the gateway and a server, each with its reason. Anything else is a defect.

use unslow_commands::number_of_keys;
use unslow_testkit::random::{
    Difference, Exchange, Then, chance, client_id, clock, difference, hello, replies_before_http,
};
use unslow_testkit::wire::elements;

/// The first one that applies is counted.
pub const DIFFERENCES: &[Difference] = &[
    difference(
        "the gateway's own refusals",
        Then::StartAfresh,
        own_refusal,
        "an error that begins with ERR unslow is the gateway's own: the command was not sent (docs/gateway.md)",
    ),
    difference(
        "CLIENT ID",
        Then::Continue,
        client_id,
        "clients have numbers of the gateway's: many of them share a connection to the server",
    ),
    difference(
        "HELLO",
        Then::Continue,
        hello_fields,
        "id, mode and modules: one address serves every slot, and modules are the servers'",
    ),
    difference(
        "wording",
        Then::Continue,
        wording,
        "the gateway answers commands about connections: the code word is the server's, the sentence its own",
    ),
    difference(
        "wording of protocol errors",
        Then::Continue,
        protocol_wording,
        "bytes that are no command are not forwarded, so the gateway itself says what is wrong with them",
    ),
    difference(
        "replies before HTTP",
        Then::Continue,
        replies_before_http,
        "a server drops the replies it has not yet written to a browser; how many depends on the network",
    ),
    difference(
        "clock",
        Then::Continue,
        clock,
        "the two servers are asked one after the other, and time passes in between",
    ),
    difference("chance", Then::Continue, chance, "the server picks any element; only how many there are is compared"),
    difference(
        "receivers of PUBLISH",
        Then::Continue,
        receivers,
        "a node counts only its own subscribers, and for a moment those whose connection was just closed",
    ),
    difference(
        "commands over several slots",
        Then::Continue,
        split,
        "DEL, UNLINK, EXISTS, TOUCH, MGET and MSET are split by slot (docs/gateway.md); a node refuses them",
    ),
    difference(
        "WATCH before AUTH, HELLO or SELECT",
        Then::StartAfresh,
        watch_left,
        "who one is, the protocol and the database belong to server connections, and so does WATCH: EXEC answers nil \
         (docs/gateway.md)",
    ),
    difference(
        "no key within MULTI",
        Then::Continue,
        queued_without_a_node,
        "MULTI is sent with the first key, which tells the node (DESIGN.md): until then errors wait for EXEC",
    ),
    difference(
        "MULTI refused",
        Then::StartAfresh,
        multi_refused,
        "MULTI is sent with the first command (DESIGN.md): a user who may not run it is refused then",
    ),
    difference(
        "empty transactions",
        Then::StartAfresh,
        empty_transaction,
        "a transaction without commands is never sent, so no server can refuse EXEC or DISCARD; nor those without \
         MULTI",
    ),
    difference(
        "EXEC refused as spoiled",
        Then::StartAfresh,
        refused_as_spoiled,
        "a transaction of which the gateway refused a command is never run, so no server can refuse EXEC \
         (docs/gateway.md)",
    ),
    difference(
        "late messages",
        Then::Continue,
        late_message,
        "nodes pass messages on in their own time: who subscribes anew may get one again, on another node \
         (docs/gateway.md)",
    ),
];

fn own_refusal(exchange: &Exchange<'_>) -> bool {
    // Only deliberate refusals. A broken connection is a finding: no server fails in this test.
    const REFUSALS: [&[u8]; 7] = [
        b"client tracking needs RESP3",
        b"goes to several nodes",
        b"is about the connection",
        b"is answered for all nodes",
        b"is for one node",
        b"replication does not go through a gateway",
        b"servers are not paused through a gateway",
    ];
    let own = exchange.tested.and_then(|reply| reply.strip_prefix(b"-ERR unslow: "));
    own.is_some_and(|text| REFUSALS.iter().any(|refusal| text.windows(refusal.len()).any(|w| w == *refusal)))
}

fn hello_fields(exchange: &Exchange<'_>) -> bool {
    hello(exchange, &["server", "version", "proto", "role"])
}

fn wording(exchange: &Exchange<'_>) -> bool {
    const OWN: [&str; 12] = [
        "AUTH",
        "CLIENT",
        "CLUSTER",
        "HELLO",
        "PSUBSCRIBE",
        "QUIT",
        "RESET",
        "SELECT",
        "SSUBSCRIBE",
        "SUBSCRIBE",
        "PING",
        "WATCH",
    ];
    let refused = |reply: &[u8]| reply.starts_with(b"-ERR Can't execute '");
    exchange.both().is_some_and(|(a, b)| {
        let own = OWN.contains(&exchange.name().as_str()) || refused(a) && refused(b);
        own && code(a).is_some() && code(a) == code(b)
    })
}

fn protocol_wording(exchange: &Exchange<'_>) -> bool {
    let error = |reply: &[u8]| reply.starts_with(b"-ERR Protocol error: ");
    exchange.words.is_empty() && exchange.both().is_some_and(|(a, b)| error(a) && error(b))
}

fn receivers(exchange: &Exchange<'_>) -> bool {
    matches!(exchange.name().as_str(), "PUBLISH" | "SPUBLISH") && exchange.both_begin(b":")
}

fn split(exchange: &Exchange<'_>) -> bool {
    let Some((direct, gateway)) = exchange.both() else { return false };
    let fits = match exchange.name().as_str() {
        "DEL" | "UNLINK" | "EXISTS" | "TOUCH" => gateway.first() == Some(&b':'),
        "MGET" => elements(gateway).is_some_and(|all| all.len() + 1 == exchange.words.len()),
        "MSET" => gateway == b"+OK\r\n",
        _ => false,
    };
    exchange.cluster && !exchange.within && direct.starts_with(b"-CROSSSLOT") && fits
}

fn queued_without_a_node(exchange: &Exchange<'_>) -> bool {
    // Which subcommands there are the server's table tells.
    let untold = |reply: &[u8]| reply.starts_with(b"-") && !reply.starts_with(b"-ERR unknown subcommand");
    let late = exchange.both().is_some_and(|(a, b)| untold(a) && b == b"+QUEUED\r\n");
    exchange.cluster && exchange.within && keyless(exchange.words) && late
}

/// Words that look like keys are none where the number in front of them announces none, or without the word that stands
/// before them.
fn keyless(words: &[Vec<u8>]) -> bool {
    let counted = |at: usize| words.get(at).is_some_and(|count| number_of_keys(count) < 1);
    let name = words.first().map(|name| String::from_utf8_lossy(name).to_uppercase());
    let none = match name.unwrap_or_default().as_str() {
        "EVAL" | "EVALSHA" | "FCALL" | "BLMPOP" | "BZMPOP" => counted(2),
        "LMPOP" | "SINTERCARD" | "ZDIFF" | "ZINTER" | "ZINTERCARD" | "ZMPOP" | "ZUNION" => counted(1),
        "XREAD" | "XREADGROUP" => !words.iter().any(|word| word.eq_ignore_ascii_case(b"STREAMS")),
        _ => false,
    };
    none || !words.iter().any(|word| word.starts_with(b"{"))
}

fn watch_left(exchange: &Exchange<'_>) -> bool {
    let Some((direct, gateway)) = exchange.both() else { return false };
    let failed = exchange.name() == "EXEC" && matches!(gateway, b"*-1\r\n" | b"_\r\n");
    // Nothing of that transaction is sent, so no server refuses a part of it.
    let late = exchange.within && direct.starts_with(b"-") && gateway == b"+QUEUED\r\n";
    exchange.watch_left && (failed || late)
}

fn multi_refused(exchange: &Exchange<'_>) -> bool {
    let refused = exchange.both().is_some_and(|(a, b)| a.starts_with(b"-NOPERM") && b == b"+OK\r\n");
    exchange.name() == "MULTI" && refused
}

fn empty_transaction(exchange: &Exchange<'_>) -> bool {
    let refused = |reply: &[u8]| reply.starts_with(b"-NOPERM") || reply.starts_with(b"-EXECABORT");
    // Without a key there is no node to send it to.
    let discards = exchange.cluster && exchange.name() == "DISCARD";
    let unsent = exchange.queued.iter().all(|words| discards && keyless(words));
    // How many arguments there may be the gateway knows by itself.
    unsent
        && exchange.words.len() == 1
        && exchange.both().is_some_and(|(a, b)| match exchange.name().as_str() {
            "EXEC" => refused(a) && (b == b"*0\r\n" || b.starts_with(b"-ERR EXEC without MULTI")),
            "DISCARD" => refused(a) && (b == b"+OK\r\n" || b.starts_with(b"-ERR DISCARD without MULTI")),
            _ => false,
        })
}

fn refused_as_spoiled(exchange: &Exchange<'_>) -> bool {
    const SPOILED: &[u8] = b"-EXECABORT Transaction discarded because of previous errors.\r\n";
    let refused = |reply: &[u8]| reply.starts_with(b"-EXECABORT Transaction discarded because of: NOPERM ");
    let refused = exchange.both().is_some_and(|(a, b)| refused(a) && b == SPOILED);
    exchange.name() == "EXEC" && exchange.within && refused
}

fn late_message(exchange: &Exchange<'_>) -> bool {
    // Messages of shard channels come from one node.
    let passed_on = |message: &[u8]| {
        let kind = elements(message).and_then(|all| all.first().map(|kind| kind.to_vec()));
        kind.is_some_and(|kind| [&b"$7\r\nmessage\r\n"[..], b"$8\r\npmessage\r\n"].contains(&kind.as_slice()))
    };
    exchange.cluster && exchange.again && exchange.tested.is_some_and(passed_on)
}

/// The code word of an error reply.
fn code(reply: &[u8]) -> Option<&[u8]> {
    reply.strip_prefix(b"-")?.split(|b| matches!(b, b' ' | b'\r')).next()
}

#[cfg(test)]
mod tests {
    use unslow_testkit::random::Verdict;

    use super::*;

    fn named(exchange: &Exchange<'_>) -> &'static str {
        match exchange.verdict(DIFFERENCES) {
            Verdict::Same => "same",
            Verdict::Known(known) => known.name,
            Verdict::Unknown => "unknown",
        }
    }

    /// What becomes of two replies to a command within MULTI in a cluster.
    fn within(line: &str, direct: &str, gateway: &str) -> &'static str {
        let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        named(&Exchange {
            cluster: true,
            words: &words,
            queued: &[],
            within: true,
            watch_left: false,
            aborted: false,
            again: false,
            direct: Some(direct.as_bytes()),
            tested: Some(gateway.as_bytes()),
        })
    }

    #[test]
    fn only_commands_that_name_no_key_may_be_refused_late() {
        for (line, late) in [
            ("EVAL text -1 {tag}s1", true),
            ("eval text 0 {tag}s1", true),
            ("EVAL text garbage {tag}s1", true),
            ("ZDIFF 0 {tag}z1", true),
            ("XREAD COUNT 3 {tag}x1 0", true),
            ("ECHO text", true),
            ("EVAL text 1 {tag}s1", false),
            ("ZDIFF 1e400 {tag}z1", false),
            ("XREAD STREAMS {tag}x1 0", false),
            ("GET {tag}s1", false),
        ] {
            let expected = if late { "no key within MULTI" } else { "unknown" };
            assert_eq!(within(line, "-NOPERM no right\r\n", "+QUEUED\r\n"), expected, "{line}");
        }
    }

    #[test]
    fn discard_may_go_unrefused_only_where_nothing_was_sent() {
        let after = |queued: &[&str]| {
            let split = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
            let queued: Vec<_> = queued.iter().map(|line| split(line)).collect();
            named(&Exchange {
                cluster: true,
                words: &split("DISCARD"),
                queued: &queued,
                within: true,
                watch_left: false,
                aborted: false,
                again: false,
                direct: Some(b"-NOPERM no right to DISCARD\r\n"),
                tested: Some(b"+OK\r\n"),
            })
        };
        assert_eq!(after(&[]), "empty transactions");
        assert_eq!(after(&["COMMAND INFO GET", "PING"]), "empty transactions");
        assert_eq!(after(&["PING", "GET {t}k"]), "unknown");
    }

    #[test]
    fn a_spoiled_transaction_may_hide_only_that_the_user_may_not_exec() {
        let previous = "-EXECABORT Transaction discarded because of previous errors.\r\n";
        let refused = "-EXECABORT Transaction discarded because of: NOPERM User u has no permissions\r\n";
        let arity = "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n";
        assert_eq!(within("EXEC", refused, previous), "EXEC refused as spoiled");
        assert_eq!(within("EXEC more", arity, previous), "unknown");
        assert_eq!(within("EXEC", previous, refused), "unknown");
        assert_eq!(within("SET {tag}s1 v", refused, previous), "unknown");
    }

    #[test]
    fn only_messages_that_nodes_pass_on_may_come_again() {
        let verdict = |cluster: bool, again: bool, kind: &str| {
            let message = format!("*3\r\n${}\r\n{kind}\r\n$1\r\nc\r\n$4\r\ntext\r\n", kind.len());
            named(&Exchange {
                cluster,
                words: &[],
                queued: &[],
                within: false,
                watch_left: false,
                aborted: false,
                again,
                direct: None,
                tested: Some(message.as_bytes()),
            })
        };
        assert_eq!(verdict(true, true, "message"), "late messages");
        assert_eq!(verdict(true, true, "pmessage"), "late messages");
        for (cluster, again, kind) in
            [(true, true, "smessage"), (true, false, "message"), (false, true, "message"), (true, true, "subscribe")]
        {
            assert_eq!(verdict(cluster, again, kind), "unknown", "{cluster} {again} {kind}");
        }
    }

    #[test]
    fn exec_may_answer_nil_only_when_what_was_watched_was_left() {
        let words = [b"EXEC".to_vec()];
        let verdict = |watch_left: bool, gateway: &[u8]| {
            let exchange = Exchange {
                cluster: false,
                words: &words,
                queued: &[],
                within: true,
                watch_left,
                aborted: false,
                again: false,
                direct: Some(b"*0\r\n"),
                tested: Some(gateway),
            };
            named(&exchange)
        };
        assert_eq!(verdict(true, b"*-1\r\n"), "WATCH before AUTH, HELLO or SELECT");
        assert_eq!(verdict(false, b"*-1\r\n"), "unknown");
        assert_eq!(verdict(true, b"-ERR other\r\n"), "unknown");
    }
}
