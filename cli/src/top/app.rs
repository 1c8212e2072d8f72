//! What is on the screen, and what keys do to it. No terminal, no servers, no clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use unslow_facts::{Facts, Node, Sample};
use unslow_views::{Head, Row, Scope, Subject, Table, View};

/// Frames that are kept to step back to, and what their INFOs may take together, in bytes.
const FRAMES: usize = 600;
const FRAME_BYTES: usize = 16 << 20;
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
    /// This many frames forward, or back if negative; windows, in a recording.
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
    scope: Scope,
    filter: String,
    cursor: usize,
    chosen: Option<String>,
}

/// One point of the sparklines: requests, errors, the longest PING. None where it is not known.
pub type Point = [Option<f64>; 3];

/// Whether there is something to worry about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Bad,
    Well,
    /// It could not be looked, or not yet.
    Unknown,
}

/// A window's facts, and what the doctor says of them.
#[derive(Clone)]
pub struct Frame {
    pub facts: Arc<Facts>,
    pub head: Head,
    pub verdict: (Mood, String),
}

impl Frame {
    pub fn new(facts: Facts, verdict: (Mood, String)) -> Frame {
        let head = Head::of(&facts);
        Frame { facts: Arc::new(facts), head, verdict }
    }

    /// What its INFOs take, in bytes, without those that it shares with the frame before it.
    fn bytes(&self, before: Option<&Frame>) -> usize {
        let held = |node: &Node| {
            let nodes = before.map_or(&[][..], |frame| &frame.facts.nodes);
            let same = nodes.binary_search_by(|other| other.address.cmp(&node.address)).ok().map(|at| &nodes[at]);
            let there = same.map_or([None, None], |node| [node.first.as_ref(), node.last.as_ref()]);
            let is_new = |sample: &&Sample| !there.iter().flatten().any(|other| other.info.0.shares(&sample.info.0));
            [&node.first, &node.last].into_iter().flatten().filter(is_new).map(|s| s.info.0.bytes()).sum::<usize>()
        };
        self.facts.nodes.iter().map(held).sum()
    }
}

