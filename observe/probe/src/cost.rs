//! What looking cost the server that paid most.
//!
//! A server without other work has one honest witness: its own CPU clock. What it used in the window is printed whole,
//! its cron included, so the figure is an upper bound. On a busy server the clock cannot tell our work from others';
//! there the cost is the time inside our commands, what each read costs beside it, and the waking of a process that
//! slept.

use std::collections::BTreeMap;
use std::time::Duration;

use unslow_facts::{Cost, Node};
use unslow_topology::CommandStat;

/// What each read costs the server outside the command itself: 2.4 us on a 2-core VM over loopback, fitted from GETs
/// at pipeline depths 1 to 50; taken as 3.
const READ_US: f64 = 3.0;
/// What it costs to wake a server that sleeps in epoll_wait and to put it to sleep again, the read and the write of a
/// lone PING included: 50 to 70 us of the server's own CPU clock for each on an idle 2-core VM, of which the read is
/// taken off.
const WAKE_US: f64 = 57.0;
/// A new connection: 17.5 us on the same machine.
const CONNECT_US: f64 = 20.0;
/// Fewer commands of others per second than this are no work worth telling from ours.
const FOREIGN_MOST: f64 = 1.0;

/// What one server paid.
#[derive(Clone, Debug, Default)]
pub struct Paid {
    commands: u64,
    us: f64,
    /// The most expensive of our commands, as commandstats names it, and its mean time in us.
    slowest: Option<(String, f64)>,
}

impl Paid {
    pub fn by(node: &Node) -> Paid {
        let stats = node.commands();
        let means = node.own.commands.keys().map(|name| (name, mean_us(&stats, name))).filter(|(_, us)| *us > 0.0);
        Paid {
            commands: node.own.total,
            us: window_us(node, &stats) + beside_us(node, &stats),
            slowest: means.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, us)| (name.clone(), us)),
        }
    }

    /// What looking for this long cost all of them, and the one that paid most.
    pub fn all<'a>(paid: impl Iterator<Item = &'a Paid>, took: Duration) -> Cost {
        let mut cost = Cost { seconds: took.as_secs_f64(), ..Cost::default() };
        let mut slowest = None;
        for one in paid {
            cost.commands += one.commands;
            cost.server_cpu_share = cost.server_cpu_share.max(one.us / 1e6 / took.as_secs_f64().max(0.001));
            if let Some((name, us)) = one.slowest.as_ref().filter(|(_, us)| *us > cost.slowest_us) {
                cost.slowest_us = *us;
                slowest = Some(name);
            }
        }
        cost.slowest_command = slowest.map(|name| name.to_uppercase().replace('|', " ")).unwrap_or_default();
        cost
    }
}

/// What looking for this long cost these servers.
pub fn of(nodes: &[Node], took: Duration) -> Cost {
    let paid: Vec<Paid> = nodes.iter().map(Paid::by).collect();
    Paid::all(paid.iter(), took)
}

/// In the window.
fn window_us(node: &Node, stats: &BTreeMap<String, CommandStat>) -> f64 {
    let inside: f64 = node.own.commands.iter().map(|(name, calls)| mean_us(stats, name) * *calls as f64).sum();
    let estimate = inside + node.own.reads as f64 * read_us(node);
    match clock_us(node) {
        Some(clock) if node.ops().is_some_and(|ops| ops < FOREIGN_MOST) => clock,
        // No part is larger than the whole.
        Some(clock) => estimate.min(clock),
        None => estimate,
    }
}

/// Before and after it: the connection, the greeting, the baseline, and the last INFO, which its own counters do not
/// hold.
fn beside_us(node: &Node, stats: &BTreeMap<String, CommandStat>) -> f64 {
    let counted: u64 = node.own.commands.values().sum();
    let beside = node.own.total.saturating_sub(counted);
    let last = if node.last.is_some() { mean_us(stats, "info") } else { 0.0 };
    CONNECT_US + beside as f64 * read_us(node) + last
}

/// What a read costs outside its commands: a server that is busy need not be woken for it.
fn read_us(node: &Node) -> f64 {
    let busy = node.cpu().map_or(0.0, |(user, sys)| user + sys).clamp(0.0, 1.0);
    READ_US + WAKE_US * (1.0 - busy)
}

