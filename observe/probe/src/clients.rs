//! CLIENT LIST, whole where that is cheap, else by windows of ids.
//!
//! The whole list costs 12 ms at 4,000 connections on every version we measured, which is a stall of its own. CLIENT
//! LIST ID (6.2+) costs what it finds. Older servers with many clients are not asked at all.

use std::collections::{BTreeMap, BTreeSet};

use unslow_client::Error;
use unslow_facts::{ClientGroup, ClientRow, Clients, Gap, Lack, Seen};

use crate::ask::{Ask, seen};

/// Up to this many clients the whole list stays near 1 ms (12 ms at 4,000).
const WHOLE_MAX: u64 = 400;
/// Ids in one question; all present cost about 0.2 ms.
const WINDOW: u64 = 64;
/// Questions.
const WINDOWS: u64 = 24;
/// Rows with more bytes than this waiting to be read, or half sent, are kept by themselves.
const OUTPUT_NOTABLE_BYTES: u64 = 256 << 10;
/// Rows kept by themselves, at most.
const NOTABLE_MOST: usize = 50;

/// `window_ms` is how long ago the window began; `time_left` is asked before each of several questions.
pub fn look(
    ask: &mut Ask,
    level: (u32, u32),
    total: u64,
    window_ms: u64,
    time_left: impl Fn() -> bool,
) -> Seen<Clients> {
    if total <= WHOLE_MAX {
        let reply = ask.call(&["CLIENT", "LIST"]);
        return seen(reply.map(|v| digest(&v.text().unwrap_or_default(), total, false, window_ms)), "CLIENT LIST");
    }
    if level < (6, 2) {
        return Seen::No(Gap::new(
            Lack::Version,
            format!("CLIENT LIST would stall this server: {total} clients, and no CLIENT LIST ID before 6.2"),
            "run CLIENT LIST by hand at a quiet hour, or ask a replica",
        ));
    }
    seen(sample(ask, total, window_ms, time_left), "CLIENT LIST ID (windows of ids)")
}

fn sample(ask: &mut Ask, total: u64, window_ms: u64, time_left: impl Fn() -> bool) -> Result<Clients, Error> {
    let newest = ask.call(&["CLIENT", "ID"])?.integer().unwrap_or(1).max(1) as u64;
    let mut text = String::new();
    // A server that answers slowly shows fewer windows; how many rows were read stands in the facts.
    for start in windows(newest, total).take_while(|_| time_left()) {
        let mut command = vec!["CLIENT".to_string(), "LIST".into(), "ID".into()];
        command.extend((start..start + WINDOW).map(|id| id.to_string()));
        text += &ask.call(&command)?.text().unwrap_or_default();
    }
    // Subscribers are few and matter most when they are slow; only their rows are rendered.
    if time_left()
        && let Ok(subscribers) = ask.call(&["CLIENT", "LIST", "TYPE", "pubsub"])
    {
        text += &subscribers.text().unwrap_or_default();
    }
    Ok(digest(&text, total, true, window_ms))
}

/// The first id of each window. Half of the windows are among the newest ids, where churn lives; half over all ids ever
/// given, where old pools live.
fn windows(newest: u64, total: u64) -> impl Iterator<Item = u64> {
    let recent = (newest.saturating_sub(2 * total).max(1), newest);
    (0..WINDOWS).map(move |i| {
        let (from, to) = if i % 2 == 0 { recent } else { (1, newest) };
        let span = (to - from).saturating_sub(WINDOW);
        from + span * (i / 2) / (WINDOWS / 2 - 1)
    })
}

