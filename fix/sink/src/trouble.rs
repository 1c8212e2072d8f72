//! What an error reply means for the call it answers: a table, without connections.
//!
//! Only the server's own words are acted upon. A script, a function or a module may return any text, so what one of
//! them may have written proves nothing about whether the call ran ([`unslow_nodes::Author`]).

use unslow_nodes::{Author, Kind, Refusal};

/// Who may have written the error replies of a call. This follows from its command, never from the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// The server alone.
    Server,
    /// A script, a function or a module, or the server.
    Script,
    /// The server, or `guard.lua`, which marks what the commands inside it were answered.
    Guard,
}

/// Why a call is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The slot, and the node that owns it as the server wrote it.
    Moved(u16, String),
    /// The node to which the slot is on its way, as the server wrote it.
    Ask(String),
    TryAgain,
    /// The server has forgotten `guard.lua`.
    NoScript,
    /// A message before it has not run.
    Gap,
    /// Will pass: the word in front.
    Passing(String),
    /// A refusal that a script may have written: only the server can confirm it ([`proof`]).
    Unproven(String),
    /// The message is set aside.
    Poison(String),
    /// The sink ends: retrying would not help.
    Fatal(String),
}

/// What `guard.lua` answers when the message before has not run.
const GAP: &str = "UNSLOWGAP a message before this one has not run yet";
/// Before the error of a command inside `guard.lua` that says something about the message.
const REFUSED: &str = "UNSLOWREFUSED ";
/// Before the word and the error of one that says something about the server.
const WAIT: &str = "UNSLOWWAIT ";

/// Judges the text of an error, without its `-`.
pub fn classify(text: &str, voice: Voice) -> Trouble {
    match voice {
        Voice::Server => of_the_server(text),
        Voice::Script => of_a_script(text),
        Voice::Guard => of_the_guard(text),
    }
}

/// Whether the error that answers an AUTH will be the same next time. Anything else may be an outage of what a module
/// or a proxy asks about users.
pub fn password_is_wrong(text: &str) -> bool {
    let wrong = matches!(word(text), "WRONGPASS" | "NOAUTH");
    // An invalid password before Redis 6, or a user where there are none: the wrong number of arguments.
    wrong || ["ERR invalid", "ERR wrong"].iter().any(|words| text.starts_with(words))
}

/// Whether the server answers nothing before it has been given a password.
pub fn wants_password(text: &str) -> bool {
    word(text) == "NOAUTH"
}

fn of_the_server(text: &str) -> Trouble {
    let poison = || Trouble::Poison(text.to_string());
    let reply = format!("-{text}");
    let Some(refusal) = Refusal::parse(reply.as_bytes(), Author::Server) else { return poison() };
    match refusal.kind {
        Kind::Moved(to) => Trouble::Moved(to.slot, to.address.to_string()),
        Kind::Ask(to) => Trouble::Ask(to.address.to_string()),
        Kind::TryAgain => Trouble::TryAgain,
        Kind::Loading | Kind::ReadOnly | Kind::ClusterDown | Kind::MasterDown | Kind::Busy => passing(text),
        Kind::Denied if about_the_message(text) => poison(),
        Kind::Denied | Kind::Auth => Trouble::Fatal(text.to_string()),
        // The server checks memory, disk and replicas before it runs a command. A redirect that cannot be read says at
        // least that the call did not run.
        Kind::Other if matches!(word(text), "OOM" | "MISCONF" | "NOREPLICAS" | "MOVED" | "ASK") => passing(text),
        Kind::NoScript | Kind::Unblocked | Kind::ExecAbort | Kind::Other => poison(),
    }
}

fn of_a_script(text: &str) -> Trouble {
    let reply = format!("-{text}");
    match Refusal::parse(reply.as_bytes(), Author::Script).map(|r| r.kind) {
        Some(
            Kind::Moved(_)
            | Kind::Ask(_)
            | Kind::TryAgain
            | Kind::Loading
            | Kind::ReadOnly
            | Kind::ClusterDown
            | Kind::MasterDown
            | Kind::Busy,
        ) => Trouble::Unproven(text.to_string()),
        // OOM, MISCONF and the like can come in the middle of a script, behind its first write.
        _ => Trouble::Poison(text.to_string()),
    }
}

