//! The files of the tree that are checked, and which of them users run or read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::complaint::Complaint;
use super::tokens::{self, Token};

/// One Rust source.
pub struct File {
    /// From the root of the tree, with `/`.
    pub path: String,
    pub text: String,
    pub tokens: Vec<Token>,
    /// Without what is compiled for tests only; empty for a file that is.
    pub product: Vec<Token>,
}

impl File {
    /// A file by itself; whether it is a test is read from its path.
    pub fn of(path: &str, text: &str) -> Result<File, Complaint> {
        let tokens = tokens::read(text)
            .map_err(|(line, why)| Complaint::new(path, line, format!("is not Rust as `tidy` reads it: {why}")))?;
        let product = if is_product(path) { tokens::without_tests(&tokens) } else { Vec::new() };
        Ok(File { path: path.into(), text: text.into(), tokens, product })
    }
}

/// Every Rust source under `root`, and a complaint for each that cannot be read.
pub fn read(root: &Path) -> anyhow::Result<(Vec<File>, Vec<Complaint>)> {
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    for path in self::files(root, "rs")? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        match File::of(&name(root, &path)?, &text) {
            Ok(file) => files.push(file),
            Err(complaint) => wrong.push(complaint),
        }
    }
    let tests: BTreeSet<String> = files.iter().flat_map(test_files).collect();
    for file in &mut files {
        if is_among(&file.path, &tests) {
            file.product = Vec::new();
        }
    }
    Ok((files, wrong))
}

/// Files with code that users run; tests inside them are told apart by their attribute.
fn is_product(path: &str) -> bool {
    let in_sources = path.starts_with("src/") || path.contains("/src/");
    in_sources && !path.contains("/tests/") && !path.starts_with("testkit/") && !path.starts_with("fuzz/")
}

/// Where the test modules that this file declares lie, without `.rs`.
fn test_files(file: &File) -> Vec<String> {
    let stem = file.path.trim_end_matches(".rs");
    let dir = match stem.rsplit_once('/') {
        Some((dir, "mod" | "lib" | "main")) => dir,
        _ => stem,
    };
    tokens::test_modules(&file.tokens).iter().map(|name| format!("{dir}/{name}")).collect()
}

/// Whether the file is one of these modules, or lies below one.
fn is_among(path: &str, modules: &BTreeSet<String>) -> bool {
    let stem = path.trim_end_matches(".rs");
    modules.contains(stem) || modules.iter().any(|m| stem.strip_prefix(m.as_str()).is_some_and(|r| r.starts_with('/')))
}

/// Documents for users and contributors, and the templates of pages.
pub fn documents(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "md") {
            all.push(path);
        }
    }
    for (dir, extension) in
        [("docs", "md"), ("docs", "toml"), ("cli/templates", "html"), ("drills", "toml"), ("cases", "toml")]
    {
        if root.join(dir).is_dir() {
            all.extend(files(&root.join(dir), extension)?);
        }
    }
    all.sort();
    all.iter().map(|path| name(root, path)).collect()
}

fn name(root: &Path, path: &Path) -> anyhow::Result<String> {
    Ok(path.strip_prefix(root)?.to_string_lossy().replace('\\', "/"))
}

/// Every file with this extension; what is built, hidden or left by drills apart.
pub fn files(dir: &Path, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "store" {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_code_is_told_from_tests_by_its_path() {
        for path in ["cli/src/main.rs", "fix/bypass/preload/src/calls.rs", "xtask/src/test/mod.rs"] {
            assert!(is_product(path), "{path}");
        }
        for path in ["cli/tests/gateway.rs", "testkit/src/lib.rs", "fix/sink/examples/rate.rs", "fuzz/src/x.rs"] {
            assert!(!is_product(path), "{path}");
        }
    }

    #[test]
    fn modules_declared_for_tests_are_tests_whatever_their_name() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("a/src/lib.rs", "mod worker;\n#[cfg(test)]\nmod checks;\n"),
            ("a/src/worker.rs", "#[cfg(test)]\nmod cases;\nconst A: &str = \"a\";\n"),
            ("a/src/worker/cases.rs", "const B: &str = \"b\";\n"),
            ("a/src/checks/mod.rs", "const C: &str = \"c\";\n"),
            ("a/src/checks/deep.rs", "const D: &str = \"d\";\n"),
            ("a/target/x.rs", "const E: &str = \"e\";\n"),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let (files, wrong) = read(dir.path()).unwrap();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(files.len(), 5);
        let strings: Vec<String> = files.iter().flat_map(|f| &f.product).filter_map(Token::string).collect();
        assert_eq!(strings, ["a"]);
    }
}
