//! The screen, drawn from the app's state.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline, Wrap};
use unslow_units::{count, percent, time_us};
use unslow_views::{Head, Scope, Tone, View, plain};

use super::app::{App, Edit, Mood};
use crate::when::local_time;

/// Widest that a curve is worth.
const CURVE: u16 = 20;

/// With colours, or with bold and faint alone.
#[derive(Clone, Copy)]
pub struct Look {
    pub colours: bool,
}

impl Look {
    fn bad(self) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        if self.colours { bold.fg(Color::Red) } else { bold }
    }

    fn good(self) -> Style {
        if self.colours { Style::new().fg(Color::Green) } else { Style::new() }
    }

    fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn curve(self) -> Style {
        if self.colours { Style::new().fg(Color::Cyan) } else { Style::new() }
    }
}

pub fn draw(screen: &mut Frame, app: &App, look: Look) {
    let is_scoped = app.scope != Scope::default() || !app.filter.is_empty();
    let rows = [Constraint::Length(5 + u16::from(is_scoped)), Constraint::Min(1), Constraint::Length(1)];
    let [top, middle, bottom] = Layout::vertical(rows).areas(screen.area());
    head(screen, top, app, look);
    match &app.popup {
        Some(_) => popup(screen, middle, app, look),
        None => table(screen, middle, app, look),
    }
    foot(screen, bottom, app, look);
}

fn head(screen: &mut Frame, area: Rect, app: &App, look: Look) {
    let lines = [1, 2, 1, 1, 1].map(Constraint::Length);
    let [name, verdict, figures, tabs, place] = Layout::vertical(lines).areas(area);
    let Some(frame) = app.frame() else {
        screen.render_widget(Line::styled(app.url.as_str(), look.title()), name);
        screen.render_widget("waiting for the first answers", verdict);
        return;
    };
    let (facts, figure) = (&frame.facts, &frame.head);
    let away = if figure.away > 0 { format!(", {} unreachable", figure.away) } else { String::new() };
    let servers = if figure.servers == 1 { "server" } else { "servers" };
    let left = format!("{}  {} {servers}{away}", app.url, figure.servers);
    let end_ms = facts.at_ms + (facts.window_s * 1000.0) as u64;
    let state = match (app.is_live, app.behind(), app.paused) {
        (true, 0, false) => "live",
        (true, _, _) => "PAUSED",
        (false, _, _) => "recorded",
    };
    let right = format!("{}  {state}", local_time(end_ms));
    let wide = right.chars().count() as u16 + 1;
    let [name, when] = Layout::horizontal([Constraint::Min(0), Constraint::Length(wide)]).areas(name);
    screen.render_widget(Line::styled(cut(&left, usize::from(name.width)), look.title()), name);
    screen.render_widget(Line::raw(right).right_aligned(), when);
    let (mood, sentence) = &frame.verdict;
    let style = match mood {
        Mood::Bad => look.bad(),
        Mood::Well => look.good(),
        Mood::Unknown => look.faint(),
    };
    screen.render_widget(Paragraph::new(plain(sentence)).style(style).wrap(Wrap { trim: true }), verdict);
    curves(screen, figures, app, figure, look);
    let names = View::ALL.iter().zip(1..).flat_map(|(view, key)| {
        let style = if *view == app.view { look.chosen() } else { Style::new() };
        [Span::styled(format!(" {key} {} ", view.name()), style), Span::raw(" ")]
    });
    screen.render_widget(Line::from(names.collect::<Vec<Span>>()), tabs);
    let of = app.scope.node.as_ref().map(|node| format!("of {node}  "));
    let by = app.scope.command.as_ref().map(|command| format!("last command {}  ", plain(command)));
    let with = Some(&app.filter).filter(|text| !text.is_empty()).map(|text| format!("with {text:?}"));
    screen.render_widget(Line::styled([of, by, with].into_iter().flatten().collect::<String>(), look.title()), place);
}

/// A text that is too long keeps its end: the beginning of a URL is known to the one who typed it.
fn cut(text: &str, width: usize) -> String {
    let chars = text.chars().count();
    match chars > width {
        true => std::iter::once('~').chain(text.chars().skip(chars + 1 - width.max(1))).collect(),
        false => text.to_string(),
    }
}

