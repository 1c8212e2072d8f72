//! What the tests of the binary share.
#![allow(dead_code)] // each test file uses its part

use std::path::Path;
use std::process::{Command, Output};

use unslow_engine::{Engine, Server, ServerSpec, find};

/// The released binary with these arguments, to its end.
pub fn unslow(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary runs")
}

/// The same, to be changed before it runs.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unslow"));
    command.args(arguments).env_remove("UNSLOW_PASSWORD");
    command
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A report with a short window, as JSON.
pub fn report(url: &str, more: &[&str]) -> serde_json::Value {
    let mut arguments = vec!["doctor", url, "--window", "1s", "--format", "json", "--quiet", "--timeout", "2"];
    arguments.extend(more);
    let output = unslow(&arguments);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{url}: {e}; stderr: {}", stderr(&output)))
}

pub fn engine(name: &str) -> Engine {
    find(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Ids of the findings, in order.
pub fn ids(report: &serde_json::Value) -> Vec<String> {
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    findings.iter().map(|f| f["id"].as_str().unwrap_or_default().to_string()).collect()
}

/// Sentences of "cannot see".
pub fn unseen(report: &serde_json::Value) -> Vec<String> {
    let all = report["cannot_see"].as_array().cloned().unwrap_or_default();
    all.iter()
        .map(|c| format!("{} [{}]", c["why"].as_str().unwrap_or_default(), c["grant"].as_str().unwrap_or_default()))
        .collect()
}

pub fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .current_dir(dir)
        .args(arguments.split(' '))
        .output()
        .expect("openssl is installed (make tools)");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A CA, a certificate for 127.0.0.1, and the settings of a server that speaks TLS on a port.
pub fn tls_settings(dir: &Path) -> (Vec<(&'static str, String)>, u16) {
    openssl(dir, "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.crt -subj /CN=test-ca");
    openssl(dir, "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost");
    std::fs::write(dir.join("ext"), "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n").unwrap();
    openssl(
        dir,
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.crt",
    );
    let port = unslow_engine::free_port("127.0.0.1").unwrap();
    let file = |n: &str| dir.join(n).display().to_string();
    let settings = [
        ("tls-port", port.to_string()),
        ("tls-cert-file", file("server.crt")),
        ("tls-key-file", file("server.key")),
        ("tls-ca-cert-file", file("ca.crt")),
    ];
    (settings.to_vec(), port)
}

/// A server that speaks TLS on `port`.
pub fn tls_server(dir: &Path) -> (Server, u16) {
    let (mut settings, port) = tls_settings(dir);
    settings.push(("requirepass", "s3cret".into()));
    let settings = settings.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    (Server::start(&engine("redis-7.0"), &ServerSpec { settings, ..ServerSpec::default() }).unwrap(), port)
}

/// The committed schema of a document.
pub fn schema(name: &str) -> jsonschema::Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/schema/{name}.json"));
    let schema: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("the schema is kept")).expect("it is JSON");
    jsonschema::validator_for(&schema).expect("it is a schema")
}

/// What a real browser makes of a page, after a look that the page asks nobody outside for anything.
pub fn browse(page: &Path) -> String {
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"]
        .iter()
        .find(|b| Command::new(b).arg("--version").output().is_ok())
    else {
        panic!("no Chromium; make tools installs it");
    };
    let text = std::fs::read_to_string(page).unwrap();
    for outside in ["http://", "https://", "src=", "<script", "@import"] {
        let stripped = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!stripped.contains(outside), "the page is not self-contained: {outside}");
    }
    let profile = page.with_extension("profile");
    let dom = Command::new(browser)
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
        .unwrap();
    stdout(&dom)
}

/// Ended with the test, whatever becomes of it.
pub struct Running(pub std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes numbers only, and the child is ours and not yet waited for.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }
}
