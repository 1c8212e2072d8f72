//! The held bench: faults and healthy deployments, odd or merely common, none of which the lab can make, with real
//! clients and settings, against real servers. What the doctor must say about each was written down before any run, in
//! the tables of `odd/`.
//!
//! For at least 97 % of the faults the cause must be the first finding, and none may be called healthy. A healthy
//! deployment may have no finding above risk, and no risk except the true ones in its table; one that is used must not
//! be called idle. The remedies test compares what a finding says a fault costs with what its end gives back.
//!
//! `cargo xtask test --long odd` runs it; UNSLOW_ENGINE chooses the server (valkey-9.1), UNSLOW_ODD=WORD runs the cases
//! whose names contain it, UNSLOW_TABLE_ODD=FILE and UNSLOW_TABLE_REMEDIES=FILE get the tables. UNSLOW_RECORD=DIR keeps
//! the facts, and the truth about them in `DIR/cases.jsonl`: so `bench/diagnosis` is made. UNSLOW_PEERS=FILE gets what
//! the servers' own doctors say of the same faults.
//!
//! While another process or the hypervisor takes the processors there are two causes, and the doctor rightly names
//! both. That is measured here, without the doctor: findings about the neighbour do not count then, and a fault that
//! was not named first may be tried again. Healthy deployments are never tried again.

mod common;
#[path = "odd/healthy_alone.rs"]
mod healthy_alone;
#[path = "odd/healthy_together.rs"]
mod healthy_together;
#[path = "odd/healthy_usual.rs"]
mod healthy_usual;
#[path = "odd/ill_clients.rs"]
mod ill_clients;
#[path = "odd/ill_disk.rs"]
mod ill_disk;
#[path = "odd/ill_errors.rs"]
mod ill_errors;
#[path = "odd/ill_habits.rs"]
mod ill_habits;
#[path = "odd/ill_limits.rs"]
mod ill_limits;
#[path = "odd/ill_machine.rs"]
mod ill_machine;
#[path = "odd/ill_memory.rs"]
mod ill_memory;
#[path = "odd/ill_replication.rs"]
mod ill_replication;
#[path = "odd/ill_server.rs"]
mod ill_server;
#[path = "odd/ill_shards.rs"]
mod ill_shards;
#[path = "odd/ill_together.rs"]
mod ill_together;
#[path = "odd/means.rs"]
mod means;
#[path = "odd/peers.rs"]
mod peers;
#[path = "odd/remedies.rs"]
mod remedies;
#[path = "odd/stage.rs"]
mod stage;

use std::collections::BTreeSet;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use unslow_doctor::{Conclusion, Report, Severity};
use unslow_testkit::{Load, Noise, noise, notes};

use remedies::Given;
use stage::{Make, Stage};

/// A fault, and what must be named first.
#[derive(Clone, Copy)]
pub struct Ill {
    pub name: &'static str,
    /// How it is made.
    pub how: &'static str,
    /// The rule whose finding must be the first.
    pub first: &'static str,
    pub make: Make,
}

/// Whether an application uses a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    AtRest,
    AtWork,
}

/// A deployment that is healthy, though odd or merely common.
#[derive(Clone, Copy)]
pub struct Healthy {
    pub name: &'static str,
    /// How it is made.
    pub how: &'static str,
    pub used: Use,
    /// Risks that are truly there.
    pub risks: &'static [&'static str],
    pub make: Make,
}

impl Healthy {
    /// With an application.
    pub const fn at_work(name: &'static str, how: &'static str, make: Make) -> Healthy {
        Healthy { name, how, used: Use::AtWork, risks: &[], make }
    }

    /// Without one.
    pub const fn at_rest(name: &'static str, how: &'static str, make: Make) -> Healthy {
        Healthy { used: Use::AtRest, ..Healthy::at_work(name, how, make) }
    }

    /// With these risks, which are true.
    pub const fn with(self, risks: &'static [&'static str]) -> Healthy {
        Healthy { risks, ..self }
    }
}