/// Requests, errors and the longest PING, each with its curve.
fn curves(screen: &mut Frame, area: Rect, app: &App, figure: &Head, look: Look) {
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let busiest = figure.busiest.as_ref().map_or(String::new(), |(share, _)| format!(", cpu {}", percent(*share)));
    let texts = [
        format!("{} ops/s{busiest}", known(figure.ops_per_s.map(count))),
        format!("{} errors/s", known(figure.errors_per_s.map(count))),
        format!("worst ping {}", known(figure.worst_ping.as_ref().map(|(us, _)| time_us(f64::from(*us))))),
    ];
    let thirds = Layout::horizontal([Constraint::Ratio(1, 3); 3]).areas::<3>(area);
    for (place, (text, third)) in texts.iter().zip(thirds).enumerate() {
        let wide = (text.chars().count() as u16 + 1).min(third.width);
        let [word, curve] = Layout::horizontal([Constraint::Length(wide), Constraint::Min(0)]).areas(third);
        screen.render_widget(text.as_str(), word);
        let room = usize::from(curve.width.saturating_sub(2).min(CURVE));
        let mut values: Vec<Option<f64>> = app.curve().rev().take(room).map(|point| point[place]).collect();
        values.reverse();
        let most = values.iter().flatten().copied().fold(0.0, f64::max);
        if most > 0.0 && room >= 4 {
            // Of 1000: the curve is about its shape.
            let data: Vec<Option<u64>> = values.iter().map(|v| v.map(|v| (v / most * 1000.0) as u64)).collect();
            let area = Rect { width: room as u16, ..curve };
            screen.render_widget(Sparkline::default().data(data).max(1000).style(look.curve()), area);
        }
    }
}

fn table(screen: &mut Frame, area: Rect, app: &App, look: Look) {
    let Some(table) = app.table() else { return };
    let layout = table.fit(usize::from(area.width));
    let (by, reversed) = app.sort(&table);
    let room = usize::from(area.height).saturating_sub(1 + usize::from(table.note.is_some()));
    let cursor = app.cursor(&table);
    let first = (cursor + 1).saturating_sub(room);
    let mut lines = vec![Line::styled(table.titles(&layout), look.title())];
    for (place, row) in table.rows.iter().enumerate().skip(first).take(room) {
        let style = match row.tone {
            _ if place == cursor => look.chosen(),
            Tone::Plain => Style::new(),
            Tone::Bad => look.bad(),
            Tone::Faint => look.faint(),
        };
        let mut text = table.line(row, &layout);
        if place == cursor {
            text = format!("{text:<width$}", width = usize::from(area.width));
        }
        lines.push(Line::styled(text, style));
    }
    if table.rows.is_empty() {
        lines.push(Line::styled(if app.filter.is_empty() { "nothing" } else { "no row matches" }, look.faint()));
    }
    lines.extend(table.note.as_ref().map(|note| Line::styled(note.clone(), look.faint())));
    screen.render_widget(Paragraph::new(lines), area);
    // The column it is sorted by is marked in its title.
    let mut x = area.x;
    for (place, width) in &layout.0 {
        if *place == by && x < area.right() {
            let width = (*width as u16).min(area.right() - x);
            let mark = if reversed { Modifier::UNDERLINED | Modifier::ITALIC } else { Modifier::UNDERLINED };
            let title = Rect { x, y: area.y, width, height: 1 };
            screen.buffer_mut().set_style(title, Style::new().add_modifier(mark));
        }
        x = x.saturating_add(*width as u16 + 1);
    }
}

fn popup(screen: &mut Frame, area: Rect, app: &App, look: Look) {
    let Some(popup) = &app.popup else { return };
    let lines = popup.lines.iter().skip(popup.scroll).map(|line| Line::raw(plain(line)));
    let block = Block::bordered().title(Span::styled(format!(" {} ", popup.title), look.title()));
    screen.render_widget(Clear, area);
    screen.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
}

fn foot(screen: &mut Frame, area: Rect, app: &App, look: Look) {
    let text = match (&app.edit, &app.message, &app.popup) {
        (Some((Edit::Filter, text)), _, _) => format!("/{text}_"),
        (Some((Edit::Time, text)), _, _) => format!("go to: {text}_"),
        (None, Some(message), _) => message.clone(),
        (None, None, Some(_)) => "up, down scroll; any other key closes".into(),
        (None, None, None) => "? help  Enter drill down  Esc back  / filter  <> sort  d diagnose  q quit".into(),
    };
    let style = if app.edit.is_some() || app.message.is_some() { look.title() } else { look.faint() };
    screen.render_widget(Line::styled(text, style), area);
}