/// By the server's own clock, for us and for others.
fn clock_us(node: &Node) -> Option<f64> {
    node.cpu().map(|(user, sys)| (user + sys) * node.window_s * 1e6)
}

/// Mean time of a command's calls in the window; before 7.0 sub-commands are counted under their command.
fn mean_us(stats: &BTreeMap<String, CommandStat>, name: &str) -> f64 {
    let lumped = name.split('|').next().unwrap_or(name);
    let stat = stats.get(name).or_else(|| stats.get(lumped));
    stat.map_or(0.0, |s| s.usec as f64 / s.calls.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use unslow_facts::{Own, Sample};
    use unslow_topology::{Info, Role};

    use super::*;

    fn node(own: &[(&str, u64)], total: u64, before: &str, after: &str) -> Node {
        let sample = |text: &str| Some(Sample { at_ms: 0, info: Info::parse(text) });
        let commands: BTreeMap<String, u64> = own.iter().map(|(name, calls)| (name.to_string(), *calls)).collect();
        let reads = commands.values().sum();
        Node {
            first: sample(before),
            last: sample(after),
            window_s: 2.0,
            own: Own { commands, total, reads, ..Own::default() },
            ..Node::new("h:1", Role::Master)
        }
    }

    fn cpu(s: f64, commands: u64) -> String {
        format!(
            "used_cpu_user_main_thread:{s}\nused_cpu_sys_main_thread:{s}\ntotal_commands_processed:{commands}\n\
             cmdstat_ping:calls={commands},usec={commands}\n"
        )
    }

    const TWO_S: Duration = Duration::from_secs(2);

    fn close(share: f64, us: f64) {
        let expected = us / 2e6;
        assert!((share - expected).abs() < 1e-9, "{share} of {expected}");
    }

    #[test]
    fn the_cost_of_a_run_is_that_of_the_node_that_paid_most() {
        let nodes = [
            node(
                &[("info", 2), ("config|get", 1)],
                10,
                "cmdstat_info:calls=5,usec=500\ncmdstat_config|get:calls=1,usec=10\n",
                "cmdstat_info:calls=9,usec=900\ncmdstat_config|get:calls=2,usec=310\n",
            ),
            // Before 7.0 subcommands are counted under their command.
            node(&[("config|get", 1)], 2, "cmdstat_config:calls=1,usec=5\n", "cmdstat_config:calls=3,usec=15\n"),
        ];
        let cost = of(&nodes, TWO_S);
        assert_eq!((cost.commands, cost.slowest_us, cost.slowest_command.as_str()), (12, 300.0, "CONFIG GET"));
        // 2 x 100 + 300 us inside commands, ten reads, the connection, and the last INFO. Nothing is known of its
        // clock.
        close(cost.server_cpu_share, 500.0 + 10.0 * (READ_US + WAKE_US) + CONNECT_US + 100.0);
    }

    #[test]
    fn an_idle_server_pays_what_its_own_clock_says() {
        // 20 ms of CPU in the window, and every command was ours.
        let idle = node(&[("ping", 100)], 130, &cpu(1.0, 1000), &cpu(1.01, 1101));
        close(of(&[idle], TWO_S).server_cpu_share, 20_000.0 + CONNECT_US + 30.0 * (READ_US + WAKE_US * 0.99));
    }

    #[test]
    fn a_busy_server_need_not_be_woken() {
        // Others sent 10,000 commands a second; it was busy for 80 % of the time, or for all of it.
        for (busy_s, busy) in [(0.8, 0.8), (1.2, 1.0)] {
            let node = node(&[("ping", 100)], 100, &cpu(1.0, 1000), &cpu(1.0 + busy_s, 21_100));
            close(of(&[node], TWO_S).server_cpu_share, 100.0 + 100.0 * (READ_US + WAKE_US * (1.0 - busy)) + CONNECT_US);
        }
    }

    #[test]
    fn no_estimate_is_larger_than_all_that_the_server_used() {
        // Five commands of others per second, and 2 ms of CPU in all.
        let node = node(&[("ping", 100)], 100, &cpu(1.0, 1000), &cpu(1.001, 1110));
        close(of(&[node], TWO_S).server_cpu_share, 2_000.0 + CONNECT_US);
    }
}
