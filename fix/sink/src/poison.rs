//! Why a message cannot be written: the fault is its own, so it is set aside and never sent again.

/// An argument longer than servers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an argument of {0} bytes; servers take 512 MB")]
pub struct TooLong(pub usize);

/// See the module. What a library says of a value is kept as its text: `why`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Poison {
    /// The source could not read it.
    #[error("it cannot be read; see the beginning of its value")]
    Broken,
    /// Not exactly one JSON object.
    #[error("no JSON object: {why}")]
    Json { why: String },
    /// Not MessagePack.
    #[error("no MessagePack: {why}")]
    Msgpack { why: String },
    /// MessagePack, but not a map.
    #[error("no MessagePack map")]
    MsgpackKind,
    /// So many bytes follow its map.
    #[error("{0} bytes behind the end of its MessagePack map")]
    MsgpackTail(usize),
    /// `...` in a map with `format = "raw"`.
    #[error("raw messages have no members")]
    Raw,
    /// A member that the command needs is missing or null.
    #[error("there is no {path} in it, or it is null")]
    Missing { path: String },
    /// `...` of a member with nothing inside.
    #[error("{path} is neither an object nor an array")]
    Flat { path: String },
    /// A member cannot be opened.
    #[error("{path}: {why}")]
    Member { path: String, why: String },
    /// The name of a MessagePack member is not UTF-8.
    #[error("a member's name is no text")]
    MemberName,
    /// A JSON string with an escape that stands for nothing.
    #[error("a string: {why}")]
    Text { why: String },
    /// A MessagePack value that JSON has no form for.
    #[error("no JSON for it: {why}")]
    Unprintable { why: String },
    /// `...` of a message without members.
    #[error("the message has no members to write")]
    NoMembers,
    /// `...` of a member without members.
    #[error("{path} has no members to write")]
    Empty { path: String },
    /// `{$key}` of a message without one.
    #[error("the message has no key")]
    NoKey,
    /// `{$value}` of a tombstone.
    #[error("the message has no value")]
    NoValue,
    /// `{$header.NAME}` of a message without it.
    #[error("the message has no header {0:?}")]
    NoHeader(String),
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// A condition that cannot be evaluated for it: `a / 'x'`.
    #[error("when = {text:?}: {why}")]
    Condition { text: String, why: String },
    /// The keys of one command are not in one slot of the cluster.
    #[error("its keys are in different slots; give them a common {{tag}}, or a command each")]
    Slots,
    /// Its commands have more words than `guard.lua` can be given.
    #[error("more than {most} words, which exactly_once cannot send")]
    Words { most: usize },
}
