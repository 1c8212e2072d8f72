//! `tests.toml`: what a test needs of the machine.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::find::{Kind, Test};

/// What a test needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Makes what tests on servers need, and counts as a test only if it fails.
    Preparation,
    /// A processor for milliseconds.
    Pure,
    /// Real servers; shares the machine with others of its kind.
    Servers,
    /// Real servers as well, and next to no processor: it waits for failovers, recoveries and windows of seconds.
    Waits,
    /// A machine that is at rest but for a few others of its kind, which rest as well.
    Quiet,
    /// The whole machine: it judges what it measures.
    Alone,
}

impl Need {
    pub fn name(self) -> &'static str {
        match self {
            Need::Preparation => "prepares",
            Need::Pure => "pure",
            Need::Servers => "servers",
            Need::Waits => "waits",
            Need::Quiet => "quiet",
            Need::Alone => "alone",
        }
    }
}

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// How many tests on real servers run at a time.
    pub slots: usize,
    /// How many that wait run beside these.
    #[serde(default)]
    pub waiting: usize,
    /// Beginnings of names: tests on real servers that begin before the others, in this order.
    #[serde(default)]
    first: Vec<String>,
    /// The longest a test may take, in seconds, before it is ended and has failed.
    pub limit_s: u64,
    #[serde(rename = "group")]
    groups: Vec<Group>,
    #[serde(rename = "program", default)]
    programs: Vec<Program>,
}

/// Another test runner, which counts as one test, and begins before others of the same need.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    name: String,
    need: Need,
    dir: PathBuf,
    command: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    need: Need,
    /// Beginnings of names.
    tests: Vec<String>,
    /// For the reader of the file.
    #[allow(dead_code)]
    why: String,
}

impl Plan {
    pub fn read(path: &Path) -> anyhow::Result<Plan> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Plan::parse(&text, std::env::var("UNSLOW_TEST_SLOTS").ok().as_deref())
    }

    pub(super) fn parse(text: &str, slots: Option<&str>) -> anyhow::Result<Plan> {
        let mut plan: Plan = toml::from_str(text).context("tests.toml")?;
        if let Some(slots) = slots {
            plan.slots = slots.parse().with_context(|| format!("UNSLOW_TEST_SLOTS={slots:?} is not a number"))?;
            plan.waiting = 0; // the number is the limit for all of them together
        }
        if plan.waiting == 0 {
            plan.groups.iter_mut().filter(|g| g.need == Need::Waits).for_each(|g| g.need = Need::Servers);
        }
        if plan.slots == 0 {
            bail!("no slots: no test on real servers could run");
        }
        Ok(plan)
    }

    /// A plan without groups.
    #[cfg(test)]
    pub fn of_slots(slots: usize, waiting: usize) -> Plan {
        Plan { slots, waiting, first: Vec::new(), limit_s: 60, groups: Vec::new(), programs: Vec::new() }
    }

    /// The programs, as tests.
    pub fn programs(&self, root: &Path) -> anyhow::Result<Vec<Test>> {
        let test = |p: &Program| {
            let (program, arguments) = p.command.split_first().with_context(|| format!("{}: no command", p.name))?;
            let (id, program) = (p.name.clone(), PathBuf::from(program));
            let (arguments, dir) = (arguments.to_vec(), root.join(&p.dir));
            Ok(Test { id, program, arguments, dir, kind: Kind::Program, long: false })
        };
        self.programs.iter().map(test).collect()
    }

    /// What a program says; else of the first group that names it; tests inside a library are pure, others use servers.
    pub fn need(&self, test: &Test) -> Need {
        if let Some(program) = self.programs.iter().find(|p| test.kind == Kind::Program && p.name == test.id) {
            return program.need;
        }
        let named = self.groups.iter().find(|g| g.tests.iter().any(|t| names(t, &test.id)));
        named.map_or(if test.kind == Kind::Unit { Need::Pure } else { Need::Servers }, |g| g.need)
    }

    /// Where a test stands among those that begin before the others; behind all of them if it is none.
    pub fn place(&self, test: &Test) -> usize {
        self.first.iter().position(|first| names(first, &test.id)).unwrap_or(self.first.len())
    }

    /// A group that names a test that is not there has outlived it.
    pub fn check(&self, all: &[Test]) -> anyhow::Result<()> {
        for name in self.groups.iter().flat_map(|g| &g.tests).chain(&self.first) {
            if !all.iter().any(|t| names(name, &t.id)) {
                bail!("tests.toml names {name:?}, and there is no such test");
            }
        }
        Ok(())
    }
}