/// A fault is tried again this often at most, and only if the machine was busy.
const TRIES: u32 = 3;
/// Of the faults, at least this share must be named first.
const FIRST: f64 = 0.97;
/// Rules about the machine's other work: right whenever there is any.
const NEIGHBOURS: &[&str] = &["noisy_neighbour", "hypervisor_steal"];
/// Risks of the machine that the tests run on, true of every deployment there.
const MACHINE: &[&str] = &["overcommit", "transparent_huge_pages"];
/// For healthy servers: instruments that are off are a risk, and true.
const INSTRUMENTS: &[(&str, &str)] = &[("latency-monitor-threshold", "100")];

const BY_CLIENTS: &[Table] = &[("clients", ill_clients::CASES), ("errors", ill_errors::CASES)];
const BY_SERVERS: &[Table] =
    &[("server", ill_server::CASES), ("deployment", ill_together::CASES), ("machine", ill_machine::CASES)];
const BY_FAMILY: &[Table] = &[
    ("replication", ill_replication::CASES),
    ("shards", ill_shards::CASES),
    ("memory", ill_memory::CASES),
    ("disk", ill_disk::CASES),
    ("limits", ill_limits::CASES),
    ("habits", ill_habits::CASES),
];

/// Every fault.
fn tables() -> impl Iterator<Item = &'static Table> {
    BY_CLIENTS.iter().chain(BY_SERVERS).chain(BY_FAMILY)
}

/// What came of a case.
enum Scene<T> {
    Shown(T),
    /// This engine or this machine cannot show it.
    NotHere(&'static str),
    /// It could not be made, or the doctor said nothing that can be read.
    Broken(String),
}

/// Makes a case and looks at it. A panic fails this case and not the others.
fn play<T>(base: &'static [(&'static str, &'static str)], make: Make, look: impl FnOnce(&mut Stage) -> T) -> Scene<T> {
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut stage = Stage::new(base);
        match make(&mut stage) {
            Err(why) => Scene::NotHere(why),
            Ok(()) => {
                std::thread::sleep(Duration::from_millis(500)); // rates become the case's own
                Scene::Shown(look(&mut stage))
            }
        }
    }));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Scene::Broken(text.unwrap_or("a panic").lines().next().unwrap_or_default().to_string())
    })
}

/// Ids of the findings above info, in order. A neighbour that is really there does not count; where its chain has the
/// expected rule, that counts instead.
fn named(report: &Report, load: &Load, expected: &str) -> Vec<String> {
    let mut all = Vec::new();
    for finding in report.findings.iter().filter(|f| f.severity > Severity::Info) {
        if !NEIGHBOURS.contains(&finding.id.as_str()) || finding.id == expected || !load.busy() {
            all.push(finding.id.clone());
        } else if finding.chain.iter().any(|link| link.id == expected) {
            all.push(expected.to_string());
        }
    }
    all
}

fn verdict(report: &Report) -> String {
    serde_json::to_value(report.verdict).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
}

/// One line of a table: on stdout in columns, and in Markdown in the file that this variable names, if it does.
fn line(variable: &str, cells: &[&str]) {
    let text: Vec<String> = cells.iter().map(|cell| format!("{cell:<26}")).collect();
    println!("{}", text.join(" ").trim_end());
    let Some(path) = std::env::var_os(variable) else { return };
    let row = format!("| {} |", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "));
    append(&path, &row);
}

/// The head of a table.
fn head(variable: &str, title: &str, columns: &[&str]) {
    let stage = Stage::new(&[]);
    let engine = &stage.engine.version;
    println!("{title} on {engine}");
    let Some(path) = std::env::var_os(variable) else { return };
    let rule = columns.iter().map(|_| "---").collect::<Vec<_>>().join(" | ");
    append(&path, &format!("\n## {title} on {engine}\n\n| {} |\n| {rule} |", columns.join(" | ")));
}

/// The closing sentence of a table.
fn tail(variable: &str, text: &str) {
    println!("{text}");
    if let Some(path) = std::env::var_os(variable) {
        append(&path, &format!("\n{text}"));
    }
}

fn append(path: &std::ffi::OsStr, text: &str) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut f| writeln!(f, "{text}")).expect("the table can be written");
}

const ODD: &str = "UNSLOW_TABLE_ODD";
const REMEDIES: &str = "UNSLOW_TABLE_REMEDIES";

/// Whether a case is to be run.
fn wanted(name: &str) -> bool {
    std::env::var("UNSLOW_ODD").map_or(true, |word| name.contains(&word))
}

