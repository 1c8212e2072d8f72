//! Who else uses the processors, second by second, where it is enough to matter.
//!
//! A walk over /proc costs milliseconds, so it is made only while processes that are no servers use a fifth of a
//! processor together, and so rarely that the walks take a hundredth of one; between two walks those are read that were
//! busy at the last. What a process used before its first reading is unknown, so a load is named from its second second
//! on, and one that was started since the last walk from its start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use unslow_facts::{Host, Neighbour};
use unslow_process::{cpu_ticks, seconds, stat};

use super::counts::Counts;
use super::neighbours::{Doors, MOST, Sockets};
use super::processes::{Task, task_of, used};
use crate::sockets;

/// Cores that all other processes use together: below this nobody is looked for.
const ENOUGH: f64 = 0.2;
/// What one of them uses at least to be named.
const NAMED: f64 = 0.02;
/// From one walk to the next it rests so many times as long as the walk took.
const RESTS: u32 = 100;
/// A machine that is short of processors makes a walk long: it does not rest for longer than this.
const RESTS_AT_MOST: Duration = Duration::from_secs(5);
/// So often a process is asked whether it is a client of a server here; connections come later than the process.
const ASKED: u32 = 10;
/// Before the number of a place, in the names of the numbers.
pub const OTHER: &str = "other/";

/// What is known of the others from one reading to the next.
#[derive(Default)]
pub struct Others {
    servers: BTreeSet<u32>,
    doors: Doors,
    clients: BTreeMap<u32, Client>,
    before: Option<(i64, Instant)>,
    /// What each process had used, and when that was read.
    seen: BTreeMap<u32, (u64, Instant)>,
    walked: Option<(Instant, Duration)>,
    /// Walks since it was quiet: the second follows the first at once, which names nobody.
    walks: u32,
    /// A process keeps its place as long as it is busy.
    places: [Option<u32>; MOST],
}

#[derive(Default)]
struct Client {
    is_one: bool,
    asked: u32,
    sockets: Sockets,
}

/// What one process used since the reading before.
struct Busy {
    pid: u32,
    task: Task,
    ms: u64,
}

impl Others {
    /// What a look at the machine found.
    pub fn found(&mut self, host: &Host) {
        self.servers = host.processes.iter().map(|process| process.pid).collect();
        self.doors = Doors::of(host, BTreeSet::new());
        self.clients.clear();
        for neighbour in host.neighbours.iter().filter(|neighbour| neighbour.client) {
            self.clients.entry(neighbour.pid).or_default().is_one = true;
        }
    }

    /// Adds to the counts of this moment who else was busy since the last.
    pub fn add_to(&mut self, counts: &mut Counts) {
        let now = Instant::now();
        let own = stat(std::process::id()).map_or(0, |stat| cpu_ticks(&stat));
        let Some(ticks) = counts.ticks_of_others().map(|ticks| ticks.saturating_sub_unsigned(own)) else { return };
        let Some((before, at)) = self.before.replace((ticks, now)) else { return };
        let span_s = (now - at).as_secs_f64();
        let used_s = seconds(u64::try_from(ticks.saturating_sub(before)).unwrap_or(0));
        if used_s < ENOUGH * span_s {
            self.seen.clear();
            (self.walked, self.walks) = (None, 0);
            self.places = [None; MOST];
            return;
        }
        let mut busy = self.busy(now, span_s);
        busy.retain(|one| one.ms as f64 / 1000.0 >= NAMED * span_s);
        busy.sort_by_key(|one| std::cmp::Reverse(one.ms));
        busy.truncate(MOST);
        self.places.iter_mut().for_each(|place| *place = place.filter(|pid| busy.iter().any(|one| one.pid == *pid)));
        let clients = self.clients_of(&busy);
        for one in &busy {
            let is_free = |place: &Option<u32>| place.is_none_or(|pid| pid == one.pid);
            let own = self.places.iter().position(|place| *place == Some(one.pid));
            let Some(place) = own.or_else(|| self.places.iter().position(is_free)) else { continue };
            self.places[place] = Some(one.pid);
            put(counts, place, one, clients.contains(&one.pid));
        }
    }

    /// What each process that was read used since the last reading, at least a millisecond.
    fn busy(&mut self, now: Instant, span_s: f64) -> Vec<Busy> {
        let is_due =
            |(at, took): (Instant, Duration)| now.saturating_duration_since(at) >= (took * RESTS).min(RESTS_AT_MOST);
        let whole = self.walks < 2 || self.walked.is_none_or(is_due);
        let tasks: Vec<(u32, Task)> = if whole {
            used().collect()
        } else {
            self.places.iter().flatten().filter_map(|pid| Some((*pid, task_of(*pid)?))).collect()
        };
        let last_walk = self.walked.map(|(at, _)| at);
        let mut all = Vec::new();
        let mut seen = if whole { BTreeMap::new() } else { std::mem::take(&mut self.seen) };
        for (pid, task) in tasks {
            // One that the last walk did not meet began after it.
            let then = if whole { self.seen.get(&pid) } else { seen.get(&pid) };
            let then = then.copied().or(last_walk.map(|at| (0, at)));
            seen.insert(pid, (task.ticks, now));
            let is_other = !self.servers.contains(&pid) && pid != std::process::id();
            let Some((ticks, at)) = then.filter(|_| is_other) else { continue };
            // Its number was given to a new process.
            let used = task.ticks.checked_sub(ticks).unwrap_or(task.ticks);
            let part = (span_s / (now - at).as_secs_f64().max(span_s)).min(1.0);
            let ms = (seconds(used) * 1000.0 * part) as u64;
            if ms > 0 {
                all.push(Busy { pid, task, ms });
            }
        }
        self.seen = seen;
        if whole {
            self.walked = Some((now, now.elapsed()));
            self.walks = self.walks.saturating_add(1);
        }
        all
    }

