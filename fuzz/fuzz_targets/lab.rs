#![no_main]
//! Topologies from strangers: never a panic, never more hosts than there are addresses.

use libfuzzer_sys::fuzz_target;
use unslow_lab::topology::Topology;
use unslow_units::{parse_bit_rate, parse_bytes, parse_count, parse_rate, parse_share, parse_time, similar};

fuzz_target!(|text: &str| {
    let _ = (parse_bytes(text), parse_time(text), parse_bit_rate(text), parse_share(text), parse_count(text));
    let _ = (parse_rate(text), similar(text, ["partition", "hang"]));
    if let Ok(topology) = Topology::parse(text) {
        let hosts = topology.host_names();
        assert!(hosts.len() <= 15 * 1000);
        assert!(topology.placement().iter().chain(&topology.sentinel_placement()).all(|h| *h < hosts.len()));
    }
});
