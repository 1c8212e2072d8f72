//! Faults of paths: what the wire does to packets besides what the topology says.

use unslow_engine::Error;

use super::{Active, At};
use crate::wire::Conditions;

fn change(at: &At<'_>, add: Conditions, remedy: &'static str) -> Result<Active, Error> {
    let wire = at.lab.wire()?.clone();
    let id = wire.change(at.change(add)?);
    Ok(at.active(remedy).on_end(move || wire.undo(id)))
}

pub fn partition(at: &At<'_>) -> Result<Active, Error> {
    change(at, Conditions { cut: true, ..Conditions::default() }, "the path comes back")
}

pub fn delay(at: &At<'_>) -> Result<Active, Error> {
    change(at, Conditions { delay: at.duration()?, ..Conditions::default() }, "a shorter path")
}

pub fn loss(at: &At<'_>) -> Result<Active, Error> {
    change(at, Conditions { loss: at.share()?, ..Conditions::default() }, "a path that loses nothing")
}

pub fn rate(at: &At<'_>) -> Result<Active, Error> {
    change(at, Conditions { rate_bits_per_s: Some(at.rate()?), ..Conditions::default() }, "a wider path")
}
