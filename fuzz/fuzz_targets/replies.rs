#![no_main]
//! Any frame as CLUSTER SLOTS, CLUSTER SHARDS, ROLE and COMMAND, any text as a Sentinel's word: no panic.

use libfuzzer_sys::fuzz_target;
use unslow_resp::{Frame, Scan, Scanner, Value};
use unslow_topology::messages::Heartbeat;
use unslow_topology::{ClusterView, RoleReply, SentinelWord, Topology, zones_of_shards};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Scan::Complete(len)) = Scanner::default().scan(bytes) {
        let value = Value::from(Frame::new(&bytes[..len]));
        for view in [ClusterView::from_slots(&value), ClusterView::from_shards(&value)].into_iter().flatten() {
            let topology = Topology::of_cluster(&view, false);
            assert!(topology.changes(&topology).is_empty());
        }
        let _ = (RoleReply::parse(&value), zones_of_shards(&value));
        if let Some(table) = unslow_commands::Table::parse(&value, &[]) {
            let _ = table.plan(b"GETk", &[(0, 3), (3, 4)]);
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let (channel, text) = text.split_once('\n').unwrap_or(("", text));
        let _ = (SentinelWord::parse(channel, text), Heartbeat::parse(text));
    }
});
