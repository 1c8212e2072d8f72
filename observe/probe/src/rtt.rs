//! PING: the distance from here, and stalls.

use std::time::{Duration, Instant};

use unslow_client::Error;

use crate::ask::Ask;

/// One PING, in us.
pub fn once(ask: &mut Ask) -> Result<u32, Error> {
    let begun = Instant::now();
    ask.call(&["PING"])?;
    Ok(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX))
}

/// Up to `count` PINGs one after another, in us; none is begun when `time` is over, but the first.
pub fn several(ask: &mut Ask, count: usize, time: Duration) -> Result<Vec<u32>, Error> {
    let begun = Instant::now();
    let mut times = Vec::with_capacity(count);
    while times.len() < count && (times.is_empty() || begun.elapsed() < time) {
        times.push(once(ask)?);
    }
    Ok(times)
}
