//! Answers to GET over HTTP: metrics and health for a scraper and an orchestrator, and pages. Not a web server: one
//! request a connection, no bodies, nothing that changes anything.
#![forbid(unsafe_code)]

mod exposition;
mod http;

use std::sync::Arc;

pub use exposition::{CONTENT_TYPE, Distribution, Exposition, Labels};
pub use http::{Answer, Body, Listen, Pages, Request, Serving, Stream};

/// Why a process is not ready to serve, for `/readyz`: what an operator reads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// It was told to end and lets what it has finish.
    #[error("it is ending")]
    Ending,
    /// No server answers for part of the data.
    #[error("some slots have no master that answers")]
    SlotsWithoutMaster,
}

/// What a process says of itself. Called on threads of this crate.
pub trait Status: Send + Sync + 'static {
    /// For `/metrics`: an [`Exposition`]'s text.
    fn metrics(&self) -> String;
    /// For `/readyz`: `Err` says why it is not.
    fn ready(&self) -> Result<(), NotReady>;
}

/// Serves `/metrics`, `/healthz` (it runs) and `/readyz` at `address`. With `patient` an address that is taken is tried
/// again until it is free.
pub fn serve(address: &str, patient: bool, status: Arc<dyn Status>) -> std::io::Result<Serving> {
    http::serve(Listen { address, patient, tls: None }, Arc::new(Said(status)))
}

/// Serves pages.
pub fn serve_pages(listen: Listen<'_>, pages: Arc<dyn Pages>) -> std::io::Result<Serving> {
    http::serve(listen, pages)
}

struct Said(Arc<dyn Status>);

impl Pages for Said {
    fn answer(&self, request: &Request) -> Answer {
        let plain = "text/plain";
        match request.path.as_str() {
            "/metrics" => Answer::ok(CONTENT_TYPE, self.0.metrics()),
            "/healthz" => Answer::ok(plain, "ok\n"),
            "/readyz" => match self.0.ready() {
                Ok(()) => Answer::ok(plain, "ready\n"),
                Err(why) => Answer::new("503 Service Unavailable", plain, format!("{why}\n")),
            },
            _ => Answer::new("404 Not Found", plain, "try /metrics, /healthz or /readyz\n"),
        }
    }
}
