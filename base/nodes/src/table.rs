//! Nodes by number, and who owns which slot: what a client of a cluster keeps between two looks at the topology.
//!
//! Numbers are never given to another node, so they may be kept across topologies. What a caller knows of a node
//! beside its names (connections, queues) is the `T` of a [`NodeTable`]. Three decisions are the caller's, since
//! clients differ in them on purpose: what becomes of a slot without an owner ([`Unowned`]), whether a redirect to an
//! unknown address is followed ([`Leads::Stranger`]), and who is dialled.

use std::net::IpAddr;
use std::ops::{Index, IndexMut};

use unslow_topology::{Node, SLOTS, Topology};

use crate::{Address, Named};

/// No node.
pub const NOBODY: u16 = u16::MAX;

/// What becomes of a slot that the newest topology gives to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unowned {
    /// Nobody owns it, and its commands wait or fail.
    Nobody,
    /// Its last owner does: that node says best what to do.
    LastOwner,
}

/// The node that a redirect leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leads {
    /// A node of the topology.
    To(u16),
    /// An address the topology does not have. Whoever follows it sends it the password.
    Stranger(Address),
    /// The redirect does not say where; the topology has to tell.
    Nowhere,
}

/// The names of a node.
#[derive(Clone, Debug)]
struct Names {
    address: String,
    alias: Option<String>,
    /// Both, as far as they can be read.
    read: Vec<(Address, Option<IpAddr>)>,
    /// The newest topology has it.
    listed: bool,
}

impl Names {
    fn new(address: &str, alias: Option<&str>, listed: bool) -> Names {
        let read = [Some(address), alias].into_iter().flatten().filter_map(Address::parse);
        let read = read.map(|address| (address.clone(), ip(&address))).collect();
        Names { address: address.to_string(), alias: alias.map(str::to_string), read, listed }
    }

    /// Hosts that are IP addresses are compared as such, not as they are spelt.
    fn mean(&self, address: &Address) -> bool {
        let wanted = ip(address);
        let same = |(own, ip): &(Address, Option<IpAddr>)| own == address || ip.is_some() && *ip == wanted;
        self.read.iter().any(|name| name.0.port() == address.port() && same(name))
    }
}

fn ip(address: &Address) -> Option<IpAddr> {
    address.host().parse().ok()
}

/// Nodes by number, and the owner of each slot.
#[derive(Clone, Debug)]
pub struct NodeTable<T> {
    names: Vec<Names>,
    nodes: Vec<T>,
    /// Owner of each slot.
    slots: Vec<u16>,
    masters: Vec<u16>,
    replicas: Vec<Vec<u16>>,
    heirs: Vec<u16>,
}

impl<T> Default for NodeTable<T> {
    fn default() -> NodeTable<T> {
        NodeTable {
            names: Vec::new(),
            nodes: Vec::new(),
            slots: vec![NOBODY; usize::from(SLOTS)],
            masters: Vec::new(),
            replicas: Vec::new(),
            heirs: Vec::new(),
        }
    }
}