pub struct App {
    /// The deployment's URL, without secrets.
    pub url: String,
    /// Whether the servers are watched, or a recording is read.
    pub is_live: bool,
    frames: VecDeque<Frame>,
    /// What each of them added, in bytes.
    added: VecDeque<usize>,
    /// How many frames the one shown is behind the newest.
    back: usize,
    pub paused: bool,
    pub view: View,
    /// Only this server, or this command's clients.
    pub scope: Scope,
    pub filter: String,
    cursor: usize,
    /// The row that the cursor is on, by its first cell: rows change places.
    chosen: Option<String>,
    /// What a person paused at stays, though it is not kept any more.
    pinned: Option<Frame>,
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
            added: VecDeque::new(),
            back: 0,
            paused: false,
            view,
            scope: Scope::default(),
            filter: String::new(),
            cursor: 0,
            chosen: None,
            pinned: None,
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
        let head = &frame.head;
        self.points.push_back([
            head.ops_per_s,
            head.errors_per_s,
            head.worst_ping.as_ref().map(|(us, _)| f64::from(*us)),
        ]);
        while self.points.len() > POINTS {
            self.points.pop_front();
        }
        self.keep(frame);
    }

    /// An earlier window of a recording: the curves end with it.
    pub fn take_back(&mut self, frame: Frame) {
        if self.points.len() > 1 {
            self.points.pop_back();
        }
        self.keep(frame);
    }

    fn keep(&mut self, frame: Frame) {
        let kept = if self.is_live { FRAMES } else { 1 };
        self.added.push_back(frame.bytes(self.frames.back()));
        self.frames.push_back(frame);
        let is_much = |added: &VecDeque<usize>| added.iter().sum::<usize>() > FRAME_BYTES;
        while self.frames.len() > kept || self.frames.len() > 2 && is_much(&self.added) {
            self.frames.pop_front();
            self.added.pop_front();
            // The oldest one shares with none before it.
            if let (Some(frame), Some(added)) = (self.frames.front(), self.added.front_mut()) {
                *added = frame.bytes(None);
            }
        }
        if self.is_live && self.paused {
            self.back += 1;
        }
    }

    /// What is shown.
    pub fn frame(&self) -> Option<&Frame> {
        self.pinned.as_ref().or_else(|| self.frames.get(self.frames.len().checked_sub(1 + self.back)?))
    }

    /// The points up to what is shown.
    pub fn curve(&self) -> impl DoubleEndedIterator<Item = &Point> {
        let shown = self.points.len().saturating_sub(self.back);
        self.points.range(..shown)
    }

    /// Which row the cursor is on.
    pub fn cursor(&self, table: &Table) -> usize {
        let is_chosen = |row: &Row| self.chosen.as_deref() == Some(&*row.cells[0].text);
        // Of several that look alike, the one where it was.
        let here = table.rows.get(self.cursor).is_some_and(is_chosen);
        let place = if here { Some(self.cursor) } else { table.rows.iter().position(is_chosen) };
        place.unwrap_or(self.cursor).min(table.rows.len().saturating_sub(1))
    }

    /// How many frames it is behind the newest one.
    pub fn behind(&self) -> usize {
        self.back
    }

    /// Forwards, or back, among the frames that are held; `false` where there are no more.
    pub fn step(&mut self, frames: i64) -> bool {
        let oldest = self.frames.len().saturating_sub(1);
        let from = self.back.min(oldest);
        let back = (from as i64 - frames).clamp(0, oldest as i64) as usize;
        if back != from {
            (self.back, self.pinned, self.paused) = (back, None, back > 0);
            self.pinned = self.frame().filter(|_| self.paused).cloned();
        }
        back != from
    }

    fn pause(&mut self) {
        self.paused = true;
        self.pinned = self.frame().filter(|_| self.is_live).cloned();
    }

    /// Back to the newest one.
    pub fn newest(&mut self) {
        (self.back, self.paused, self.pinned) = (0, false, None);
    }

    /// What the recorder's points were, when another time of a recording is looked at.
    pub fn forget_points(&mut self) {
        self.points.clear();
    }

    /// The table as it is shown: of one server or all, filtered, sorted.
    pub fn table(&self) -> Option<Table> {
        let frame = self.frame()?;
        let mut table = self.view.of(&frame.facts, &self.scope);
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
            // Backspace, where a terminal sends it so.
            (true, KeyCode::Char('h')) if self.edit.is_some() => return self.typed(KeyCode::Backspace),
            (true, _) => return Wish::Nothing,
            _ => {}
        }
        // Esc and a key right behind it come as one.
        if key.modifiers.contains(KeyModifiers::ALT) {
            self.key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
            return self.key(KeyEvent::new(key.code, KeyModifiers::NONE));
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
            self.to(0, None);
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
            KeyCode::Home => self.move_by(isize::MIN / 2),
            KeyCode::End => self.move_by(isize::MAX / 2),
            KeyCode::Enter => self.deeper(),
            KeyCode::Esc => self.out(),
            KeyCode::Char('/') => self.edit = Some((Edit::Filter, self.filter.clone())),
            KeyCode::Char('<') => self.sort_by(-1),
            KeyCode::Char('>') => self.sort_by(1),
            KeyCode::Char('r') => self.reverse(),
            KeyCode::Char(' ') if self.is_live && self.paused => self.newest(),
            KeyCode::Char(' ') => self.pause(),
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
        table.rows.get(self.cursor(&table)).cloned()
    }

    fn go(&mut self, view: View) {
        if view != self.view {
            self.view = view;
            self.to(0, None);
            self.way.clear();
            self.filter.clear();
            self.scope.command = None;
        }
    }

    fn go_by(&mut self, places: usize) {
        let place = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        self.go(View::ALL[(place + places) % View::ALL.len()]);
    }

    fn move_by(&mut self, rows: isize) {
        let Some(table) = self.table() else { return };
        let last = table.rows.len().saturating_sub(1) as isize;
        let place = (self.cursor(&table) as isize).saturating_add(rows).clamp(0, last) as usize;
        self.to(place, table.rows.get(place).map(|row| row.cells[0].text.clone()));
    }

    fn to(&mut self, place: usize, chosen: Option<String>) {
        (self.cursor, self.chosen) = (place, chosen);
    }

    /// From a server to its commands, from a command to the clients that send it.
    fn deeper(&mut self) {
        let (Some(row), Some(view)) = (self.row(), self.view.deeper()) else { return };
        let (scope, filter) = (self.scope.clone(), self.filter.clone());
        let here = Place { view: self.view, scope, filter, cursor: self.cursor, chosen: self.chosen.clone() };
        match row.subject {
            Subject::Node(address) => self.scope.node = Some(address),
            Subject::Command(name) => self.scope.command = Some(name),
            Subject::Other => return,
        }
        self.way.push(here);
        (self.view, self.filter) = (view, String::new());
        self.to(0, None);
    }

    /// One step back, or out of a filter, or back to all servers.
    fn out(&mut self) {
        match self.way.pop() {
            Some(Place { view, scope, filter, cursor, chosen }) => {
                (self.view, self.scope, self.filter) = (view, scope, filter);
                self.to(cursor, chosen);
            }
            None if !self.filter.is_empty() => self.filter.clear(),
            None => self.scope = Scope::default(),
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
Enter         drill down: a server's commands, a command's clients
Esc           back
/             show only rows with this text; Esc ends it
< >           change the sort column
r             reverse the order
Space         pause / resume
left, right   step through time ([ and ] ten steps)
t             go to a time in the recording, such as 01:00 or \"3h ago\"
n             back to now, or to the end of the recording
d             diagnose what is on the screen
s             save it as facts, for unslow doctor --from
y             copy the row to the clipboard (OSC 52)
q             quit

Nothing here changes anything on a server.";

#[cfg(test)]
#[path = "app_tests.rs"]
mod tests;
