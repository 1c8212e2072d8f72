//! What an error reply means for the command it answers: a table, without connections.
//!
//! Believed is what the server itself must have said. An error that a script, a function or a module could have written
//! says nothing about whether the command ran; where it reads like a refusal, the same node is asked about the same
//! keys first ([`Event::Verify`]).

use unslow_nodes::{Address, Author, Kind as Says, Named, Redirect, Refusal};

use crate::clock::MS;
use crate::session::{Flight, Kind, Lane, MULTI_SEQ, NO_SLOT};

/// What is known where the reply arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether slots decide who answers.
    pub cluster: bool,
    /// Whether the node that answered is a replica.
    pub replica: bool,
    /// Whether the command has waited for as long as commands may.
    pub late: bool,
    /// Whether it came on a connection of the client's own, with what the server knows of it.
    pub pinned: bool,
}

/// A redirect that the server itself wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    pub slot: u16,
    /// As the server names it; the topology decides whether such a node is known.
    pub to: Named,
    /// For this command only, behind ASKING.
    pub ask: bool,
}

/// What a reply means to the client and to the lane it came on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The client's answer, as it is.
    Answer,
    /// Not run: another node has the slot.
    Redirected(Elsewhere),
    /// Not run: this server takes it later, or another one does.
    Refused { pause: u64, banned: u64, doubt: bool },
    /// Perhaps not run: a script may have written this.
    Verify,
    /// A replica does not have the script or function that only reads. Its master may.
    NotLoaded,
    /// The server became a replica while the command waited there for an element.
    Demoted,
}

/// What is known of the deployment and the time when a reply arrives.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Whether slots decide who answers.
    pub cluster: bool,
    /// Whether the node that answered is a replica.
    pub replica: bool,
    /// Now, and how long a command may wait, in ns.
    pub now: u64,
    pub hold: u64,
}

/// A command that has its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    pub flight: Flight,
    pub event: Event,
    /// Nothing was answered on this connection before, since it was taken.
    pub fresh: bool,
}

impl Lane {
    /// A reply has come. None where nobody asked for it.
    #[inline]
    pub fn on_reply(&mut self, reply: &[u8], scene: Scene, sender: Option<&Address>) -> Option<Answered> {
        if self.sent == 0 {
            return None;
        }
        let flight = self.flights.pop_front()?;
        self.sent -= 1;
        self.sent_bytes -= flight.size();
        // The end of what was forwarded may begin with anything.
        let whole = std::mem::take(&mut self.forwarded) == 0;
        let fresh = !std::mem::replace(&mut self.used, true);
        let event = match whole && reply.first() == Some(&b'-') && is_judged(flight.kind) {
            true => {
                let late = scene.now > flight.at + scene.hold;
                let facts = Facts { cluster: scene.cluster, replica: scene.replica, late, pinned: self.pinned() };
                on_error(&flight, reply, facts, sender)
            }
            false => Event::Answer,
        };
        Some(Answered { flight, event, fresh })
    }
}

/// Whether the reply to such a command is looked at as a client's answer: not what the gateway says and asks itself.
pub fn is_judged(kind: Kind) -> bool {
    !matches!(kind, Kind::Swallow | Kind::Verify | Kind::Probe)
}

/// What a reply is for that is nothing to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The client.
    Answer,
    /// The client, and its connection is free again.
    Unblocked,
    /// One of several that make an answer.
    Part,
    /// The client: a setting of its own connections.
    Setting,
    /// The client: who it is, or which database.
    Judged,
    /// The client: WATCH was taken.
    Watched,
    /// The client: EXEC, DISCARD or UNWATCH has left nothing on the server.
    Ended,
    /// The client: it was refused (to this user, or for its arguments) and neither began nor ended anything.
    StillWithin,
    /// The answer to a question of ours.
    Verdict,
    /// The answer to another: whether the server is busy.
    Probed,
    /// Nobody.
    Nothing,
    /// The client: MULTI was refused, on the connection that it watches with.
    NotBegun,
    /// MULTI was refused to this user, who was told that it was not.
    NoTransaction,
}