impl<T> NodeTable<T> {
    /// Takes over a topology; `new` makes what the caller keeps of a node that was not known. Returns the number of
    /// each of the topology's nodes, in its order. Nodes it does not have keep their numbers and own nothing.
    pub fn apply(&mut self, topology: &Topology, unowned: Unowned, mut new: impl FnMut(&Node) -> T) -> Vec<u16> {
        self.names.iter_mut().for_each(|names| names.listed = false);
        let mut numbers = Vec::with_capacity(topology.nodes.len());
        for node in &topology.nodes {
            // A redirect may have named it first, by the other of its two names.
            let by_alias = |alias: &str| self.called(alias).filter(|number| !self.is_listed(*number));
            // Or the node that was asked has not heard of its name yet.
            let was_alias = |names: &Names| !names.listed && names.alias.as_deref() == Some(&node.address);
            let known = self.called(&node.address).or_else(|| by_alias(node.alias.as_deref()?));
            let known = known.or_else(|| self.names.iter().position(was_alias).map(|at| at as u16));
            let number = known.unwrap_or_else(|| self.add(&node.address, new(node)));
            self.names[usize::from(number)] = Names::new(&node.address, node.alias.as_deref(), true);
            numbers.push(number);
        }
        if unowned == Unowned::Nobody {
            self.slots.fill(NOBODY);
        }
        self.masters.clear();
        self.replicas.iter_mut().for_each(Vec::clear);
        let owners = topology.nodes.iter().zip(&numbers).filter(|(node, _)| node.owns_slots());
        for (node, &master) in owners {
            self.masters.push(master);
            self.heirs[usize::from(master)] = master;
            for &(first, last) in node.slots.ranges() {
                self.slots[usize::from(first)..=usize::from(last)].fill(master);
            }
            let following = topology.nodes.iter().zip(&numbers).filter(|(other, _)| other.follows(&node.id));
            for (_, &replica) in following {
                self.replicas[usize::from(master)].push(replica);
                self.heirs[usize::from(replica)] = master;
            }
        }
        // Who left is replaced by whoever does the work of the one that took its place.
        for number in self.numbers() {
            if !self.is_listed(number) {
                self.heirs[usize::from(number)] = self.heir(self.heir(number));
            }
        }
        numbers
    }

    /// Adds a node the topology does not have. Returns its number.
    pub fn add(&mut self, address: &str, node: T) -> u16 {
        let number = self.nodes.len() as u16;
        self.names.push(Names::new(address, None, false));
        self.nodes.push(node);
        self.replicas.push(Vec::new());
        self.heirs.push(number);
        number
    }

    /// The node whose address is spelt like this.
    pub fn called(&self, address: &str) -> Option<u16> {
        self.names.iter().position(|names| names.address == address).map(|at| at as u16)
    }

    /// The node of the newest topology that listens at an address, by either of its names.
    pub fn find(&self, address: &Address) -> Option<u16> {
        self.names.iter().position(|names| names.listed && names.mean(address)).map(|at| at as u16)
    }

    /// Where a redirect from the node `from` leads. `to` is its address, whose host may be missing.
    pub fn redirected(&self, from: u16, to: &str) -> Leads {
        let named = match self.name(from) {
            Some(sender) => Address::named(to, sender),
            None => Address::parse(to).map_or(Named::Unknown, Named::Is),
        };
        match named {
            Named::Is(address) => self.find(&address).map_or(Leads::Stranger(address), Leads::To),
            Named::Unknown => Leads::Nowhere,
        }
    }

    /// How many nodes have ever been known; numbers are below it.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// No node is known.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All numbers, as of now.
    pub fn numbers(&self) -> std::ops::Range<u16> {
        0..self.nodes.len() as u16
    }

    /// The node with this number, if there is one.
    pub fn get(&self, number: u16) -> Option<&T> {
        self.nodes.get(usize::from(number))
    }

    /// All nodes, by number.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.nodes.iter()
    }

    /// All nodes, by number.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.nodes.iter_mut()
    }

    /// `host:port` or `unix:/path`, as the topology, or else the redirect that named it, has it.
    ///
    /// # Panics
    ///
    /// As for an index: if there is no such node.
    pub fn address(&self, number: u16) -> &str {
        &self.names[usize::from(number)].address
    }

    /// The address of each node, by number.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|names| names.address.as_str())
    }

    /// What redirects without a host mean by it; `None` for a socket of this machine, and for nobody.
    pub fn name(&self, number: u16) -> Option<&Address> {
        self.names.get(usize::from(number))?.read.first().map(|(address, _)| address)
    }

    /// Whether the newest topology has the node.
    pub fn is_listed(&self, number: u16) -> bool {
        self.names.get(usize::from(number)).is_some_and(|names| names.listed)
    }

    /// Owner of a slot, or [`NOBODY`].
    #[inline]
    pub fn owner(&self, slot: u16) -> u16 {
        self.slots.get(usize::from(slot)).copied().unwrap_or(NOBODY)
    }

    /// A redirect said so. The next topology decides.
    pub fn set_owner(&mut self, slot: u16, owner: u16) {
        if let Some(known) = self.slots.get_mut(usize::from(slot)) {
            *known = owner;
        }
    }

    /// Owner of each slot.
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// Masters that own slots, in the topology's order.
    pub fn masters(&self) -> &[u16] {
        &self.masters
    }

    /// Replicas of a master that owns slots.
    pub fn replicas(&self, master: u16) -> &[u16] {
        self.replicas.get(usize::from(master)).map_or(&[], Vec::as_slice)
    }

    /// The node that does this one's work now: itself, or its master. A master that was replaced keeps its heir after
    /// the topology has forgotten it.
    pub fn heir(&self, number: u16) -> u16 {
        self.heirs.get(usize::from(number)).copied().unwrap_or(number)
    }
}

