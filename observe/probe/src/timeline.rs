//! A node's window: PINGs, and its counters once a second, until the window closes or the run is ended.
//!
//! On an idle server each PING wakes a process that sleeps, which is most of what looking costs. So PINGs are rare
//! where nothing moves, and frequent where there is something to see.

use std::time::{Duration, Instant};

use unslow_client::Error;
use unslow_facts::{Node, Point};
use unslow_topology::Info;

use crate::ask::Ask;
use crate::clock::Clock;
use crate::rtt;

/// Others' commands per second from which on a server is busy enough for frequent PINGs.
const BUSY_COMMANDS_PER_S: f64 = 100.0;
/// The same of its share of a core: few commands may be long ones.
const BUSY_CPU_SHARE: f64 = 0.1;
/// `instantaneous_ops_per_sec` looks back over 16 samples of 100 ms.
const INSTANTANEOUS_S: f64 = 1.6;
/// Questions at the end, PINGs between them included, if the server answers slowly.
const QUESTIONS: u32 = 10;
/// On a server that answers at once they take about this long; they belong into the window.
const QUESTIONS_TIME: Duration = Duration::from_millis(100);
/// A shorter window measures nothing.
const SHORTEST: Duration = Duration::from_millis(100);

/// How often a node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Nothing moves there.
    Quiet,
    /// It works.
    Busy,
    /// One of very many: the sum of all PINGs is a load by itself.
    Many,
}

impl Pace {
    /// What a window begins with.
    pub fn first(node: &Node, ask: &Ask, many: bool) -> Pace {
        if many {
            return Pace::Many;
        }
        let ops = node.first.as_ref().and_then(|s| s.info.number("instantaneous_ops_per_sec")).unwrap_or(0.0);
        Pace::of(ops - ask.executed as f64 / INSTANTANEOUS_S, 0.0)
    }

    fn of(foreign_commands_per_s: f64, cpu_share: f64) -> Pace {
        let busy = foreign_commands_per_s > BUSY_COMMANDS_PER_S || cpu_share > BUSY_CPU_SHARE;
        if busy { Pace::Busy } else { Pace::Quiet }
    }

    fn pause(self) -> Duration {
        Duration::from_millis(match self {
            Pace::Quiet => 100,
            Pace::Busy => 20,
            Pace::Many => 200,
        })
    }
}

/// What is asked in a window.
pub struct Plan {
    pub window: Duration,
    pub pace: Pace,
    /// The user may run PING.
    pub pings: bool,
    /// What an answer took before there is a PING.
    pub wait: Duration,
}

/// Watches until the window closes. Whether it was cut short.
pub fn watch(ask: &mut Ask, node: &mut Node, clock: &Clock, begun: Instant, plan: &Plan) -> Result<bool, Error> {
    let end = plan.window.saturating_sub(QUESTIONS_TIME).max(SHORTEST);
    let mut pace = plan.pace;
    let mut next_point = Duration::from_secs(1);
    let plots = node.first.is_some() && pace != Pace::Many;
    // Where the rest of the time is the questions', counters would take it from them.
    let is_near = |node: &Node| clock.left() <= reserve(wait(node, plan.wait), plan.window);
    let mut before = if plots && !clock.ended() && !is_near(node) { counters(ask, begun)? } else { None };
    loop {
        let at = begun.elapsed();
        if at >= end {
            return Ok(false);
        }
        if clock.ended() {
            return Ok(true);
        }
        if is_near(node) {
            return Ok(false);
        }
        clock.sleep(pace.pause().min(end - at));
        if clock.ended() {
            return Ok(true);
        }
        let at = begun.elapsed();
        if plan.pings {
            match rtt::once(ask) {
                Ok(us) => node.pings.push((at.as_millis() as u32, us)),
                Err(e) if e.is_fatal() => return Err(e),
                Err(_) => {}
            }
        }
        if plots && at >= next_point {
            next_point = at + Duration::from_secs(1);
            let after = counters(ask, begun)?;
            if let (Some(before), Some(after)) = (&before, &after)
                && let Some(point) = between(before, after)
            {
                pace = Pace::of(point.commands_per_s, point.cpu_user_share + point.cpu_sys_share);
                node.series.push(point);
            }
            before = after;
        }
    }
}

