//! The numbers of a recording as a table, for other tools: CSV and OpenMetrics.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::ops::Range;

use unslow_series::Item;

use crate::info;
use crate::pings::Pings;
use crate::scheme::node_series;
use crate::tape::{Tape, TapeError, Texts};

/// Numbers of a table in memory, at most: 400 MB.
const CELLS_MAX: usize = 25_000_000;
/// Of the PINGs since the row before.
const PING_P50: &str = "ping_us_p50";
const PING_MAX: &str = "ping_us_max";

/// Numbers of all servers of a deployment: INFO's, by field (`used_memory`) or field and part (`cmdstat_get.calls`),
/// and how long PINGs took.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    pub deployment: String,
    pub servers: Vec<String>,
    /// Names of the columns.
    pub names: Vec<String>,
    /// Server by server, each in the order of recording.
    pub rows: Vec<Figure>,
}

/// One server in one second.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its place among the servers.
    pub server: usize,
    /// Unix time in ms.
    pub at_ms: i64,
    /// One for each name.
    pub values: Vec<Option<f64>>,
}

impl Tape {
    /// The numbers of a range, one row for every `step_ms`. `names` chooses columns; empty is all of them. Fails where
    /// a name is not recorded, and where it is too much to hold.
    pub fn figures(
        &self,
        url: &str,
        range_ms: Range<i64>,
        step_ms: i64,
        names: &[String],
    ) -> Result<Figures, TapeError> {
        let servers = self.nodes(url);
        let of = |server: &String| Texts::of(self.reader.texts(&node_series(url, server), range_ms.clone()).items);
        let texts: Vec<Texts> = servers.iter().map(of).collect();
        let known: BTreeSet<String> = texts.iter().flat_map(Texts::numbers).collect();
        let known = known.into_iter().chain([PING_P50, PING_MAX].map(String::from));
        let names: Vec<String> = match names {
            [] => known.collect(),
            some => {
                let known: BTreeSet<String> = known.collect();
                if let Some(unknown) = some.iter().find(|name| !known.contains(*name)) {
                    let near = known.iter().filter(|name| name.contains(unknown.as_str())).take(5);
                    let near: Vec<&str> = near.map(String::as_str).collect();
                    let near = if near.is_empty() { "none".into() } else { near.join(", ") };
                    return Err(TapeError::NoFigure { name: unknown.clone(), near });
                }
                let mut once: Vec<String> = Vec::new();
                once.extend(some.iter().filter(|name| !name.is_empty()).cloned());
                let mut seen = BTreeSet::new();
                once.retain(|name| seen.insert(name.clone()));
                once
            }
        };
        let places: HashMap<&str, usize> = names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let mut rows: Vec<Figure> = Vec::new();
        for (server, (address, texts)) in servers.iter().zip(&texts).enumerate() {
            let mut next_ms = i64::MIN;
            for item in self.reader.range(&node_series(url, address), range_ms.clone()) {
                let row = match item {
                    Item::Row(row) => row,
                    // After a clock was set back times come again.
                    Item::Step(_) => {
                        next_ms = i64::MIN;
                        continue;
                    }
                    Item::Gap(_) => continue,
                };
                if row.at.wall_ms < next_ms {
                    continue;
                }
                next_ms = row.at.wall_ms.div_euclid(step_ms).saturating_add(1).saturating_mul(step_ms);
                if (rows.len() + 1).saturating_mul(names.len()) > CELLS_MAX {
                    return Err(TapeError::TooManyFigures);
                }
                let mut values = vec![None; names.len()];
                let mut set = |name: &str, value: f64| {
                    if let Some(place) = places.get(name) {
                        values[*place] = Some(value);
                    }
                };
                for (field, value) in texts.info(&row).0.iter() {
                    flatten(field, value, &mut set);
                }
                let counted = row.values().filter_map(|(name, n)| Pings::of_column(name, crate::window::int(n)?));
                let times = Pings(counted.collect()).spread(0, 0);
                if let (Some((_, p50)), Some((_, max))) = (times.get(times.len() / 2), times.last()) {
                    set(PING_P50, f64::from(*p50));
                    set(PING_MAX, f64::from(*max));
                }
                rows.push(Figure { server, at_ms: row.at.wall_ms, values });
            }
        }
        if rows.is_empty() {
            return Err(TapeError::NothingToExport);
        }
        Ok(Figures { deployment: url.to_string(), servers, names, rows })
    }
}

