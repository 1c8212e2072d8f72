//! A real terminal: tmux, driven by keys.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::PATIENCE;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A terminal with a shell in it; ended, with all that runs there, when dropped.
pub struct Terminal {
    socket: String,
}

impl Terminal {
    /// So many columns and rows; the shell begins in `dir`.
    pub fn open(columns: u16, rows: u16, dir: &Path) -> Terminal {
        let socket = format!("unslow-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let terminal = Terminal { socket };
        let size = ["-x".to_string(), columns.to_string(), "-y".into(), rows.to_string()];
        let dir = dir.display().to_string();
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-c",
            &dir,
            &size[0],
            &size[1],
            &size[2],
            &size[3],
            "sh",
        ]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-L", &self.socket]).args(arguments).env_remove("TMUX").output();
        let output = output.expect("tmux; install it with: apt-get install tmux");
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Presses keys, as tmux names them: `Enter`, `C-c`, `Down`, or text.
    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a line into the shell.
    pub fn run(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    /// What is on the screen, line by line.
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until there is such a text on the screen; shows the screen where it does not come.
    pub fn sees(&self, text: &str) {
        self.comes_to(text, |screen| screen.contains(text));
    }

    /// Waits until the screen is as wanted; shows it where it does not come to that.
    pub fn comes_to(&self, what: &str, wanted: impl Fn(&str) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !wanted(&self.screen()) {
            assert!(Instant::now() < until, "waited for {what}; there is:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether the cursor is seen.
    pub fn shows_cursor(&self) -> bool {
        self.tmux(&["display-message", "-p", "#{cursor_flag}"]).trim() == "1"
    }

    /// The shell's process.
    pub fn pid(&self) -> u32 {
        self.tmux(&["display-message", "-p", "#{pane_pid}"]).trim().parse().expect("a process id")
    }

    /// Another size, as when a window is dragged.
    pub fn resize(&self, columns: u16, rows: u16) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}
