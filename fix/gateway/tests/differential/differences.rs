//! The differences that are allowed between the gateway and a server, each with its reason. Anything else is a defect.

use crate::common::wire::elements;
use crate::session::{Words, word};

/// One reply of each side to the same command.
pub struct Exchange<'a> {
    /// The deployment is a cluster.
    pub cluster: bool,
    /// Empty where the bytes sent were no command.
    pub words: &'a [Vec<u8>],
    /// The commands that EXEC runs.
    pub queued: &'a [Words],
    /// The command was sent within MULTI.
    pub within: bool,
    /// The pipeline contains an HTTP request, and both connections were closed.
    pub aborted: bool,
    /// `None` where the connection was closed instead.
    pub direct: Option<&'a [u8]>,
    pub gateway: Option<&'a [u8]>,
}

/// Whether later commands can still be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Continue,
    /// The two sides are no longer in the same state: the client reconnects with new keys.
    StartAfresh,
}

/// A documented difference.
pub struct Difference {
    pub name: &'static str,
    pub reason: &'static str,
    pub then: Then,
    pub applies: fn(&Exchange<'_>) -> bool,
}

const fn difference(
    name: &'static str,
    then: Then,
    applies: fn(&Exchange<'_>) -> bool,
    reason: &'static str,
) -> Difference {
    Difference { name, reason, then, applies }
}

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
        hello,
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
        "a transaction without commands is never sent, so no server can refuse EXEC or DISCARD; nor those without MULTI",
    ),
];

/// The result of comparing two replies.
pub enum Verdict {
    Same,
    Known(&'static Difference),
    Unknown,
}

impl Exchange<'_> {
    pub fn verdict(&self) -> Verdict {
        let same = match (self.direct, self.gateway) {
            (Some(direct), Some(gateway)) => direct == gateway || self.comparable(false).is_some_and(|(a, b)| a == b),
            (direct, gateway) => direct == gateway,
        };
        if same {
            return Verdict::Same;
        }
        DIFFERENCES.iter().find(|d| (d.applies)(self)).map_or(Verdict::Unknown, Verdict::Known)
    }

    /// Both replies in canonical order; `masked` also hides times.
    fn comparable(&self, masked: bool) -> Option<(Vec<u8>, Vec<u8>)> {
        let of = |reply| comparable(self.words, self.queued, reply, masked);
        Some((of(self.direct?), of(self.gateway?)))
    }

    fn name(&self) -> String {
        word(self.words, 0)
    }

    /// Both replies, if neither connection was closed instead.
    fn both(&self) -> Option<(&[u8], &[u8])> {
        Some((self.direct?, self.gateway?))
    }

    /// Whether both replies begin with one of these bytes.
    fn both_begin(&self, kinds: &[u8]) -> bool {
        self.both().is_some_and(|(a, b)| [a, b].iter().all(|reply| reply.first().is_some_and(|b| kinds.contains(b))))
    }
}

// The differences.

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
    let own = exchange.gateway.and_then(|reply| reply.strip_prefix(b"-ERR unslow: "));
    own.is_some_and(|text| REFUSALS.iter().any(|refusal| text.windows(refusal.len()).any(|w| w == *refusal)))
}

fn client_id(exchange: &Exchange<'_>) -> bool {
    exchange.name() == "CLIENT" && word(exchange.words, 1) == "ID" && exchange.both_begin(b":")
}