/// See [`Meaning`].
#[inline]
pub fn meaning(flight: &Flight, reply: &[u8]) -> Meaning {
    match flight.kind {
        Kind::Reply => Meaning::Answer,
        Kind::Block => Meaning::Unblocked,
        Kind::Gather => Meaning::Part,
        Kind::Setup => Meaning::Setting,
        Kind::Auth => Meaning::Judged,
        Kind::Verify => Meaning::Verdict,
        Kind::Probe => Meaning::Probed,
        Kind::Watch if reply.first() == Some(&b'-') => Meaning::StillWithin,
        Kind::Watch => Meaning::Watched,
        Kind::Begin if reply.first() == Some(&b'-') => Meaning::NotBegun,
        Kind::Begin => Meaning::Answer,
        Kind::Exec if leaves_nothing(reply, flight.author) => Meaning::Ended,
        Kind::Exec => Meaning::StillWithin,
        Kind::Swallow if flight.seq == MULTI_SEQ && reply.first() == Some(&b'-') => Meaning::NoTransaction,
        Kind::Swallow => Meaning::Nothing,
    }
}

/// What `reply`, an error, means for the command it answers.
pub fn on_error(flight: &Flight, reply: &[u8], facts: Facts, sender: Option<&Address>) -> Event {
    let Some(refusal) = Refusal::parse(reply, flight.author) else { return Event::Answer };
    if refusal.author == Author::Script {
        // Scripts live in a server's memory: what was loaded on a master is unknown to a replica that joined or
        // restarted since. No question is needed: the command only reads, so running it again changes nothing, whoever
        // wrote the error.
        if flight.read && facts.replica && !facts.pinned && not_loaded(&refusal, reply) {
            return Event::NotLoaded;
        }
        // Nothing is done about it that needs no verdict, not even a look at the topology: a client could ask for one
        // as often as it likes.
        return if acted_upon(&refusal, flight, facts) { Event::Verify } else { Event::Answer };
    }
    match refusal.kind {
        Says::Moved(to) if facts.cluster => redirected(flight, to, false, sender),
        Says::Ask(to) if facts.cluster => redirected(flight, to, true, sender),
        Says::Unblocked if flight.kind == Kind::Block && contains(reply, b"instance state changed") => Event::Demoted,
        _ if facts.late => Event::Answer,
        Says::TryAgain => refused(2 * MS),
        Says::ClusterDown => Event::Refused { pause: 20 * MS, banned: 0, doubt: true },
        // It was asked to write and follows somebody by now.
        Says::ReadOnly if !facts.cluster && flight.slot != NO_SLOT => {
            Event::Refused { pause: 5 * MS, banned: 0, doubt: true }
        }
        Says::Loading | Says::MasterDown => {
            Event::Refused { pause: if facts.replica { 0 } else { 20 * MS }, banned: 1000 * MS, doubt: false }
        }
        _ => Event::Answer,
    }
}

fn refused(pause: u64) -> Event {
    Event::Refused { pause, banned: 0, doubt: false }
}

/// Whether it would be sent again if the server had written it.
fn acted_upon(refusal: &Refusal<'_>, flight: &Flight, facts: Facts) -> bool {
    let moves = facts.cluster && matches!(refusal.kind, Says::Moved(_) | Says::Ask(_));
    let waits = matches!(refusal.kind, Says::TryAgain | Says::ClusterDown | Says::Loading | Says::MasterDown)
        || refusal.kind == Says::ReadOnly && !facts.cluster;
    // The question names keys: of a command whose slot is not known only a redirect tells one.
    (moves || waits && !facts.late && flight.slot != NO_SLOT) && flight.kind == Kind::Reply && !facts.pinned
}

fn redirected(flight: &Flight, to: Redirect<'_>, ask: bool, sender: Option<&Address>) -> Event {
    if flight.slot != NO_SLOT && flight.slot != to.slot {
        return Event::Answer;
    }
    let named = sender.map_or(Named::Unknown, |sender| Address::named(to.address, sender));
    Event::Redirected(Elsewhere { slot: to.slot, to: named, ask })
}

fn not_loaded(refusal: &Refusal<'_>, reply: &[u8]) -> bool {
    refusal.kind == Says::NoScript || reply.starts_with(b"-ERR Function not found")
}

fn contains(text: &[u8], words: &[u8]) -> bool {
    text.windows(words.len()).any(|w| w == words)
}

/// Whether a reply that ends a transaction or a WATCH proves that the server keeps nothing of it: EXEC's own results, a
/// nil, +OK of DISCARD and UNWATCH, EXECABORT. Any other error (NOPERM) may have left the connection as it was.
pub fn leaves_nothing(reply: &[u8], author: Author) -> bool {
    match Refusal::parse(reply, author) {
        None => true,
        Some(refusal) => refusal.kind == Says::ExecAbort,
    }
}

#[cfg(test)]
mod tests {
    use unslow_topology::SLOTS;

    use super::*;
    use crate::session::Whom;
    use unslow_nodes::NOBODY;

