//! The message of the newest commit, as CONTRIBUTING.md asks for it.
//!
//! Only HEAD: history is what it is. Nothing is said outside a git clone, or of a merge.

use std::path::Path;
use std::process::Command;

use super::complaint::Complaint;

const SUBJECT_MOST: usize = 100;

/// A commit as far as it is judged.
#[derive(Debug, Default)]
pub struct Commit {
    pub subject: String,
    pub body: String,
    pub parents: usize,
    /// What it changed; nothing in a clone that does not reach its parent.
    pub paths: Vec<String>,
}

/// HEAD. `None` where this tree is no clone, as from a tarball, or git is missing or refuses.
pub fn head(root: &Path) -> Option<Commit> {
    let git = |arguments: &[&str]| -> Option<String> {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // A tarball may have been unpacked inside somebody's clone.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(top.trim_end()).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let text = git(&["show", "--no-patch", "--format=%P%x00%s%x00%b", "HEAD"])?;
    let paths = git(&["diff-tree", "--no-commit-id", "--name-only", "-r", "HEAD"]).unwrap_or_default();
    let mut parts = text.splitn(3, '\0');
    Some(Commit {
        parents: parts.next()?.split_whitespace().count(),
        subject: parts.next()?.trim().into(),
        body: parts.next()?.trim().into(),
        paths: paths.lines().map(String::from).collect(),
    })
}

/// What the message lacks.
pub fn check(commit: &Commit) -> Vec<Complaint> {
    let mut all = Vec::new();
    if commit.parents > 1 || commit.subject.starts_with("Revert ") {
        return all;
    }
    let mut complain = |text: String| all.push(Complaint::new("HEAD", 0, text));
    let subject = &commit.subject;
    let length = subject.chars().count();
    if length > SUBJECT_MOST {
        complain(format!("the subject has {length} characters, expected at most {SUBJECT_MOST}: git commit --amend"));
    }
    let form = subject.split_once(": ").is_some_and(|(area, what)| !area.trim().is_empty() && !what.trim().is_empty());
    if !form {
        complain(format!("the subject is {subject:?}, expected `area: what`: git commit --amend"));
    }
    if commit.body.is_empty() {
        complain("the message has no body, expected what was wrong and what was done: git commit --amend".into());
    } else if commit.paths.iter().any(|path| is_product(path)) {
        for part in ["Problem:", "Solution:"] {
            if !commit.body.lines().any(|line| line.trim_start().starts_with(part)) {
                complain(format!(
                    "the body has no line that begins with `{part}`, and the commit changes product code; \
                     CONTRIBUTING.md has an example"
                ));
            }
        }
    }
    all
}

/// Rust and Java that users run.
fn is_product(path: &str) -> bool {
    let in_sources = path.starts_with("src/") || path.contains("/src/");
    let is_code = path.ends_with(".rs") || path.ends_with(".java");
    let is_test = path.starts_with("testkit/") || path.contains("/tests/") || path.contains("/src/test/java/");
    in_sources && is_code && !is_test
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(subject: &str, body: &str, path: &str) -> Commit {
        Commit { subject: subject.into(), body: body.into(), parents: 1, paths: vec![path.into()] }
    }

    fn found(commit: &Commit) -> Vec<String> {
        check(commit).iter().map(Complaint::to_string).collect()
    }

    const WHOLE: &str = "Problem: it was slow.\n\nSolution: it asks once.\n\nValidation: a test.";

    #[test]
    fn a_whole_message_is_fine() {
        assert!(found(&commit("doctor: report owners per epoch", WHOLE, "explain/doctor/src/lib.rs")).is_empty());
        assert!(found(&commit("docs: how to drain", "It was not written down.", "docs/gateway.md")).is_empty());
        assert!(found(&commit("sink: wait for the count", "It slept.", "fix/sink/tests/sink.rs")).is_empty());
    }

    #[test]
    fn subjects_have_an_area_and_a_length() {
        assert_eq!(
            found(&commit("fixes", WHOLE, "cli/src/main.rs")),
            ["HEAD: the subject is \"fixes\", expected `area: what`: git commit --amend"]
        );
        let long = format!("cli: {}", "x".repeat(96));
        assert_eq!(
            found(&commit(&long, WHOLE, "cli/src/main.rs")),
            ["HEAD: the subject has 101 characters, expected at most 100: git commit --amend"]
        );
    }

    #[test]
    fn bodies_say_problem_and_solution_where_product_code_changes() {
        assert!(found(&commit("cli: a flag", "", "docs/guide.md"))[0].starts_with("HEAD: the message has no body"));
        for path in ["cli/src/main.rs", "fix/lettuce/core/src/main/java/A.java"] {
            let said = found(&commit("cli: a flag", "Problem: none.\nIt is better now.", path));
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains("begins with `Solution:`"), "{said:?}");
        }
    }

    #[test]
    fn merges_and_reverts_are_left_alone() {
        let merge = Commit { subject: "Merge branch x".into(), parents: 2, ..Commit::default() };
        assert!(found(&merge).is_empty());
        assert!(found(&commit("Revert \"cli: a flag\"", "", "cli/src/main.rs")).is_empty());
    }

    #[test]
    fn a_tree_without_git_has_no_head() {
        let dir = tempfile::tempdir().unwrap();
        assert!(head(dir.path()).is_none());
    }

    #[test]
    fn head_is_read_from_a_clone_even_its_first_commit() {
        let dir = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"];
            let done = Command::new("git").arg("-C").arg(dir.path()).args(identity).args(arguments).output();
            assert!(done.unwrap().status.success(), "git {arguments:?}");
        };
        git(&["init", "--quiet"]);
        assert!(head(dir.path()).is_none(), "no commit yet");
        for name in ["first", "second"] {
            std::fs::write(dir.path().join(name), name).unwrap();
            git(&["add", "--all"]);
            git(&["commit", "--quiet", "-m", &format!("area: {name}"), "-m", "Problem: none."]);
            let read = head(dir.path()).unwrap();
            assert_eq!(
                (read.subject.as_str(), read.body.as_str()),
                (format!("area: {name}").as_str(), "Problem: none.")
            );
        }
        let read = head(dir.path()).unwrap();
        assert_eq!((read.parents, read.paths), (1, vec!["second".to_string()]));
    }
}
