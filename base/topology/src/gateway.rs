//! What `unslow gateway` says of itself: INFO UNSLOW, and the rows of UNSLOW SHOW TOPOLOGY as far as discovery needs
//! them.
//!
//! Both come over the network, so both are read strictly: what is not exactly of the form is refused as a whole.

use crate::{DeploymentKind, Health, Info, Role};

/// The section of INFO in which a gateway says what it is. Servers have no such section and answer with an empty
/// string, not with an error, so the question may be put to any of them.
pub const GATEWAY_SECTION: &str = "unslow";

/// More nodes than any deployment has; stops a gateway that lies.
const NODES_MAX: usize = 1000;
/// Longer than any version.
const VERSION_MAX: usize = 32;

/// A gateway, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Version of unslow.
    pub version: String,
    /// What it stands in front of.
    pub serves: DeploymentKind,
}

const VERSION: &str = "unslow_gateway_version";
const SERVES: &str = "unslow_gateway_serves";

const KINDS: [(DeploymentKind, &str); 4] = [
    (DeploymentKind::Standalone, "standalone"),
    (DeploymentKind::MasterReplica, "master_replica"),
    (DeploymentKind::Sentinel, "sentinel"),
    (DeploymentKind::Cluster, "cluster"),
];

impl Gateway {
    /// From the answer to INFO UNSLOW. `None` when it is not a gateway's.
    pub fn parse(info: &Info) -> Option<Gateway> {
        let version = info.get(VERSION)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
        let sane = !version.is_empty() && version.len() <= VERSION_MAX && version.chars().all(plain);
        let serves = KINDS.iter().find(|(_, word)| info.get(SERVES) == Some(word))?.0;
        sane.then(|| Gateway { version: version.to_string(), serves })
    }

    /// The answer to INFO UNSLOW.
    pub fn to_info(&self) -> String {
        let word = KINDS.iter().find(|(kind, _)| *kind == self.serves).map_or("", |(_, word)| word);
        format!("# Unslow\r\n{VERSION}:{}\r\n{SERVES}:{word}\r\n", self.version)
    }
}

/// A node as UNSLOW SHOW TOPOLOGY names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBehind {
    /// `host:port` or `unix:/path`, as the gateway dials it.
    pub address: String,
    /// What it does.
    pub role: Role,
    /// How the gateway finds it.
    pub health: Health,
}

impl NodeBehind {
    /// All rows of the answer: `name=value` with blanks between, the node's address first. `None` when a row is not of
    /// that form, or when there are more of them than a deployment has nodes.
    pub fn parse_all<'a>(rows: impl Iterator<Item = &'a str>) -> Option<Vec<NodeBehind>> {
        let nodes: Option<Vec<NodeBehind>> = rows.take(NODES_MAX + 1).map(NodeBehind::parse).collect();
        nodes.filter(|nodes| nodes.len() <= NODES_MAX)
    }

    fn parse(row: &str) -> Option<NodeBehind> {
        let mut fields = row.split(' ');
        let address = fields.next()?.strip_prefix("node=")?;
        let role = match fields.next()?.strip_prefix("role=")? {
            "master" => Role::Master,
            "replica" => Role::Replica,
            "unknown" => Role::Unknown,
            _ => return None,
        };
        let health = match fields.next()?.strip_prefix("health=")? {
            "up" => Health::Up,
            "suspected" => Health::Suspected,
            "failed" => Health::Failed,
            _ => return None,
        };
        let sane = !address.is_empty() && !address.contains(|c: char| c.is_control() || c.is_whitespace());
        sane.then(|| NodeBehind { address: address.to_string(), role, health })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_known_by_its_own_section() {
        for (serves, _) in KINDS {
            let gateway = Gateway { version: "0.1.0-rc.1".into(), serves };
            assert_eq!(Gateway::parse(&Info::parse(&gateway.to_info())), Some(gateway));
        }
        for text in [
            "",
            "# Server\r\nredis_version:7.2.4\r\n",
            "unslow_gateway_version:0.1.0\r\n",
            "unslow_gateway_version:0.1.0\r\nunslow_gateway_serves:everything\r\n",
            "unslow_gateway_version:\r\nunslow_gateway_serves:cluster\r\n",
            "unslow_gateway_version:\x1b[2J\r\nunslow_gateway_serves:cluster\r\n",
            &format!("unslow_gateway_version:{}\r\nunslow_gateway_serves:cluster\r\n", "1".repeat(33)),
        ] {
            assert_eq!(Gateway::parse(&Info::parse(text)), None, "{text:?}");
        }
    }

    #[test]
    fn rows_are_all_read_or_none_is() {
        let master =
            "node=10.0.0.1:6379 role=master health=up master=- slots=0-16383 epoch=1 zone=- rtt_us=80 lag_bytes=-";
        let replica = "node=[::1]:7000 role=replica health=suspected master=10.0.0.1:6379";
        let nodes = NodeBehind::parse_all([master, replica].into_iter()).unwrap();
        let expected = |address: &str, role, health| NodeBehind { address: address.into(), role, health };
        assert_eq!(
            nodes,
            [
                expected("10.0.0.1:6379", Role::Master, Health::Up),
                expected("[::1]:7000", Role::Replica, Health::Suspected)
            ]
        );
        for bad in [
            "",
            "OK",
            "node= role=master health=up",
            "node=a:1",
            "node=a:1 role=master",
            "node=a:1 role=king health=up",
            "node=a:1 role=master health=fine",
            "node=a:1  role=master health=up",
            "role=master node=a:1 health=up",
            "node=a\t:1 role=master health=up",
        ] {
            assert_eq!(NodeBehind::parse_all([master, bad].into_iter()), None, "{bad:?}");
        }
        assert_eq!(NodeBehind::parse_all(std::iter::repeat_n(master, NODES_MAX)).map(|n| n.len()), Some(NODES_MAX));
        assert_eq!(NodeBehind::parse_all(std::iter::repeat_n(master, NODES_MAX + 1)), None);
    }
}