impl<T> Index<u16> for NodeTable<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u16) -> &T {
        &self.nodes[usize::from(number)]
    }
}

impl<T> IndexMut<u16> for NodeTable<T> {
    #[inline]
    fn index_mut(&mut self, number: u16) -> &mut T {
        &mut self.nodes[usize::from(number)]
    }
}

#[cfg(test)]
mod tests {
    use unslow_topology::{DeploymentKind, SlotSet};

    use super::*;

    const A: &str = "10.0.0.1:6379";
    const B: &str = "10.0.0.2:6379";
    const C: &str = "10.0.0.3:6379";

    /// A master with these slots, or a replica of the node at `master`. Ids are addresses.
    fn node(address: &str, master: Option<&str>, slots: &[(u16, u16)]) -> Node {
        let slots = SlotSet::from_ranges(slots.iter().copied());
        match master {
            Some(master) => Node { slots, ..Node::replica(address, master) },
            None => Node::master(address, slots),
        }
    }

    fn apply(table: &mut NodeTable<()>, unowned: Unowned, nodes: Vec<Node>) -> Vec<u16> {
        table.apply(&Topology::new(DeploymentKind::Cluster, nodes), unowned, |_| ())
    }

    fn address(text: &str) -> Address {
        Address::parse(text).expect("an address")
    }

    #[test]
    fn numbers_are_never_given_twice_and_a_node_that_left_owns_nothing() {
        let mut table = NodeTable::default();
        assert_eq!(apply(&mut table, Unowned::Nobody, vec![node(B, None, &[(0, 16383)])]), [0]);
        let halves = vec![node(A, None, &[(0, 8191)]), node(B, None, &[(8192, 16383)])];
        assert_eq!(apply(&mut table, Unowned::Nobody, halves), [1, 0], "in the topology's order");
        assert_eq!((table.owner(8191), table.owner(8192)), (1, 0));
        assert_eq!(apply(&mut table, Unowned::Nobody, vec![node(A, None, &[(0, 16382)])]), [1]);
        assert_eq!((table.masters(), table.owner(16382), table.owner(16383)), (&[1][..], 1, NOBODY));
        assert!(!table.is_listed(0) && table.address(0) == B);
        assert_eq!(apply(&mut table, Unowned::Nobody, vec![node(C, None, &[]), node(B, None, &[])]), [0, 2]);
    }

    #[test]
    fn a_slot_without_an_owner_is_nobodys_or_its_last_owners() {
        for (unowned, expected) in [(Unowned::Nobody, NOBODY), (Unowned::LastOwner, 0)] {
            let mut table = NodeTable::default();
            apply(&mut table, unowned, vec![node(A, None, &[(0, 10)])]);
            apply(&mut table, unowned, vec![node(A, None, &[(0, 9)]), node(B, None, &[])]);
            assert_eq!((table.owner(9), table.owner(10)), (0, expected), "{unowned:?}");
        }
    }

    #[test]
    fn a_master_that_was_replaced_keeps_its_heir_after_it_has_left() {
        let mut table = NodeTable::default();
        apply(
            &mut table,
            Unowned::Nobody,
            vec![node(A, None, &[(0, 9)]), node(B, Some(A), &[]), node(C, Some(A), &[])],
        );
        assert_eq!((table.replicas(0), table.heir(0), table.heir(1)), (&[1, 2][..], 0, 0));
        apply(&mut table, Unowned::Nobody, vec![node(A, Some(B), &[]), node(B, None, &[(0, 9)])]);
        assert_eq!((table.replicas(0), table.replicas(1), table.heir(0)), (&[][..], &[0][..], 1));
        apply(&mut table, Unowned::Nobody, vec![node(B, None, &[(0, 9)])]);
        assert_eq!((table.heir(0), table.heir(1), table.replicas(1)), (1, 1, &[][..]));
    }

