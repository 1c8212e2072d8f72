//! Tables that fit the terminal: texts are wrapped between words, and if that is not enough the last columns are left
//! out and named.

use std::io::IsTerminal;

use comfy_table::{ColumnConstraint, ContentArrangement, Width};

use crate::output::style;

/// Between two columns.
const GAP: usize = 2;

/// Columns that line up, the first row in bold, no wider than the terminal. A pipe gets each row in one line, with
/// every word.
pub fn table(rows: &[Vec<String>]) -> String {
    let is_bounded = std::io::stdout().is_terminal() && !crate::output::is_wide();
    within(rows, is_bounded.then(textwrap::termwidth))
}

/// The same for a width, or for none.
pub fn within(rows: &[Vec<String>], width: Option<usize>) -> String {
    let Some(titles) = rows.first() else { return String::new() };
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths = match width {
        Some(width) => fitted(rows, count, width),
        None => (0..count).map(|at| natural(rows, at)).collect(),
    };
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::MAX);
    for row in rows {
        table.add_row(row.iter().take(widths.len()));
    }
    for (column, width) in table.column_iter_mut().zip(&widths) {
        column.set_padding((0, GAP as u16));
        let width = u16::try_from(width + GAP).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
    }
    let title_lines = titles.iter().zip(&widths).map(|(title, width)| textwrap::wrap(title, *width).len()).max();
    let mut out = String::new();
    for (i, line) in table.lines().enumerate() {
        let line = line.trim_end().to_string();
        let title = style::TITLE;
        out += &if i < title_lines.unwrap_or(1) { format!("{title}{line}{title:#}\n") } else { line + "\n" };
    }
    if widths.len() < count {
        let faint = style::FAINT;
        let left_out = titles.get(widths.len()..).unwrap_or_default().join(", ");
        let line = format!("not shown: {left_out}; -v, a wider terminal or --format json has all columns");
        out += &format!("{faint}{}{faint:#}\n", crate::output::fill(&line, width.unwrap_or(usize::MAX)));
    }
    out
}

/// Whether all columns fit into the width.
pub fn fits(rows: &[Vec<String>], width: usize) -> bool {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    fitted(rows, count, width).len() == count
}

fn cells(rows: &[Vec<String>], at: usize) -> impl Iterator<Item = &str> {
    rows.iter().filter_map(move |row| row.get(at)).map(String::as_str)
}

/// What a column takes in one line.
fn natural(rows: &[Vec<String>], at: usize) -> usize {
    cells(rows, at).map(textwrap::core::display_width).max().unwrap_or(0)
}

/// What its longest word takes.
fn least(rows: &[Vec<String>], at: usize) -> usize {
    cells(rows, at).flat_map(|cell| cell.split(' ')).map(textwrap::core::display_width).max().unwrap_or(0)
}

/// Widths of the columns that fit; fewer than there are where they cannot, but two at least.
fn fitted(rows: &[Vec<String>], count: usize, width: usize) -> Vec<usize> {
    // Of what is wrapped: a column of single words is hard to read, and the last columns matter least.
    const READABLE: usize = 18;
    let least: Vec<usize> = (0..count).map(|at| least(rows, at).max(natural(rows, at).min(READABLE))).collect();
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    let mut shown = count;
    while shown > 2 && total(&least[..shown]) > width {
        shown -= 1;
    }
    let mut widths: Vec<usize> = (0..shown).map(|at| natural(rows, at)).collect();
    while total(&widths) > width {
        // The widest gives way first: a long sentence wraps before a short name does.
        let wide = (0..shown).filter(|at| widths[*at] > least[*at]).max_by_key(|at| widths[*at]);
        let Some(at) = wide else { break };
        widths[at] -= 1;
    }
    widths
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rows() -> Vec<Vec<String>> {
        [
            ["fault", "target", "what happens", "rule"],
            ["kill", "SERVER, HOST or ZONE", "servers are killed and lose whatever they had not saved", "crashed"],
            ["hang", "SERVER", "processes are stopped", ""],
        ]
        .map(|row| row.map(String::from).to_vec())
        .to_vec()
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_pipe_gets_each_row_in_one_line() {
        let text = plain(&within(&rows(), None));
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("lose whatever they had not saved  crashed\n"), "{text}");
    }

    #[test]
    fn texts_are_wrapped_between_words_and_the_widest_first() {
        let text = plain(&within(&rows(), Some(60)));
        assert_eq!(
            text,
            "fault  target                what happens            rule\n\
             kill   SERVER, HOST or ZONE  servers are killed and  crashed\n\
             \u{20}                            lose whatever they had\n\
             \u{20}                            not saved\n\
             hang   SERVER                processes are stopped\n"
        );
    }

    #[test]
    fn what_cannot_fit_is_left_out_from_the_end_and_named() {
        let text = plain(&within(&rows(), Some(50)));
        assert!(text.lines().all(|line| line.len() <= 50), "{text}");
        assert!(text.contains("not shown: rule;") && !text.contains("crashed"), "{text}");
        let narrow = plain(&within(&rows(), Some(5)));
        assert!(narrow.contains("kill") && narrow.contains("SERVER"), "the first two are always there: {narrow}");
    }

    #[test]
    fn no_row_is_no_table_and_short_rows_are_filled() {
        assert_eq!(within(&[], Some(80)), "");
        let ragged = vec![vec!["a".to_string(), "b".into()], vec!["1".into()]];
        assert_eq!(plain(&within(&ragged, Some(80))), "a  b\n1\n");
        let long = "x".repeat(30);
        let short_titles = vec![vec!["a".to_string()], vec![long.clone(), long.clone(), long.clone()]];
        assert!(plain(&within(&short_titles, Some(70))).contains(&long));
    }

    proptest::proptest! {
        #[test]
        fn every_word_is_there_and_no_line_is_too_wide(
            rows in proptest::collection::vec(proptest::collection::vec("([a-z]{1,9} ){0,6}[a-z]{1,9}", 3), 1..5),
            width in 60usize..160,
        ) {
            let text = plain(&within(&rows, Some(width)));
            proptest::prop_assert!(text.lines().all(|line| line.len() <= width), "{}", text);
            let words = |text: &str| text.split_whitespace().map(String::from).collect::<BTreeSet<_>>();
            let shown = words(&text);
            for word in rows.iter().flatten().flat_map(|cell| words(cell)) {
                proptest::prop_assert!(shown.contains(&word), "{} in {}", word, text);
            }
        }
    }
}
