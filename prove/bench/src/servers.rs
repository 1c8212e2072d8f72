//! The servers' own account of a run: what each spent on it, before and after.

use unslow_client::{Connection, Target, address_target};
use unslow_reactor::now_ns;
use unslow_topology::{Info, Topology};

use crate::error::{Error, Unfit};
use crate::report::{ServerRun, round};
use crate::settings::{ReadFrom, Settings};

/// A server at a moment.
pub struct Sample {
    address: String,
    role: &'static str,
    at: u64,
    info: Option<Info>,
    /// User and kernel time in clock ticks, of a server on this machine.
    proc_ticks: Option<u64>,
}

/// CPU and commands of every server that requests go to, as far as they answer; masters first. None where nothing is
/// asked.
pub fn sample(settings: &Settings, topology: &Topology) -> Vec<Sample> {
    if settings.plain {
        return Vec::new();
    }
    let replicas = topology.nodes.iter().filter(|n| settings.read_from != ReadFrom::Primary && !n.owns_slots());
    std::thread::scope(|scope| {
        let asked: Vec<_> = topology
            .masters()
            .chain(replicas)
            .map(|node| {
                let (address, role) = (&node.address, if node.owns_slots() { "master" } else { "replica" });
                scope.spawn(move || {
                    let info = open(settings, address)
                        .ok()
                        .and_then(|mut c| c.call(&["INFO"]).ok())
                        .map(|v| Info::parse(&v.text().unwrap_or_default()));
                    let proc_ticks = info.as_ref().and_then(proc_ticks);
                    Sample { address: address.clone(), role, at: now_ns(), info, proc_ticks }
                })
            })
            .collect();
        asked.into_iter().filter_map(|a| a.join().ok()).collect()
    })
}

/// The server's CPU time by /proc, where its process id is one of this machine's and the same program.
fn proc_ticks(info: &Info) -> Option<u64> {
    let pid = info.number("process_id")? as u32;
    let here = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    if here.file_name()? != std::path::Path::new(info.get("executable")?).file_name()? {
        return None;
    }
    unslow_process::stat(pid).map(|stat| unslow_process::cpu_ticks(&stat))
}

/// What each server spent in between.
pub fn between(before: &[Sample], after: &[Sample]) -> Vec<ServerRun> {
    before
        .iter()
        .zip(after)
        .map(|(a, b)| {
            let seconds = (b.at - a.at) as f64 / 1e9;
            let number = |l: &Sample, name: &str| l.info.as_ref()?.get(name)?.parse::<f64>().ok();
            let both = |name: &str| Some(number(b, name)? - number(a, name)?);
            // A server that was started anew in between counts from zero.
            let cpu = both("used_cpu_user").zip(both("used_cpu_sys")).map(|(u, s)| u + s).filter(|c| *c >= 0.0);
            let commands = both("total_commands_processed").filter(|c| *c >= 0.0).map(|c| c as u64);
            ServerRun {
                address: a.address.clone(),
                role: a.role.into(),
                cpu_s: cpu,
                cpu_share: cpu.map(|c| round(c / seconds)),
                cpu_share_proc: a
                    .proc_ticks
                    .zip(b.proc_ticks)
                    .and_then(|(a, b)| b.checked_sub(a))
                    .map(|ticks| round(unslow_process::seconds(ticks) / seconds)),
                commands,
                cpu_us_per_command: cpu.zip(commands).filter(|(_, n)| *n > 0).map(|(c, n)| round(c * 1e6 / n as f64)),
            }
        })
        .collect()
}

/// A connection to a server.
pub fn open(settings: &Settings, address: &str) -> Result<Connection, Error> {
    let target = match address.strip_prefix("unix:") {
        Some(path) => Target { service: None, ..settings.target.at(unslow_client::Endpoint::Unix(path.into())) },
        None => {
            let plain = Target { service: None, ..settings.target.clone() };
            address_target(&plain, address).ok_or_else(|| Unfit::Address(address.into()))?
        }
    };
    Ok(Connection::open(&target, &settings.options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen_at(at_s: u64, user: f64, sys: f64, commands: u64) -> Sample {
        let info = format!("used_cpu_user:{user}\nused_cpu_sys:{sys}\ntotal_commands_processed:{commands}\n");
        Sample {
            address: "10.0.0.1:6379".into(),
            role: "master",
            at: at_s * 1_000_000_000,
            info: Some(Info::parse(&info)),
            proc_ticks: Some(at_s * rustix::param::clock_ticks_per_second()),
        }
    }

    #[test]
    fn a_servers_cpu_is_what_it_used_in_between_for_each_of_its_commands() {
        let [before, after] = [seen_at(10, 1.0, 0.5, 1000), seen_at(12, 1.75, 0.75, 101_000)];
        let seen = &between(&[before], &[after])[0];
        assert_eq!((seen.cpu_s, seen.cpu_share, seen.cpu_share_proc), (Some(1.0), Some(0.5), Some(1.0)));
        assert_eq!((seen.commands, seen.cpu_us_per_command), (Some(100_000), Some(10.0)));
        // One that was started in between counts from zero, and is not seen at all while it is down.
        let [before, after] = [seen_at(10, 1.0, 0.5, 1000), seen_at(12, 0.2, 0.1, 50)];
        let anew = &between(&[before], &[after])[0];
        assert_eq!((anew.cpu_s, anew.commands, anew.cpu_us_per_command), (None, None, None));
        let [before, after] = [seen_at(10, 1.0, 0.5, 1000), Sample { info: None, ..seen_at(12, 0.0, 0.0, 0) }];
        let down = &between(&[before], &[after])[0];
        assert_eq!((down.cpu_s, down.cpu_share, down.commands), (None, None, None));
    }
}
