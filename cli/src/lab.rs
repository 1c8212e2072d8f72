//! `unslow lab`: real deployments on this machine, with zones, round trips and faults.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use unslow_lab::faults::{ALL, Takes, two_ends};
use unslow_lab::found::{self, Description, Found, Request};
use unslow_lab::launch::{self, Order};
use unslow_lab::topology::parse_duration;
use unslow_units::{time, time_rough_s, time_us};

use crate::output::{Output, style};
use crate::table::table;

#[derive(Args)]
pub struct LabArguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Start a lab: a six-node Valkey cluster in three zones, with round trips of 0.1 ms inside and 1 ms between zones,
    /// unless a file or options say otherwise
    Up(Up),
    /// Show what is running: addresses, roles, zones, pids, faults
    Ls {
        /// One lab; all of them if omitted
        name: Option<String>,
    },
    /// Make something fail: a server, a host, a path, a zone, the deployment or its clients; without a name, list them
    Fault {
        /// Fault to inject
        name: Option<String>,
        /// A server (node-2, master, replica-1, an address), a host, a zone, or a path (zone-a:zone-b)
        #[arg(allow_hyphen_values = true)]
        target: Option<String>,
        /// The fault's value: a time, a share, a rate or a count
        #[arg(allow_hyphen_values = true)]
        value: Option<String>,
        /// Affect only traffic from A to B; the target must be a path A:B
        #[arg(long)]
        one_way: bool,
        /// Heal it automatically after this time
        #[arg(long = "for", value_parser = crate::typed::lasting, value_name = "TIME")]
        lasts: Option<Duration>,
        /// Which lab, where several are running
        #[arg(long, alias = "name", value_name = "NAME")]
        lab: Option<String>,
    },
    /// End faults, by number or name, or all of them
    Heal {
        /// Numbers or names of faults; all of them if omitted
        which: Vec<String>,
        /// Which lab, where several are running
        #[arg(long, alias = "name", value_name = "NAME")]
        lab: Option<String>,
    },
    /// Run any command on a host of the lab, your own application included
    Exec {
        /// Which lab, where several are running
        #[arg(long, alias = "name", value_name = "NAME")]
        lab: Option<String>,
        /// A host, or a server on it
        host: String,
        /// The command and its arguments
        #[arg(required = true, last = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Print a server's log
    Logs {
        /// A server of the lab: node-2, master, replica-1, an address
        server: String,
        /// Number of lines, from the end
        #[arg(short = 'n', long, default_value_t = 30, value_name = "N")]
        lines: usize,
        /// Keep printing as the log grows
        #[arg(short, long)]
        follow: bool,
        /// Which lab, where several are running
        #[arg(long, alias = "name", value_name = "NAME")]
        lab: Option<String>,
    },
    /// Take a lab down and remove everything that belongs to it
    Down {
        /// Which lab, where several are running
        name: Option<String>,
        /// Every lab, and whatever killed labs left behind
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Kill the process that holds it instead of asking it
        #[arg(long)]
        force: bool,
    },
    #[command(hide = true)]
    Hold,
}

#[derive(Args)]
struct Up {
    /// A topology file; see docs/lab.md
    file: Option<PathBuf>,
    /// Name of the lab
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Engine to run: valkey-9.1, redis-8.10, redis-7.0, redis-6.2, redis-5.0, path, /path/to/redis-server
    #[arg(long = "engine", alias = "server", value_name = "ENGINE")]
    server: Option<String>,
    /// Kind of deployment
    #[arg(long, value_enum, conflicts_with = "file")]
    kind: Option<Kind>,
    /// Masters of a cluster
    #[arg(long, value_name = "N", conflicts_with = "file")]
    masters: Option<usize>,
    /// Replicas of each master
    #[arg(long, value_name = "N", conflicts_with = "file")]
    replicas: Option<usize>,
    /// Number of zones
    #[arg(long, value_name = "N", conflicts_with = "file")]
    zones: Option<usize>,
    /// Round trip between zones
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    rtt: Option<String>,
    /// Add a setting to the configuration of every data node, such as cluster-node-timeout=2000; may be repeated.
    /// Passwords belong in a topology file: others can see the command line
    #[arg(long = "set", value_parser = setting, value_name = "NAME=VALUE", conflicts_with = "file")]
    settings: Vec<(String, String)>,
    /// Use loopback addresses: needs no privileges, has no round trips
    #[arg(long)]
    flat: bool,
    /// Do not add a device of the lab to this machine's own network namespace
    #[arg(long)]
    no_door: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Standalone,
    MasterReplica,
    Sentinel,
    Cluster,
    None,
}

