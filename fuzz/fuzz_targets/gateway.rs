#![no_main]
//! Any bytes as a client's requests: no panic, and never past the end.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert!(unslow_gateway::parse_requests(bytes) <= bytes.len());
});