/// What a server is asked to confirm a refusal that a script may have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Whether it refuses the same keys (EXISTS).
    Keys,
    /// Whether it is a replica (ROLE), which cannot have run a write.
    Role,
}

/// How to confirm these words, [`Trouble::Unproven`].
pub fn proof(words: &str) -> Proof {
    if word(words) == "READONLY" { Proof::Role } else { Proof::Keys }
}

/// How to send a call again whose refusal the server did not repeat, if what these words name can have ended in the
/// meantime.
pub fn may_have_ended(words: &str) -> Option<Trouble> {
    match word(words) {
        "TRYAGAIN" => Some(Trouble::TryAgain),
        "LOADING" | "CLUSTERDOWN" | "MASTERDOWN" | "BUSY" => Some(passing(words)),
        _ => None,
    }
}

fn of_the_guard(text: &str) -> Trouble {
    if text == GAP {
        return Trouble::Gap;
    }
    if let Some(why) = text.strip_prefix(REFUSED) {
        return Trouble::Poison(why.to_string());
    }
    if let Some(why) = text.strip_prefix(WAIT) {
        return match word(why) {
            "TRYAGAIN" => Trouble::TryAgain,
            "NOPERM" | "NOAUTH" => Trouble::Fatal(why.to_string()),
            _ => passing(why),
        };
    }
    if word(text) == "NOSCRIPT" { Trouble::NoScript } else { of_the_server(text) }
}

fn passing(text: &str) -> Trouble {
    Trouble::Passing(word(text).to_string())
}

