//! One server of a deployment, as discovery found it.

use serde::{Deserialize, Serialize};

/// How the servers belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentKind {
    /// One server.
    Standalone,
    /// A master and its replicas, nobody watching.
    MasterReplica,
    /// The same, watched by Sentinels.
    Sentinel,
    /// A cluster.
    Cluster,
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Takes writes.
    Master,
    /// Follows a master.
    Replica,
    /// Watches masters.
    Sentinel,
    /// It did not answer, or would not say.
    Unknown,
}

impl Role {
    /// The word people use.
    pub fn word(self) -> &'static str {
        match self {
            Role::Master => "master",
            Role::Replica => "replica",
            Role::Sentinel => "sentinel",
            Role::Unknown => "unknown",
        }
    }
}

/// One server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Member {
    /// `host:port` or `unix:/path`, as others must dial it.
    pub address: String,
    /// What it does.
    pub role: Role,
    /// The master it follows, as an address.
    pub master: Option<String>,
    /// Node id in a cluster.
    pub node_id: Option<String>,
    /// Sentinel's name for the group.
    pub service: Option<String>,
}

impl Member {
    /// The address without the port; what tells hosts apart when nothing better is known.
    pub fn host(&self) -> &str {
        host_of(&self.address)
    }
}

/// `host:port`, with the brackets that IPv6 needs: `::1:6379` could be read in two ways.
///
/// A host that has its brackets already keeps them.
pub fn join_host_port(host: &str, port: impl std::fmt::Display) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// `10.0.0.1:6379` to `10.0.0.1`; IPv6 with or without brackets; a unix socket is its own host, `local`.
pub(crate) fn host_of(address: &str) -> &str {
    if address.starts_with("unix:") {
        return "local";
    }
    address.rsplit_once(':').map_or(address, |(host, _)| host).trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::join_host_port;

    #[test]
    fn only_ipv6_gets_brackets_and_only_once() {
        for (host, joined) in [
            ("10.0.0.1", "10.0.0.1:6379"),
            ("redis-0.redis", "redis-0.redis:6379"),
            ("::1", "[::1]:6379"),
            ("fe80::1%eth0", "[fe80::1%eth0]:6379"),
            ("[::1]", "[::1]:6379"),
            ("", ":6379"),
        ] {
            assert_eq!(join_host_port(host, 6379), joined);
            assert_eq!(join_host_port(host, "6379"), joined);
        }
    }
}
