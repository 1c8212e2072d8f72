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
    let profile = page.with_extension("profile");
    let dom = Command::new(browser())
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser runs");
    inspect(page);
    String::from_utf8_lossy(&dom.stdout).into_owned()
}

#[track_caller]
fn inspect(page: &Path) {
    let mut node = Command::new("node");
    node.arg("inspect.cjs").arg(browser()).arg(page).current_dir(crate::clients::page());
    let output = node.output().expect("make tools");
    let found = String::from_utf8_lossy(&output.stdout);
    assert_eq!(found.trim(), "[]", "{}: {}", page.display(), String::from_utf8_lossy(&output.stderr));
}