    #[test]
    fn a_node_that_a_redirect_named_first_is_not_added_again_under_its_other_name() {
        let mut table = NodeTable::default();
        apply(&mut table, Unowned::Nobody, vec![node(A, None, &[(0, 9)])]);
        assert_eq!(table.redirected(0, B), Leads::Stranger(address(B)));
        assert_eq!(table.add(B, ()), 1);
        assert_eq!(table.find(&address(B)), None, "the topology does not have it yet");
        let named = Node { alias: Some(B.into()), ..node("b.example:6379", None, &[(5, 9)]) };
        assert_eq!(apply(&mut table, Unowned::Nobody, vec![node(A, None, &[(0, 4)]), named]), [0, 1]);
        assert_eq!((table.len(), table.address(1), table.owner(5)), (2, "b.example:6379", 1));
    }

    #[test]
    fn redirects_are_understood_by_either_name_however_the_address_is_spelt() {
        let mut table = NodeTable::default();
        let named = Node { alias: Some("[2001:db8:0::1]:6379".into()), ..node("b.example:6379", None, &[(5, 9)]) };
        apply(&mut table, Unowned::Nobody, vec![node("::1:6380", None, &[(0, 4)]), named, node(A, None, &[])]);
        let number = |name: &str| table.called(name).expect("a node");
        let (six, b) = (number("::1:6380"), number("b.example:6379"));
        for (from, to, expected) in [
            (b, "0:0:0:0:0:0:0:1:6380", Leads::To(six)),
            (b, "[::1]:6380", Leads::To(six)),
            (six, "b.example:6379", Leads::To(b)),
            (six, "2001:db8::1:6379", Leads::To(b)),
            (six, "2001:db8::1:6380", Leads::Stranger(address("[2001:db8::1]:6380"))),
            (six, ":6380", Leads::To(six)),
            (six, ":6381", Leads::Stranger(address("[::1]:6381"))),
            (six, "?:6380", Leads::Nowhere),
            (six, "there", Leads::Nowhere),
            (NOBODY, A, Leads::To(number(A))),
            (NOBODY, ":6379", Leads::Nowhere),
        ] {
            assert_eq!(table.redirected(from, to), expected, "{to} from {from}");
        }
    }

    #[test]
    fn a_node_without_the_name_it_had_is_the_same_and_heirs_have_heirs() {
        let mut table = NodeTable::default();
        let named = Node { alias: Some(A.into()), ..node("a.example:6379", None, &[(0, 9)]) };
        apply(&mut table, Unowned::LastOwner, vec![named]);
        assert_eq!(apply(&mut table, Unowned::LastOwner, vec![node(A, None, &[(0, 9)])]), [0]);
        assert_eq!((table.len(), table.address(0)), (1, A));
        for (old, new) in [(A, B), (B, C)] {
            apply(&mut table, Unowned::Nobody, vec![node(old, Some(new), &[]), node(new, None, &[(0, 9)])]);
            apply(&mut table, Unowned::Nobody, vec![node(new, None, &[(0, 9)])]);
        }
        let c = table.called(C).expect("a node");
        assert_eq!((table.heir(0), table.heir(c)), (c, c));
    }

    #[test]
    fn a_name_that_moved_to_another_address_is_another_node() {
        let mut table = NodeTable::default();
        let named = |at: &str| Node { alias: Some("a.example:6379".into()), ..node(at, None, &[(0, 9)]) };
        apply(&mut table, Unowned::Nobody, vec![named(A)]);
        assert_eq!(apply(&mut table, Unowned::Nobody, vec![named(B)]), [1]);
        assert_eq!(table.find(&address("a.example:6379")), Some(1), "not the one that left");
    }
}
