//! Why a gateway does not start.

use std::path::PathBuf;

use rustls::pki_types::pem;
use rustls::server::VerifierBuilderError;

use crate::config::ConfigError;
use crate::handover::HandoverError;

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its settings do not make sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No server of the deployment answers as it should.
    #[error(transparent)]
    Deployment(#[from] unslow_client::Error),
    /// No node that is up answered COMMAND.
    #[error("{target}: no node answered COMMAND")]
    NoAnswer { target: String },
    /// A node answered COMMAND with something else.
    #[error("{node}: its answer to COMMAND is not a table of commands")]
    NoCommandTable { node: String },
    /// An address of `listen` cannot be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The sockets of a predecessor cannot be had, or ours cannot be offered.
    #[error("{path}: {why}")]
    Handover { path: String, why: HandoverError },
    /// A file of the settings for TLS is not what it should be.
    #[error("{}: {why}", path.display())]
    TlsFile { path: PathBuf, why: TlsFileError },
    /// TLS itself cannot be set up.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    /// The operating system does not give what is needed.
    #[error("{what}: {why}")]
    System { what: String, why: std::io::Error },
}

impl Error {
    /// For `map_err`: the system did not give this.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |why| Error::System { what, why }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// It is no address, or its name is not known.
    #[error("listen {text:?}: {why}; host:port or unix:/path was expected")]
    Address { text: String, why: std::io::Error },
    /// The name has no address.
    #[error("{0}: no such host")]
    NoSuchHost(String),
    /// Another process listens there.
    #[error("{0}: address already in use; choose another with --listen, or see who: ss -ltnp")]
    InUse(String),
    /// The system refuses it.
    #[error("{text}: {why}")]
    Refused { text: String, why: std::io::Error },
}

/// What is wrong with a file of the settings for TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFileError {
    /// It holds no certificate, or cannot be read.
    #[error("{0}; a PEM certificate was expected")]
    NoCertificate(pem::Error),
    /// It holds no key, or cannot be read.
    #[error("{0}; a PEM key was expected")]
    NoKey(pem::Error),
    /// What it holds cannot be used.
    #[error(transparent)]
    Unusable(#[from] rustls::Error),
    /// No client can be checked against it.
    #[error(transparent)]
    NoAuthority(#[from] VerifierBuilderError),
}