impl Up {
    /// The file's text, or one made of the options.
    fn topology(&self) -> anyhow::Result<String> {
        if let Some(file) = &self.file {
            return std::fs::read_to_string(file).with_context(|| file.display().to_string());
        }
        let zones = self.zones.unwrap_or(3);
        if zones == 0 || zones > unslow_lab::topology::ZONES_MAX {
            bail!("--zones {zones}: expected 1 to {}", unslow_lab::topology::ZONES_MAX);
        }
        let mut text = String::new();
        if let Some(rtt) = &self.rtt {
            parse_duration(rtt).map_err(|e| anyhow::anyhow!("--rtt: {e}"))?;
            text += &format!("[between]\nrtt = {rtt:?}\n");
        }
        text += "[deployment]\n";
        if let Some(kind) = self.kind.and_then(|k| k.to_possible_value()) {
            text += &format!("kind = {:?}\n", kind.get_name());
        }
        if let Some(n) = self.masters {
            text += &format!("masters = {n}\n");
        }
        if let Some(n) = self.replicas {
            text += &format!("replicas = {n}\n");
        }
        if !self.settings.is_empty() {
            let mut settings = toml::Table::new();
            for (name, value) in &self.settings {
                let value = value.parse::<bool>().map_or(toml::Value::String(value.clone()), toml::Value::Boolean);
                if settings.insert(name.clone(), value).is_some() {
                    bail!("--set {name} was given twice; a topology file is the place for settings with several lines");
                }
            }
            text += &format!("[deployment.settings]\n{settings}");
        }
        for letter in ('a'..='z').take(zones) {
            text += &format!("[[zone]]\nname = \"zone-{letter}\"\n");
        }
        Ok(text)
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or("expected NAME=VALUE, such as cluster-node-timeout=2000")?;
    Ok((name.to_string(), value.to_string()))
}

impl LabArguments {
    /// Verbs that must run before there is a second thread. `None`: nothing was to be done.
    pub fn run_alone(&self) -> Option<anyhow::Error> {
        let What::Exec { lab, host, command } = &self.what else { return None };
        Some(match found::find(lab.as_deref()) {
            Ok(found) => launch::exec(&found, host, command).into(),
            Err(e) => e.into(),
        })
    }

    /// Whether this is the process that holds a lab.
    pub fn holds(&self) -> bool {
        matches!(self.what, What::Hold)
    }

    /// Whether it is on its way to start something that an interruption undoes.
    pub fn begins(&self) -> bool {
        matches!(self.what, What::Up(_) | What::Hold)
    }

    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        match &self.what {
            What::Up(up) => self.up(up, output),
            What::Ls { name } => ls(name.as_deref(), output),
            What::Fault { name, target, value, one_way, lasts, lab } => match name {
                Some(name) if name != "ls" => {
                    let target = if *one_way { Some(one_way_of(name, target.as_deref())?) } else { target.clone() };
                    fault(name, target, value, *lasts, lab.as_deref(), output)
                }
                _ => list(output),
            },
            What::Heal { which, lab } => heal(which, lab.as_deref(), output),
            What::Logs { server, lines, follow, lab } => logs(server, *lines, *follow, lab.as_deref(), output),
            What::Down { name, all, force } => down(name.as_deref(), *all, *force, output),
            What::Hold => Ok(if launch::hold()? { 0 } else { 2 }),
            What::Exec { .. } => Ok(0),
        }
    }

