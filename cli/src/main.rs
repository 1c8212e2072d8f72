//! The one binary: arguments, glue, printing. The only crate that prints or exits.
//!
//! Exit status: 0 nothing found or done, 1 findings or a failed check, 2 could not look.
#![forbid(unsafe_code)]

mod acl;
mod bench;
mod bypass;
mod case;
mod chart;
mod clean;
mod completions;
mod demo;
mod deployments;
mod doctor;
mod drill;
mod engine;
mod exchange;
mod explain;
mod fail_on;
mod files;
mod fix_plan;
mod frame;
mod gateway;
mod host;
mod incidents;
mod keys;
mod lab;
mod manual;
mod output;
mod reach;
mod record;
mod server;
mod silences;
mod sink;
mod table;
mod toml_text;
mod top;
mod typed;
mod watch;
mod web;
mod when;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use unslow_interrupt::Action;

/// Finds out why a Redis or Valkey deployment is slow.
#[derive(Parser)]
#[command(
    name = "unslow",
    version = env!("UNSLOW_VERSION"),
    about,
    after_help = "Exit status: 0 success, or nothing found; 1 findings, or a failed check; 2 could not look.\n\n\
                  Manuals: unslow help guide, running, faults, drills, security, lettuce; those of a command as \
                  unslow help docs/record.md. Rules: unslow explain",
    max_term_width = 110
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,

    #[command(flatten)]
    output: output::Output,
}

#[derive(Subcommand)]
enum Verb {
    /// Find out why it is slow. The address of any one node, replica, Sentinel or cluster is enough.
    Doctor(Box<doctor::Doctor>),
    /// Explain a rule: what it means, how to confirm it and what to do; without a rule, list them all. Works offline.
    Explain(explain::Explain),
    /// Look at a deployment as it works: servers, commands, clients; live, or at any time of a recording.
    Top(Box<top::TopArguments>),
    /// Count and size keys by name pattern, in a time-limited scan on replicas.
    Keys(Box<keys::KeysArguments>),
    /// Record deployments, second by second, for weeks: the flight recorder.
    Record(Box<record::RecordArguments>),
    /// List what went wrong in a recording, and when.
    Incidents(incidents::IncidentsArguments),
    /// Collect facts about this machine, for a diagnosis made elsewhere.
    Host(host::HostArguments),
    /// Take the tour: a real cluster with a hidden fault, the diagnosis, the fix and the proof.
    Demo(demo::Demo),
    /// Run real deployments on this machine, with zones, round trips and faults.
    Lab(lab::LabArguments),
    /// Put load on a deployment: open or closed loop, with tail latencies that you can trust.
    Bench(Box<bench::Bench>),
    /// Compare two saved reports of `bench`: which is faster, and can the difference be shown?
    Compare(bench::Compare),
    /// Run the proxy: many clients over few connections, one topology for all, failover without errors.
    Gateway(Box<gateway::GatewayArguments>),
    /// Write Kafka topics, files and streams into Redis, a whole batch per round trip.
    Sink(Box<sink::SinkArguments>),
    /// Run an unmodified server, or client, on shared memory instead of loopback TCP.
    Bypass(Box<bypass::BypassArguments>),
    /// Show topology changes as they happen; --publish notifies the clients.
    Watch(Box<watch::WatchArguments>),
    /// Test failovers, hangs, partitions, resharding and locks: what is lost, and for how long is it down?
    Drill(Box<drill::DrillArguments>),
    /// Replay the five incidents end to end: each is reproduced, diagnosed, fixed and measured.
    Case(case::CaseArguments),
    /// List, install and remove the real servers that can run here.
    Engine(engine::EngineArguments),
    /// Print completions for a shell, or write manual pages.
    Completions(completions::Completions),
    /// Remove what unslow has left on this machine: evidence of drills, client libraries, preloaded libraries.
    Clean(clean::CleanArguments),
}

/// In `bench` -n is what it is in redis-benchmark.
fn command() -> clap::Command {
    Arguments::command().mut_subcommand("bench", |bench| bench.mut_arg("server_db", |db| db.short(None)))
}

fn parse(words: &[OsString]) -> Result<Arguments, clap::Error> {
    Arguments::from_arg_matches(&command().try_get_matches_from(words)?)
}