    /// Which of them hold a connection to a server here.
    fn clients_of(&mut self, busy: &[Busy]) -> BTreeSet<u32> {
        let is_open = |client: Option<&Client>| client.is_none_or(|c| !c.is_one && c.asked < ASKED);
        if busy.iter().any(|one| is_open(self.clients.get(&one.pid))) {
            let here = self.doors.connections(&sockets::all().unwrap_or_default());
            for one in busy {
                let client = self.clients.entry(one.pid).or_default();
                if is_open(Some(client)) {
                    client.asked += 1;
                    client.is_one = client.sockets.lead(one.pid, &self.doors, &here);
                }
            }
        }
        busy.iter().map(|one| one.pid).filter(|pid| self.clients.get(pid).is_some_and(|c| c.is_one)).collect()
    }
}

/// A name has fifteen bytes, which are two numbers: what repeats as a number costs nothing in a column.
fn put(counts: &mut Counts, place: usize, one: &Busy, is_client: bool) {
    let mut of = |what: &str, n: i64| counts.put_number(format!("{OTHER}{place}/{what}"), n);
    of("pid", i64::from(one.pid));
    of("parent", i64::from(one.task.parent));
    of("client", i64::from(is_client));
    of("ms", i64::try_from(one.ms).unwrap_or(i64::MAX));
    let mut name = [0; 16];
    let bytes = one.task.name.as_bytes();
    let length = bytes.len().min(name.len());
    name[..length].copy_from_slice(&bytes[..length]);
    let (first, last) = name.split_at(8);
    let number = |half: &[u8]| half.iter().fold(0i64, |n, byte| n << 8 | i64::from(*byte));
    of("name", number(first));
    of("name_end", number(last));
}

/// Who else was busy in a window, of the counts in it.
#[derive(Debug, Default)]
pub struct Crowd {
    all: BTreeMap<u32, Neighbour>,
}

impl Crowd {
    /// Whether a number of the counts belongs here.
    pub fn is_of(name: &str) -> bool {
        name.starts_with(OTHER)
    }

    /// What one reading says of the time since the one before.
    pub fn add<'a>(&mut self, numbers: impl Iterator<Item = (&'a str, i64)>) {
        let mut places: [BTreeMap<&str, i64>; MOST] = Default::default();
        for (name, n) in numbers {
            let Some((place, what)) = name.strip_prefix(OTHER).and_then(|rest| rest.split_once('/')) else { continue };
            if let Some(place) = place.parse().ok().and_then(|place: usize| places.get_mut(place)) {
                place.insert(what, n);
            }
        }
        for place in places {
            let get = |what: &str| place.get(what).copied();
            let Some((pid, ms)) = get("pid").and_then(|pid| u32::try_from(pid).ok()).zip(get("ms")) else { continue };
            let neighbour = self.all.entry(pid).or_default();
            neighbour.pid = pid;
            neighbour.cpu_share += ms.max(0) as f64 / 1000.0;
            neighbour.client |= get("client") == Some(1);
            neighbour.parent = get("parent").and_then(|pid| u32::try_from(pid).ok());
            let name = [get("name").unwrap_or(0).to_be_bytes(), get("name_end").unwrap_or(0).to_be_bytes()].concat();
            neighbour.name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_string();
        }
    }

    /// Those that a look at the whole minute found tell who is a client. Who was not read second by second is known by
    /// the minute alone: all of them together used no more than these leave of the cores that `others` used, so who was
    /// at work in the rest of the minute is not blamed for this part of it.
    pub(super) fn tell(&self, window_s: f64, others: Option<f64>, host: &mut Host) {
        let clients: BTreeSet<u32> = host.neighbours.iter().filter(|n| n.client).map(|n| n.pid).collect();
        // One that was started again is a server from the next look on.
        let servers: BTreeSet<u32> = host.processes.iter().map(|process| process.pid).collect();
        let of_window = |n: &Neighbour| Neighbour {
            cpu_share: n.cpu_share / window_s.max(0.001),
            client: n.client || clients.contains(&n.pid),
            ..n.clone()
        };
        let read = self.all.values().filter(|n| !servers.contains(&n.pid));
        let mut all: Vec<Neighbour> = read.map(of_window).filter(|n| n.cpu_share > NAMED).collect();
        let mut rest = std::mem::take(&mut host.neighbours);
        rest.retain(|n| !self.all.contains_key(&n.pid));
        if let Some(others) = others {
            limit(&mut all, others);
            let left = (others - sum(&all)).max(0.0);
            limit(&mut rest, left);
        }
        all.extend(rest);
        all.sort_by(|a, b| b.cpu_share.total_cmp(&a.cpu_share));
        all.truncate(MOST);
        host.neighbours = all;
    }
}

