//! What is on the screen, and what keys do to it. No terminal, no servers, no clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use unslow_facts::Facts;
use unslow_views::{Head, Row, Subject, Table, View};

/// Servers' frames that are kept to step back to: 300 of three servers, three of three hundred. Each holds two INFOs.
const FRAMES_OF_NODES: usize = 900;
/// Points of a sparkline.
const POINTS: usize = 60;
/// Rows that Page Up and Page Down move by.
const PAGE: isize = 15;

/// What the loop has to do for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    Nothing,
    Quit,
    /// Ctrl-Z.
    Suspend,
    /// So many frames forwards, or back. Of a recording: windows.
    Step(i64),
    /// To a time as it was typed.
    Jump(String),
    /// To the newest frame, or the end of the recording.
    Newest,
    /// Diagnoses what is on the screen.
    Diagnose,
    /// Saves it as facts.
    Save,
    /// Puts this into the terminal's clipboard.
    Copy(String),
}

/// What is being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    Filter,
    Time,
}

/// Text above the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Popup {
    pub title: String,
    pub lines: Vec<String>,
    pub scroll: usize,
}

/// How one came here.
#[derive(Clone, Debug)]
struct Place {
    view: View,
    node: Option<String>,
    filter: String,
    cursor: usize,
}

/// One point of the sparklines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    pub ops: f64,
    pub errors: f64,
    pub worst_us: f64,
}

/// A window's facts, and what the doctor says of them.
#[derive(Clone)]
pub struct Frame {
    pub facts: Arc<Facts>,
    /// Whether there is something to worry about, and a sentence.
    pub verdict: (bool, String),
}

pub struct App {
    /// The deployment's URL, without secrets.
    pub url: String,
    /// Whether the servers are watched, or a recording is read.
    pub is_live: bool,
    frames: VecDeque<Frame>,
    /// So many frames before the newest one.
    back: usize,
    pub paused: bool,
    pub view: View,
    /// Only this server.
    pub node: Option<String>,
    pub filter: String,
    pub cursor: usize,
    way: Vec<Place>,
    sorts: BTreeMap<View, (usize, bool)>,
    pub edit: Option<(Edit, String)>,
    pub popup: Option<Popup>,
    /// What the last key did.
    pub message: Option<String>,
    pub points: VecDeque<Point>,
}

impl App {
    pub fn new(url: &str, is_live: bool, view: View) -> App {
        App {
            url: url.to_string(),
            is_live,
            frames: VecDeque::new(),
            back: 0,
            paused: false,
            view,
            node: None,
            filter: String::new(),
            cursor: 0,
            way: Vec::new(),
            sorts: BTreeMap::new(),
            edit: None,
            popup: None,
            message: None,
            points: VecDeque::new(),
        }
    }

    /// The next window.
    pub fn take(&mut self, frame: Frame) {
        let head = Head::of(&frame.facts);
        self.points.push_back(Point {
            ops: head.ops_per_s.unwrap_or(0.0),
            errors: head.errors_per_s.unwrap_or(0.0),
            worst_us: head.worst_ping.map_or(0.0, |(us, _)| f64::from(us)),
        });
        while self.points.len() > POINTS {
            self.points.pop_front();
        }
        let kept = if self.is_live { (FRAMES_OF_NODES / frame.facts.nodes.len().max(1)).clamp(2, 600) } else { 1 };
        self.frames.push_back(frame);
        while self.frames.len() > kept {
            self.frames.pop_front();
        }
        // What is looked at stays where it is until it falls out at the other end.
        if self.paused {
            self.back = (self.back + 1).min(self.frames.len() - 1);
        }
    }

    /// What is shown.
    pub fn frame(&self) -> Option<&Frame> {
        self.frames.get(self.frames.len().checked_sub(1 + self.back)?)
    }

    /// How many frames it is behind the newest one.
    pub fn behind(&self) -> usize {
        self.back
    }