/// The command line with what `unslow.toml` says of a deployment that is called by its name there.
fn with_deployment(words: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let Ok(matches) = command().try_get_matches_from(&words) else { return Ok(words) };
    let Some((verb, of)) = matches.subcommand().filter(|(verb, _)| deployments::VERBS.contains(verb)) else {
        return Ok(words);
    };
    let ids = ["url", "urls", "against", "server_uri"].into_iter();
    let urls: Vec<&String> = ids.filter_map(|id| of.try_get_many::<String>(id).ok().flatten()).flatten().collect();
    let is_compared = of.try_get_one::<String>("against").is_ok_and(|against| against.is_some());
    match urls[..] {
        _ if !urls.iter().any(|url| url.starts_with('@')) => Ok(words.clone()),
        [name] if !is_compared => {
            let name = &name[1..];
            let path = deployments::path(None)?;
            let all = deployments::read(&path)?;
            let of = all.find(name).with_context(|| path.display().to_string())?;
            deployments::expanded(&words, verb, of, &path)
        }
        _ => bail!(
            "@NAME stands alone: its user and password would go to the other server as well. unslow doctor --inventory \
             looks at several, unslow record --config records them"
        ),
    }
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let is_verb = |name: &str| name == "help" || Arguments::command().find_subcommand(name).is_some();
    if let Some(asked) = manual::asked(&words, is_verb) {
        return match asked.page {
            Ok(page) if asked.is_json => output::print_page_as_json(&asked.topic, page),
            Ok(page) => manual::print(page, &asked.topic),
            Err(e) => output::failed(&said(&e), asked.is_json),
        };
    }
    let texts: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let words = match with_deployment(bench::limits_apart(server::globals_first(server::help_asked(words)))) {
        Ok(words) => words,
        Err(e) => {
            // The doctor prints its own failure document.
            if !doctor::refuse_because(&texts, &said(&e)) {
                output::owe(&texts);
            }
            return output::failed(&said(&e), false);
        }
    };
    let arguments = parse(&words).unwrap_or_else(|e| {
        // What stands behind -- is another program's.
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = words.take_while(|word| word != "--").collect();
        if !doctor::refuse(&e, &words) {
            output::refused(&e, &words);
        }
        e.exit()
    });
    arguments.output.apply();
    if let Verb::Lab(lab) = &arguments.verb
        && let Some(e) = lab.run_alone()
    {
        return output::failed(&said(&e), false);
    }
    if let Some(exchange) = arguments.output.exchange()
        && !matches!(arguments.verb, Verb::Doctor(_) | Verb::Incidents(_))
    {
        let format = format!("{exchange:?}").to_lowercase();
        eprintln!("unslow: --format {format} is for doctor and incidents; everything else prints text or json");
        return ExitCode::from(2);
    }
    let is_lines = arguments.output.json() && matches!(&arguments.verb, Verb::Watch(_));
    let holds = matches!(&arguments.verb, Verb::Lab(lab) if lab.holds());
    let last_word = match &arguments.verb {
        Verb::Lab(lab) if !lab.begins() => "the lab keeps running",
        _ => "everything it had started was stopped",
    };
    let listening = unslow_interrupt::listen(move |action| match action {
        Action::Nothing => {}
        Action::Say(what) => said_or_not(&format!("\nunslow: {what}")),
        Action::End => end_at_once((!holds).then_some(last_word)),
    });
    if let Err(e) = listening {
        eprintln!("unslow: cannot handle Ctrl-C: {e}");
    }
    let result = match arguments.verb {
        Verb::Doctor(doctor) => doctor.run(&arguments.output),
        Verb::Explain(explain) => explain.run(&arguments.output),
        Verb::Top(top) => top.run(&arguments.output),
        Verb::Keys(keys) => keys.run(&arguments.output),
        Verb::Record(record) => record.run(&arguments.output),
        Verb::Incidents(incidents) => incidents.run(&arguments.output),
        Verb::Host(host) => host.run(&arguments.output),
        Verb::Demo(demo) => demo.run(&arguments.output),
        Verb::Lab(lab) => lab.run(&arguments.output),
        Verb::Bench(bench) => bench.run(&arguments.output),
        Verb::Compare(compare) => compare.run(&arguments.output),
        Verb::Gateway(gateway) => gateway.run(&arguments.output),
        Verb::Sink(sink) => sink.run(&arguments.output),
        Verb::Bypass(bypass) => bypass.run(&arguments.output),
        Verb::Watch(watch) => watch.run(&arguments.output),
        Verb::Case(case) => case.run(&arguments.output),
        Verb::Drill(drill) => drill.run(&arguments.output),
        Verb::Engine(engine) => engine.run(&arguments.output),
        Verb::Clean(clean) => clean.run(&arguments.output),
        Verb::Completions(completions) => completions.run(command(), &arguments.output),
    };
    // What the verb found may be that its servers were ended under it.
    unslow_interrupt::park_if_ending();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(e) => output::failed(&said(&e), is_lines),
    }
}

/// What an error says. Words of a server may stand in it.
fn said(e: &anyhow::Error) -> String {
    doctor::text::clean_lines(&format!("{e:#}"))
}

/// Prints a line on stderr. A closed terminal is not an error: `eprintln!` would panic, and the process would never
/// exit.
fn said_or_not(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The one way out for Ctrl-C and SIGTERM, whatever is running: servers of ours end with us. The holder of a lab has no
/// last word; the command that started it has.
fn end_at_once(last_word: Option<&str>) -> ! {
    unslow_lab::launch::end_starting();
    unslow_engine::stop_all();
    unslow_lab::place::forget_empty_dir();
    doctor::fail_document("interrupted before the diagnosis");
    output::print_failed("interrupted");
    files::forget_half_written();
    if let Some(last_word) = last_word {
        said_or_not(&format!("\nunslow: interrupted; {last_word}"));
    }
    #[allow(clippy::disallowed_methods)] // the one place that may
    std::process::exit(2);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments of a verb, and of those below it, that help says nothing of.
    fn mute(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let is_mute = |arg: &&clap::Arg| arg.get_help().is_none() && !arg.is_hide_set();
        found.extend(command.get_arguments().filter(is_mute).map(|arg| format!("{path} {}", arg.get_id())));
        for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
            let path = format!("{path} {}", below.get_name());
            if below.get_about().is_none() {
                found.push(path.clone());
            }
            mute(below, &path, found);
        }
    }

    #[test]
    fn help_has_a_sentence_for_everything() {
        let mut found = Vec::new();
        mute(&Arguments::command(), "unslow", &mut found);
        assert_eq!(found, [] as [String; 0]);
    }
}
