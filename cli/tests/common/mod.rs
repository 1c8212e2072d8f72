//! What the tests of the binary share beside `unslow-testkit`: reports, schemas, TLS.
#![allow(dead_code, unused_imports)] // each test file uses its part

use std::path::Path;
use std::process::Command;

use unslow_engine::Server;
pub use unslow_testkit::browser::browse;
pub use unslow_testkit::{Running, command, engine, stderr, stdout, unslow};

/// A report with a short window, as JSON.
pub fn report(url: &str, more: &[&str]) -> serde_json::Value {
    let mut arguments = vec!["doctor", url, "--window", "1s", "--format", "json", "--quiet", "--timeout", "10"];
    arguments.extend(more);
    let output = unslow(&arguments);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{url}: {e}; stderr: {}", stderr(&output)))
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
    let settings: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (*k, v.as_str())).collect();
    (unslow_testkit::servers::server("redis-7.0", &settings), port)
}

/// The committed schema of a document.
pub fn schema(name: &str) -> jsonschema::Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/schema/{name}.json"));
    let schema: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("the schema is kept")).expect("it is JSON");
    jsonschema::validator_for(&schema).expect("it is a schema")
}
