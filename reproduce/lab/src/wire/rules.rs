//! What a path does to packets, as values: the conditions of the topology, and the changes that faults make to them.

use std::collections::BTreeMap;
use std::time::Duration;

/// What one direction of a path does to packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// One way.
    pub delay: Duration,
    /// Standard deviation of the delay, normally distributed. Packets keep their order all the same, so where they
    /// follow each other faster than they vary, the later ones wait for the earlier; and no delay is below zero.
    pub jitter: Duration,
    /// Share of packets lost, each for itself.
    pub loss: f64,
    /// Share of packets that overtake: they are not delayed at all.
    pub reorder: f64,
    /// Bits a second, Ethernet headers included; packets queue for 200 ms, then the last one is dropped.
    pub rate_bits_per_s: Option<u64>,
    /// Nothing passes.
    pub cut: bool,
}

impl Conditions {
    /// Half of this round trip each way.
    pub fn round_trip(rtt: Duration, jitter: Duration) -> Conditions {
        // Independent deviations add as squares: two of j / sqrt 2 make j.
        Conditions { delay: rtt / 2, jitter: jitter.div_f64(2f64.sqrt()), ..Conditions::default() }
    }
}

/// Conditions added to a set of directed pairs of hosts.
#[derive(Clone, Debug)]
pub struct Change {
    /// Senders, by index.
    pub from: Vec<usize>,
    /// Receivers.
    pub to: Vec<usize>,
    /// The other direction too.
    pub both_ways: bool,
    /// What is added; a rate is shared by all pairs, each direction its own.
    pub add: Conditions,
}

/// All rules of a lab.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Of each zone towards each zone, `[from][to]`.
    pub zones: Vec<Vec<Conditions>>,
    /// Zone of each host.
    pub host_zone: Vec<usize>,
    /// Faults.
    pub changes: BTreeMap<u64, Change>,
}

/// One direction between two hosts, as the carrier reads it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    pub delay_ns: u64,
    pub jitter_ns: f64,
    /// Of 2^32.
    pub loss: u64,
    /// Of 2^32.
    pub reorder: u64,
    pub cut: bool,
    /// Indexes of rate limiters; 0 is none.
    pub limiters: [u16; 3],
}

/// Rules, compiled.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub hosts: usize,
    /// `[from * hosts + to]`.
    pub paths: Vec<Path>,
    /// ns per byte of each limiter; the first is none.
    pub ns_per_byte: Vec<f64>,
    /// What each limiter is, over changes of the rules.
    pub limiter_ids: Vec<u64>,
}

fn of_2_32(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * (1u64 << 32) as f64) as u64
}

impl Rules {
    /// What one host's packets to another meet.
    pub fn between(&self, from: usize, to: usize) -> Conditions {
        let mut all = self.zones[self.host_zone[from]][self.host_zone[to]].clone();
        for change in self.changes.values().filter(|c| c.touches(from, to)) {
            let add = &change.add;
            all.delay += add.delay;
            let square = |d: Duration| d.as_secs_f64().powi(2);
            all.jitter = Duration::from_secs_f64((square(all.jitter) + square(add.jitter)).sqrt());
            all.loss = 1.0 - (1.0 - all.loss) * (1.0 - add.loss);
            all.reorder = 1.0 - (1.0 - all.reorder) * (1.0 - add.reorder);
            all.rate_bits_per_s = [all.rate_bits_per_s, add.rate_bits_per_s].into_iter().flatten().min();
            all.cut |= add.cut;
        }
        all
    }