/// Lets a window that ended at once grow to the shortest one that has a rate.
pub fn fill_up(begun: Instant) {
    std::thread::sleep(SHORTEST.saturating_sub(begun.elapsed()));
}

/// The slowest of the last few answers.
fn usual_wait(node: &Node) -> Duration {
    const LAST: usize = 10;
    let worst = node.pings.iter().rev().take(LAST).map(|(_, us)| *us).max().unwrap_or(0);
    Duration::from_micros(worst.into())
}

/// What an answer takes: by the PINGs, or `before` there is one.
pub fn wait(node: &Node, before: Duration) -> Duration {
    if node.pings.is_empty() { before } else { usual_wait(node) }
}

/// What the questions at the end need, but never more than half of the window.
fn reserve(wait: Duration, window: Duration) -> Duration {
    wait.saturating_mul(QUESTIONS).min(window / 2)
}

/// A server's counters at one moment.
struct Counters {
    at: Duration,
    commands: f64,
    /// Not on every server.
    connections: Option<f64>,
    /// How many of all commands were ours, up to now.
    own: u64,
    user_s: f64,
    sys_s: f64,
}

/// `None` where INFO does not tell.
fn counters(ask: &mut Ask, begun: Instant) -> Result<Option<Counters>, Error> {
    let own = ask.executed;
    let commands = [vec!["INFO", "stats"], vec!["INFO", "cpu"]];
    let text: String = ask.pipeline(&commands)?.into_iter().flatten().filter_map(|v| v.text()).collect();
    Ok(counters_of(&Info::parse(&text), begun.elapsed(), own))
}

fn counters_of(info: &Info, at: Duration, own: u64) -> Option<Counters> {
    let cpu = |main: &str, all: &str| info.number(main).or_else(|| info.number(all));
    Some(Counters {
        at,
        commands: info.number("total_commands_processed")?,
        connections: info.number("total_connections_received"),
        own,
        user_s: cpu("used_cpu_user_main_thread", "used_cpu_user").unwrap_or(0.0),
        sys_s: cpu("used_cpu_sys_main_thread", "used_cpu_sys").unwrap_or(0.0),
    })
}

/// Rates between two moments, our own commands taken off. `None` where a counter went back (a restart) or is no number
/// that can be: that is no rate.
fn between(before: &Counters, after: &Counters) -> Option<Point> {
    let s = after.at.saturating_sub(before.at).as_secs_f64().max(0.001);
    let own = after.own.saturating_sub(before.own) as f64;
    let grown = |before: f64, after: f64| Some(after - before).filter(|d| d.is_finite() && *d >= 0.0);
    let commands = grown(before.commands, after.commands)?;
    Some(Point {
        at_ms: after.at.as_millis() as u32,
        // Ours may be counted a moment later than theirs.
        commands_per_s: ((commands - own) / s).max(0.0),
        cpu_user_share: grown(before.user_s, after.user_s)? / s,
        cpu_sys_share: grown(before.sys_s, after.sys_s)? / s,
        connections_per_s: before.connections.zip(after.connections).and_then(|(b, a)| grown(b, a)).map(|n| n / s),
    })
}

#[cfg(test)]
mod tests {
    use unslow_topology::Role;

    use super::*;

