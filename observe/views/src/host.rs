//! The machine: what the servers' processes, the processors, the disks and the network do.

use unslow_facts::{Facts, Host};
use unslow_units::{bytes, count, percent};

use crate::table::{Cell, Column, Order, Row, Subject, Table, Tone};

pub(crate) fn table(facts: &Facts) -> Table {
    let columns = vec![
        Column::word("machine", 2, "its name"),
        Column::word("resource", 0, "a resource, or a process"),
        Column::figure("used", 0, "utilization; for a process, share of a core"),
        Column::word("details", 1, "more about it"),
    ];
    let mut table = Table::new(columns, 0);
    for host in &facts.hosts {
        of_host(host, &mut table);
    }
    if facts.hosts.is_empty() {
        table.note = Some("no server runs on this machine, or there is no data yet".into());
    }
    table
}

fn of_host(host: &Host, table: &mut Table) {
    let name = host.hostname.clone();
    let mut add = |what: String, used: Option<f64>, and: String, tone: Tone, subject: Subject| {
        let place = -(table.rows.len() as f64);
        let cells = vec![
            Cell { order: Order::Number(place), ..Cell::word(name.as_str()) },
            Cell::word(what),
            Cell::figure(used, percent),
            Cell::word(and),
        ];
        table.rows.push(Row { subject, cells, tone });
    };
    let busy = host.busy_share;
    let steal = host.steal_share.map_or(String::new(), |s| format!("{} stolen by the hypervisor", percent(s)));
    add(format!("{} processors", host.cpus), busy, steal, Tone::Plain, Subject::Other);
    if let (Some(all), Some(left)) = (host.memory_bytes, host.memory_available_bytes) {
        let used = 1.0 - left as f64 / all.max(1) as f64;
        let swapped = host.swap_used_bytes.map_or(0, |b| b);
        let and = format!("{} free, {} in swap", bytes(left as f64), bytes(swapped as f64));
        add(format!("{} of memory", bytes(all as f64)), Some(used), and, Tone::Plain, Subject::Other);
    }
    for (what, share) in &host.pressure {
        let and = "of the time, at least one task was waiting for it".into();
        let tone = if *share >= 0.1 { Tone::Bad } else { Tone::Faint };
        add(format!("pressure: {what}"), Some(*share), and, tone, Subject::Other);
    }
    for disk in &host.disks {
        let and = format!("write latency {:.1} ms", disk.write_await_ms);
        add(format!("disk {}", disk.name), Some(disk.busy_share), and, Tone::Plain, Subject::Other);
    }
    if let Some(tcp) = &host.tcp {
        let sent_again = (tcp.segments_out > 0).then(|| tcp.retransmits as f64 / tcp.segments_out as f64);
        let and = match tcp.listen_overflows {
            0 => "of segments retransmitted".into(),
            n => format!("of segments retransmitted; {} connections dropped: accept queue full", count(n as f64)),
        };
        add("TCP".into(), sent_again, and, Tone::Plain, Subject::Other);
    }
    for process in &host.processes {
        let address = process.addresses.first().cloned();
        let waits = process.run_delay_share.map(|s| format!("{} waiting for CPU", percent(s)));
        let throttled = process.throttled_share.filter(|s| *s > 0.0).map(|s| format!("throttled {}", percent(s)));
        let swapped = process.swap_bytes.filter(|b| *b > 0).map(|b| format!("{} in swap", bytes(b as f64)));
        let and: Vec<String> = waits.into_iter().chain(throttled).chain(swapped).collect();
        let what = format!("{} {}", process.name, address.clone().unwrap_or_default());
        let subject = address.map_or(Subject::Other, Subject::Node);
        add(what.trim().to_string(), process.cpu_share, and.join(", "), Tone::Plain, subject);
    }
    for neighbour in &host.neighbours {
        let what = format!("{} (not a server)", neighbour.name);
        add(what, Some(neighbour.cpu_share), String::new(), Tone::Faint, Subject::Other);
    }
}
