//! A real browser.

use std::path::Path;
use std::process::Command;

/// Its program.
#[track_caller]
pub fn browser() -> &'static str {
    let mut known = ["chromium", "chromium-browser", "google-chrome"].into_iter();
    let is_here = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    known.find(is_here).expect("no Chromium; make tools installs it")
}

/// What a browser makes of a page, after a look that the page asks nobody outside for anything, fits a desk and a
/// telephone, and has no violation that axe-core knows.
#[track_caller]
pub fn browse(page: &Path) -> String {
    let text = std::fs::read_to_string(page).expect("the page was written");
    for outside in ["http://", "https://", "src=", "<script", "@import"] {
        let stripped = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!stripped.contains(outside), "the page is not self-contained: {outside}");
    }
    let mut node = Command::new("node");
    node.arg("inspect.cjs").arg(browser()).arg(page).current_dir(crate::clients::page());
    let output = node.output().expect("make tools");
    let told: Vec<String> = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!("{}: {e}; {}; {}", page.display(), output.status, String::from_utf8_lossy(&output.stderr))
    });
    let (dom, found) = told.split_first().expect("the page comes first");
    assert!(found.is_empty(), "{}: {found:?}", page.display());
    dom.clone()
}
