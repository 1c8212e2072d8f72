//! What a test says beside its outcome. `cargo xtask test` reads it from the file that `UNSLOW_TEST_NOTES` names,
//! prints and counts it; without a runner it goes to the output.

use std::io::Write;

/// Says that the rest of this test cannot be shown on this machine, and why. The caller returns.
pub fn skip(why: &str) {
    write("skip", why);
}

/// Says that this test was tried again, and what the machine was doing.
pub fn busy(what: &str) {
    write("busy", what);
}

fn write(kind: &str, text: &str) {
    println!("{kind}: {text}");
    let Some(path) = std::env::var_os("UNSLOW_TEST_NOTES") else { return };
    let line = format!("{kind}: {}\n", text.replace('\n', " "));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut f| f.write_all(line.as_bytes())).expect("the notes can be written");
}
