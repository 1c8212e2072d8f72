//! Which commands were called on a server in a window. Dozens of rules ask, and the answer takes reading hundreds of
//! lines, so it is worked out once.

use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter};
use std::sync::{Arc, OnceLock};

use unslow_topology::{CommandStat, Info};

/// A command whose line is not the same in both INFOs.
#[derive(Debug)]
pub(crate) struct Changed {
    pub name: String,
    pub before: CommandStat,
    pub after: CommandStat,
}

impl Changed {
    /// What was called in between; `None` where nothing was, or a counter went back.
    pub fn grown(&self) -> Option<CommandStat> {
        let (before, after) = (self.before, self.after);
        let calls = after.calls.checked_sub(before.calls).filter(|calls| *calls > 0)?;
        let usec = after.usec.checked_sub(before.usec)?;
        let rejected = after.rejected.checked_sub(before.rejected)?;
        let failed = after.failed.checked_sub(before.failed)?;
        Some(CommandStat { calls, usec, rejected, failed })
    }
}

/// The difference of two INFOs.
pub(crate) struct Between {
    first: Info,
    last: Info,
    /// Those that the later INFO has.
    pub changed: Vec<Changed>,
    /// Whether counters were reset (a restart, CONFIG RESETSTAT): then they tell nothing.
    pub is_reset: bool,
}

impl Between {
    fn of(first: &Info, last: &Info) -> Between {
        let rows = last.command_stats_since(first);
        let changed = rows.map(|(name, before, after)| Changed { name: name.to_string(), before, after }).collect();
        // A line that is missing from the later INFO counts as zero calls.
        let is_reset = first.command_stats_since(last).any(|(_, after, before)| after.calls < before.calls);
        Between { first: first.clone(), last: last.clone(), changed, is_reset }
    }

    /// Calls and microseconds of each command.
    pub fn commands(&self) -> BTreeMap<String, CommandStat> {
        self.changed.iter().filter_map(|row| Some((row.name.clone(), row.grown()?))).collect()
    }

    /// Whether it was made from these two. It holds both, so their memory cannot have been reused.
    fn is_of(&self, first: &Info, last: &Info) -> bool {
        self.first.0.shares(&first.0) && self.last.0.shares(&last.0)
    }
}

/// Commands without ours.
struct Foreign {
    between: Arc<Between>,
    own: BTreeMap<String, u64>,
    commands: Arc<BTreeMap<String, CommandStat>>,
}

impl Foreign {
    fn of(between: &Arc<Between>, own: &BTreeMap<String, u64>) -> Foreign {
        let mut all = between.commands();
        for (name, ours) in own {
            // Before 7.0 sub-commands are lumped together under the command.
            let lumped = name.split('|').next().unwrap_or(name);
            let key = if all.contains_key(name) { name.as_str() } else { lumped };
            if let Some(stat) = all.get_mut(key) {
                let left = stat.calls.saturating_sub(*ours);
                stat.usec = (stat.usec as f64 * left as f64 / stat.calls as f64) as u64;
                stat.calls = left;
            }
        }
        all.retain(|_, stat| stat.calls > 0);
        Foreign { between: between.clone(), own: own.clone(), commands: Arc::new(all) }
    }
}

/// Kept with a node, but not part of what is known about it.
#[derive(Clone, Default)]
pub struct Called {
    between: OnceLock<Arc<Between>>,
    foreign: OnceLock<Arc<Foreign>>,
}

impl Called {
    pub(crate) fn between(&self, first: &Info, last: &Info) -> Arc<Between> {
        let known = self.between.get_or_init(|| Arc::new(Between::of(first, last)));
        match known.is_of(first, last) {
            true => known.clone(),
            // The node has been given other INFOs since.
            false => Arc::new(Between::of(first, last)),
        }
    }

    /// Without these calls of ours, at the mean cost of each.
    pub(crate) fn foreign(
        &self,
        between: &Arc<Between>,
        own: &BTreeMap<String, u64>,
    ) -> Arc<BTreeMap<String, CommandStat>> {
        let known = self.foreign.get_or_init(|| Arc::new(Foreign::of(between, own)));
        match Arc::ptr_eq(&known.between, between) && known.own == *own {
            true => known.commands.clone(),
            false => Foreign::of(between, own).commands,
        }
    }
}

impl PartialEq for Called {
    fn eq(&self, _: &Called) -> bool {
        true
    }
}

impl Debug for Called {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Called")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_is_given_later_counts() {
        let info = |calls: u64| Info::parse(&format!("cmdstat_get:calls={calls},usec=9\n"));
        let calls = |between: &Between| between.changed.iter().map(|row| row.after.calls).collect::<Vec<_>>();
        let (called, first, mut last) = (Called::default(), info(1), info(5));
        assert_eq!(calls(&called.between(&first, &last)), [5]);
        let other = info(7);
        assert_eq!(calls(&called.between(&first, &other)), [7]);
        last.0.insert("cmdstat_get".into(), "calls=9,usec=9".into());
        assert_eq!(calls(&called.between(&first, &last)), [9], "the same INFO, changed since");
        assert!(called.between(&last, &first).is_reset);
        assert!(!called.between(&first, &last).is_reset);
        let foreign = |own: u64| {
            let own = [("get".to_string(), own)].into();
            let all = called.foreign(&called.between(&first, &other), &own);
            all.get("get").map(|stat| stat.calls)
        };
        assert_eq!([foreign(1), foreign(2), foreign(6), foreign(0)], [Some(5), Some(4), None, Some(6)]);
    }
}