fn digest(text: &str, total: u64, sampled: bool, window_ms: u64) -> Clients {
    let mut rows: BTreeMap<u64, ClientRow> = BTreeMap::new();
    let mut groups: BTreeMap<(String, String, String), ClientGroup> = BTreeMap::new();
    let mut ours = BTreeSet::new();
    for line in text.lines() {
        let row = row(line);
        if row.name == "unslow" {
            ours.insert(row.id);
            continue;
        }
        if row.id == 0 || rows.contains_key(&row.id) {
            continue;
        }
        let host = row.address.rsplit_once(':').map_or(row.address.as_str(), |(h, _)| h).to_string();
        let name = row.name.trim_end_matches(|c: char| c.is_ascii_digit()).to_string();
        let group = groups.entry((row.library.clone(), name.clone(), host.clone())).or_insert_with(|| ClientGroup {
            host,
            name,
            library: row.library.clone(),
            ..ClientGroup::default()
        });
        group.count += 1;
        group.young += u64::from(row.age_s < 2);
        group.idle_hour += u64::from(row.idle_s > 3600);
        // Ages are whole seconds, rounded down.
        group.opened += u64::from(row.age_s.saturating_mul(1000) < window_ms);
        // `timeout` leaves these alone.
        if !row.flags.contains(['b', 'M', 'O', 'P', 'S']) {
            group.idle_s_max = group.idle_s_max.max(Some(row.idle_s));
        }
        *group.commands.entry(row.command.clone()).or_default() += 1;
        rows.insert(row.id, row);
    }
    let listed = rows.len() as u64;
    let blocked = Some(rows.values().filter(|r| r.flags.contains('b')).count() as u64);
    let held = |r: &ClientRow| r.output_bytes.max(r.query_bytes);
    let is_special = |r: &ClientRow| r.flags.contains('O') || (r.flags.contains('b') && r.unparsed_bytes > 0);
    let mut notable: Vec<ClientRow> =
        rows.into_values().filter(|r| is_special(r) || held(r) > OUTPUT_NOTABLE_BYTES).collect();
    notable.sort_by_key(|r| std::cmp::Reverse((r.flags.contains('O'), is_special(r), held(r))));
    notable.truncate(NOTABLE_MOST);
    let mut groups: Vec<ClientGroup> = groups.into_values().collect();
    groups.sort_by_key(|g| std::cmp::Reverse(g.count));
    groups.truncate(200);
    let ours = (!sampled).then_some(ours.len() as u64);
    Clients { total, listed, blocked, ours, sampled, groups, notable }
}