    /// The table for the carrier.
    pub fn compile(&self) -> Table {
        let hosts = self.host_zone.len();
        let mut table = Table {
            hosts,
            paths: Vec::with_capacity(hosts * hosts),
            ns_per_byte: vec![0.0],
            limiter_ids: vec![u64::MAX],
        };
        let limiter = |rate: u64, id: u64, table: &mut Table| {
            table.ns_per_byte.push(8e9 / rate.max(1) as f64);
            table.limiter_ids.push(id);
            (table.ns_per_byte.len() - 1) as u16
        };
        let mut of_zones = BTreeMap::new();
        for (a, row) in self.zones.iter().enumerate() {
            for (b, conditions) in row.iter().enumerate() {
                if let Some(rate) = conditions.rate_bits_per_s {
                    of_zones.insert((a, b), limiter(rate, (a * 1000 + b) as u64, &mut table));
                }
            }
        }
        // Forwards and backwards.
        let of_changes: BTreeMap<u64, [u16; 2]> = self
            .changes
            .iter()
            .filter_map(|(id, c)| {
                let rate = c.add.rate_bits_per_s?;
                let own = id * 2 + 1_000_000;
                Some((*id, [limiter(rate, own, &mut table), limiter(rate, own + 1, &mut table)]))
            })
            .collect();
        for from in 0..hosts {
            for to in 0..hosts {
                let all = self.between(from, to);
                let mut path = Path {
                    delay_ns: all.delay.as_nanos() as u64,
                    jitter_ns: all.jitter.as_nanos() as f64,
                    loss: of_2_32(all.loss),
                    reorder: of_2_32(all.reorder),
                    cut: all.cut,
                    limiters: [0; 3],
                };
                let zones = of_zones.get(&(self.host_zone[from], self.host_zone[to])).copied();
                let faults = of_changes.iter().filter_map(|(id, [there, back])| {
                    let change = &self.changes[id];
                    if change.forwards(from, to) { Some(*there) } else { change.touches(from, to).then_some(*back) }
                });
                // The narrowest three: wider ones behind them change nothing.
                let mut all: Vec<u16> = zones.into_iter().chain(faults).collect();
                all.sort_by(|a, b| table.ns_per_byte[usize::from(*b)].total_cmp(&table.ns_per_byte[usize::from(*a)]));
                for (place, limiter) in path.limiters.iter_mut().zip(all) {
                    *place = limiter;
                }
                table.paths.push(path);
            }
        }
        table
    }
}

impl Change {
    fn forwards(&self, from: usize, to: usize) -> bool {
        self.from.contains(&from) && self.to.contains(&to)
    }

    fn touches(&self, from: usize, to: usize) -> bool {
        self.forwards(from, to) || self.both_ways && self.forwards(to, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_zones() -> Rules {
        let ms = |n| Conditions::round_trip(Duration::from_millis(n), Duration::ZERO);
        Rules {
            zones: vec![vec![ms(0), ms(2)], vec![ms(2), ms(0)]],
            host_zone: vec![0, 0, 1],
            changes: BTreeMap::new(),
        }
    }

    #[test]
    fn adds_a_fault_to_the_conditions_of_the_zones() {
        let mut rules = two_zones();
        let add = Conditions { delay: Duration::from_millis(5), loss: 0.5, ..Conditions::default() };
        rules.changes.insert(1, Change { from: vec![0], to: vec![2], both_ways: false, add });
        let table = rules.compile();
        let (there, back, other) = (table.paths[2], table.paths[2 * 3], table.paths[3 + 2]);
        assert_eq!((there.delay_ns, there.loss), (6_000_000, 1 << 31));
        assert_eq!((back.delay_ns, back.loss), (1_000_000, 0));
        assert_eq!((other.delay_ns, other.loss), (1_000_000, 0));
    }

    #[test]
    fn cuts_one_way_only() {
        let mut rules = two_zones();
        let add = Conditions { cut: true, ..Conditions::default() };
        rules.changes.insert(1, Change { from: vec![0, 1], to: vec![2], both_ways: false, add });
        assert!(rules.between(1, 2).cut);
        assert!(!rules.between(2, 1).cut);
    }

    #[test]
    fn shares_a_rate_among_the_pairs_of_one_direction() {
        let mut rules = two_zones();
        let add = Conditions { rate_bits_per_s: Some(8_000_000), ..Conditions::default() };
        rules.changes.insert(1, Change { from: vec![0, 1], to: vec![2], both_ways: true, add });
        let table = rules.compile();
        assert_eq!(table.ns_per_byte[1], 1000.0);
        assert_eq!(table.paths[2].limiters, table.paths[3 + 2].limiters);
        assert_eq!(table.paths[2 * 3].limiters, table.paths[2 * 3 + 1].limiters);
        assert_ne!(table.paths[2].limiters, table.paths[2 * 3].limiters);
        assert_eq!(table.paths[1].limiters, [0; 3]);
    }
}