    /// Forwards, or back, among the frames that are held; `false` where there are no more.
    pub fn step(&mut self, frames: i64) -> bool {
        let back = (self.back as i64 - frames).clamp(0, self.frames.len().saturating_sub(1) as i64) as usize;
        let moved = back != self.back;
        self.back = back;
        self.paused = back > 0 || self.paused && frames < 0;
        moved
    }

    /// Back to the newest one.
    pub fn newest(&mut self) {
        (self.back, self.paused) = (0, false);
    }

    /// What the recorder's points were, when another time of a recording is looked at.
    pub fn forget_points(&mut self) {
        self.points.clear();
    }

    /// The table as it is shown: of one server or all, filtered, sorted.
    pub fn table(&self) -> Option<Table> {
        let frame = self.frame()?;
        let mut table = self.view.of(&frame.facts, self.node.as_deref());
        if !self.filter.is_empty() {
            table.filter(&self.filter);
        }
        let (column, reversed) = self.sort(&table);
        table.sort(column, reversed);
        Some(table)
    }

    /// By which column, and whether the other way round.
    pub fn sort(&self, table: &Table) -> (usize, bool) {
        self.sorts.get(&self.view).copied().unwrap_or((table.by, false))
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent) -> Wish {
        self.message = None;
        let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        match (ctrl, key.code) {
            (true, KeyCode::Char('c')) => return Wish::Quit,
            (true, KeyCode::Char('z')) => return Wish::Suspend,
            (true, _) => return Wish::Nothing,
            _ => {}
        }
        if self.edit.is_some() {
            return self.typed(key.code);
        }
        if self.popup.is_some() {
            return self.read(key.code);
        }
        self.pressed(key.code)
    }

    fn typed(&mut self, code: KeyCode) -> Wish {
        let Some((what, mut text)) = self.edit.take() else { return Wish::Nothing };
        match code {
            KeyCode::Esc => {
                if what == Edit::Filter {
                    self.filter.clear();
                }
                return Wish::Nothing;
            }
            KeyCode::Enter => {
                return match what {
                    Edit::Filter => Wish::Nothing,
                    Edit::Time => Wish::Jump(text),
                };
            }
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(c) if text.len() < 200 => text.push(c),
            _ => {}
        }
        if what == Edit::Filter {
            self.filter.clone_from(&text);
            self.cursor = 0;
        }
        self.edit = Some((what, text));
        Wish::Nothing
    }

    fn read(&mut self, code: KeyCode) -> Wish {
        let Some(popup) = &mut self.popup else { return Wish::Nothing };
        let last = popup.lines.len().saturating_sub(1) as isize;
        let by = match code {
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::PageUp => -PAGE,
            KeyCode::PageDown | KeyCode::Char(' ') => PAGE,
            KeyCode::Home => isize::MIN / 2,
            KeyCode::End => isize::MAX / 2,
            _ => {
                self.popup = None;
                return Wish::Nothing;
            }
        };
        popup.scroll = (popup.scroll as isize).saturating_add(by).clamp(0, last) as usize;
        Wish::Nothing
    }