/// Allows many connections, and puts this test before other programs on the machine.
fn prepare() {
    noise::shield();
    // SAFETY: the struct is initialised and outlives the calls.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// How well a fault was found, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    First,
    /// Among the findings or in a chain, but not first.
    Named,
    /// Something else was named.
    Wrong,
    /// Nothing was.
    Missed,
    Broken,
}

/// What the doctor made of a fault.
struct Judged {
    found: Found,
    first: String,
    verdict: String,
    /// The doctor called it healthy.
    healthy: bool,
}

fn judge(case: &Ill, report: &Report, load: &Load) -> Judged {
    let names = named(report, load, case.first);
    let first = names.first().map_or("nothing", String::as_str).to_string();
    let chained = report.findings.iter().flat_map(|f| &f.chain).any(|link| link.id == case.first);
    let found = if first == case.first {
        Found::First
    } else if chained || names.iter().any(|n| n == case.first) {
        Found::Named
    } else if names.is_empty() {
        Found::Missed
    } else {
        Found::Wrong
    };
    // "ok" may be said as a verdict, or as information.
    let healthy = report.verdict == Conclusion::NoneFound
        || names.is_empty() && report.findings.iter().any(|f| f.id == "not_your_redis" && case.first != f.id);
    Judged { found, first, verdict: verdict(report), healthy }
}

/// Looks at a fault, again where the machine was busy with something else meanwhile; none where it cannot be shown
/// here.
fn find(case: &Ill) -> Option<Judged> {
    for attempt in 1.. {
        let watch = Noise::watch();
        let judged = match play(&[], case.make, |stage| stage.diagnose(case.name, &[])) {
            Scene::Shown((report, load)) => judge(case, &report, &load),
            Scene::NotHere(why) => {
                line(ODD, &[case.name, case.first, "-", "-", &format!("not here: {why}"), case.how]);
                return None;
            }
            Scene::Broken(why) => Judged { found: Found::Broken, first: why, verdict: String::new(), healthy: false },
        };
        let load = watch.so_far();
        if judged.found != Found::First && load.taken_away() && attempt < TRIES {
            notes::busy(&format!("{} is tried again, {load}: {}", case.name, judged.first));
            continue;
        }
        return Some(judged);
    }
    unreachable!("the last try returns")
}

/// A line of the benchmark's `cases.jsonl`: what is true of the case whose facts were kept.
fn record(case: &str, kind: &str, family: &str, truth: &[&str], how: &str) {
    let Some(dir) = std::env::var_os("UNSLOW_RECORD").map(std::path::PathBuf::from) else { return };
    if !dir.join(format!("{case}.json")).exists() {
        return; // it broke before the doctor looked
    }
    let line = serde_json::json!({ "case": case, "kind": kind, "family": family, "truth": truth, "how": how });
    append(dir.join("cases.jsonl").as_os_str(), &line.to_string());
}

/// Cases of one kind of cause.
type Table = (&'static str, &'static [Ill]);

fn are_found(title: &str, tables: &[Table]) {
    let cases = || tables.iter().flat_map(|(family, cases)| cases.iter().map(move |c| (*family, c)));
    if !cases().any(|(_, c)| wanted(c.name)) {
        return; // UNSLOW_ODD asks for a case of another table
    }
    prepare();
    head(ODD, title, &["case", "expected", "first", "verdict", "outcome", "how it is made"]);
    let (mut shown, mut first, mut bad) = (0, 0, Vec::new());
    for (family, case) in cases().filter(|(_, c)| wanted(c.name)) {
        let Some(judged) = find(case) else { continue };
        record(case.name, "fault", family, &[case.first], case.how);
        let outcome =
            format!("{:?}{}", judged.found, if judged.healthy { ", called healthy" } else { "" }).to_lowercase();
        line(ODD, &[case.name, case.first, &judged.first, &judged.verdict, &outcome, case.how]);
        shown += 1;
        first += usize::from(judged.found == Found::First);
        if judged.found != Found::First || judged.healthy {
            bad.push(format!("{} ({}): {} [{outcome}]", case.name, case.first, judged.first));
        }
    }
    let healthy = bad.iter().filter(|b| b.ends_with("called healthy]")).count();
    let share = f64::from(first as u32) / f64::from(shown.max(1) as u32);
    tail(ODD, &format!("{first} of {shown} named first ({:.0} %), {healthy} called healthy.", share * 100.0));
    assert!(shown > 0, "no case was shown");
    assert!(
        share >= FIRST && healthy == 0,
        "{first} of {shown} named first, {healthy} called healthy:\n{}",
        bad.join("\n")
    );
}

