//! Stands between a program and the C library (LD_PRELOAD), so that its TCP connections to the same machine are carried
//! over shared memory. `unslow bypass` sets it up; everything it does is in the crate above, here are the C library's
//! names.
//!
//! What surprises: it runs in somebody else's process. It never prints more than a line, never ends the program,
//! installs no signal handler, starts no thread; where anything is missing everything passes through to TCP as if it
//! were not there.

mod calls;
mod real;

use unslow_bypass::sockets::{self, world};

extern "C" fn begin() {
    let Some(role) = std::env::var_os("UNSLOW_BYPASS") else { return };
    let quiet = std::env::var_os("UNSLOW_BYPASS_QUIET").is_some();
    let role = role.to_string_lossy().into_owned();
    let has = |word: &str| role.split(',').any(|w| w == word);
    match world::Settings::from_environment(has("server"), has("client")) {
        Ok(settings) => sockets::begin(settings, quiet),
        Err(why) => sockets::step_aside(&why),
    }
}

extern "C" fn end() {
    if sockets::not_our_process() {
        return;
    }
    world::leave();
    let launched = std::env::var("UNSLOW_BYPASS_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let settings = world::settings();
    if launched && settings.server && !settings.client && !world::was_met() && !has_child() {
        sockets::tell("this program never watched a listening TCP socket with epoll: nothing could be carried");
    }
}

/// Whether a child continues the work, as when a server daemonizes.
fn has_child() -> bool {
    let pid = std::process::id();
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).is_ok_and(|all| !all.trim().is_empty())
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
