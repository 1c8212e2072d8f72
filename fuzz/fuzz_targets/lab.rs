#![no_main]
//! Topologies from strangers: never a panic, never more hosts than there are addresses.

use libfuzzer_sys::fuzz_target;
use unslow_lab::topology::{Topology, parse_bytes, parse_duration, parse_rate, parse_share};

fuzz_target!(|text: &str| {
    let _ = (parse_bytes(text), parse_duration(text), parse_rate(text), parse_share(text));
    if let Ok(topology) = Topology::parse(text) {
        let hosts = topology.host_names();
        assert!(hosts.len() <= 15 * 1000);
        assert!(topology.placement().iter().chain(&topology.sentinel_placement()).all(|h| *h < hosts.len()));
    }
});