    fn up(&self, up: &Up, output: &Output) -> anyhow::Result<u8> {
        let order = Order {
            topology: up.topology()?,
            name: up.name.clone(),
            server: up.server.clone(),
            flat: up.flat,
            no_door: up.no_door,
        };
        let description = {
            let spinner = output.spinner();
            if let Some(file) = &up.file {
                order.topology().map_err(|e| anyhow::anyhow!("{}: {e}", file.display()))?;
            }
            launch::launch(&order, &mut |what| spinner.say(what))?
        };
        if output.json() {
            output.print_json(&description)?;
            return Ok(0);
        }
        output.print(&show(&description))?;
        let mut out = format!(
            "\n{} is up: {} servers on {} hosts, ready after {}. Try:\n",
            description.name,
            description.servers.len(),
            description.hosts.len(),
            time_us(description.ready_ms as f64 * 1e3)
        );
        let (c, name) = (style::COMMAND, &description.name);
        let lab = if name == "default" { String::new() } else { format!(" --lab {name}") };
        let client = description.hosts.iter().rev().find(|h| h.client).or(description.hosts.last());
        let client = client.map_or("", |h| h.name.as_str());
        if description.servers.is_empty() {
            out += &format!("  {c}unslow lab exec{lab} {client} -- ip address{c:#}\n");
        } else {
            out += &match &description.door {
                Some(_) => format!("  {c}unslow doctor {}{c:#}\n", description.url),
                None if description.flat => format!("  {c}unslow doctor {}{c:#}\n", description.url),
                None => format!("  {c}unslow lab exec{lab} {client} -- unslow doctor {}{c:#}\n", description.url),
            };
            out += &format!(
                "  {c}unslow lab exec{lab} {client} -- redis-cli -h {} ping{c:#}\n",
                host_of(&description.url)
            );
            let second = description.servers.get(1).unwrap_or(&description.servers[0]);
            out += &format!("  {c}unslow lab fault{lab} hang {}{c:#}\n", second.name);
        }
        out += &format!("  {c}unslow lab down {name}{c:#}\n");
        output.print(&out)?;
        Ok(0)
    }
}

fn host_of(url: &str) -> String {
    let address = url.split("//").nth(1).and_then(|a| a.split(',').next()).unwrap_or(url);
    match address.rsplit_once(':') {
        Some((host, "6379")) => host.into(),
        Some((host, port)) => format!("{host} -p {port}"),
        None => address.into(),
    }
}

/// The lab as a table.
fn show(description: &Description) -> String {
    let (title, faint, bad) = (style::TITLE, style::FAINT, style::BAD);
    let mut out = format!("{title}{}{title:#}  {}", description.name, description.url);
    if let Some((device, address)) = &description.door {
        out += &format!("  {faint}(this machine is {address} in it, device {device}){faint:#}");
    }
    out += "\n";
    let mut rows =
        vec![["zone", "host", "address", "server", "role", "state", "pid", "version"].map(String::from).to_vec()];
    for host in &description.hosts {
        let servers: Vec<_> = description.servers.iter().filter(|s| s.host == host.name).collect();
        for server in &servers {
            let role = match &server.master {
                Some(master) => {
                    let name = description.servers.iter().find(|s| s.address == *master).map(|s| s.name.clone());
                    format!("replica of {}", name.unwrap_or_else(|| master.clone()))
                }
                None => server.role.clone(),
            };
            let pid = if server.pid == 0 { "-".to_string() } else { server.pid.to_string() };
            let row =
                [&host.zone, &host.name, &server.address, &server.name, &role, &server.state, &pid, &server.version];
            rows.push(row.map(Clone::clone).to_vec());
        }
        if servers.is_empty() {
            let what = if host.client { "client" } else { "-" };
            rows.push([&host.zone, &host.name, &host.ip, "-", what, "", "", ""].map(ToString::to_string).to_vec());
        }
    }
    out += &table(&rows);
    for missing in &description.missing {
        out += &format!("{faint}flat: no {missing}{faint:#}\n");
    }
    for fault in &description.faults {
        let left = fault.left_ms.map(|ms| format!(", heals in {}", time_rough_s(ms as f64 / 1e3))).unwrap_or_default();
        out += &format!(
            "{bad}fault {}{bad:#}  {} on {} for {}{left}\n",
            fault.id,
            fault.name,
            fault.subject,
            time_rough_s(fault.age_ms as f64 / 1e3)
        );
        if let Some(error) = &fault.error {
            out += &format!("         {error}\n");
        }
    }
    if let Some(wire) = &description.wire
        && wire.packets_carried > 0
    {
        out += &format!(
            "{faint}wire: {} packets carried, {} lost, {} cut, {} dropped by full queues, {} refused by the kernel, {} \
             of CPU each{faint:#}\n",
            wire.packets_carried,
            wire.packets_lost,
            wire.packets_cut,
            wire.packets_overflowed,
            wire.packets_refused,
            time_us(wire.cpu_us as f64 / wire.packets_carried as f64)
        );
    }
    out
}

