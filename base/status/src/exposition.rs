//! Metrics as Prometheus' text format, written by `prometheus-client`: names, help, types, escaping and buckets are its
//! business. Values are taken from a snapshot, so nothing is counted twice and no counter is shared with a hot path.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

/// The `Content-Type` of [`Exposition::text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Labels of one series: names and values as they are, escaped when they are written.
pub type Labels = Vec<(&'static str, String)>;

/// A histogram's buckets as they were counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Upper ends, ascending and in the metric's unit, and how many values fell into each bucket alone.
    pub buckets: Vec<(f64, u64)>,
    /// All values, those above the last bucket included.
    pub count: u64,
    /// Their sum, in the metric's unit.
    pub sum: f64,
}

#[derive(Debug)]
enum Rows {
    Counter(Vec<(Labels, u64)>),
    Gauge(Vec<(Labels, i64)>),
    Histogram(Vec<(Labels, Distribution)>),
}

#[derive(Debug)]
struct Metric {
    name: &'static str,
    help: &'static str,
    rows: Rows,
}

/// What a process measures at one moment, metric after metric.
#[derive(Debug)]
pub struct Exposition {
    prefix: &'static str,
    metrics: Vec<Metric>,
}

impl Exposition {
    /// `prefix` and an underscore begin every name.
    pub fn new(prefix: &'static str) -> Exposition {
        Exposition { prefix, metrics: Vec::new() }
    }

    /// What only grows. `_total` is added to the name.
    pub fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.counters(name, help, [(Vec::new(), value)]);
    }

    /// The same in several series.
    pub fn counters(&mut self, name: &'static str, help: &'static str, rows: impl IntoIterator<Item = (Labels, u64)>) {
        self.metrics.push(Metric { name, help, rows: Rows::Counter(rows.into_iter().collect()) });
    }

    /// What rises and falls.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: i64) {
        self.gauges(name, help, [(Vec::new(), value)]);
    }

    /// The same in several series.
    pub fn gauges(&mut self, name: &'static str, help: &'static str, rows: impl IntoIterator<Item = (Labels, i64)>) {
        self.metrics.push(Metric { name, help, rows: Rows::Gauge(rows.into_iter().collect()) });
    }

    /// Distributions, each with its labels.
    pub fn histograms(
        &mut self,
        name: &'static str,
        help: &'static str,
        rows: impl IntoIterator<Item = (Labels, Distribution)>,
    ) {
        self.metrics.push(Metric { name, help, rows: Rows::Histogram(rows.into_iter().collect()) });
    }

    /// All of it as [`CONTENT_TYPE`].
    pub fn text(self) -> String {
        let mut registry = Registry::with_prefix(self.prefix);
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry).expect("a String takes every write");
        text
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for metric in &self.metrics {
            let kind = match metric.rows {
                Rows::Counter(_) => MetricType::Counter,
                Rows::Gauge(_) => MetricType::Gauge,
                Rows::Histogram(_) => MetricType::Histogram,
            };
            let mut descriptor = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            match &metric.rows {
                Rows::Counter(rows) => each(&mut descriptor, rows, |series, value| {
                    series.encode_counter(value, None::<&Exemplar<NoLabelSet, f64>>)
                })?,
                Rows::Gauge(rows) => each(&mut descriptor, rows, |series, value| series.encode_gauge(value))?,
                Rows::Histogram(rows) => each(&mut descriptor, rows, |series, value| {
                    series.encode_histogram::<NoLabelSet>(value.sum, value.count, &value.buckets, None)
                })?,
            }
        }
        Ok(())
    }
}

fn each<T>(
    metric: &mut MetricEncoder<'_>,
    rows: &[(Labels, T)],
    write: impl Fn(&mut MetricEncoder<'_>, &T) -> std::fmt::Result,
) -> std::fmt::Result {
    for (labels, value) in rows {
        match labels.is_empty() {
            true => write(metric, value)?,
            false => write(&mut metric.encode_family(labels)?, value)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_gauges_and_histograms_are_written_as_scrapers_read_them() {
        let mut all = Exposition::new("app");
        all.counter("commands", "Commands of clients", 7);
        all.gauge("clients", "Clients connected", 3);
        all.gauges("node_up", "Whether a node answers", [(vec![("node", "a:1".into()), ("role", "master".into())], 1)]);
        all.counters("errors", "Errors by reason", []);
        let seconds = Distribution { buckets: vec![(0.001, 1), (0.25, 2), (8.0, 0)], count: 4, sum: 200.5 };
        all.histograms("latency_seconds", "Latency", [(vec![("command", "GET".into())], seconds)]);
        let text = all.text();
        for line in [
            "# HELP app_commands_total Commands of clients",
            "# TYPE app_commands_total counter",
            "app_commands_total 7",
            "# TYPE app_clients gauge",
            "app_clients 3",
            "app_node_up{node=\"a:1\",role=\"master\"} 1",
            "# TYPE app_latency_seconds histogram",
            "app_latency_seconds_bucket{command=\"GET\",le=\"0.001\"} 1",
            "app_latency_seconds_bucket{command=\"GET\",le=\"0.25\"} 3",
            "app_latency_seconds_bucket{command=\"GET\",le=\"8\"} 3",
            "app_latency_seconds_bucket{command=\"GET\",le=\"+Inf\"} 4",
            "app_latency_seconds_sum{command=\"GET\"} 200.5",
            "app_latency_seconds_count{command=\"GET\"} 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn label_values_of_strangers_cannot_forge_series() {
        let mut all = Exposition::new("app");
        let topic = "a\"b\\c\nforged 1";
        all.gauges("lag", "Lag", [(vec![("topic", topic.to_string())], 7)]);
        let text = all.text();
        assert!(text.contains("app_lag{topic=\"a\\\"b\\\\c\\nforged 1\"} 7\n"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
    }
}