    #[test]
    fn own_commands_are_not_a_servers_load() {
        let at = |ms: u64, commands: u64, own: u64, cpu: f64| {
            let text = format!(
                "total_commands_processed:{commands}\r\nused_cpu_user:9\r\nused_cpu_sys:9\r\n\
                 used_cpu_user_main_thread:{cpu}\r\nused_cpu_sys_main_thread:{cpu}\r\n"
            );
            counters_of(&Info::parse(&text), Duration::from_millis(ms), own).unwrap()
        };
        let between = |before, after| super::between(&before, &after);
        let idle = between(at(0, 1000, 40, 1.0), at(1000, 1055, 95, 1.001)).unwrap();
        assert_eq!((idle.commands_per_s, idle.at_ms), (0.0, 1000), "all 55 were ours");
        assert!((idle.cpu_user_share - 0.001).abs() < 1e-9, "{idle:?}");
        let busy = between(at(0, 1000, 40, 1.0), at(2000, 3020, 60, 1.5)).unwrap();
        assert_eq!((busy.commands_per_s, busy.cpu_sys_share), (1000.0, 0.25));
        let fewer = between(at(0, 1000, 40, 1.0), at(1000, 1009, 50, 1.0)).unwrap();
        assert_eq!(fewer.commands_per_s, 0.0, "one of ours was not counted yet");
        // A restart in between: counters go back. And numbers that no clock gives.
        for (commands, cpu) in [(10.0, 0.1), (10.0, 1.5), (1100.0, 0.1), (1100.0, f64::NAN), (f64::INFINITY, 1.5)] {
            let after = Counters { commands, user_s: cpu, ..at(1000, 1100, 50, 1.5) };
            assert_eq!(between(at(0, 1000, 40, 1.0), after), None, "{commands} {cpu}");
        }
        assert!(counters_of(&Info::parse("used_cpu_user:9\r\n"), Duration::ZERO, 0).is_none());
    }

    #[test]
    fn a_point_says_how_many_connections_came_since_the_one_before() {
        let at = |ms: u64, connections: &str| {
            let text = format!("total_commands_processed:{ms}\r\n{connections}");
            counters_of(&Info::parse(&text), Duration::from_millis(ms), 0).unwrap()
        };
        let came = |before: &str, after: &str| between(&at(1000, before), &at(3000, after)).unwrap().connections_per_s;
        let counted = |n: u64| format!("total_connections_received:{n}\r\n");
        assert_eq!(came(&counted(40), &counted(640)), Some(300.0), "600 in two seconds");
        assert_eq!(came("", &counted(640)), None, "not counted before");
        assert_eq!(came(&counted(640), &counted(3)), None, "CONFIG RESETSTAT");
    }

    #[test]
    fn pings_are_rare_where_nothing_moves() {
        for (foreign, cpu, expected) in [
            (-3.0, 0.0, Pace::Quiet),
            (100.0, 0.1, Pace::Quiet),
            (101.0, 0.0, Pace::Busy),
            // Few long commands.
            (2.0, 0.9, Pace::Busy),
        ] {
            assert_eq!(Pace::of(foreign, cpu), expected, "{foreign} {cpu}");
        }
        assert_eq!([Pace::Quiet, Pace::Busy].map(|p| p.pause().as_millis()), [100, 20]);
    }

    #[test]
    fn without_time_not_even_the_first_counters_are_asked_for() {
        let target = crate::fake::server(|_| "+PONG\r\n".into());
        let mut ask = Ask::open(&target, &unslow_client::Options::default()).unwrap();
        let before = ask.own.total;
        let info = Info::parse("redis_version:7.0.0\r\n");
        let first = Some(unslow_facts::Sample { at_ms: 0, info });
        let mut node = Node { first, ..Node::new("h:1", Role::Master) };
        let plan = Plan { window: Duration::from_secs(5), pace: Pace::Quiet, pings: true, wait: Duration::ZERO };
        let cut_short = watch(&mut ask, &mut node, &Clock::of(Duration::ZERO), Instant::now(), &plan).unwrap();
        assert_eq!((cut_short, ask.own.total), (false, before));
    }

    #[test]
    fn slow_answers_leave_time_for_the_questions_but_half_of_the_window_stays() {
        let ms = Duration::from_millis;
        let mut node = Node::new("h:1", Role::Master);
        assert_eq!(usual_wait(&node), ms(0));
        node.pings = [(0, 9_000_000)].into_iter().chain((1..=10).map(|i| (i, 1000 * i))).collect();
        assert_eq!(usual_wait(&node), ms(10), "what was long ago is over");
        assert_eq!([0, 10, 900].map(|wait| reserve(ms(wait), ms(5000))), [ms(0), ms(100), ms(2500)]);
    }
}