fn ls(name: Option<&str>, output: &Output) -> anyhow::Result<u8> {
    let found: Vec<Found> = match name {
        Some(name) => vec![found::find(Some(name))?],
        None => found::all(),
    };
    let mut described = Vec::new();
    let mut others = Vec::new();
    for lab in &found {
        match (lab.holder, lab.socket) {
            (Some(_), true) => match lab.describe() {
                Ok(description) => described.push(description),
                Err(e) if name.is_some() => return Err(e.into()),
                // One that is on its way down must not hide the others.
                Err(_) => others.push((lab, lab.holder)),
            },
            (holder, _) => others.push((lab, holder)),
        }
    }
    if output.json() {
        let others: Vec<Value> = others.iter().map(|(l, holder)| json!({ "name": l.name, "pid": holder })).collect();
        output.print_json(&json!({ "schema": "unslow.labs/1", "labs": described, "others": others }))?;
        return Ok(0);
    }
    for description in &described {
        output.print(&(show(description) + "\n"))?;
    }
    for (lab, holder) in others {
        output.print(&match holder {
            Some(pid) => format!(
                "{}  held by process {pid}: a test or a demo, or a lab that is starting or stopping\n",
                lab.name
            ),
            None => {
                format!("{}  its process was killed; unslow lab down {} removes what it left\n", lab.name, lab.name)
            }
        })?;
    }
    if found.is_empty() {
        output.note("there is no lab; try: unslow lab up");
    }
    Ok(0)
}

fn list(output: &Output) -> anyhow::Result<u8> {
    if output.json() {
        let rows: Vec<Value> = ALL
            .iter()
            .map(|f| {
                json!({
                    "name": f.name, "rule": f.rule, "about": f.about, "target": f.takes.words(),
                    "value": f.value.map(|v| v.0), "value_default": f.value.map(|v| v.1),
                    "needs_wires": f.wired, "needs_root": f.root,
                })
            })
            .collect();
        output.print_json(&json!({ "schema": "unslow.faults/1", "faults": rows }))?;
        return Ok(0);
    }
    let mut rows = vec![["fault", "what happens", "target and value", "the doctor's rule"].map(String::from).to_vec()];
    for fault in ALL {
        let value = fault.value.map(|(what, default)| format!("{what} ({default})"));
        let takes = Some(fault.takes.words().to_string()).filter(|target| !target.is_empty());
        let takes: Vec<String> = takes.into_iter().chain(value).collect();
        let row = [fault.name, fault.about, &takes.join("; "), fault.rule.unwrap_or("")];
        rows.push(row.map(String::from).to_vec());
    }
    output.print(&table(&rows))?;
    output.note("\nunslow lab fault NAME [TARGET] [VALUE] [--for 10s]; unslow lab heal ends it");
    Ok(0)
}

/// The target for one direction of a path, in the form that the lab takes.
fn one_way_of(name: &str, target: Option<&str>) -> anyhow::Result<String> {
    if !ALL.iter().any(|f| f.takes == Takes::Path && (f.name == name || f.rule == Some(name))) {
        bail!("--one-way is for faults of paths; unslow lab fault lists what each fault takes");
    }
    match target.and_then(two_ends) {
        Some((from, to)) => Ok(format!("{from}->{to}")),
        None => bail!(
            "--one-way needs a path with two ends, such as zone-a:zone-b; got {}",
            target.map_or("none".into(), |target| format!("{target:?}"))
        ),
    }
}

