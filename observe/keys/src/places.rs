//! Where each shard's keys are looked at: at a replica, if there is one.

use std::collections::BTreeSet;

use unslow_topology::{Member, Role};

/// One shard, and the servers that could be asked, the best first.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    /// Its master.
    pub master: String,
    /// Replicas, then the master; or the master alone.
    pub servers: Vec<Member>,
}

/// The shards of a deployment. Servers of `before`, which an earlier walk has asked, come first in theirs.
pub fn shards(members: &[Member], on_masters: bool, before: &BTreeSet<String>) -> Vec<Shard> {
    let masters = members.iter().filter(|m| m.role == Role::Master);
    let mut all: Vec<Shard> = masters
        .map(|master| {
            let is_its = |m: &&Member| m.role == Role::Replica && m.master.as_ref() == Some(&master.address);
            let mut servers: Vec<Member> = Vec::new();
            if !on_masters {
                servers.extend(members.iter().filter(is_its).cloned());
            }
            servers.push(master.clone());
            // Stable: replicas stay before the master.
            servers.sort_by_key(|m| !before.contains(&m.address));
            Shard { master: master.address.clone(), servers }
        })
        .collect();
    all.sort_by(|a, b| a.master.cmp(&b.master));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(address: &str, role: Role, master: Option<&str>) -> Member {
        let master = master.map(Into::into);
        Member { address: address.into(), role, master, node_id: None, service: None }
    }

    fn servers(shard: &Shard) -> Vec<&str> {
        shard.servers.iter().map(|m| m.address.as_str()).collect()
    }

    #[test]
    fn replicas_come_first_and_those_that_were_asked_before_come_before_them() {
        let all = [
            member("b", Role::Master, None),
            member("a", Role::Master, None),
            member("a1", Role::Replica, Some("a")),
            member("a2", Role::Replica, Some("a")),
            member("x", Role::Replica, Some("gone")),
            member("s", Role::Sentinel, None),
            member("u", Role::Unknown, None),
        ];
        let plain = shards(&all, false, &BTreeSet::new());
        assert_eq!(plain.iter().map(servers).collect::<Vec<_>>(), [vec!["a1", "a2", "a"], vec!["b"]]);
        let before = shards(&all, false, &BTreeSet::from(["a2".to_string()]));
        assert_eq!(servers(&before[0]), ["a2", "a1", "a"]);
        assert_eq!(servers(&shards(&all, true, &BTreeSet::new())[0]), ["a"]);
    }
}
