//! What tells from one INFO to the next that something has begun or ended, so that the expensive questions are worth
//! asking now and not in a minute.

/// Less than this between two INFOs says little of a rate.
const SPAN_MS: u64 = 900;
/// More than this is another time.
const GAP_MS: u64 = 10_000;
/// What is usual is known after this many rates.
const ENOUGH: u32 = 4;
/// Weight of the newest rate: what is usual follows within some ten seconds.
const WEIGHT: f64 = 0.15;
/// A jump is this many times as far from the mean as rates usually are.
const UNUSUAL: f64 = 6.0;
/// What happens again within this many INFOs has not stopped, so it does not begin.
const QUIET: u32 = 30;

/// What has jumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Jump {
    /// What comes in, goes out, is held, or who is connected; or a setting was changed, or a monitor began.
    Load,
    /// Errors, refusals, and what was thrown away.
    Errors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Grows for ever; its rate per second is looked at. `ours` where our own questions add to it.
    Counter { ours: bool },
    /// Goes up and down.
    Gauge,
    /// A counter of which one more is enough, after some time without any.
    Event,
    /// Any change is enough.
    Setting,
}

/// A figure that is followed.
#[derive(Debug, PartialEq)]
pub struct Figure {
    name: &'static str,
    kind: Kind,
    jump: Jump,
    /// A change of less than this is none, whatever is usual.
    least: f64,
}

const fn load(name: &'static str, least: f64) -> Figure {
    Figure { name, kind: Kind::Counter { ours: true }, jump: Jump::Load, least }
}

const fn errors(name: &'static str, least: f64) -> Figure {
    Figure { name, kind: Kind::Counter { ours: true }, jump: Jump::Errors, least }
}

const fn gauge(name: &'static str, least: f64) -> Figure {
    Figure { name, kind: Kind::Gauge, jump: Jump::Load, least }
}

const fn event(name: &'static str, jump: Jump) -> Figure {
    Figure { name, kind: Kind::Event, jump, least: 1.0 }
}

/// The least is more than our own questions make, those of a short round included, and those of a monitor or two.
/// Sub-commands are counted one by one from 7.0 on; before that CONFIG GET and CONFIG SET are one.
const FIGURES: &[Figure] = &[
    load("total_commands_processed", 300.0),
    load("total_connections_received", 20.0),
    load("total_net_input_bytes", 4e6),
    load("total_net_output_bytes", 8e6),
    load("expired_keys", 200.0),
    load("keyspace_misses", 300.0),
    load("used_cpu_sys", 0.2),
    load("used_cpu_user", 0.2),
    errors("total_error_replies", 40.0),
    errors("acl_access_denied_auth", 5.0),
    errors("acl_access_denied_cmd", 40.0),
    errors("acl_access_denied_key", 40.0),
    Figure { name: "evicted_keys", kind: Kind::Counter { ours: false }, jump: Jump::Errors, least: 20.0 },
    gauge("connected_clients", 10.0),
    gauge("blocked_clients", 5.0),
    gauge("pubsub_clients", 5.0),
    gauge("tracking_clients", 5.0),
    gauge("mem_clients_normal", 8e6),
    gauge("used_memory", 16e6),
    gauge("client_recent_max_output_buffer", 8e6),
    Figure { name: "maxmemory", kind: Kind::Setting, jump: Jump::Load, least: 0.0 },
    event("client_output_buffer_limit_disconnections", Jump::Errors),
    event("evicted_clients", Jump::Errors),
    event("rejected_connections", Jump::Errors),
    event("sync_full", Jump::Errors),
    event("sync_partial_err", Jump::Errors),
    event("cmdstat_acl|setuser", Jump::Load),
    event("cmdstat_client|kill", Jump::Load),
    event("cmdstat_client|pause", Jump::Load),
    event("cmdstat_cluster|addslots", Jump::Load),
    event("cmdstat_cluster|addslotsrange", Jump::Load),
    event("cmdstat_cluster|delslots", Jump::Load),
    event("cmdstat_cluster|delslotsrange", Jump::Load),
    event("cmdstat_cluster|failover", Jump::Load),
    event("cmdstat_cluster|forget", Jump::Load),
    event("cmdstat_cluster|meet", Jump::Load),
    event("cmdstat_cluster|replicate", Jump::Load),
    event("cmdstat_cluster|reset", Jump::Load),
    event("cmdstat_cluster|setslot", Jump::Load),
    event("cmdstat_config|set", Jump::Load),
    event("cmdstat_monitor", Jump::Load),
    event("cmdstat_replicaof", Jump::Load),
    event("cmdstat_slaveof", Jump::Load),
];

/// The place of a figure among those that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u8);

/// A field of INFO as one of them; `None` for most fields.
pub fn place(field: &str) -> Option<Place> {
    FIGURES.iter().position(|figure| figure.name == field).map(|place| Place(place as u8)) // tens of them
}

