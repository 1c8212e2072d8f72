//! `unslow watch`: what changes in a deployment, as it changes.

use std::fmt::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use unslow_topology::{Change, DeploymentKind, Health, Role, Topology};
use unslow_units::{plural, time, time_us};
use unslow_watch::{Delta, Known, Line, News, Publish, Settings, Watch};

use crate::output::{Output, style};
use crate::reach::Reach;
use crate::server::Server;
use crate::typed::{end_after, short_time};

#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  unslow watch redis://10.0.0.1:7000\n  unslow watch \
                  redis+sentinel://10.0.0.1,10.0.0.2/mymaster --format json\n  unslow watch 10.0.0.1:7000 \
                  --publish        # clients: SUBSCRIBE __cluster__:moved __cluster__:failover __cluster__:digest"
)]
pub struct WatchArguments {
    /// redis://, rediss://, valkey://, valkeys://, unix:/path, redis+sentinel://host/service, or host:port
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Notify clients: publish on __cluster__:moved, __cluster__:failover and __cluster__:digest
    #[arg(long)]
    publish: bool,
    /// With --publish: also on __Booksleeve_MasterChanged, for StackExchange.Redis clients
    #[arg(long, requires = "publish")]
    publish_master_changed: bool,
    /// Suspect a node of hanging when a reply is overdue by this much
    #[arg(long, default_value = "250ms", value_parser = short_time, value_name = "TIME")]
    suspect_after: Duration,
    /// Exit after this time, such as 90s or 36h [default: never]
    #[arg(long, value_parser = end_after, value_name = "TIME")]
    r#for: Option<Duration>,
    /// Exit after this many changes
    #[arg(long, value_name = "N")]
    changes: Option<u64>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    reach: Reach,
}

impl WatchArguments {
    pub fn run(self, output: &Output) -> anyhow::Result<u8> {
        let mut settings = Settings::new(self.server.target(self.url.as_deref(), &self.reach)?, self.reach.options()?);
        settings.suspect_after = self.suspect_after;
        settings.publish = self.publish.then_some(Publish { master_changed: self.publish_master_changed });
        let (send, news) = channel();
        let watch = Watch::start(settings, move |n| {
            let _ = send.send(n); // nobody listens any more only while it ends
        })?;
        let topology = watch.topology();
        let first = match output.json() {
            true => json(&Line::Topology {
                schema: "unslow.watch/1".into(),
                digest: topology.digest(),
                topology: (*topology).clone(),
            })?,
            false => overview(&topology),
        };
        if !output.print_while_read(&first)? {
            return Ok(0);
        }
        output.note("watching; Ctrl-C ends it");
        let deadline = self.r#for.map(|t| Instant::now() + t);
        let mut seen = 0;
        loop {
            let wait = deadline.map_or(Duration::from_secs(3600), |d| d.saturating_duration_since(Instant::now()));
            let text = match news.recv_timeout(wait) {
                Ok(News::Delta(delta, _)) => {
                    seen += delta.changes.len() as u64;
                    if output.json() { json(&Line::Delta(delta))? } else { lines(&delta) }
                }
                Ok(News::Note(text)) if output.json() => json(&Line::Note { text })?,
                Ok(News::Note(text)) => {
                    output.note(&text);
                    continue;
                }
                Ok(News::Fresh(_)) => continue,
                Err(RecvTimeoutError::Timeout) if deadline.is_some() => return Ok(0),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the watcher's event loop ended unexpectedly"),
            };
            if !output.print_while_read(&text)? || self.changes.is_some_and(|n| seen >= n) {
                return Ok(0);
            }
        }
    }
}

fn json(line: &Line) -> anyhow::Result<String> {
    Ok(serde_json::to_string(line)? + "\n")
}

/// Masters, each with its replicas and slots.
pub fn overview(topology: &Topology) -> String {
    let kind = match topology.kind {
        DeploymentKind::Cluster => "cluster",
        DeploymentKind::Sentinel => "Sentinel deployment",
        DeploymentKind::MasterReplica => "master with replicas",
        DeploymentKind::Standalone => "single server",
    };
    let (title, bad) = (style::TITLE, style::BAD);
    let nodes = plural(topology.nodes.len(), "node");
    let mut out = format!("{title}{kind}, {nodes}{title:#}\n");
    let mut node = |n: &unslow_topology::Node, indent: &str| {
        let mut words = vec![n.role.word().to_string()];
        if topology.kind == DeploymentKind::Cluster && !n.slots.is_empty() {
            words.push(format!("slots {}", n.slots));
        }
        words.extend(n.zone.as_ref().map(|z| format!("zone {z}")));
        words.extend(n.rtt_us.map(|us| format!("{} away", time_us(us as f64))));
        let health = match n.health {
            Health::Up => String::new(),
            Health::Suspected => format!(", {bad}suspected{bad:#}"),
            Health::Failed => format!(", {bad}failed{bad:#}"),
        };
        let _ = writeln!(out, "{indent}{}  {}{health}", n.address, words.join(", "));
    };
    let mut shown = Vec::new();
    for master in topology.nodes.iter().filter(|n| n.role == Role::Master) {
        node(master, "  ");
        shown.push(&master.address);
        for replica in topology.replicas_of(&master.id) {
            node(replica, "    ");
            shown.push(&replica.address);
        }
    }
    topology.nodes.iter().filter(|n| !shown.contains(&&n.address)).for_each(|n| node(n, "  "));
    out
}

/// One line a change.
pub fn lines(delta: &Delta) -> String {
    let faint = style::FAINT;
    let seconds = delta.at_unix_ms / 1000 % 86_400;
    let clock =
        format!("{:02}:{:02}:{:02}.{:03}", seconds / 3600, seconds / 60 % 60, seconds % 60, delta.at_unix_ms % 1000);
    let mut out = String::new();
    for Known { what, sign, known_us, silent_ms } in &delta.changes {
        let color = match what {
            Change::Suspected { .. } | Change::Failed { .. } => style::BAD,
            Change::Promoted { .. } | Change::Back { .. } => style::GOOD,
            _ => style::TITLE,
        };
        let silent = silent_ms.map_or(String::new(), |ms| format!(", silent for {}", time(Duration::from_millis(ms))));
        let known = time_us(*known_us as f64);
        let _ = writeln!(
            out,
            "{faint}{clock}  #{}{faint:#}  {color}{what}{color:#}{silent}  {faint}known {known} after {}{faint:#}",
            delta.sequence,
            sign.word()
        );
    }
    out
}
