//! Results for other tools: the interval log (`.hlog`) and the percentile table (`.hgrm`) of HdrHistogram.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::error::LogError;

/// What gets a second's number and its histogram.
pub type Logged<'a> = dyn FnMut(u32, &Histogram<u64>) + 'a;

/// Calls `work` with a place for each second's histogram, which goes into the log at `path`, if there is one. Values
/// are nanoseconds, the maximum beside each line is in milliseconds. The inner result is the log's: a full disk does
/// not end the run.
pub fn with_log<R>(path: Option<&Path>, work: impl FnOnce(&mut Logged) -> R) -> (R, Result<(), LogError>) {
    let Some(path) = path else { return (work(&mut |_, _| {}), Ok(())) };
    let failed = |e: &dyn std::fmt::Display| LogError { path: path.into(), why: e.to_string() };
    let mut file = match File::create(path) {
        Ok(file) => BufWriter::new(file),
        Err(e) => return (work(&mut |_, _| {}), Err(failed(&e))),
    };
    let mut trouble = None;
    let result = {
        let mut serializer = V2DeflateSerializer::new();
        let mut builder = IntervalLogWriterBuilder::new();
        builder.add_comment("[Latency in nanoseconds, written by unslow bench]").with_max_value_divisor(1e6);
        builder.with_base_time(SystemTime::now()).with_start_time(SystemTime::now());
        match builder.begin_log_with(&mut file, &mut serializer) {
            Ok(mut log) => work(&mut |second, histogram| {
                let at = Duration::from_secs(second.into());
                if trouble.is_none()
                    && let Err(e) = log.write_histogram(histogram, at, Duration::from_secs(1), None)
                {
                    trouble = Some(failed(&e));
                }
            }),
            Err(e) => {
                trouble = Some(failed(&e));
                work(&mut |_, _| {})
            }
        }
    };
    let flushed = file.flush().map_err(|e| failed(&e));
    (result, trouble.map_or(flushed, Err))
}

/// The percentile table, values in milliseconds, as HdrHistogram's plotters read it.
pub fn percentile_table(histogram: &Histogram<u64>) -> String {
    let mut out = format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut count = 0;
    for point in histogram.iter_quantiles(5) {
        count += point.count_since_last_iteration();
        let (value, q) = (point.value_iterated_to() as f64 / 1e6, point.quantile());
        let line = if q < 1.0 {
            format!("{value:12.6} {q:14.12} {count:10} {:14.2}\n", 1.0 / (1.0 - q))
        } else {
            format!("{value:12.6} {q:14.12} {count:10}\n")
        };
        out += &line;
    }
    out +=
        &format!("#[Mean    = {:12.6}, StdDeviation   = {:12.6}]\n", histogram.mean() / 1e6, histogram.stdev() / 1e6);
    out += &format!("#[Max     = {:12.6}, Total count    = {:12}]\n", histogram.max() as f64 / 1e6, histogram.len());
    out += &format!("#[Buckets = {:12}, SubBuckets     = {:12}]\n", histogram.buckets(), 2048);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_a_log_that_reads_back() {
        use hdrhistogram::serialization::Deserializer;
        use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.hlog");
        let mut histogram = crate::stats::histogram();
        histogram.record_n(1_000_000, 7).unwrap();
        let (seconds, written) = with_log(Some(&path), |log| {
            (0..3).for_each(|s| log(s, &histogram));
            3
        });
        written.unwrap();
        let text = std::fs::read(&path).unwrap();
        let mut found = 0;
        for entry in IntervalLogIterator::new(&text) {
            if let Ok(LogEntry::Interval(interval)) = entry {
                use base64::Engine;
                let bytes = base64::engine::general_purpose::STANDARD.decode(interval.encoded_histogram()).unwrap();
                let back: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
                assert_eq!((back.len(), interval.start_timestamp().as_secs()), (7, found));
                found += 1;
            }
        }
        assert_eq!(found, seconds);
        let table = percentile_table(&histogram);
        assert!(table.contains("1.000") && table.contains("Total count    =            7"), "{table}");
    }

    #[test]
    fn a_log_that_cannot_be_written_does_not_end_the_run() {
        let (ran, written) = with_log(Some(Path::new("/dev/full")), |log| {
            (0..100).for_each(|s| log(s, &crate::stats::histogram()));
            true
        });
        assert!(ran && written.unwrap_err().path == Path::new("/dev/full"));
    }
}