/// What a figure usually does.
#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    /// As INFO had it last; none where it had not.
    last: Option<f64>,
    mean: f64,
    /// Mean distance from the mean.
    apart: f64,
    /// Rates that made the mean.
    seen: u32,
    /// INFOs since an event happened; none where it never did.
    since: Option<u32>,
}

impl Usual {
    /// Takes the next rate, or height. True where it is unlike those before.
    fn takes(&mut self, x: f64, least: f64) -> bool {
        let apart = (x - self.mean).abs();
        let (low, high) = (x.min(self.mean), x.max(self.mean));
        let is_jump = self.seen >= ENOUGH && apart >= least && apart > UNUSUAL * self.apart && high >= 1.5 * low;
        if self.seen == 0 {
            self.mean = x;
        } else {
            self.apart += WEIGHT * (apart - self.apart);
            self.mean += WEIGHT * (x - self.mean);
        }
        self.seen = self.seen.saturating_add(1);
        is_jump
    }

    /// Takes what an event's counter grew by.
    fn happened(&mut self, times: f64) -> bool {
        let is_quiet = self.since.is_none_or(|infos| infos >= QUIET);
        let has_happened = times > 0.0;
        self.since = if has_happened { Some(0) } else { self.since.map(|infos| infos.saturating_add(1)) };
        has_happened && is_quiet
    }
}

/// One node's.
#[derive(Default)]
pub struct Jumps {
    usual: Vec<Usual>,
    now: Vec<(Place, f64)>,
    at_ms: Option<u64>,
    is_asking: bool,
    /// Whether the rates up to the next INFO are our own doing.
    is_ours: bool,
}

impl Jumps {
    /// A figure of the INFO that is being read.
    pub fn sees(&mut self, place: Place, value: &str) {
        let number = value.strip_prefix("calls=").map_or(value, |stats| stats.split(',').next().unwrap_or(stats));
        let is_possible = |n: &f64| n.abs() < 1e18; // what a server makes up must not make a mean of nothing
        self.now.extend(number.parse().ok().filter(is_possible).map(|n| (place, n)));
    }

    /// All questions are being asked, or no longer: what they cost is no jump.
    pub fn asking(&mut self, begins: bool) {
        self.is_asking = begins;
        self.is_ours = true;
    }