fn fault(
    name: &str,
    target: Option<String>,
    value: &Option<String>,
    lasts: Option<Duration>,
    lab: Option<&str>,
    output: &Output,
) -> anyhow::Result<u8> {
    let found = found::find(lab)?;
    let request =
        Request::Fault { name: name.into(), target, value: value.clone(), for_ms: lasts.map(|d| d.as_millis() as u64) };
    let begun = found.ask(&request, Duration::from_secs(300))?;
    if output.json() {
        output.print_json(&json!({ "schema": "unslow.lab_fault/1", "lab": found.name, "fault": begun }))?;
        return Ok(0);
    }
    let text = |field: &str| begun[field].as_str().unwrap_or_default().to_string();
    output.print(&format!("{} on {}: {}\n", text("name"), text("subject"), text("about")))?;
    if begun["name"] != "restart" {
        let heal =
            lasts.map_or(format!("unslow lab heal {} ends it", begun["id"]), |d| format!("heals in {}", time(d)));
        let rule = begun["rule"].as_str().map(|r| format!("; the doctor calls it {r}")).unwrap_or_default();
        output.note(&format!("{heal}{rule}"));
    }
    Ok(0)
}

fn heal(which: &[String], lab: Option<&str>, output: &Output) -> anyhow::Result<u8> {
    let found = found::find(lab)?;
    let healed = found.ask(&Request::Heal(which.to_vec()), Duration::from_secs(300))?;
    if output.json() {
        output.print_json(&json!({ "schema": "unslow.lab_heal/1", "lab": found.name, "healed": healed }))?;
        return Ok(0);
    }
    for fault in healed.as_array().into_iter().flatten() {
        let text = |field: &str| fault[field].as_str().unwrap_or_default().to_string();
        output.print(&format!("healed {} on {}\n", text("name"), text("subject")))?;
    }
    if healed.as_array().is_none_or(Vec::is_empty) {
        output.note("no fault was active");
    }
    Ok(0)
}

fn logs(server: &str, lines: usize, follow: bool, lab: Option<&str>, output: &Output) -> anyhow::Result<u8> {
    let found = found::find(lab)?;
    let mut from = None;
    loop {
        let answer = found.ask(&Request::Logs { server: server.into(), lines, from }, Duration::from_secs(30))?;
        let text = answer["text"].as_str().unwrap_or_default();
        if output.json() {
            if follow {
                bail!("--follow prints text as it comes; leave out --format json, or --follow");
            }
            let lines: Vec<&str> = text.lines().collect();
            output.print_json(
                &json!({ "schema": "unslow.lab_logs/1", "lab": found.name, "server": server, "lines": lines }),
            )?;
        } else if !output.print_while_read(text)? {
            return Ok(0);
        }
        if !follow {
            return Ok(0);
        }
        from = answer["next"].as_u64();
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn down(name: Option<&str>, all: bool, force: bool, output: &Output) -> anyhow::Result<u8> {
    let found = match name {
        _ if all => found::all(),
        Some(name) => {
            let mut every = found::all();
            every.retain(|f| f.name == name);
            if every.is_empty() {
                found::find(Some(name))?; // says what there is
            }
            every
        }
        None => vec![found::find(None)?],
    };
    let mut gone = Vec::new();
    let mut failed = None;
    for lab in &found {
        // A test's or a demo's own lab is not ours to end, unless it is named.
        if all && !force && lab.holder.is_some() && !lab.socket {
            output.note(&format!(
                "{} is held by process {}, which takes it down itself",
                lab.name,
                lab.holder.unwrap_or(0)
            ));
            continue;
        }
        match lab.down(force) {
            Ok(()) => gone.push(lab.name.clone()),
            Err(e) => failed = Some(e),
        }
    }
    if let Some(e) = failed {
        return Err(e.into());
    }
    if output.json() {
        output.print_json(&json!({ "schema": "unslow.lab_down/1", "down": gone }))?;
        return Ok(0);
    }
    for name in &gone {
        output.print(&format!("{name} is down; nothing is left of it\n"))?;
    }
    if gone.is_empty() {
        output.note("there was no lab");
    }
    Ok(0)
}
