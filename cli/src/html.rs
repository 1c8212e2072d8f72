//! placeholder
use unslow_doctor::Report; use unslow_facts::Facts;
pub fn page(_r: &Report, _f: &Facts) -> anyhow::Result<String> { Ok(String::new()) }
