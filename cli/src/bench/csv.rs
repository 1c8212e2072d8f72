//! The result for a spreadsheet.

use unslow_bench::Report;

const COLUMNS: [&str; 9] = [
    "test",
    "rps",
    "avg_latency_ms",
    "p50_latency_ms",
    "p90_latency_ms",
    "p99_latency_ms",
    "p99_9_latency_ms",
    "max_latency_ms",
    "valid",
];

/// Names of the columns, as redis-benchmark calls them.
pub fn head() -> String {
    line(COLUMNS.map(String::from))
}

/// A line for each command of each run.
pub fn rows(report: &Report) -> String {
    let mut out = String::new();
    for run in &report.runs {
        for command in &run.commands {
            let of = &command.latency;
            let ms = |us: f64| format!("{:.3}", us / 1000.0);
            let rate = of.count as f64 / run.seconds.max(1e-9);
            out += &line([
                command.name.clone(),
                format!("{rate:.2}"),
                ms(of.us_mean),
                ms(of.us_p50),
                ms(of.us_p90),
                ms(of.us_p99),
                ms(of.us_p99_9),
                ms(of.us_max),
                run.valid.to_string(),
            ]);
        }
    }
    out
}

fn line(cells: [String; COLUMNS.len()]) -> String {
    let quoted: Vec<String> = cells.iter().map(|cell| format!("\"{}\"", cell.replace('"', "\"\""))).collect();
    quoted.join(",") + "\n"
}