fn sum(all: &[Neighbour]) -> f64 {
    all.iter().map(|n| n.cpu_share).sum()
}

/// Scales them down to so many cores.
fn limit(all: &mut [Neighbour], cores: f64) {
    let known = sum(all);
    if known > cores {
        all.iter_mut().for_each(|n| n.cpu_share *= cores / known);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::super::counts::Counted;
    use super::*;

    fn counts_of(others: &mut Others) -> Counts {
        let mut counts = Counts::take(&[] as &[Counted]);
        others.add_to(&mut counts);
        counts
    }

    #[test]
    fn a_process_that_is_busy_is_named_while_it_is() {
        let mut others = Others::default();
        counts_of(&mut others);
        // Ends within minutes, whatever becomes of this test.
        let script = "i=0; while [ $i -lt 100000000 ]; do i=$((i+1)); done";
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap();
        let mut crowd = Crowd::default();
        let until = Instant::now() + Duration::from_secs(60);
        let named = loop {
            std::thread::sleep(Duration::from_millis(100));
            crowd.add(counts_of(&mut others).numbers());
            if let Some(shell) = crowd.all.get(&child.id()) {
                break shell.clone();
            }
            assert!(Instant::now() < until, "{crowd:?}");
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(named.name == "sh" && named.cpu_share > 0.0 && !named.client, "{named:?}");
    }

    #[test]
    fn a_window_has_its_own_neighbours() {
        let place = |place: u32, pid: i64, ms: i64, client: i64| {
            let of = move |what: &str, n: i64| (format!("{OTHER}{place}/{what}"), n);
            let name = i64::from_be_bytes(*b"gzip\0\0\0\0");
            [of("pid", pid), of("ms", ms), of("client", client), of("parent", 1), of("name", name), of("name_end", 0)]
        };
        let mut crowd = Crowd::default();
        let mut add = |numbers: &[(String, i64)]| crowd.add(numbers.iter().map(|(name, n)| (name.as_str(), *n)));
        add(&[place(0, 7, 900, 0), place(1, 8, 100, 0)].concat());
        add(&place(0, 7, 700, 0));
        // What a place says changes with who has it.
        add(&[place(0, 9, 400, 1), place(4, 10, 10, 0)].concat());
        // A recording may say anything.
        add(&[place(2, -1, 500, 0), place(3, 11, i64::MIN, 0), place(77, 12, 500, 0)].concat());
        let minute = |client: bool| Neighbour { pid: 8, name: "app".into(), cpu_share: 0.4, client, parent: None };
        let mut host = Host { neighbours: vec![minute(true)], ..Host::default() };
        crowd.tell(4.0, None, &mut host);
        let told = |n: &Neighbour| (n.pid, n.name.clone(), (n.cpu_share * 1000.0).round(), n.client);
        let gzip = || "gzip".to_string();
        let all: Vec<_> = host.neighbours.iter().map(told).collect();
        assert_eq!(all, [(7, gzip(), 400.0, false), (9, gzip(), 100.0, true), (8, gzip(), 25.0, true)]);
        // Nobody was read in the window: those of the minute are all that is known.
        let mut host = Host { neighbours: vec![minute(false)], ..Host::default() };
        Crowd::default().tell(4.0, None, &mut host);
        assert_eq!(host.neighbours, [minute(false)]);
        // Who was not read has what is left; a server that was started again is no neighbour.
        let process = unslow_facts::Process { pid: 7, ..Default::default() };
        let mut host = Host {
            neighbours: vec![Neighbour { pid: 20, ..minute(false) }],
            processes: vec![process],
            ..Host::default()
        };
        crowd.tell(4.0, Some(0.325), &mut host);
        let all: Vec<_> = host.neighbours.iter().map(|n| (n.pid, (n.cpu_share * 1000.0).round())).collect();
        assert_eq!(all, [(20, 200.0), (9, 100.0), (8, 25.0)]);
    }

    #[test]
    fn a_name_is_the_same_as_numbers() {
        for name in ["sh", "kworker/u4:1-ev", "", "größe", "fifteen-bytes-x"] {
            let mut counts = Counts::default();
            let mut task = Task::default();
            task.name = name.into();
            put(&mut counts, 0, &Busy { pid: 1, task, ms: 5 }, false);
            let mut crowd = Crowd::default();
            crowd.add(counts.numbers());
            assert_eq!(crowd.all[&1].name, name);
        }
    }
}
