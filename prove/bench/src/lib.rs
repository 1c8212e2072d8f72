//! A load generator whose tails can be believed.
//!
//! Open loop: requests are due by a schedule, and a request's clock starts when it is due, not when the server let us
//! send it. Closed loop: so many callers, each of which asks again when it is answered. Either way over one of the
//! client models that applications have: connections of their own, a pool, one shared connection.
//!
//! [`Session::prepare`] looks at the deployment and fits the workload to it, [`Session::run`] measures. The hot path is
//! `worker.rs`, one of them a thread, each with a `base/reactor` loop and nothing shared; another thread adds up a
//! second at a time (`session/collect.rs`). What makes the figures doubtful is a type, `doubts.rs`, and so is what
//! prevents a run, [`Error`].
#![forbid(unsafe_code)]

mod arrivals;
mod built_in;
mod command;
mod compare;
mod danger;
mod doubts;
mod error;
mod export;
mod places;
mod replay;
mod report;
mod route;
mod servers;
mod session;
mod settings;
mod stats;
mod template;
mod worker;
mod workload;

pub use arrivals::Arrivals;
pub use built_in::built_in_names;
pub use compare::{Bounds, Comparison, Difference, Side, compare};
pub use error::{
    BadRecording, Error, GeneratorError, Interrupted, LogError, RecordingError, SettingsError, TemplateError, Unfit,
    UnknownModel, WorkloadError,
};
pub use export::{Logged, percentile_table, with_log};
pub use hdrhistogram::Histogram;
pub use report::{
    CommandRun, Deployment, Errors, Event, Generator, KindCount, Latency, Load, Percentile, PubSub, Recorded, Report,
    Run, SCHEMA, Second, ServerRun,
};
pub use session::{Held, Progress, Removed, Session};
pub use settings::{Model, ReadFrom, Settings};
pub use workload::Spec;
