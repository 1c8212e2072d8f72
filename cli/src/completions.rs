//! `unslow completions`: what shells complete, and the manual pages, made of the command line itself.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output::Output;

#[derive(Args)]
pub struct Completions {
    /// The shell they are for
    #[arg(required_unless_present = "man")]
    shell: Option<Shell>,
    /// Write manual pages into this directory instead, one for each command
    #[arg(long, value_name = "DIR", conflicts_with = "shell")]
    man: Option<PathBuf>,
}

impl Completions {
    pub fn run(&self, mut command: Command, output: &Output) -> anyhow::Result<u8> {
        match (&self.man, self.shell) {
            (Some(dir), _) => {
                std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
                clap_mangen::generate_to(command, dir).with_context(|| dir.display().to_string())?;
                output.note(&format!("manual pages written into {}", dir.display()));
            }
            (None, Some(shell)) => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut command, "unslow", &mut script);
                output.print_document(&String::from_utf8(script).context("the script is text")?)?;
            }
            (None, None) => {}
        }
        Ok(0)
    }
}
