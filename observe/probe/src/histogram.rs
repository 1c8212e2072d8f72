//! LATENCY HISTOGRAM (7.0+), at the window's start and at its end: the difference is how long the calls in between
//! took.
//!
//! The reply has every command that was ever called, each with at most 21 ranges, each up to twice the one before.
//! Counts are cumulative within a reply, and ranges without calls are left out of it (fillCommandCDF() of latency.c).
//! In RESP2 a map is an array of keys and values in turn, and [`Value`] holds RESP3's maps in the same way.

use std::collections::BTreeMap;

use unslow_client::{Error, Value};
use unslow_facts::{Gap, Lack, Seen, TimeRange};

use crate::ask::{Ask, seen};

const SOURCE: &str = "LATENCY HISTOGRAM";
/// The first version that has it, in Redis' numbering.
const SINCE: (u32, u32) = (7, 0);

/// Calls since the server was started, or since CONFIG RESETSTAT: by command, and by the upper end of the range in us.
pub type Counted = BTreeMap<String, BTreeMap<u64, u64>>;

/// What had been counted when the window began.
pub fn at_start(ask: &mut Ask, level: (u32, u32)) -> Seen<Counted> {
    if level < SINCE {
        let why = format!("{SOURCE} needs 7.0 or newer; this server is older, or its version is unknown");
        return Seen::No(Gap::new(Lack::Version, why, ""));
    }
    seen(counted(ask), SOURCE)
}

/// What has been added since `before`.
pub fn at_end(ask: &mut Ask, before: &Counted) -> Seen<BTreeMap<String, Vec<TimeRange>>> {
    match counted(ask) {
        Ok(after) => {
            let grown = grown(before, &after);
            if grown.is_empty() && before.iter().any(|(name, then)| went_back(then, after.get(name))) {
                let why = format!("{SOURCE} was reset within the window (CONFIG RESETSTAT)");
                return Seen::No(Gap::new(Lack::Other, why, "run again, and reset nothing meanwhile"));
            }
            if grown.is_empty() {
                // INFO and this command itself were called in between.
                return Seen::No(Gap::new(
                    Lack::Other,
                    format!("{SOURCE} counts nothing: latency-tracking is off"),
                    "CONFIG SET latency-tracking yes",
                ));
            }
            seen(Ok(grown), SOURCE)
        }
        Err(e) => seen(Err(e), SOURCE),
    }
}

fn counted(ask: &mut Ask) -> Result<Counted, Error> {
    Ok(of_reply(&ask.call(&["LATENCY", "HISTOGRAM"])?))
}

/// Keys and values of a map.
fn pairs(map: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    map.items().chunks_exact(2).map(|pair| (&pair[0], &pair[1]))
}

fn of_reply(reply: &Value) -> Counted {
    pairs(reply).filter_map(|(name, of_command)| Some((name.text()?, ranges(of_command)))).collect()
}

/// Calls of one command by range, no longer cumulative.
fn ranges(of_command: &Value) -> BTreeMap<u64, u64> {
    let fields = pairs(of_command).filter(|(field, _)| field.text().as_deref() == Some("histogram_usec"));
    let number = |value: &Value| u64::try_from(value.integer()?).ok();
    let mut before = 0;
    fields
        .flat_map(|(_, ranges)| pairs(ranges))
        .filter_map(|(up_to_us, so_far)| {
            let so_far = number(so_far)?;
            let calls = so_far.checked_sub(std::mem::replace(&mut before, so_far))?;
            Some((number(up_to_us)?, calls))
        })
        .collect()
}

/// By command, the ranges that have more calls than before; a command whose counts went back (CONFIG RESETSTAT) is left
/// out.
fn grown(before: &Counted, after: &Counted) -> BTreeMap<String, Vec<TimeRange>> {
    let none = BTreeMap::new();
    let of_command = |(name, now): (&String, &BTreeMap<u64, u64>)| {
        let then = before.get(name).unwrap_or(&none);
        if went_back(then, Some(now)) {
            return None;
        }
        let added = now.iter().filter_map(|(up_to_us, calls)| {
            let calls = calls - then.get(up_to_us).unwrap_or(&0);
            (calls > 0).then_some(TimeRange { up_to_us: *up_to_us, calls })
        });
        let added: Vec<TimeRange> = added.collect();
        (!added.is_empty()).then(|| (name.clone(), added))
    };
    after.iter().filter_map(of_command).collect()
}

/// Whether some range of a command has fewer calls now.
fn went_back(then: &BTreeMap<u64, u64>, now: Option<&BTreeMap<u64, u64>>) -> bool {
    let calls_now = |up_to_us: &u64| now.and_then(|ranges| ranges.get(up_to_us)).copied().unwrap_or(0);
    then.iter().any(|(up_to_us, calls)| calls_now(up_to_us) < *calls)
}

#[cfg(test)]
mod tests {
    use unslow_client::Options;

    use super::*;
    use crate::fake::{bulk, server};

    /// A reply as a server sends it: commands with their ranges, cumulative.
    fn reply(protocol: u8, commands: &[(&str, &[(u64, u64)])]) -> String {
        let map = |pairs: usize| if protocol == 3 { format!("%{pairs}\r\n") } else { format!("*{}\r\n", pairs * 2) };
        let of_command = |(name, ranges): &(&str, &[(u64, u64)])| {
            let calls = ranges.last().map_or(0, |(_, so_far)| *so_far);
            let ranges = map(ranges.len())
                + &ranges.iter().map(|(us, so_far)| format!(":{us}\r\n:{so_far}\r\n")).collect::<String>();
            bulk(name) + &map(2) + &bulk("calls") + &format!(":{calls}\r\n") + &bulk("histogram_usec") + &ranges
        };
        map(commands.len()) + &commands.iter().map(of_command).collect::<String>()
    }