/// What the doctor got wrong about a healthy deployment; empty where it got all of it right.
fn misjudged(case: &Healthy, report: &Report, load: &Load) -> Vec<String> {
    let neighbour = |id: &str| NEIGHBOURS.contains(&id) && load.busy();
    let mut wrong = Vec::new();
    for finding in report.findings.iter().filter(|f| f.severity >= Severity::Risk && !neighbour(&f.id)) {
        let true_risk = MACHINE.contains(&finding.id.as_str()) || case.risks.contains(&finding.id.as_str());
        if finding.severity > Severity::Risk {
            wrong.push(format!("{}: {}", finding.id, finding.title));
        } else if !true_risk {
            wrong.push(format!("risk {}: {}", finding.id, finding.title));
        }
    }
    let right = match (report.verdict, case.used) {
        (Conclusion::Idle, used) => used == Use::AtRest,
        (Conclusion::NoneFound | Conclusion::Risks, used) => used == Use::AtWork,
        // Findings are judged above; where only a neighbour is there, the verdict is about it.
        (Conclusion::Causes, _) => true,
        (Conclusion::Blind | Conclusion::Unreachable | Conclusion::NoServer, _) => false,
    };
    if !right {
        wrong.push(format!("verdict {}, and it is {:?}", verdict(report), case.used));
    }
    wrong
}

fn remedy(case: &remedies::Remedy) -> Scene<Result<Given, String>> {
    play(&[], case.make, |stage| remedies::apply(case, stage))
}

#[test]
#[ignore = "long: some fifty faults, seven seconds each"]
fn ill_by_clients() {
    are_found("Faults that clients make", BY_CLIENTS);
}

#[test]
#[ignore = "long: some thirty faults, ten seconds each"]
fn ill_by_servers() {
    are_found("Faults of servers, deployments and machines", BY_SERVERS);
}

#[test]
#[ignore = "long: some fifty faults, ten seconds each"]
fn ill_by_families() {
    are_found("Faults of one family each", BY_FAMILY);
}

#[test]
#[ignore = "long: some seventy deployments, six seconds each"]
fn healthy() {
    let all = || [healthy_alone::CASES, healthy_usual::CASES, healthy_together::CASES].into_iter().flatten();
    if !all().any(|c| wanted(c.name)) {
        return; // UNSLOW_ODD asks for a case of another table
    }
    prepare();
    head(ODD, "Healthy", &["case", "used", "verdict", "outcome", "how it is made"]);
    let (mut shown, mut bad) = (0, Vec::new());
    for case in all().filter(|c| wanted(c.name)) {
        let used = format!("{:?}", case.used);
        let (said, wrong) = match play(INSTRUMENTS, case.make, |stage| stage.diagnose(case.name, &[])) {
            Scene::Shown((report, load)) => (verdict(&report), misjudged(case, &report, &load)),
            Scene::NotHere(why) => {
                line(ODD, &[case.name, &used, "-", &format!("not here: {why}"), case.how]);
                continue;
            }
            Scene::Broken(why) => (String::new(), vec![format!("broken: {why}")]),
        };
        let outcome = if wrong.is_empty() { "left alone".to_string() } else { wrong.join("; ") };
        line(ODD, &[case.name, &used, &said, &outcome, case.how]);
        record(case.name, "healthy", "healthy", case.risks, case.how);
        shown += 1;
        if !wrong.is_empty() {
            bad.push(format!("{}: {outcome}", case.name));
        }
    }
    tail(ODD, &format!("{} of {shown} left alone.", shown - bad.len()));
    assert!(
        shown > 0 && bad.is_empty(),
        "{} of {shown} healthy deployments are misjudged:\n{}",
        bad.len(),
        bad.join("\n")
    );
}

