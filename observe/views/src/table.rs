//! A table: columns that give way when it is narrow, rows that can be sorted by any of them.

use std::cmp::Ordering;

use unicode_width::UnicodeWidthStr;

/// Between two columns.
const GAP: usize = 1;
/// Words are cut to this width before a column gives way for them.
const WORD: usize = 24;
/// Those that stay are as long as the longest address, at most.
const ADDRESS: usize = 47;

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Short: it stands above figures.
    pub title: &'static str,
    /// Its meaning and unit, for help.
    pub about: &'static str,
    /// Those with higher ones give way first; 0 stays.
    pub rank: u8,
    /// Figures are aligned on the right, words on the left.
    pub is_figure: bool,
}

impl Column {
    pub fn word(title: &'static str, rank: u8, about: &'static str) -> Column {
        Column { title, about, rank, is_figure: false }
    }

    pub fn figure(title: &'static str, rank: u8, about: &'static str) -> Column {
        Column { title, about, rank, is_figure: true }
    }
}

/// What a cell is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    Number(f64),
    Word(String),
    /// Not known: below everything else.
    Nothing,
}

/// What stands at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub text: String,
    pub order: Order,
}

impl Cell {
    pub fn word(text: impl Into<String>) -> Cell {
        let text = plain(&text.into());
        Cell { order: Order::Word(text.clone()), text }
    }

    /// A figure, as `show` writes it; `-` where it is not known.
    pub fn figure(value: Option<f64>, show: impl Fn(f64) -> String) -> Cell {
        match value.filter(|v| v.is_finite()) {
            Some(value) => Cell { text: show(value), order: Order::Number(value) },
            None => Cell { text: "-".into(), order: Order::Nothing },
        }
    }
}

/// What a server or a client says may hold anything: nothing of it is a command for the terminal, changes the direction
/// of writing, or is there without being seen.
pub fn plain(text: &str) -> String {
    let is_unseen = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    text.chars().map(|c| if is_unseen(c) { '?' } else { c }).collect()
}

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A server, by its address.
    Node(String),
    /// A command, as commandstats names it.
    Command(String),
    /// Nothing that there is more of.
    Other,
}

/// How a row is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// Does not answer, refuses, has lost its link.
    Bad,
    /// Does nothing.
    Faint,
}

/// A row: as many cells as there are columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub subject: Subject,
    pub cells: Vec<Cell>,
    pub tone: Tone,
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// Which column it is sorted by unless a person wants another, largest first.
    pub by: usize,
    /// What is missing, and why.
    pub note: Option<String>,
}

/// Which columns fit, and how wide each is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout(pub Vec<(usize, usize)>);

impl Table {
    pub(crate) fn new(columns: Vec<Column>, by: usize) -> Table {
        Table { columns, rows: Vec::new(), by, note: None }
    }

    /// Sorts by a column. Figures begin with the largest, words with the first; `reversed` the other way. What is not
    /// known comes last either way.
    pub fn sort(&mut self, column: usize, reversed: bool) {
        let nothing = |cell: &Cell| cell.order == Order::Nothing;
        self.rows.sort_by(|a, b| {
            let (Some(a), Some(b)) = (a.cells.get(column), b.cells.get(column)) else { return Ordering::Equal };
            let by_value = match (&a.order, &b.order) {
                (Order::Number(a), Order::Number(b)) => b.total_cmp(a),
                (Order::Word(a), Order::Word(b)) => a.cmp(b),
                (Order::Number(_), _) => Ordering::Less,
                (_, Order::Number(_)) => Ordering::Greater,
                _ => Ordering::Equal,
            };
            let by_value = if reversed { by_value.reverse() } else { by_value };
            nothing(a).cmp(&nothing(b)).then(by_value)
        });
    }

