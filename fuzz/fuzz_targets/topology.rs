#![no_main]
//! Any text as CLUSTER NODES and INFO: no panic, and a merged view never gives a slot to two nodes.

use libfuzzer_sys::fuzz_target;
use unslow_topology::{ClusterView, Info};

fuzz_target!(|text: &str| {
    let info = Info::parse(text);
    let _ = (info.replicas(), info.command_stats(), info.error_stats(), info.keys(), info.version());
    if let Ok(view) = ClusterView::parse(text) {
        let merged = ClusterView::merge(&[view.clone(), view]);
        let owned: usize = merged.nodes.iter().map(|n| n.slots.len()).sum();
        assert_eq!(owned + merged.unassigned().len(), 16384);
    }
});