    fn pressed(&mut self, code: KeyCode) -> Wish {
        match code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char(c @ '1'..='6') => self.go(View::ALL[c as usize - '1' as usize]),
            KeyCode::Tab => self.go_by(1),
            KeyCode::BackTab => self.go_by(View::ALL.len() - 1),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-PAGE),
            KeyCode::PageDown => self.move_by(PAGE),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.move_by(isize::MAX / 2),
            KeyCode::Enter => self.deeper(),
            KeyCode::Esc => self.out(),
            KeyCode::Char('/') => self.edit = Some((Edit::Filter, self.filter.clone())),
            KeyCode::Char('<') => self.sort_by(-1),
            KeyCode::Char('>') => self.sort_by(1),
            KeyCode::Char('r') => self.reverse(),
            KeyCode::Char(' ') if self.is_live && self.paused => self.newest(),
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Left => return Wish::Step(-1),
            KeyCode::Right => return Wish::Step(1),
            KeyCode::Char('[') => return Wish::Step(-10),
            KeyCode::Char(']') => return Wish::Step(10),
            KeyCode::Char('t') => self.edit = Some((Edit::Time, String::new())),
            KeyCode::Char('n') => return Wish::Newest,
            KeyCode::Char('d') => return Wish::Diagnose,
            KeyCode::Char('s') => return Wish::Save,
            KeyCode::Char('y') => return self.row().map_or(Wish::Nothing, |row| Wish::Copy(words(&row))),
            KeyCode::Char('?' | 'h') => self.popup = Some(self.help()),
            _ => {}
        }
        Wish::Nothing
    }

    fn row(&self) -> Option<Row> {
        let table = self.table()?;
        table.rows.get(self.cursor.min(table.rows.len().saturating_sub(1))).cloned()
    }

    fn go(&mut self, view: View) {
        if view != self.view {
            (self.view, self.cursor) = (view, 0);
            self.way.clear();
            self.filter.clear();
        }
    }

    fn go_by(&mut self, places: usize) {
        let place = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        self.go(View::ALL[(place + places) % View::ALL.len()]);
    }

    fn move_by(&mut self, rows: isize) {
        let last = self.table().map_or(0, |table| table.rows.len().saturating_sub(1)) as isize;
        self.cursor = (self.cursor as isize).min(last).saturating_add(rows).clamp(0, last) as usize;
    }

    /// From a server to its commands, from a command to the clients that send it.
    fn deeper(&mut self) {
        let (Some(row), Some(view)) = (self.row(), self.view.deeper()) else { return };
        let here = Place { view: self.view, node: self.node.clone(), filter: self.filter.clone(), cursor: self.cursor };
        match row.subject {
            Subject::Node(address) => (self.node, self.filter) = (Some(address), String::new()),
            Subject::Command(name) => self.filter = name,
            Subject::Other => return,
        }
        self.way.push(here);
        (self.view, self.cursor) = (view, 0);
    }

    /// One step back, or out of a filter, or back to all servers.
    fn out(&mut self) {
        match self.way.pop() {
            Some(Place { view, node, filter, cursor }) => {
                (self.view, self.node, self.filter, self.cursor) = (view, node, filter, cursor);
            }
            None if !self.filter.is_empty() => self.filter.clear(),
            None => self.node = None,
        }
    }

    fn sort_by(&mut self, columns: isize) {
        let Some(table) = self.table() else { return };
        let all = table.columns.len() as isize;
        let (column, reversed) = self.sort(&table);
        let column = (column as isize + columns).rem_euclid(all.max(1)) as usize;
        self.sorts.insert(self.view, (column, reversed));
        self.message = table.columns.get(column).map(|c| format!("sorted by {}: {}", c.title, c.about));
    }

    fn reverse(&mut self) {
        let Some(table) = self.table() else { return };
        let (column, reversed) = self.sort(&table);
        self.sorts.insert(self.view, (column, !reversed));
    }

    fn help(&self) -> Popup {
        let mut lines: Vec<String> = HELP.lines().map(str::to_string).collect();
        if let Some(table) = self.table() {
            lines.push(String::new());
            lines.push(format!("Columns of {}:", self.view.name()));
            lines.extend(table.columns.iter().map(|c| format!("  {:<10}{}", c.title, c.about)));
        }
        Popup { title: "help".into(), lines, scroll: 0 }
    }
}

/// A row as text, one tab between cells.
fn words(row: &Row) -> String {
    row.cells.iter().map(|cell| cell.text.trim()).collect::<Vec<_>>().join("\t")
}

const HELP: &str = "\
1-6, Tab      nodes, commands, clients, slow, topology, host
up, down      choose a row (also j, k, Page Up, Page Down, Home, End)
Enter         deeper: a server's commands, a command's clients
Esc           back
/             show only rows with this text; Esc ends it
< >           sort by another column
r             the other way round
Space         pause, and go on
left, right   step through time ([ and ] ten steps)
t             go to a time of a recording, such as 01:00 or \"3h ago\"
n             back to now, or to the end of the recording
d             diagnose what is on the screen
s             save it as facts, for unslow doctor --from
y             copy the row to the terminal's clipboard
q             quit

Nothing here changes anything on a server.";

#[cfg(test)]
#[path = "app_tests.rs"]
mod tests;