    /// Keeps rows in which a cell has this text, whatever its case.
    pub fn filter(&mut self, text: &str) {
        let text = text.to_lowercase();
        self.rows.retain(|row| row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&text)));
    }

    /// The columns that fit into `width`. Those of the highest rank give way first; at last the widest one is cut.
    pub fn fit(&self, width: usize) -> Layout {
        let whole = |place: usize| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(place)).map(|cell| cell.text.width());
            cells.chain([self.columns[place].title.width()]).max().unwrap_or(0)
        };
        let widest = |place: usize| {
            let column = &self.columns[place];
            match (column.is_figure, column.rank) {
                (true, _) => whole(place),
                (false, 0) => whole(place).min(ADDRESS),
                (false, _) => whole(place).min(WORD),
            }
        };
        // A column that says nothing of any row is only in the way.
        let says = |row: &Row, place: usize| row.cells.get(place).is_some_and(|c| !matches!(&*c.text, "" | "-"));
        let is_of_use = |place: &usize| {
            let any = self.rows.is_empty() || self.rows.iter().any(|row| says(row, *place));
            any || self.columns[*place].rank == 0
        };
        let places: Vec<usize> = (0..self.columns.len()).filter(is_of_use).collect();
        let mut kept: Vec<(usize, usize)> = places.iter().map(|place| (*place, widest(*place))).collect();
        let sum = |kept: &[(usize, usize)]| kept.iter().map(|(_, w)| w + GAP).sum::<usize>().saturating_sub(GAP);
        while sum(&kept) > width {
            let rank = |(place, _): &(usize, usize)| self.columns[*place].rank;
            let last = kept.iter().map(rank).max().unwrap_or(0);
            match kept.iter().rposition(|column| rank(column) == last).filter(|_| last > 0) {
                Some(place) => drop(kept.remove(place)),
                None => break,
            }
        }
        // A narrow one may have had to go for a wide one that then went as well.
        let mut gone: Vec<usize> = places.into_iter().filter(|p| kept.iter().all(|(k, _)| k != p)).collect();
        gone.sort_by_key(|place| self.columns[*place].rank);
        for place in gone {
            if sum(&kept) + GAP + widest(place) <= width {
                let before = kept.partition_point(|(known, _)| *known < place);
                kept.insert(before, (place, widest(place)));
            }
        }
        let mut left = width.saturating_sub(sum(&kept));
        for (place, wide) in &mut kept {
            let more = whole(*place).saturating_sub(*wide).min(left);
            (*wide, left) = (*wide + more, left - more);
        }
        let over = sum(&kept).saturating_sub(width);
        if let Some((_, widest)) = kept.iter_mut().max_by_key(|(_, width)| *width) {
            *widest = widest.saturating_sub(over).max(4);
        }
        Layout(kept)
    }

    /// The titles in a line.
    pub fn titles(&self, layout: &Layout) -> String {
        let titles = layout.0.iter().map(|(place, width)| {
            let column = &self.columns[*place];
            padded(column.title, *width, column.is_figure)
        });
        titles.collect::<Vec<_>>().join(" ").trim_end().to_string()
    }

    /// A row in a line.
    pub fn line(&self, row: &Row, layout: &Layout) -> String {
        let cells = layout.0.iter().map(|(place, width)| {
            padded(row.cells.get(*place).map_or("", |cell| &cell.text), *width, self.columns[*place].is_figure)
        });
        cells.collect::<Vec<_>>().join(" ").trim_end().to_string()
    }
}

/// Exactly so wide: filled with spaces, or cut.
fn padded(text: &str, width: usize, right: bool) -> String {
    let wide = text.width();
    if wide > width {
        let mut cut = String::new();
        for c in text.chars() {
            if cut.width() + c.to_string().width() + 1 > width {
                break;
            }
            cut.push(c);
        }
        return cut + "~";
    }
    let fill = " ".repeat(width - wide);
    if right { fill + text } else { text.to_string() + &fill }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let columns = vec![
            Column::word("node", 0, ""),
            Column::figure("ops/s", 1, ""),
            Column::figure("memory", 3, ""),
            Column::word("library", 2, ""),
        ];
        let mut table = Table::new(columns, 1);
        for (node, ops, memory) in [("a:1", Some(5.0), 9.0), ("b:1", None, 8.0), ("c:1", Some(700.0), 7.0)] {
            let cells = vec![
                Cell::word(node),
                Cell::figure(ops, |n| n.to_string()),
                Cell::figure(Some(memory), |n| n.to_string()),
                Cell::word("redis-py\u{1b}[31m\u{202e}"),
            ];
            table.rows.push(Row { subject: Subject::Node(node.into()), cells, tone: Tone::Plain });
        }
        table
    }

    fn first(table: &Table) -> Vec<&str> {
        table.rows.iter().map(|row| row.cells[0].text.as_str()).collect()
    }

    #[test]
    fn what_is_not_known_comes_last_however_it_is_sorted() {
        let mut table = table();
        table.sort(1, false);
        assert_eq!(first(&table), ["c:1", "a:1", "b:1"]);
        table.sort(1, true);
        assert_eq!(first(&table), ["a:1", "c:1", "b:1"]);
        table.sort(0, true);
        assert_eq!(first(&table), ["c:1", "b:1", "a:1"]);
    }

    #[test]
    fn a_filter_looks_into_every_cell() {
        let mut table = table();
        table.filter("C:");
        assert_eq!(first(&table), ["c:1"]);
        table.filter("nowhere");
        assert_eq!(first(&table), Vec::<&str>::new());
    }

    #[test]
    fn columns_of_the_highest_rank_give_way_first_and_nothing_is_wider_than_asked() {
        let table = table();
        let titles = |width| table.titles(&table.fit(width));
        assert_eq!(titles(80), "node ops/s memory library");
        assert_eq!(titles(25), "node ops/s library");
        assert_eq!(titles(12), "node ops/s");
        assert_eq!(titles(4), "node");
        for width in 4..40 {
            let layout = table.fit(width);
            assert!(table.rows.iter().all(|row| table.line(row, &layout).width() <= width), "{width}");
        }
    }

    #[test]
    fn long_words_are_cut_before_a_column_goes_and_whole_where_there_is_room() {
        let mut table = table();
        table.rows[0].cells[3] = Cell::word("a library with a name that is longer than any other");
        let line = |width| table.line(&table.rows[0], &table.fit(width));
        assert_eq!(line(45), "a:1      5      9 a library with a name that~");
        assert_eq!(line(50), "a:1      5      9 a library with a name that is l~");
        assert!(line(80).ends_with("longer than any other"));
    }

    #[test]
    fn what_a_client_calls_itself_is_no_command_for_the_terminal() {
        let table = table();
        assert!(table.line(&table.rows[0], &table.fit(80)).ends_with("redis-py?[31m?"));
    }
}