    const CLUSTER: Facts = Facts { cluster: true, replica: false, late: false, pinned: false };
    const ALONE: Facts = Facts { cluster: false, ..CLUSTER };

    fn flight(author: Author, slot: u16, kind: Kind) -> Flight {
        Flight {
            whom: Whom { index: 0, serial: 1 },
            seq: 0,
            len: 10,
            at: 0,
            command: 1,
            slot,
            node: NOBODY,
            part: 0,
            kind,
            tries: 0,
            repeatable: false,
            read: false,
            author,
        }
    }

    fn event(author: Author, slot: u16, reply: &str, facts: Facts) -> Event {
        let sender = Address::parse("10.0.0.1:6379");
        on_error(&flight(author, slot, Kind::Reply), reply.as_bytes(), facts, sender.as_ref())
    }

    fn there(address: &str) -> Named {
        Named::Is(Address::parse(address).expect("an address"))
    }

    #[test]
    fn a_redirect_of_the_server_is_followed_in_a_cluster_only() {
        let moved = |to, ask| Event::Redirected(Elsewhere { slot: 7, to, ask });
        for (slot, reply, facts, expected) in [
            (7, "-MOVED 7 10.0.0.2:6380\r\n", CLUSTER, moved(there("10.0.0.2:6380"), false)),
            (7, "-ASK 7 10.0.0.2:6380\r\n", CLUSTER, moved(there("10.0.0.2:6380"), true)),
            // Whoever waits too long still learns where its slot is.
            (7, "-MOVED 7 10.0.0.2:6380\r\n", Facts { late: true, ..CLUSTER }, moved(there("10.0.0.2:6380"), false)),
            (7, "-MOVED 7 :6380\r\n", CLUSTER, moved(there("10.0.0.1:6380"), false)),
            (7, "-MOVED 7 ?:6380\r\n", CLUSTER, moved(Named::Unknown, false)),
            (NO_SLOT, "-MOVED 7 10.0.0.2:6380\r\n", CLUSTER, moved(there("10.0.0.2:6380"), false)),
            // Of another slot than the one that was asked for.
            (8, "-MOVED 7 10.0.0.2:6380\r\n", CLUSTER, Event::Answer),
            (7, "-MOVED 7 10.0.0.2:6380\r\n", ALONE, Event::Answer),
            (7, "-ASK 7 10.0.0.2:6380\r\n", ALONE, Event::Answer),
            (7, "-MOVED 7 10.0.0.2\r\n", CLUSTER, Event::Answer),
            (7, "-MOVED seven 10.0.0.2:6380\r\n", CLUSTER, Event::Answer),
            (7, "-MOVED 7 10.0.0.2:6380 and more\r\n", CLUSTER, Event::Answer),
        ] {
            assert_eq!(event(Author::Server, slot, reply, facts), expected, "{slot} {reply} {facts:?}");
        }
        assert_eq!(
            event(Author::Server, NO_SLOT, &format!("-MOVED {SLOTS} 10.0.0.2:6380\r\n"), CLUSTER),
            Event::Answer
        );
    }

    #[test]
    fn a_refusal_of_the_server_is_waited_out() {
        let again = |pause, banned, doubt| Event::Refused { pause: pause * MS, banned: banned * MS, doubt };
        let replica = Facts { replica: true, ..CLUSTER };
        for (reply, facts, expected) in [
            ("-TRYAGAIN Multiple keys\r\n", CLUSTER, again(2, 0, false)),
            ("-CLUSTERDOWN The cluster is down\r\n", CLUSTER, again(20, 0, true)),
            ("-READONLY You can't write\r\n", ALONE, again(5, 0, true)),
            ("-READONLY You can't write\r\n", CLUSTER, Event::Answer),
            ("-LOADING the data set\r\n", CLUSTER, again(20, 1000, false)),
            ("-LOADING the data set\r\n", replica, again(0, 1000, false)),
            ("-MASTERDOWN Link with MASTER\r\n", replica, again(0, 1000, false)),
            ("-NOPERM nothing\r\n", CLUSTER, Event::Answer),
            ("-WRONGTYPE Operation\r\n", CLUSTER, Event::Answer),
            ("-ERR MOVED 7 10.0.0.2:6380\r\n", CLUSTER, Event::Answer),
            ("-UNBLOCKED force unblock, instance state changed\r\n", CLUSTER, Event::Answer),
        ] {
            assert_eq!(event(Author::Server, 7, reply, facts), expected, "{reply} {facts:?}");
            if !matches!(expected, Event::Answer) {
                let late = Facts { late: true, ..facts };
                assert_eq!(event(Author::Server, 7, reply, late), Event::Answer, "{reply}, late");
            }
        }
        let blocked = flight(Author::Server, 7, Kind::Block);
        let reply =
            b"-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n";
        assert_eq!(on_error(&blocked, reply, CLUSTER, None), Event::Demoted);
    }

