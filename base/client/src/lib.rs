//! Connections to Redis and Valkey servers, and the discovery of a whole deployment from any one address.
//!
//! Blocking on purpose: a control plane asks few questions, and a thread parked in `read` with a deadline is the
//! simplest thing that can be stopped. The data plane has an event loop of its own and shares only `base/resp`.
//!
//! Every wait has a deadline for the whole exchange, so a peer that sends one byte a second is a timeout too. Replies
//! to the questions of a diagnosis have a limit too, so a hostile peer takes no more memory than that.
#![forbid(unsafe_code)]

mod connection;
mod discovery;
mod error;
mod members;
mod readonly;
mod target;
mod through;
mod tls;

pub use connection::{Connection, Options};
pub use discovery::{discover, discover_as_client};
pub use error::{Error, ErrorKind, Redirect, Way};
pub use members::{Deployment, address_target};
pub use readonly::{ALLOWED, Allowed, OF_HOT_KEYS, OF_KEYS, Product, ReadOnly, Since, acl_rule, acl_rule_of_keys};
pub use target::{Endpoint, Secret, Target};
pub use tls::TlsOptions;
pub use unslow_resp::Value;
