//! PING: the distance from here, and stalls.

use std::time::Instant;

use unslow_client::Error;
use unslow_facts::Rtt;

use crate::ask::Ask;

/// One PING, in us.
pub fn once(ask: &mut Ask) -> Result<u32, Error> {
    let begun = Instant::now();
    ask.call(&["PING"])?;
    Ok(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX))
}

/// `count` PINGs one after another.
pub fn several(ask: &mut Ask, count: usize) -> Result<Option<Rtt>, Error> {
    let times = (0..count).map(|_| once(ask)).collect::<Result<Vec<_>, _>>()?;
    Ok(Rtt::of(&times))
}