#[test]
#[ignore = "long: some twenty-five remedies, fifteen seconds each"]
fn remedies_give_back_what_was_predicted() {
    prepare();
    head(
        REMEDIES,
        "Remedies applied",
        &["case", "rule", "unit", "predicted", "measured", "measured / predicted", "afterwards"],
    );
    let (mut shown, mut near, mut bad) = (0, 0, Vec::new());
    for case in remedies::CASES.iter().filter(|c| wanted(c.name)) {
        let why = match remedy(case) {
            Scene::Shown(Ok(given)) => {
                let ratio = given.measured / given.predicted;
                let numbers = [given.predicted, given.measured, ratio].map(|n| format!("{n:.3}"));
                let after = if given.stays { "still there" } else { "gone" };
                line(REMEDIES, &[case.name, case.rule, &given.unit, &numbers[0], &numbers[1], &numbers[2], after]);
                shown += 1;
                near += usize::from((0.7..=1.3).contains(&ratio));
                given.stays.then(|| "it is still there after its remedy".to_string())
            }
            Scene::NotHere(why) => {
                line(REMEDIES, &[case.name, case.rule, "-", "-", "-", "-", &format!("not here: {why}")]);
                None
            }
            Scene::Shown(Err(why)) | Scene::Broken(why) => {
                line(REMEDIES, &[case.name, case.rule, "-", "-", "-", "-", &why]);
                Some(why)
            }
        };
        bad.extend(why.map(|why| format!("{} ({}): {why}", case.name, case.rule)));
    }
    tail(REMEDIES, &format!("{near} of {shown} within 30 % of what was predicted."));
    assert!(shown > 0 && bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
#[ignore = "long: every fault again, for the servers' own doctors"]
fn what_the_servers_own_doctors_say() {
    let Some(path) = std::env::var_os("UNSLOW_PEERS") else {
        return unslow_testkit::skip("UNSLOW_PEERS names no file for the answers");
    };
    prepare();
    for case in tables().flat_map(|(_, cases)| cases.iter()).filter(|c| wanted(c.name)) {
        let look = |stage: &mut Stage| {
            std::thread::sleep(stage::WINDOW_TIME); // as long as ours looks
            peers::ask(stage)
        };
        let (causes, why) = match play(peers::MONITOR, case.make, look) {
            Scene::Shown(Ok(causes)) => (causes, String::new()),
            Scene::Shown(Err(why)) | Scene::Broken(why) => (Vec::new(), why), // a server that hangs says nothing
            Scene::NotHere(_) => continue,
        };
        println!("{:<26} {} {why}", case.name, causes.join(" "));
        append(&path, &serde_json::json!({ "case": case.name, "causes": causes, "why": why }).to_string());
    }
}

/// Rules whose fault only the lab can make: a path that is full takes a wire with a speed, and loopback has none.
const LAB_ALONE: &[&str] = &["bandwidth"];

#[test]
fn the_tables_are_large_enough_and_name_rules() {
    let ill: Vec<Ill> = tables().flat_map(|(_, cases)| cases.iter().copied()).collect();
    let healthy = [healthy_alone::CASES, healthy_usual::CASES, healthy_together::CASES].concat();
    assert!(ill.len() >= 40 && healthy.len() >= 40 && remedies::CASES.len() >= 20);
    let rules: BTreeSet<&str> = unslow_doctor::ALL.iter().map(|r| r.id).collect();
    let expected = ill.iter().map(|c| c.first).chain(healthy.iter().flat_map(|c| c.risks.iter().copied()));
    let expected =
        expected.chain(remedies::CASES.iter().map(|c| c.rule)).chain(MACHINE.iter().chain(NEIGHBOURS).copied());
    let unknown: Vec<&str> = expected.filter(|id| !rules.contains(id)).collect();
    assert!(unknown.is_empty(), "no rules of these names: {unknown:?}");
    // Every rule whose fault can be injected has a case here, and no name is used twice.
    let missing: Vec<&str> = unslow_doctor::ALL
        .iter()
        .filter(|r| matches!(r.injected, unslow_doctor::Injected::Yes) && !ill.iter().any(|c| c.first == r.id))
        .filter(|r| !LAB_ALONE.contains(&r.id))
        .map(|r| r.id)
        .collect();
    assert!(missing.is_empty(), "rules without a case: {missing:?}");
    let names: BTreeSet<&str> = ill.iter().map(|c| c.name).chain(healthy.iter().map(|c| c.name)).collect();
    assert_eq!(names.len(), ill.len() + healthy.len());
}