/// The numbers in a field's value.
fn flatten(field: &str, value: &str, set: &mut impl FnMut(&str, f64)) {
    let number = |text: &str| text.trim_end_matches('%').parse().ok().filter(|n: &f64| n.is_finite());
    if let Some(n) = number(value) {
        return set(field, n);
    }
    for (part, text) in value.split(',').filter_map(|part| part.split_once('=')) {
        if let Some(n) = number(text) {
            set(&format!("{field}.{part}"), n);
        }
    }
}

impl Texts {
    /// Names of the numbers in all fields.
    fn numbers(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (field, template) in self.templates() {
            let zeros = vec![0; info::count(template)];
            if zeros.is_empty() {
                continue;
            }
            if let Some(value) = info::join(template, &zeros) {
                flatten(field, &value, &mut |name, _| _ = names.insert(name.to_string()));
            }
        }
        names
    }
}

impl Figures {
    /// One line for each row: time, deployment, server, and a column for each name.
    pub fn csv(&self, out: &mut impl Write) -> io::Result<()> {
        let quoted = |text: &str| match text.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.to_string(),
        };
        write!(out, "time_ms,deployment,server")?;
        for name in &self.names {
            write!(out, ",{}", quoted(name))?;
        }
        writeln!(out)?;
        let servers: Vec<String> = self.servers.iter().map(|server| quoted(server)).collect();
        let deployment = quoted(&self.deployment);
        for row in &self.rows {
            write!(out, "{},{deployment},{}", row.at_ms, servers[row.server])?;
            for value in &row.values {
                match value {
                    Some(value) => write!(out, ",{value}")?,
                    None => write!(out, ",")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// As <https://prometheus.io/docs/specs/om/open_metrics_spec/> has it, with times: what backfills a time series
    /// database.
    pub fn openmetrics(&self, out: &mut impl Write) -> io::Result<()> {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let deployment = escaped(&self.deployment);
        let servers: Vec<String> = self.servers.iter().map(|server| escaped(server)).collect();
        let mut used = BTreeSet::new();
        for (place, name) in self.names.iter().enumerate() {
            let mut name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            while !used.insert(name.clone()) {
                name.push('_');
            }
            writeln!(out, "# TYPE redis_{name} unknown")?;
            for row in &self.rows {
                if let Some(value) = row.values[place] {
                    let (server, at_s) = (&servers[row.server], row.at_ms as f64 / 1000.0);
                    writeln!(out, "redis_{name}{{deployment=\"{deployment}\",server=\"{server}\"}} {value} {at_s:.3}")?;
                }
            }
        }
        writeln!(out, "# EOF")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let row = |server, at_ms, values| Figure { server, at_ms, values };
        Figures {
            deployment: "redis://a:1".into(),
            servers: vec!["a:1".into(), "b,\"2".into()],
            names: vec!["used_memory".into(), "cmdstat_get.calls".into()],
            rows: vec![row(0, 1_500, vec![Some(7.0), None]), row(1, 2_000, vec![Some(0.25), Some(-3.0)])],
        }
    }

    fn text(write: impl Fn(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_table_has_a_line_for_each_server_and_second() {
        assert_eq!(
            text(|out| figures().csv(out)),
            "time_ms,deployment,server,used_memory,cmdstat_get.calls\n1500,redis://a:1,a:1,7,\n\
             2000,redis://a:1,\"b,\"\"2\",0.25,-3\n"
        );
    }

    #[test]
    fn metrics_stand_together_and_have_times() {
        assert_eq!(
            text(|out| figures().openmetrics(out)),
            "# TYPE redis_used_memory unknown\nredis_used_memory{deployment=\"redis://a:1\",server=\"a:1\"} 7 1.500\n\
             redis_used_memory{deployment=\"redis://a:1\",server=\"b,\\\"2\"} 0.25 2.000\n\
             # TYPE redis_cmdstat_get_calls unknown\n\
             redis_cmdstat_get_calls{deployment=\"redis://a:1\",server=\"b,\\\"2\"} -3 2.000\n# EOF\n"
        );
    }

    #[test]
    fn numbers_within_a_value_have_names_of_their_own() {
        let mut all = Vec::new();
        for (field, value) in
            [("a", "1.5"), ("b", "calls=3,usec=x,p=2"), ("c", "12.5%"), ("d", "7.0.15"), ("e", "nan"), ("f", "")]
        {
            flatten(field, value, &mut |name, n| all.push((name.to_string(), n)));
        }
        let expected = [("a", 1.5), ("b.calls", 3.0), ("b.p", 2.0), ("c", 12.5)];
        assert_eq!(all, expected.map(|(name, n)| (name.to_string(), n)));
    }
}
