//! `unslow host`: this machine's facts, for a diagnosis made elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use unslow_facts::Host;
use unslow_probe::host::{Watch, fsync_times};
use unslow_units::{percent, time_us};

use crate::files;
use crate::output::Output;
use crate::typed::lasting;

#[derive(Args)]
pub struct HostArguments {
    /// Write the facts to a file, for `unslow doctor --host FILE`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Length of the window; ideally the same as the diagnosis's, and at the same time
    #[arg(long, default_value = "10s", value_parser = lasting, value_name = "TIME")]
    window: Duration,
    /// Time 20 fsyncs of 4 KiB in this directory (writes there and cleans up)
    #[arg(long, value_name = "DIR")]
    fsync_dir: Option<PathBuf>,
}

impl HostArguments {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        if let Some(path) = &self.save {
            files::check(path)?;
        }
        let watch = Watch::start();
        {
            let _bar = output.countdown("watching this machine", self.window);
            std::thread::sleep(self.window);
        }
        let mut host = watch.finish_alone();
        let mut timed = Ok(());
        if let Some(dir) = &self.fsync_dir {
            match fsync_times(dir, 20).with_context(|| format!("{}: fsync could not be timed", dir.display())) {
                Ok(fsync) => host.fsync = Some(fsync),
                Err(e) => timed = Err(e),
            }
        }
        // A full disk is no reason to lose what was measured: it is printed all the same.
        let saved = self.save.as_deref().map_or(Ok(()), |path| files::write(path, &serde_json::to_string(&host)?));
        if output.json() {
            let mut document = serde_json::to_value(&host)?;
            document["schema"] = "unslow.host/1".into();
            output.print_json(&document)?;
        } else {
            // A process may call itself what it likes.
            output.print(&crate::doctor::text::clean_lines(&text(&host)))?;
        }
        saved.context("the facts were not saved")?;
        timed.map(|()| 0)
    }
}

fn text(host: &Host) -> String {
    let unknown = || "unknown".to_string();
    let share = |s: Option<f64>| s.map_or_else(unknown, percent);
    let mut out = format!(
        "{}: {} processors, kernel {}, hypervisor {}, clock {}\nbusy {}, stolen {}, huge pages {}, overcommit {}, \
         somaxconn {}\n",
        host.hostname,
        host.cpus,
        host.kernel,
        host.hypervisor.as_deref().unwrap_or("none seen"),
        host.clocksource.as_deref().unwrap_or("unknown"),
        share(host.busy_share),
        share(host.steal_share),
        host.thp.as_deref().unwrap_or("unknown"),
        host.overcommit.map_or_else(unknown, |n| n.to_string()),
        host.somaxconn.map_or_else(unknown, |n| n.to_string()),
    );
    for (what, stalled) in &host.pressure {
        out += &format!("pressure {what}: stalled {} of the time\n", percent(*stalled));
    }
    if let Some(tcp) = &host.tcp {
        out += &format!(
            "TCP: {} of {} segments retransmitted, {} listen overflows\n",
            tcp.retransmits, tcp.segments_out, tcp.listen_overflows
        );
    }
    for disk in &host.disks {
        let write = time_us(disk.write_await_ms * 1e3);
        out += &format!("disk {}: {write} per write, {} busy\n", disk.name, percent(disk.busy_share));
    }
    if let Some(fsync) = &host.fsync {
        out += &format!(
            "fsync of 4 KiB: median {}, longest {}\n",
            time_us(fsync.us_p50.into()),
            time_us(fsync.us_max.into())
        );
    }
    for process in &host.processes {
        out += &format!(
            "{} (pid {}) on {}: {} of a core, waiting for CPU {}, throttled {}\n",
            process.name,
            process.pid,
            process.addresses.join(", "),
            share(process.cpu_share),
            share(process.run_delay_share),
            share(process.throttled_share)
        );
    }
    if host.processes.is_empty() {
        out += "no Redis or Valkey server is running here, or this user is not allowed to see it (try as root)\n";
    }
    for neighbour in &host.neighbours {
        out += &format!(
            "also here: {} (pid {}) {} of a core{}\n",
            neighbour.name,
            neighbour.pid,
            percent(neighbour.cpu_share),
            if neighbour.client { ", a client" } else { "" }
        );
    }
    out
}