fn word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// Whether NOPERM is about a key or a channel, which may come from the message, and not about the command. In the words
/// of Redis 6 and of later servers; keys and channels themselves are not in them.
fn about_the_message(text: &str) -> bool {
    let Some(why) = text.strip_prefix("NOPERM ") else { return false };
    [
        "No permissions to access a key",
        "No permissions to access a channel",
        "this user has no permissions to access one of the keys",
        "this user has no permissions to access one of the channels",
    ]
    .iter()
    .any(|words| why.starts_with(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVED: &str = "MOVED 3999 127.0.0.1:6381";
    const ASK: &str = "ASK 3999 127.0.0.1:6381";

    #[test]
    fn the_servers_errors_are_judged_by_their_first_word() {
        let poison = |text: &str| Trouble::Poison(text.into());
        let passing = |word: &str| Trouble::Passing(word.into());
        let fatal = |text: &str| Trouble::Fatal(text.into());
        for (text, expected) in [
            (MOVED, Trouble::Moved(3999, "127.0.0.1:6381".into())),
            ("MOVED 3999 :6381", Trouble::Moved(3999, ":6381".into())),
            ("MOVED 3999 ?:6381", Trouble::Moved(3999, "?:6381".into())),
            ("MOVED 99999 h:1", passing("MOVED")),
            (ASK, Trouble::Ask("127.0.0.1:6381".into())),
            ("ASK 3999 h", passing("ASK")),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Trouble::TryAgain),
            ("LOADING Redis is loading the dataset in memory", passing("LOADING")),
            ("OOM command not allowed when used memory > 'maxmemory'.", passing("OOM")),
            ("NOREPLICAS Not enough good replicas to write.", passing("NOREPLICAS")),
            ("NOAUTH Authentication required.", fatal("NOAUTH Authentication required.")),
        ] {
            assert_eq!(classify(text, Voice::Server), expected, "{text}");
        }
        for text in [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR value is not an integer or out of range",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "NOSCRIPT No matching script. Please use EVAL.",
            "OOMPH is no OOM",
            GAP,
            "UNSLOWWAIT OOM x",
            "UNSLOWREFUSED x",
        ] {
            assert_eq!(classify(text, Voice::Server), poison(text), "{text}");
        }
    }

    #[test]
    fn an_auth_that_fails_is_wrong_or_tried_again() {
        for (text, wrong) in [
            ("WRONGPASS invalid username-password pair or user is disabled.", true),
            ("NOAUTH Authentication required.", true),
            ("ERR invalid password", true),
            ("ERR wrong number of arguments for 'auth' command", true),
            ("ERR max number of clients reached", false),
            ("LOADING Redis is loading the dataset in memory", false),
            ("ERR the directory of users cannot be reached", false),
        ] {
            assert_eq!(password_is_wrong(text), wrong, "{text}");
        }
        assert!(wants_password("NOAUTH Authentication required."));
        assert!(!wants_password("NOPERM this user has no permissions to run the 'client|setname' command"));
    }

    #[test]
    fn noperm_about_a_key_or_channel_is_the_messages_and_about_a_command_the_sinks() {
        for (text, fatal) in [
            ("NOPERM No permissions to access a key", false),
            ("NOPERM No permissions to access a channel", false),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", false),
            ("NOPERM this user has no permissions to access one of the channels used as arguments", false),
            ("NOPERM User writer has no permissions to run the 'set' command", true),
            ("NOPERM this user has no permissions to run the 'set' command or its subcommand", true),
            ("NOPERM User No permissions to access a key has no permissions to run the 'set' command", true),
        ] {
            for voice in [Voice::Server, Voice::Guard] {
                let text = text.to_string();
                let expected = if fatal { Trouble::Fatal(text.clone()) } else { Trouble::Poison(text.clone()) };
                assert_eq!(classify(&text, voice), expected, "{voice:?}");
            }
        }
    }

    #[test]
    fn a_scripts_words_neither_send_anything_again_nor_end_the_sink() {
        let passing = |word: &str| Some(Trouble::Passing(word.into()));
        for (text, asked, ended) in [
            (MOVED, Proof::Keys, None),
            (ASK, Proof::Keys, None),
            ("TRYAGAIN x", Proof::Keys, Some(Trouble::TryAgain)),
            ("LOADING x", Proof::Keys, passing("LOADING")),
            ("CLUSTERDOWN x", Proof::Keys, passing("CLUSTERDOWN")),
            ("MASTERDOWN x", Proof::Keys, passing("MASTERDOWN")),
            ("BUSY x", Proof::Keys, passing("BUSY")),
            ("READONLY x", Proof::Role, None),
        ] {
            assert_eq!(classify(text, Voice::Script), Trouble::Unproven(text.into()));
            assert_eq!((proof(text), may_have_ended(text)), (asked, ended), "{text}");
        }
        for text in ["OOM x", "MISCONF x", "NOREPLICAS x", "READONLYX x", "NOSCRIPT x", "NOPERM x", "NOAUTH x", GAP] {
            assert_eq!(classify(text, Voice::Script), Trouble::Poison(text.into()));
        }
    }

    #[test]
    fn the_guards_words_are_taken_in_their_exact_form_and_only_from_it() {
        assert_eq!(classify(GAP, Voice::Guard), Trouble::Gap);
        for forged in [
            format!("ERR unknown subcommand '-{GAP}'"),
            format!("ERR Error running script: @user_script: -{GAP}"),
            "UNSLOWGAP".into(),
            format!("{GAP} "),
        ] {
            assert_eq!(classify(&forged, Voice::Guard), Trouble::Poison(forged.clone()));
        }
        // What a module's command said inside it moves and repeats nothing.
        for text in [MOVED, ASK, GAP, "OOM x", "NOAUTH x"] {
            assert_eq!(classify(&format!("{REFUSED}{text}"), Voice::Guard), Trouble::Poison(text.into()));
        }
        assert_eq!(classify("UNSLOWWAIT OOM OOM command not allowed", Voice::Guard), Trouble::Passing("OOM".into()));
        assert_eq!(classify("UNSLOWWAIT TRYAGAIN ERR a non local key", Voice::Guard), Trouble::TryAgain);
        for denied in ["NOPERM x", "NOPERM The user executing the script can't run this command or subcommand"] {
            assert_eq!(classify(&format!("{WAIT}{denied}"), Voice::Guard), Trouble::Fatal(denied.into()));
        }
        assert_eq!(classify("NOSCRIPT No matching script.", Voice::Guard), Trouble::NoScript);
        assert!(matches!(classify(MOVED, Voice::Guard), Trouble::Moved(3999, _)));
    }
}
