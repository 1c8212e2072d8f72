#![no_main]
//! Any text as CLUSTER NODES, INFO and a gateway's rows: no panic, and a merged view never gives a slot to two nodes.

use libfuzzer_sys::fuzz_target;
use unslow_topology::{ClusterView, Gateway, Info, NodeBehind};

fuzz_target!(|text: &str| {
    let info = Info::parse(text);
    let _ = (info.replicas(), info.command_stats(), info.error_stats(), info.keys(), info.version());
    if let Some(gateway) = Gateway::parse(&info) {
        assert_eq!(Gateway::parse(&Info::parse(&gateway.to_info())), Some(gateway));
    }
    if let Some(nodes) = NodeBehind::parse_all(text.lines()) {
        assert!(nodes.len() <= 1000 && nodes.iter().all(|n| !n.address.contains(char::is_whitespace)));
    }
    if let Ok(view) = ClusterView::parse(text) {
        let merged = ClusterView::merge(&[view.clone(), view]);
        let owned: usize = merged.nodes.iter().map(|n| n.slots.len()).sum();
        assert_eq!(owned + merged.unassigned().len(), 16384);
    }
});
