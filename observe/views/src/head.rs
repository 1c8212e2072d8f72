//! A deployment in four figures.

use unslow_facts::{Facts, Node};
use unslow_topology::Role;

/// What stands above every table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Head {
    pub servers: usize,
    pub masters: usize,
    /// Servers that do not answer, or refuse us.
    pub away: usize,
    /// Commands a second of the masters, for their replicas repeat each write; of all servers where none is a master.
    /// None where nothing is known yet.
    pub ops_per_s: Option<f64>,
    /// Errors answered a second.
    pub errors_per_s: Option<f64>,
    /// The longest PING in us, and whose it was.
    pub worst_ping: Option<(u32, String)>,
    /// The busiest main thread: share of a core, and whose it is.
    pub busiest: Option<(f64, String)>,
}

impl Head {
    pub fn of(facts: &Facts) -> Head {
        let known = || facts.nodes.iter().filter(|node| node.window_s > 0.0 && node.last.is_some());
        let any = known().next().is_some();
        let errors = known().map(|node| node.errors().values().sum::<u64>() as f64 / node.window_s).sum();
        let pings = facts.nodes.iter().filter_map(|n| Some((n.rtt.value()?.us_max, n.address.clone())));
        let busy = known().filter_map(|n| n.cpu().map(|(user, sys)| (user + sys, n.address.clone())));
        Head {
            servers: facts.nodes.len(),
            masters: facts.nodes.iter().filter(|node| node.role == Role::Master).count(),
            away: facts.nodes.iter().filter(|node| node.unreachable.is_some()).count(),
            ops_per_s: any.then_some(()).and_then(|()| {
                let has_master = known().any(|node| node.role == Role::Master);
                let counts = |node: &&Node| !has_master || node.role == Role::Master;
                known().filter(counts).filter_map(|node| node.ops()).reduce(|a, b| a + b)
            }),
            errors_per_s: any.then_some(errors),
            worst_ping: pings.max_by_key(|(us, _)| *us),
            busiest: busy.max_by(|a, b| a.0.total_cmp(&b.0)),
        }
    }
}