    fn ask(mut replies: Vec<String>, protocol: u8) -> Ask {
        replies.reverse();
        let target = server(move |words| match words[0].as_str() {
            "LATENCY" => replies.pop().unwrap_or_else(|| "-ERR asked too often\r\n".into()),
            "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n".into(),
            _ => "+PONG\r\n".into(),
        });
        Ask::open(&target, &Options { protocol, ..Options::default() }).unwrap()
    }

    fn range(up_to_us: u64, calls: u64) -> TimeRange {
        TimeRange { up_to_us, calls }
    }

    #[test]
    fn what_was_added_in_the_window_is_told_by_range() {
        let before: &[(&str, &[(u64, u64)])] =
            &[("get", &[(1, 90), (2, 99)]), ("client|list", &[(33, 5)]), ("keys", &[(4227, 3), (16908, 4)])];
        let after: &[(&str, &[(u64, u64)])] = &[
            ("get", &[(1, 190), (2, 200), (66, 203)]),
            ("client|list", &[(33, 5)]),
            ("keys", &[(4227, 3), (8454, 13), (16908, 16)]),
            ("lrange", &[(1_073_741, 2)]),
        ];
        for protocol in [2, 3] {
            let mut ask = ask(vec![reply(protocol, before), reply(protocol, after)], protocol);
            let start = at_start(&mut ask, (7, 0));
            let end = at_end(&mut ask, start.value().unwrap());
            let expected: BTreeMap<String, Vec<TimeRange>> = [
                ("get".to_string(), vec![range(1, 100), range(2, 1), range(66, 3)]),
                ("keys".to_string(), vec![range(8454, 10), range(16908, 2)]),
                ("lrange".to_string(), vec![range(1_073_741, 2)]),
            ]
            .into();
            assert_eq!(end.value(), Some(&expected), "RESP{protocol}");
        }
    }

    #[test]
    fn counts_that_went_back_are_no_difference() {
        let counted = |ranges: &[(u64, u64)]| Counted::from([("get".to_string(), ranges.iter().copied().collect())]);
        let before = counted(&[(1, 90), (4, 2)]);
        for (after, expected) in [
            (&[(1, 91), (4, 2)][..], Some(vec![range(1, 1)])),
            (&[(1, 91)], None),
            (&[(1, 10), (4, 5)], None),
            (&[(1, 90), (4, 2)], None),
        ] {
            assert_eq!(grown(&before, &counted(after)).remove("get"), expected, "{after:?}");
        }
    }

    #[test]
    fn a_refusal_an_old_server_and_tracking_that_is_off_are_gaps() {
        let denied = "-NOPERM this user has no permissions to run the 'latency|histogram' command\r\n";
        let mut refused = ask(vec![denied.to_string()], 2);
        let gap = at_start(&mut refused, (7, 2)).missing().cloned().unwrap();
        assert_eq!((gap.lack, gap.grant.as_deref()), (Lack::Rights, Some("ACL SETUSER <user> +latency|histogram")));
        let asked = refused.own.total;
        for level in [(6, 2), (0, 0)] {
            assert_eq!(at_start(&mut refused, level).missing().map(|gap| gap.lack), Some(Lack::Version), "{level:?}");
        }
        assert_eq!(refused.own.total, asked, "an old server is not asked");
        // Off from the beginning, and switched off since.
        let never: &[(&str, &[(u64, u64)])] = &[];
        let before: &[(&str, &[(u64, u64)])] = &[("get", &[(1, 90)])];
        for commands in [never, before] {
            let mut off = ask(vec![reply(2, commands), reply(2, commands)], 2);
            let start = at_start(&mut off, (7, 2));
            let end = at_end(&mut off, start.value().unwrap());
            assert!(end.missing().is_some_and(|gap| gap.why.contains("latency-tracking is off")), "{end:?}");
        }
    }

    #[test]
    fn counts_that_were_reset_are_no_tracking_that_is_off() {
        let before: &[(&str, &[(u64, u64)])] = &[("get", &[(1, 90)]), ("info", &[(66, 9)])];
        let fewer: &[(&str, &[(u64, u64)])] = &[("get", &[(1, 3)]), ("info", &[(66, 1)])];
        for after in [fewer, &[]] {
            let mut reset = ask(vec![reply(2, before), reply(2, after)], 2);
            let start = at_start(&mut reset, (7, 2));
            let end = at_end(&mut reset, start.value().unwrap());
            assert!(end.missing().is_some_and(|gap| gap.why.contains("RESETSTAT")), "{end:?}");
        }
    }

    #[test]
    fn replies_of_another_shape_count_nothing() {
        for reply in
            ["*0\r\n", "+OK\r\n", "*3\r\n$3\r\nget\r\n:1\r\n:2\r\n", "*2\r\n$3\r\nget\r\n*2\r\n$5\r\ncalls\r\n:1\r\n"]
        {
            let mut ask = ask(vec![reply.to_string()], 2);
            let counted = at_start(&mut ask, (7, 0));
            assert!(counted.value().is_some_and(|c| c.values().all(BTreeMap::is_empty)), "{reply:?}: {counted:?}");
        }
    }
}