    #[test]
    fn what_a_script_may_have_written_is_never_followed_without_a_question() {
        for (reply, facts, expected) in [
            ("-MOVED 7 10.9.9.9:1\r\n", CLUSTER, Event::Verify),
            ("-ASK 7 10.9.9.9:1\r\n", CLUSTER, Event::Verify),
            ("-MOVED 7 10.9.9.9:1\r\n", ALONE, Event::Answer),
            ("-TRYAGAIN later\r\n", CLUSTER, Event::Verify),
            ("-LOADING\r\n", ALONE, Event::Verify),
            ("-MASTERDOWN\r\n", ALONE, Event::Verify),
            ("-CLUSTERDOWN\r\n", CLUSTER, Event::Verify),
            ("-READONLY\r\n", ALONE, Event::Verify),
            ("-READONLY\r\n", CLUSTER, Event::Answer),
            ("-NOSCRIPT\r\n", CLUSTER, Event::Answer),
            ("-UNBLOCKED force unblock, instance state changed\r\n", CLUSTER, Event::Answer),
            ("-ERR of its own\r\n", CLUSTER, Event::Answer),
        ] {
            assert_eq!(event(Author::Script, 7, reply, facts), expected, "{reply} {facts:?}");
        }
        // Without keys there is nothing to ask about, but for the slot that a redirect names.
        assert_eq!(event(Author::Script, NO_SLOT, "-TRYAGAIN later\r\n", CLUSTER), Event::Answer);
        assert_eq!(event(Author::Script, NO_SLOT, "-MOVED 7 10.9.9.9:1\r\n", CLUSTER), Event::Verify);
        let pinned = Facts { pinned: true, ..CLUSTER };
        assert_eq!(event(Author::Script, 7, "-MOVED 7 10.9.9.9:1\r\n", pinned), Event::Answer);
        // Whose answer others wait for is not asked about.
        for kind in [Kind::Block, Kind::Exec, Kind::Gather, Kind::Setup, Kind::Auth] {
            let flight = flight(Author::Script, 7, kind);
            assert_eq!(on_error(&flight, b"-MOVED 7 10.9.9.9:1\r\n", CLUSTER, None), Event::Answer, "{kind:?}");
        }
    }

    #[test]
    fn a_script_that_a_replica_does_not_have_is_asked_of_its_master() {
        let replica = Facts { replica: true, ..CLUSTER };
        let reads = Flight { read: true, ..flight(Author::Script, 7, Kind::Reply) };
        for (reply, facts, expected) in [
            ("-NOSCRIPT No matching script.\r\n", replica, Event::NotLoaded),
            ("-NOSCRIPT No matching script.\r\n", Facts { cluster: false, ..replica }, Event::NotLoaded),
            ("-ERR Function not found\r\n", replica, Event::NotLoaded),
            ("-ERR of its own\r\n", replica, Event::Answer),
            // The master knows all there is to know.
            ("-NOSCRIPT No matching script.\r\n", CLUSTER, Event::Answer),
            ("-NOSCRIPT No matching script.\r\n", Facts { pinned: true, ..replica }, Event::Answer),
        ] {
            assert_eq!(on_error(&reads, reply.as_bytes(), facts, None), expected, "{reply} {facts:?}");
        }
        let writes = Flight { read: false, ..reads };
        assert_eq!(on_error(&writes, b"-NOSCRIPT No matching script.\r\n", replica, None), Event::Answer);
    }

    #[test]
    fn a_connection_is_clean_only_when_the_server_said_so() {
        for (reply, clean) in [
            ("*1\r\n+OK\r\n", true),
            ("*-1\r\n", true),
            ("_\r\n", true),
            ("+OK\r\n", true),
            ("-EXECABORT Transaction discarded because of previous errors.\r\n", true),
            ("-NOPERM User u has no permissions to run the 'discard' command\r\n", false),
            ("-NOAUTH Authentication required.\r\n", false),
            ("-ERR unknown command\r\n", false),
            ("-LOADING\r\n", false),
        ] {
            assert_eq!(leaves_nothing(reply.as_bytes(), Author::Server), clean, "{reply}");
        }
    }
}
