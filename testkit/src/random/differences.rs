//! What counts as a difference between two replies. Each test lists the differences that it allows, with their reasons;
//! anything else is a defect. Those of any two servers are here.

use super::session::{Words, word};
use crate::wire::elements;

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
    /// The user, the protocol or the database has changed since keys were watched.
    pub watch_left: bool,
    /// The pipeline contains an HTTP request, and both connections were closed.
    pub aborted: bool,
    /// There is no command: `tested` is a message that the client had once before it left its last subscription.
    pub again: bool,
    /// `None` where the connection was closed instead.
    pub direct: Option<&'a [u8]>,
    pub tested: Option<&'a [u8]>,
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

/// For lists of them.
pub const fn difference(
    name: &'static str,
    then: Then,
    applies: fn(&Exchange<'_>) -> bool,
    reason: &'static str,
) -> Difference {
    Difference { name, reason, then, applies }
}

/// The result of comparing two replies.
pub enum Verdict {
    Same,
    Known(&'static Difference),
    Unknown,
}

impl Exchange<'_> {
    /// Of these differences the first that applies is counted.
    pub fn verdict(&self, allowed: &'static [Difference]) -> Verdict {
        let same = match (self.direct, self.tested) {
            (Some(direct), Some(tested)) => direct == tested || self.comparable(false).is_some_and(|(a, b)| a == b),
            (direct, tested) => direct == tested,
        };
        if same {
            return Verdict::Same;
        }
        allowed.iter().find(|d| (d.applies)(self)).map_or(Verdict::Unknown, Verdict::Known)
    }

    /// Both replies in canonical order; `masked` also hides times.
    fn comparable(&self, masked: bool) -> Option<(Vec<u8>, Vec<u8>)> {
        let of = |reply: &[u8]| comparable(self.words, self.queued, reply, masked);
        Some((of(self.direct?), of(self.tested?)))
    }

    /// The command's name, in capitals.
    pub fn name(&self) -> String {
        word(self.words, 0)
    }

    /// Both replies, if neither connection was closed instead.
    pub fn both(&self) -> Option<(&[u8], &[u8])> {
        Some((self.direct?, self.tested?))
    }

    /// Whether both replies begin with one of these bytes.
    pub fn both_begin(&self, kinds: &[u8]) -> bool {
        self.both().is_some_and(|(a, b)| [a, b].iter().all(|reply| reply.first().is_some_and(|b| kinds.contains(b))))
    }
}

// Differences of any two servers.

/// CLIENT ID: each server counts its own clients.
pub fn client_id(exchange: &Exchange<'_>) -> bool {
    exchange.name() == "CLIENT" && word(exchange.words, 1) == "ID" && exchange.both_begin(b":")
}

/// HELLO, if these fields are the same.
pub fn hello(exchange: &Exchange<'_>, compared: &[&str]) -> bool {
    let fields = |reply| {
        let all = elements(reply)?;
        let pairs = all.chunks_exact(2).map(|pair| (pair[0].to_vec(), pair[1].to_vec()));
        let compared = |name: &[u8]| compared.iter().any(|field| ends(name, field.as_bytes()));
        Some(pairs.filter(|(name, _)| compared(name)).collect::<Vec<_>>())
    };
    let kinds = exchange.both_begin(b"%") || exchange.both_begin(b"*");
    exchange.name() == "HELLO" && kinds && exchange.both().is_some_and(|(a, b)| fields(a) == fields(b))
}

/// Replies before an HTTP request, after which both connections were closed.
pub fn replies_before_http(exchange: &Exchange<'_>) -> bool {
    exchange.aborted && exchange.both().is_none()
}

/// Replies that tell the time, or how long ago something was.
pub fn clock(exchange: &Exchange<'_>) -> bool {
    exchange.comparable(true).is_some_and(|(a, b)| a == b)
}

/// Any elements, as many on both sides; also where EXEC ran the command that picks them.
pub fn chance(exchange: &Exchange<'_>) -> bool {
    exchange.both().is_some_and(|(direct, tested)| match exchange.name().as_str() {
        "EXEC" => chance_within(exchange.queued, direct, tested),
        _ => picked(exchange.words, direct, tested),
    })
}

/// EXEC's replies, of which each is that of the command queued at its place: all others are the same, but for the time
/// they tell.
fn chance_within(queued: &[Words], direct: &[u8], tested: &[u8]) -> bool {
    let (Some(a), Some(b)) = (elements(direct), elements(tested)) else { return false };
    let same =
        |words: &[Vec<u8>], a: &[u8], b: &[u8]| comparable(words, &[], a, true) == comparable(words, &[], b, true);
    let mut parts = queued.iter().zip(a.iter().zip(&b));
    !queued.is_empty()
        && [a.len(), b.len()] == [queued.len(); 2]
        && parts.all(|(words, (a, b))| same(words, a, b) || picked(words, a, b))
}

/// Whether a command picks any elements, and has picked as many on both sides.
fn picked(words: &[Vec<u8>], direct: &[u8], tested: &[u8]) -> bool {
    let random = matches!(word(words, 0).as_str(), "HRANDFIELD" | "RANDOMKEY" | "SRANDMEMBER" | "ZRANDMEMBER");
    let shape = |reply: &[u8]| (reply.first().copied(), elements(reply).map(|all| all.len()));
    random && shape(direct) == shape(tested)
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
        // What is not sorted stands as the set or the list has it.
        ("SORT" | "SORT_RO", _) if has("NOSORT") => Order::Any(1),
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

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: &[Difference] = &[
        difference("clock", Then::Continue, clock, "time passes"),
        difference("chance", Then::Continue, chance, "the server picks"),
    ];

    fn words(line: &str) -> Words {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    fn compared(line: &str, direct: &str, tested: &str) -> Verdict {
        compared_within(&[], line, direct, tested)
    }

    fn compared_within(queued: &[&str], line: &str, direct: &str, tested: &str) -> Verdict {
        let (words, queued) = (words(line), queued.iter().map(|line| words(line)).collect::<Vec<_>>());
        let exchange = Exchange {
            cluster: false,
            words: &words,
            queued: &queued,
            within: false,
            watch_left: false,
            aborted: false,
            again: false,
            direct: Some(direct.as_bytes()),
            tested: Some(tested.as_bytes()),
        };
        exchange.verdict(ALLOWED)
    }

    #[test]
    fn elements_without_an_order_are_compared_as_often_as_they_occur() {
        let ab = "*2\r\n$1\r\na\r\n$1\r\nb\r\n";
        let ba = "*2\r\n$1\r\nb\r\n$1\r\na\r\n";
        let aa = "*2\r\n$1\r\na\r\n$1\r\na\r\n";
        for unordered in ["KEYS a*", "keys a*", "SMEMBERS t", "SORT t BY nosort GET #"] {
            assert!(matches!(compared(unordered, ab, ba), Verdict::Same), "{unordered}");
            assert!(matches!(compared(unordered, ab, aa), Verdict::Unknown), "{unordered}");
        }
        for ordered in ["LRANGE l 0 -1", "SORT t ALPHA"] {
            assert!(matches!(compared(ordered, ab, ba), Verdict::Unknown), "{ordered}");
        }
    }

    #[test]
    fn chance_is_known_within_exec_by_the_command_at_that_place() {
        let queued = ["HSET h f1 1", "HRANDFIELD h 1", "TTL s"];
        let exec = |first: &str, field: &str, ttl: &str| {
            format!("*3\r\n{first}\r\n*1\r\n${}\r\n{field}\r\n{ttl}\r\n", field.len())
        };
        let verdict = |tested: &str| compared_within(&queued, "EXEC", &exec(":1", "f1", ":100"), tested);
        assert!(matches!(verdict(&exec(":1", "f1", ":100")), Verdict::Same));
        for tested in [exec(":1", "other", ":100"), exec(":1", "f2", ":99")] {
            assert!(matches!(verdict(&tested), Verdict::Known(Difference { name: "chance", .. })), "{tested}");
        }
        let two = "*3\r\n:1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n:100\r\n";
        for tested in [
            exec(":0", "f2", ":100").as_str(),
            exec(":1", "f2", ":-1").as_str(),
            two,
            "*-1\r\n",
            "*2\r\n:1\r\n*1\r\n$2\r\nf2\r\n",
        ] {
            assert!(matches!(verdict(tested), Verdict::Unknown), "{tested}");
        }
        let swapped = ["HRANDFIELD h 1", "HSET h f1 1", "TTL s"];
        let verdict = compared_within(&swapped, "EXEC", &exec(":1", "f1", ":100"), &exec(":1", "f2", ":100"));
        assert!(matches!(verdict, Verdict::Unknown), "the elements are another command's");
    }

    #[test]
    fn only_replies_that_tell_the_time_may_have_other_numbers() {
        assert!(matches!(compared("TTL s", ":100\r\n", ":99\r\n"), Verdict::Known(_)));
        assert!(matches!(compared("TTL s", ":100\r\n", ":-1\r\n"), Verdict::Unknown));
        assert!(matches!(compared("LLEN l", ":100\r\n", ":99\r\n"), Verdict::Unknown));
    }
}