fn hello(exchange: &Exchange<'_>) -> bool {
    let fields = |reply| {
        let all = elements(reply)?;
        let pairs = all.chunks_exact(2).map(|pair| (pair[0].to_vec(), pair[1].to_vec()));
        let compared = |name: &[u8]| [&b"server"[..], b"version", b"proto", b"role"].iter().any(|f| ends(name, f));
        Some(pairs.filter(|(name, _)| compared(name)).collect::<Vec<_>>())
    };
    let kinds = exchange.both_begin(b"%") || exchange.both_begin(b"*");
    exchange.name() == "HELLO" && kinds && exchange.both().is_some_and(|(a, b)| fields(a) == fields(b))
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

fn replies_before_http(exchange: &Exchange<'_>) -> bool {
    exchange.aborted && exchange.both().is_none()
}

fn clock(exchange: &Exchange<'_>) -> bool {
    exchange.comparable(true).is_some_and(|(a, b)| a == b)
}

fn chance(exchange: &Exchange<'_>) -> bool {
    let random = matches!(exchange.name().as_str(), "HRANDFIELD" | "RANDOMKEY" | "SRANDMEMBER" | "ZRANDMEMBER");
    let shape = |reply: &[u8]| (reply.first().copied(), elements(reply).map(|all| all.len()));
    random && exchange.both().is_some_and(|(a, b)| shape(a) == shape(b))
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
    let keyless = !exchange.words.iter().any(|word| word.starts_with(b"{"));
    let late = exchange.both().is_some_and(|(a, b)| a.starts_with(b"-") && b == b"+QUEUED\r\n");
    exchange.cluster && exchange.within && keyless && late
}

fn multi_refused(exchange: &Exchange<'_>) -> bool {
    let refused = exchange.both().is_some_and(|(a, b)| a.starts_with(b"-NOPERM") && b == b"+OK\r\n");
    exchange.name() == "MULTI" && refused
}

fn empty_transaction(exchange: &Exchange<'_>) -> bool {
    let refused = |reply: &[u8]| reply.starts_with(b"-NOPERM") || reply.starts_with(b"-EXECABORT");
    exchange.queued.is_empty()
        && exchange.both().is_some_and(|(a, b)| match exchange.name().as_str() {
            "EXEC" => refused(a) && (b == b"*0\r\n" || b.starts_with(b"-ERR EXEC without MULTI")),
            "DISCARD" => refused(a) && (b == b"+OK\r\n" || b.starts_with(b"-ERR DISCARD without MULTI")),
            _ => false,
        })
}

/// The code word of an error reply.
fn code(reply: &[u8]) -> Option<&[u8]> {
    reply.strip_prefix(b"-")?.split(|b| matches!(b, b' ' | b'\r')).next()
}

/// Whether a string frame ends with this text.
fn ends(frame: &[u8], text: &[u8]) -> bool {
    frame.strip_suffix(b"\r\n").is_some_and(|frame| frame.ends_with(text))
}

// Canonical replies.

/// How a server orders the elements of a reply.
enum Order {
    Kept,
    /// In any order, in groups of this many.
    Any(usize),
    /// A cursor, then elements in any order, in groups of this many.
    Scan(usize),
}

fn order(words: &[Vec<u8>]) -> Order {
    let has = |option: &str| words.iter().any(|word| word.eq_ignore_ascii_case(option.as_bytes()));
    match (word(words, 0).as_str(), word(words, 1).as_str()) {
        ("SMEMBERS" | "SUNION" | "SINTER" | "SDIFF" | "SPOP" | "HKEYS" | "HVALS" | "KEYS", _) => Order::Any(1),
        ("ACL", "CAT") | ("COMMAND", "LIST") => Order::Any(1),
        ("HGETALL", _) => Order::Any(2),
        ("SCAN" | "SSCAN", _) => Order::Scan(1),
        ("HSCAN", _) => Order::Scan(if has("NOVALUES") { 1 } else { 2 }),
        ("ZSCAN", _) => Order::Scan(if has("NOSCORES") { 1 } else { 2 }),
        _ => Order::Kept,
    }
}

/// Whether a reply depends on when it was asked for.
fn tells_time(words: &[Vec<u8>]) -> bool {
    const TIMES: [&str; 13] = [
        "EXPIRETIME",
        "HEXPIRETIME",
        "HPEXPIRETIME",
        "HPTTL",
        "HTTL",
        "LASTSAVE",
        "OBJECT",
        "PEXPIRETIME",
        "PTTL",
        "TIME",
        "TTL",
        "XINFO",
        "XPENDING",
    ];
    let name = word(words, 0);
    TIMES.contains(&name.as_str()) && (name != "OBJECT" || word(words, 1) == "IDLETIME")
}

/// A reply with its elements sorted if servers promise no order, and with times hidden if `masked`.
fn comparable(words: &[Vec<u8>], queued: &[Words], reply: &[u8], masked: bool) -> Vec<u8> {
    let Some(all) = elements(reply) else {
        return if masked && tells_time(words) { mask(reply) } else { reply.to_vec() };
    };
    let header = &reply[..reply.len() - all.iter().map(|e| e.len()).sum::<usize>()];
    if word(words, 0) == "EXEC" && all.len() == queued.len() {
        let parts = all.iter().zip(queued).map(|(part, words)| comparable(words, &[], part, masked));
        return parts.fold(header.to_vec(), |out, part| [out, part].concat());
    }
    if masked && tells_time(words) {
        return mask(reply);
    }
    match (order(words), all.as_slice()) {
        (Order::Any(together), _) => [header, &sorted(&all, together)].concat(),
        (Order::Scan(together), [cursor, page]) => {
            let items = elements(page).unwrap_or_default();
            [header, *cursor, &sorted(&items, together)].concat()
        }
        _ => reply.to_vec(),
    }
}

fn sorted(all: &[&[u8]], together: usize) -> Vec<u8> {
    let mut groups: Vec<Vec<u8>> = all.chunks(together).map(|group| group.concat()).collect();
    groups.sort();
    groups.concat()
}

/// A reply with `#` instead of each non-negative number and each string of digits.
fn mask(reply: &[u8]) -> Vec<u8> {
    if let Some(all) = elements(reply) {
        let header = &reply[..reply.len() - all.iter().map(|e| e.len()).sum::<usize>()];
        return all.iter().fold(header.to_vec(), |out, part| [out, mask(part)].concat());
    }
    let text = reply.strip_suffix(b"\r\n").unwrap_or(reply);
    let value = match text.split_first() {
        Some((b':', number)) => number,
        Some((b'$', blob)) => blob.splitn(2, |b| *b == b'\n').nth(1).unwrap_or_default(),
        _ => &[][..],
    };
    let number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    if number { b"#".to_vec() } else { reply.to_vec() }
}