/// Whole parts of a name only: `cli::bench` is not `cli::bench_html`.
fn names(pattern: &str, id: &str) -> bool {
    id.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(id: &str, unit: bool) -> Test {
        let kind = if unit { Kind::Unit } else { Kind::Integration };
        let (id, none) = (id.to_string(), PathBuf::new());
        Test { id, program: none.clone(), arguments: Vec::new(), dir: none, kind, long: false }
    }

    const FILE: &str = "slots = 2\nlimit_s = 60\n[[group]]\nneed = \"alone\"\ntests = [\"cli::bench\"]\nwhy = \"x\"\n";

    #[test]
    fn the_first_group_that_names_a_test_says_what_it_needs() {
        let plan = Plan::parse(FILE, None).unwrap();
        assert_eq!(plan.need(&test("cli::bench::a_test", false)), Need::Alone);
        assert_eq!(plan.need(&test("cli::bench_html::a_test", false)), Need::Servers);
        assert_eq!(plan.need(&test("resp::scans", true)), Need::Pure);
        let waits = FILE.replace("alone", "waits");
        assert_eq!(Plan::parse(&waits, None).unwrap().need(&test("cli::bench::a_test", false)), Need::Servers);
        let plan = Plan::parse(&format!("waiting = 3\n{waits}"), None).unwrap();
        assert_eq!((plan.need(&test("cli::bench::a_test", false)), plan.waiting), (Need::Waits, 3));
        let plan = Plan::parse(&format!("waiting = 3\n{waits}"), Some("1")).unwrap();
        assert_eq!((plan.need(&test("cli::bench::a_test", false)), plan.waiting), (Need::Servers, 0));
    }

    #[test]
    fn tests_that_the_plan_names_begin_before_the_others() {
        let plan = Plan::parse(&format!("first = [\"sink::kafka\", \"cli::long\"]\n{FILE}"), None).unwrap();
        let place = |id: &str| plan.place(&test(id, false));
        assert_eq!([place("sink::kafka::a"), place("cli::long"), place("cli::a")], [0, 1, 2]);
        let all = [test("cli::bench::a", false), test("cli::long", false)];
        assert!(plan.check(&all).unwrap_err().to_string().contains("sink::kafka"));
    }

    #[test]
    fn names_that_match_nothing_and_numbers_that_are_none_are_refused() {
        let plan = Plan::parse(FILE, Some("3")).unwrap();
        assert_eq!(plan.slots, 3);
        assert!(plan.check(&[test("cli::bench::a", false)]).is_ok());
        assert!(plan.check(&[test("cli::sink::a", false)]).unwrap_err().to_string().contains("cli::bench"));
        let program = "[[program]]\nname = \"java\"\nneed = \"pure\"\ndir = \"fix\"\ncommand = [\"mvn\", \"verify\"]\n";
        let plan = Plan::parse(&format!("{FILE}{program}"), None).unwrap();
        let java = &plan.programs(Path::new("/root")).unwrap()[0];
        assert_eq!(plan.need(java), Need::Pure);
        assert_eq!(
            (java.dir.as_path(), java.arguments.as_slice()),
            (Path::new("/root/fix"), &["verify".to_string()][..])
        );
        assert!(Plan::parse(FILE, Some("many")).is_err() && Plan::parse(FILE, Some("0")).is_err());
    }
}