    /// Ends an INFO that came at this time, in ms that only go up. What has jumped since the one before, if anything.
    pub fn end(&mut self, at_ms: u64) -> Option<Jump> {
        let span_ms = at_ms.saturating_sub(self.at_ms.unwrap_or(at_ms));
        if self.at_ms.is_some() && span_ms < SPAN_MS {
            self.now.clear(); // a closer look asks more often
            return None;
        }
        self.usual.resize(FIGURES.len(), Usual::default());
        let is_other_time = self.at_ms.replace(at_ms).is_none() || span_ms > GAP_MS;
        let (is_ours, mut jumped) = (std::mem::replace(&mut self.is_ours, self.is_asking), None);
        for (Place(place), number) in self.now.drain(..) {
            let (figure, usual) = (&FIGURES[usize::from(place)], &mut self.usual[usize::from(place)]);
            let before = usual.last.replace(number);
            if is_other_time {
                continue;
            }
            let is_jump = match (figure.kind, before) {
                (Kind::Gauge, _) => usual.takes(number, figure.least),
                (Kind::Setting, before) => before.is_some_and(|before| before != number),
                // A counter that is smaller has begun again, and a command that nobody had used has no line in INFO.
                (Kind::Event, before) => usual.happened(number - before.filter(|b| *b <= number).unwrap_or(0.0)),
                (Kind::Counter { ours }, Some(before)) if number >= before && !(ours && is_ours) => {
                    usual.takes((number - before) * 1000.0 / span_ms as f64, figure.least)
                }
                (Kind::Counter { .. }, _) => false,
            };
            jumped = jumped.max(is_jump.then_some(figure.jump));
        }
        jumped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of INFOs a second apart, with these figures.
    fn told(infos: impl Iterator<Item = Vec<(&'static str, f64)>>) -> Vec<(usize, Jump)> {
        let mut jumps = Jumps::default();
        let mut told = Vec::new();
        for (second, info) in infos.enumerate() {
            for (name, number) in info {
                jumps.sees(place(name).unwrap(), &number.to_string());
            }
            told.extend(jumps.end(1000 * second as u64).map(|jump| (second, jump)));
        }
        told
    }

    /// The same figure at all times.
    fn of(name: &'static str, at: impl Fn(f64) -> f64) -> Vec<(usize, Jump)> {
        told((0..60).map(|second| vec![(name, at(f64::from(second)))]))
    }

    #[test]
    fn what_begins_and_what_ends_is_told_when_it_does() {
        let load = |s: f64| 100.0 * s + 5000.0 * (s.clamp(20.0, 40.0) - 20.0);
        assert_eq!(of("total_commands_processed", load), [(21, Jump::Load), (41, Jump::Load)]);
        let errors = |s: f64| 90.0 * (s - 30.0).max(0.0);
        assert_eq!(of("total_error_replies", errors), [(31, Jump::Errors)]);
        let clients = |s: f64| if s < 30.0 { 10.0 } else { 400.0 };
        assert_eq!(of("connected_clients", clients), [(30, Jump::Load)]);
    }

    #[test]
    fn what_varies_all_the_time_grows_steadily_or_is_small_is_no_jump() {
        // A busy server whose rate is now this, now that.
        let mut total = 0.0;
        let varied = (0..60u32).map(|second| {
            total += 20_000.0 + 9_000.0 * f64::from(second * 7919 % 13) / 13.0;
            vec![("total_commands_processed", total)]
        });
        assert_eq!(told(varied), []);
        assert_eq!(of("used_memory", |s| 1e9 + 40e6 * s), []);
        // A monitor that comes every fifteen seconds.
        assert_eq!(of("total_commands_processed", |s| 11.0 * s + 40.0 * (s / 15.0).floor()), []);
        assert_eq!(of("connected_clients", |s| 3.0 + s % 2.0), []);
    }

    #[test]
    fn somebody_who_changes_how_a_server_is_run_is_told_at_once() {
        // The command has no line in INFO before it was used for the first time.
        let set = (0..20).map(|second| if second < 9 { vec![] } else { vec![("cmdstat_config|set", 1.0)] });
        assert_eq!(told(set), [(9, Jump::Load)]);
        let mut jumps = Jumps::default();
        for (second, stats) in [(0, "calls=3,usec=4"), (1, "calls=3,usec=4"), (2, "calls=4,usec=9")] {
            jumps.sees(place("cmdstat_monitor").unwrap(), stats);
            assert_eq!(jumps.end(1000 * second), (second == 2).then_some(Jump::Load));
        }
    }

    #[test]
    fn one_refusal_is_enough_and_what_goes_on_has_not_begun() {
        // A full resync whose fork made the INFO late; a second one a minute later.
        let mut jumps = Jumps::default();
        let told: Vec<u64> = (0..120)
            .filter(|second| {
                let resyncs = 7 + u64::from(*second >= 20) + u64::from(*second >= 80);
                jumps.sees(place("sync_full").unwrap(), &resyncs.to_string());
                jumps.end(1000 * second + 400 * u64::from(*second == 20)) == Some(Jump::Errors)
            })
            .collect();
        assert_eq!(told, [20, 80]);
        assert_eq!(of("rejected_connections", |s| 3.0 * (s - 10.0).max(0.0)), [(11, Jump::Errors)]);
        assert_eq!(of("rejected_connections", |s| if s < 30.0 { 500.0 } else { s - 29.0 }), [(30, Jump::Errors)]);
        assert_eq!(of("maxmemory", |s| if s < 30.0 { 4e9 } else { 5e9 }), [(30, Jump::Load)]);
    }

    #[test]
    fn errors_are_told_before_load() {
        let both = |s: f64| vec![("total_error_replies", 90.0 * s), ("total_commands_processed", 900.0 * s)];
        assert_eq!(told((0..20).map(|s| both((f64::from(s) - 9.0).max(0.0)))), [(10, Jump::Errors)]);
    }

    #[test]
    fn our_own_questions_a_restart_and_a_time_without_answers_are_no_jump() {
        let mut jumps = Jumps::default();
        let mut end = |ms: u64, total: f64, asked: bool| {
            jumps.sees(place("total_net_output_bytes").unwrap(), &total.to_string());
            if asked {
                jumps.asking(true);
            }
            let told = jumps.end(ms);
            if asked {
                jumps.asking(false);
            }
            told
        };
        (0..10).for_each(|s| assert_eq!(end(1000 * s, 1e4 * s as f64, false), None));
        assert_eq!(end(10_000, 90e6, true), None, "a list of all clients, which is being read");
        assert_eq!(end(11_000, 150e6, false), None, "the rest of it");
        assert_eq!(end(12_000, 100.0, false), None, "a restart");
        assert_eq!(end(60_000, 900e6, false), None, "after a silence");
        assert_eq!(end(61_000, 950e6, false), Some(Jump::Load));
        assert_eq!(end(61_100, 990e6, false), None, "ten times a second says little of a rate");
    }

    #[test]
    fn words_where_numbers_should_be_say_nothing() {
        let mut jumps = Jumps::default();
        for (second, word) in ["", "nan", "inf", "calls=", "calls=x,", "-1e999", "1e300", "many"].iter().enumerate() {
            jumps.sees(place("maxmemory").unwrap(), word);
            assert_eq!(jumps.end(1000 * second as u64), None);
        }
    }
}
