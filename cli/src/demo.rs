//! placeholder
use clap::Args;
use crate::output::Output;
#[derive(Args)]
pub struct Demo {}
impl Demo { pub fn run(&self, _o: &Output) -> anyhow::Result<u8> { Ok(0) } }
