//! A master's slots with the most keys, and with the most main thread time where the server counts that: CLUSTER
//! SLOT-STATS.
//!
//! The server sorts the slots it owns for each question, O(n log n). It always counts keys, and time with
//! `cluster-slot-stats-enabled yes` only. CLUSTER COUNTKEYSINSLOT, which older servers have, would be a question for
//! each slot.

use unslow_client::{Error, Value};
use unslow_facts::{Gap, Lack, Node, Seen, SlotStat};

use crate::ask::{Ask, seen};

const SOURCE: &str = "CLUSTER SLOT-STATS";
/// Slots of each order.
const MOST: &str = "5";

pub fn look(ask: &mut Ask, node: &Node) -> Seen<Vec<SlotStat>> {
    if !is_known(node) {
        let why = format!("{SOURCE} needs Valkey 8.0 or Redis 8.2; this server is older, or its version is unknown");
        return Seen::No(Gap::new(Lack::Version, why, ""));
    }
    let counts_time = node.setting("cluster-slot-stats-enabled") == Some("yes");
    seen(both(ask, counts_time), SOURCE)
}

fn is_known(node: &Node) -> bool {
    let Some(info) = node.info() else { return false };
    let least = if info.product() == "Valkey" { (8, 0) } else { (8, 2) };
    info.version().is_some_and(|(major, minor, _)| (major, minor) >= least)
}

fn both(ask: &mut Ask, counts_time: bool) -> Result<Vec<SlotStat>, Error> {
    let mut all = ordered(ask, "KEY-COUNT")?;
    if counts_time {
        for stat in ordered(ask, "CPU-USEC")? {
            if !all.iter().any(|known| known.slot == stat.slot) {
                all.push(stat);
            }
        }
    }
    Ok(all)
}

fn ordered(ask: &mut Ask, by: &str) -> Result<Vec<SlotStat>, Error> {
    Ok(of_reply(&ask.call(&["CLUSTER", "SLOT-STATS", "ORDERBY", by, "LIMIT", MOST, "DESC"])?))
}

/// Each slot is its number and a map; in RESP2 that is an array of keys and values in turn, as [`Value`] holds RESP3's.
fn of_reply(reply: &Value) -> Vec<SlotStat> {
    let number = |value: &Value| u64::try_from(value.integer()?).ok();
    let stat = |row: &Value| {
        let [slot, counted, ..] = row.items() else { return None };
        Some(SlotStat {
            slot: u16::try_from(number(slot)?).ok()?,
            keys: number(counted.get("key-count")?)?,
            cpu_us: counted.get("cpu-usec").and_then(number),
        })
    };
    reply.items().iter().filter_map(stat).collect()
}

#[cfg(test)]
mod tests {
    use unslow_client::Options;
    use unslow_facts::Sample;
    use unslow_topology::{Info, Role};

    use super::*;
    use crate::fake::server;

    fn node(info: &str, counts_time: bool) -> Node {
        let first = Some(Sample { at_ms: 1, info: Info::parse(info) });
        let value = [("cluster-slot-stats-enabled".to_string(), if counts_time { "yes" } else { "no" }.to_string())];
        let config = Seen::yes(value.into(), "CONFIG GET", 1);
        Node { first, config, ..Node::new("h:1", Role::Master) }
    }

    const VALKEY: &str = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n";

    /// Slot 7 has the most keys, slot 9 takes the most time.
    fn answers(words: &[String]) -> String {
        let row = |slot: u16, keys: u64, us: u64| {
            format!("*2\r\n:{slot}\r\n*4\r\n$9\r\nkey-count\r\n:{keys}\r\n$8\r\ncpu-usec\r\n:{us}\r\n")
        };
        match words.get(3).map(String::as_str) {
            Some("KEY-COUNT") => format!("*2\r\n{}{}", row(7, 900, 5), row(8, 2, 6)),
            Some("CPU-USEC") => format!("*2\r\n{}{}", row(9, 1, 700), row(8, 2, 6)),
            _ => "+PONG\r\n".into(),
        }
    }

    fn looked(info: &str, counts_time: bool) -> Seen<Vec<SlotStat>> {
        let mut ask = Ask::open(&server(answers), &Options::default()).unwrap();
        look(&mut ask, &node(info, counts_time))
    }

    #[test]
    fn slots_are_listed_by_their_keys_and_by_their_time_where_that_is_counted() {
        let slots = |seen: Seen<Vec<SlotStat>>| -> Vec<u16> { seen.value().unwrap().iter().map(|s| s.slot).collect() };
        assert_eq!(slots(looked(VALKEY, false)), [7, 8]);
        assert_eq!(slots(looked(VALKEY, true)), [7, 8, 9]);
        let first = looked(VALKEY, true).value().unwrap()[0];
        assert_eq!(first, SlotStat { slot: 7, keys: 900, cpu_us: Some(5) });
    }

    #[test]
    fn servers_that_do_not_have_it_are_not_asked() {
        for info in ["redis_version:7.2.4\r\n", "redis_version:8.0.1\r\n", ""] {
            let seen = looked(info, false);
            assert_eq!(seen.missing().map(|gap| gap.lack), Some(Lack::Version), "{info:?}");
        }
        assert!(looked("redis_version:8.2.0\r\n", false).value().is_some());
    }
}
