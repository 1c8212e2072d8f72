//! What servers before 7.0 do not say of their commands.

use crate::command::{Join, Spread};
use crate::keys::KeyAt;

/// What is missing from one command's row.
pub(crate) struct Fill {
    pub(crate) name: &'static str,
    pub(crate) key: Option<KeyAt>,
    pub(crate) spread: Option<(Spread, Join)>,
    pub(crate) blocking: bool,
}

const fn fill(name: &'static str) -> Fill {
    Fill { name, key: None, spread: None, blocking: false }
}

const fn counted(name: &'static str, count: usize) -> Fill {
    Fill { key: Some(KeyAt::Counted { count, first: count + 1 }), ..fill(name) }
}

const fn all(name: &'static str, join: Join) -> Fill {
    Fill { spread: Some((Spread::AllMasters, join)), ..fill(name) }
}

const fn blocks(name: &'static str) -> Fill {
    Fill { blocking: true, ..fill(name) }
}

pub(crate) const FILL: [Fill; 38] = [
    counted("EVAL", 2),
    counted("EVALSHA", 2),
    counted("EVAL_RO", 2),
    counted("EVALSHA_RO", 2),
    counted("ZUNION", 1),
    counted("ZINTER", 1),
    counted("ZDIFF", 1),
    Fill { key: Some(KeyAt::Arg(2)), ..fill("MEMORY|USAGE") },
    Fill { key: Some(KeyAt::Arg(1)), ..fill("ZUNIONSTORE") },
    Fill { key: Some(KeyAt::Arg(1)), ..fill("ZINTERSTORE") },
    Fill { key: Some(KeyAt::Arg(3)), ..fill("MIGRATE") },
    Fill { key: Some(KeyAt::Arg(2)), ..fill("OBJECT") },
    Fill { key: Some(KeyAt::Arg(2)), ..fill("XINFO") },
    Fill { key: Some(KeyAt::Arg(2)), ..fill("XGROUP") },
    // Servers before 7.2 report this policy for SLOWLOG RESET, but not here.
    Fill { spread: Some((Spread::AllNodes, Join::AllSucceed)), ..fill("CONFIG|RESETSTAT") },
    all("DBSIZE", Join::Sum),
    all("FLUSHALL", Join::AllSucceed),
    all("FLUSHDB", Join::AllSucceed),
    all("KEYS", Join::Concat),
    all("RANDOMKEY", Join::NotNull),
    all("SCRIPT|LOAD", Join::AllSucceed),
    all("SCRIPT|FLUSH", Join::AllSucceed),
    all("SCRIPT|EXISTS", Join::And),
    all("SCRIPT|KILL", Join::OneSucceeds),
    fill("SCRIPT|DEBUG"),
    all("FUNCTION|LOAD", Join::AllSucceed),
    all("FUNCTION|DELETE", Join::AllSucceed),
    all("FUNCTION|FLUSH", Join::AllSucceed),
    all("FUNCTION|RESTORE", Join::AllSucceed),
    all("FUNCTION|KILL", Join::OneSucceeds),
    blocks("BLPOP"),
    blocks("BRPOP"),
    blocks("BRPOPLPUSH"),
    blocks("BLMOVE"),
    blocks("BZPOPMIN"),
    blocks("BZPOPMAX"),
    blocks("XREAD"),
    blocks("XREADGROUP"),
];
