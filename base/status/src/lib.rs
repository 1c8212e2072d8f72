//! Metrics and health over HTTP: the few answers that a scraper and an orchestrator ask for. Not a web server.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What a process says of itself. Called on threads of this crate.
pub trait Status: Send + Sync + 'static {
    /// For `/metrics`, in Prometheus' text format.
    fn metrics(&self) -> String;
    /// For `/readyz`: `Err` says why it is not.
    fn ready(&self) -> Result<(), String>;
    /// Whether to stop serving.
    fn ended(&self) -> bool;
}

/// Requests answered at once; more wait.
const AT_ONCE_MAX: usize = 16;

/// Serves `/metrics`, `/healthz` (it runs) and `/readyz` at `address`, and returns where. With `patient` an address that
/// is taken is tried again until it is free.
pub fn serve(address: &str, patient: bool, status: Arc<dyn Status>) -> std::io::Result<Option<SocketAddr>> {
    let mut listener = match TcpListener::bind(address) {
        Ok(listener) => Some(listener),
        Err(_) if patient => None,
        Err(e) => return Err(e),
    };
    let bound = listener.as_ref().and_then(|l| l.local_addr().ok());
    let address = address.to_string();
    let open = Arc::new(AtomicUsize::new(0));
    let thread = std::thread::Builder::new().name("status".into());
    thread.spawn(move || {
        while !status.ended() {
            let Some(ready) = &listener else {
                listener = TcpListener::bind(&address).ok();
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let _ = ready.set_nonblocking(true);
            match ready.accept() {
                // One that dawdles keeps no other waiting, and many wait for each other.
                Ok((stream, _)) => {
                    while open.fetch_add(1, Ordering::AcqRel) >= AT_ONCE_MAX {
                        open.fetch_sub(1, Ordering::AcqRel);
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    let (status, open) = (status.clone(), open.clone());
                    std::thread::spawn(move || {
                        let _ = answer(stream, &*status);
                        open.fetch_sub(1, Ordering::AcqRel);
                    });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    })?;
    Ok(bound)
}

fn answer(mut stream: TcpStream, status: &dyn Status) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    // All of the head is read: closing with something unread would take the answer away.
    let mut head = BufReader::new((&stream).take(8192));
    let mut line = String::new();
    head.read_line(&mut line)?;
    let mut rest = String::new();
    while head.read_line(&mut rest)? > 2 {
        rest.clear();
    }
    let plain = "text/plain";
    let (code, kind, body) = match line.split(' ').nth(1).unwrap_or("") {
        "/metrics" => ("200 OK", "text/plain; version=0.0.4", status.metrics()),
        "/healthz" => ("200 OK", plain, "ok\n".into()),
        "/readyz" => match status.ready() {
            Ok(()) => ("200 OK", plain, "ready\n".into()),
            Err(why) => ("503 Service Unavailable", plain, why + "\n"),
        },
        _ => ("404 Not Found", plain, "try /metrics, /healthz or /readyz\n".into()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
