//! The terminal: taken, and given back on every way out.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, channel};

use base64::Engine;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};

/// A clipboard that a terminal takes at once; longer rows there are not.
const COPY_MAX: usize = 8_192;

/// The terminal while it is ours. Dropped, or after a panic, it is as it was.
pub struct Screen(pub DefaultTerminal);

impl Screen {
    pub fn take() -> io::Result<Screen> {
        ratatui::try_init().map(Screen)
    }

    /// Restores the terminal, stops this process as Ctrl-Z does, and takes the terminal again when it is resumed.
    pub fn suspend(&mut self) -> io::Result<()> {
        self.0.show_cursor()?;
        ratatui::restore();
        rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
        // To make another one, or to clear this one, asks where the cursor is, and the answer would be read as keys.
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        self.0.hide_cursor()?;
        let size = self.0.size()?;
        self.0.resize(size.into())
    }

    /// Asks the terminal to put a text into the clipboard (OSC 52); it may not know how, and does not say so.
    pub fn copy(text: &str) -> io::Result<()> {
        let short: String = text.chars().take(COPY_MAX).collect();
        let coded = base64::engine::general_purpose::STANDARD.encode(short);
        let mut out = io::stdout();
        write!(out, "\x1b]52;c;{coded}\x07")?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Keys and changes of size, read on a thread of their own: where a terminal has gone, reading it never comes back.
pub fn keys() -> io::Result<Receiver<Event>> {
    let (tell, told) = channel();
    let read = move || {
        while let Ok(event) = event::read() {
            if tell.send(event).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new().name("top-keys".into()).spawn(read)?;
    Ok(told)
}

/// Whether there is a terminal to draw on.
pub fn can_draw() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb
}
