//! Line mode: a table each interval, for pipes, logs and screen readers.

use unslow_units::{count, time_us};
use unslow_views::plain;

use super::app::App;
use crate::when::local_time;

/// Where COLUMNS does not give the width.
const WIDTH: usize = 110;

/// What is on the screen, as lines.
pub fn text(app: &App, width: Option<usize>) -> String {
    let (Some(frame), Some(table)) = (app.frame(), app.table()) else { return String::new() };
    let head = &frame.head;
    let end_ms = frame.facts.at_ms + (frame.facts.window_s * 1000.0) as u64;
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let mut lines = vec![format!(
        "{}  {} ops/s, {} errors/s, worst ping {}; {}",
        local_time(end_ms),
        known(head.ops_per_s.map(count)),
        known(head.errors_per_s.map(count)),
        known(head.worst_ping.as_ref().map(|(us, _)| time_us(f64::from(*us)))),
        plain(&frame.verdict.1)
    )];
    let layout = table.fit(width.unwrap_or(WIDTH));
    lines.push(table.titles(&layout));
    lines.extend(table.rows.iter().map(|row| table.line(row, &layout)));
    lines.extend(table.note.clone());
    lines.join("\n") + "\n\n"
}
