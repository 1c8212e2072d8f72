#![no_main]
//! Any bytes as a client library's error messages and as a server's log: facts, never a panic, and bounded whatever
//! their number.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let all = unslow_given::client_errors(&text);
    assert_eq!(all.is_empty(), text.trim().is_empty());
    assert!(all.len() <= 240 && all.iter().all(|e| e.count > 0));
    let addresses = all.iter().filter_map(|e| e.server.as_deref());
    let log = unslow_given::read_log(&text, Some(1_795_460_639_123), 1_795_460_639_123);
    assert!(log.events.len() <= 256 && log.events.iter().all(|e| e.count > 0 && e.since_ms <= e.at_ms));
    addresses.for_each(|a| assert!(!a.contains(char::is_whitespace) && a.len() < 300));
});
