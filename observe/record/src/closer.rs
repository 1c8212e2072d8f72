//! Which nodes are looked at closely now: not too many at once, and none again right away.

use std::collections::VecDeque;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
/// After a stall, when a node is back, or when errors jump, INFO is asked for in every tick for this long,
const DEEP: u64 = 30 * SECOND;
/// and not again before this has passed. All other questions are asked at once as often, and more often for jumps.
pub const CALM: Duration = Duration::from_secs(360);
/// Nodes of one event loop at a time. When more stall at once it is their network, their machine or this recorder, and
/// these tell as much as all of them would: hundreds asked ten times a second would keep all of them waiting.
const AT_ONCE: usize = 16;

/// When a node's last closer look began.
pub type Begun = Option<u64>;

/// The closer looks of an event loop that are not over.
#[derive(Default)]
pub struct Closer {
    begun: VecDeque<u64>,
}

impl Closer {
    /// Looks at a node closely from now on, unless it was a moment ago, or there are enough of them. Whether it does.
    pub fn look(&mut self, node: &mut Begun, now: u64) -> bool {
        while self.begun.front().is_some_and(|at| now.saturating_sub(*at) >= DEEP) {
            self.begun.pop_front();
        }
        let is_rested = node.is_none_or(|at| now.saturating_sub(at) > CALM.as_nanos() as u64);
        let begins = is_rested && self.begun.len() < AT_ONCE;
        if begins {
            *node = Some(now);
            self.begun.push_back(now);
        }
        begins
    }
}

/// Whether it is looked at closely now.
pub fn is_deep(node: Begun, now: u64) -> bool {
    node.is_some_and(|at| now.saturating_sub(at) < DEEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_looked_at_for_a_while_and_rests_then() {
        let (mut closer, mut node) = (Closer::default(), None);
        assert!(!is_deep(node, 0));
        assert!(closer.look(&mut node, SECOND));
        assert!(is_deep(node, SECOND) && is_deep(node, DEEP) && !is_deep(node, DEEP + SECOND));
        let rested = CALM.as_nanos() as u64;
        assert!(!closer.look(&mut node, rested));
        assert!(!is_deep(node, rested), "too soon");
        assert!(closer.look(&mut node, rested + 2 * SECOND));
        assert!(is_deep(node, rested + 2 * SECOND));
    }

    #[test]
    fn a_thousand_stalls_at_once_are_looked_at_by_a_few_nodes() {
        let mut closer = Closer::default();
        let mut nodes = vec![None; 1000];
        nodes.iter_mut().for_each(|node| _ = closer.look(node, SECOND));
        assert_eq!(nodes.iter().filter(|node| is_deep(**node, 2 * SECOND)).count(), AT_ONCE);
        // The others were not looked at, and do not rest: the next stall is theirs.
        nodes.iter_mut().for_each(|node| _ = closer.look(node, DEEP + 2 * SECOND));
        assert_eq!(nodes.iter().filter(|node| node.is_some()).count(), 2 * AT_ONCE);
    }
}
