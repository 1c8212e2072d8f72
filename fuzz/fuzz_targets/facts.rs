#![no_main]
//! Any text as a facts file: an error or facts, never a panic.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = unslow_facts::Facts::from_json(text);
});
