#![no_main]
//! Any bytes as a message, any text as a command's template: a whole command or a sentence, never a panic.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (template, message) = bytes.split_at(bytes.iter().position(|b| *b == b'\n').unwrap_or(0));
    let template = std::str::from_utf8(template).unwrap_or("HSET k:{id} {fields...}");
    unslow_sink::fuzz(template, message);
});