fn row(line: &str) -> ClientRow {
    let mut row = ClientRow::default();
    let mut version = "";
    for (key, value) in line.split(' ').filter_map(|p| p.split_once('=')) {
        let number = || value.parse().unwrap_or(0);
        match key {
            "id" => row.id = number(),
            "addr" => row.address = value.to_string(),
            "name" => row.name = value.to_string(),
            "lib-name" => row.library = value.to_string(),
            "lib-ver" => version = value,
            "flags" => row.flags = value.to_string(),
            "cmd" => row.command = value.to_string(),
            "age" => row.age_s = number(),
            "idle" => row.idle_s = number(),
            "omem" => row.output_bytes = number(),
            "qbuf" | "qbuf-free" | "argv-mem" | "multi-mem" => {
                row.query_bytes = row.query_bytes.saturating_add(number());
                if key == "qbuf" {
                    row.unparsed_bytes = number();
                }
            }
            _ => {}
        }
    }
    if !row.library.is_empty() && !version.is_empty() {
        row.library = format!("{} {version}", row.library);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_rows_and_keeps_the_notable_ones() {
        let text = "id=3 addr=10.0.0.1:5 name=app-17 age=1 idle=0 flags=N omem=0 cmd=get user=x lib-name=jedis \
                    lib-ver=5.1\n\
                    id=4 addr=10.0.0.1:6 name=app-18 age=9 idle=4000 flags=N omem=0 cmd=get lib-name=jedis \
                    lib-ver=5.1\n\
                    id=5 addr=10.0.0.2:6 name= age=9 idle=4 flags=O omem=0 cmd=monitor lib-name= lib-ver=\n\
                    id=5 addr=10.0.0.2:6 name= age=9 idle=4 flags=O omem=0 cmd=monitor lib-name= lib-ver=\n\
                    id=6 addr=10.0.0.3:6 name=unslow age=9 idle=4 flags=N omem=0 cmd=client|list\n";
        let clients = digest(text, 3, false, 5000);
        assert_eq!((clients.listed, clients.groups.len(), clients.notable.len()), (3, 2, 1));
        let jedis = &clients.groups[0];
        assert_eq!(
            (jedis.library.as_str(), jedis.name.as_str(), jedis.count, jedis.young, jedis.idle_hour),
            ("jedis 5.1", "app-", 2, 1, 1)
        );
        assert_eq!((jedis.opened, jedis.idle_s_max), (1, Some(4000)), "one came since the window began, 5 s ago");
        let monitor = clients.groups.iter().find(|g| g.host == "10.0.0.2").unwrap();
        assert_eq!(monitor.idle_s_max, None, "timeout leaves it alone");
    }

    #[test]
    fn commands_that_wait_behind_a_blocking_one_are_notable_however_few_bytes_they_have() {
        let text = "id=7 addr=h:1 flags=b qbuf=40 qbuf-free=100 omem=0 cmd=blpop\n\
                    id=8 addr=h:2 flags=b qbuf=0 qbuf-free=20448 omem=0 cmd=blpop\n\
                    id=9 addr=h:3 flags=N qbuf=40 qbuf-free=20448 omem=0 cmd=get\n";
        let clients = digest(text, 3, false, 0);
        assert_eq!(clients.blocked, Some(2));
        assert_eq!(clients.notable.iter().map(|r| (r.id, r.unparsed_bytes)).collect::<Vec<_>>(), [(7, 40)]);
    }

    #[test]
    fn client_id_windows_cover_recent_ids_and_all_ids() {
        for (newest, total) in [(1_000_000, 5_000), (9_000, 8_000), (500, 450), (64, 401), (1, 401)] {
            let starts: Vec<u64> = windows(newest, total).collect();
            let recent = newest.saturating_sub(2 * total).max(1);
            let (new, all): (Vec<(usize, u64)>, _) = starts.iter().copied().enumerate().partition(|(i, _)| i % 2 == 0);
            for (from, half) in [(recent, new), (1, all)] {
                let half: Vec<u64> = half.into_iter().map(|(_, start)| start).collect();
                assert!(half.is_sorted(), "{half:?}");
                assert_eq!((half.len() as u64, half[0]), (WINDOWS / 2, from), "{newest} {total}");
                // The last window ends right before the newest id, our own.
                let last = newest.saturating_sub(WINDOW).max(from);
                assert_eq!(*half.last().unwrap(), last, "{newest} {total}");
            }
        }
    }

    #[test]
    fn notable_clients_are_monitors_first_then_the_largest_output_buffers() {
        let row = |id: u64, flags: &str, omem: u64| format!("id={id} addr=h:1 flags={flags} omem={omem} cmd=get\n");
        let text: String = [row(1, "N", OUTPUT_NOTABLE_BYTES), row(2, "N", OUTPUT_NOTABLE_BYTES + 1), row(3, "O", 0)]
            .into_iter()
            .chain((10..100).map(|id| row(id, "N", 1_000_000 + id)))
            .collect();
        let clients = digest(&text, 93, true, 0);
        assert_eq!((clients.listed, clients.notable.len()), (93, NOTABLE_MOST));
        let ids: Vec<u64> = clients.notable.iter().map(|r| r.id).take(3).collect();
        assert_eq!(ids, [3, 99, 98]);
        assert!(clients.notable.iter().all(|r| r.id > 2), "small buffers are not notable");
    }

    #[test]
    fn half_sent_requests_are_notable_by_all_that_is_held_of_them() {
        let text = "id=7 addr=h:1 flags=N qbuf=900000 qbuf-free=100000 argv-mem=24 omem=0 cmd=NULL\n\
                    id=8 addr=h:2 flags=N qbuf=26 qbuf-free=20448 argv-mem=10 omem=0 cmd=get\n";
        let notable = digest(text, 2, false, 0).notable;
        assert_eq!(notable.iter().map(|r| (r.id, r.query_bytes)).collect::<Vec<_>>(), [(7, 1_000_024)]);
    }
}
