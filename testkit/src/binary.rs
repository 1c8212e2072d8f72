//! The released binary, run as a person runs it.

use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use crate::wait::PATIENCE;

/// Where cargo has put it: beside the directory of the test that runs.
pub fn path() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own program");
    let built = test.ancestors().nth(2).expect("target/release/deps/test").join("unslow");
    assert!(built.exists(), "{} is not built; cargo build --release", built.display());
    built
}

/// With these arguments, to its end.
pub fn unslow(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary runs")
}

/// The same, to be changed before it runs.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(path());
    command.args(arguments).env_remove("UNSLOW_PASSWORD");
    command
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Ended with the test, whatever becomes of it.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes numbers only, and the child is ours and not yet waited for.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }

    /// Its exit status once it has ended, which it must; none if a signal ended it.
    #[track_caller]
    pub fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("it is our child") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it did not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
