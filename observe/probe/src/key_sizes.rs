//! How large the keys are that the slow log names: TYPE and the O(1) length of that type. Values are never read.

use unslow_client::Error;
use unslow_facts::{KeySize, Seen};

use crate::ask::{Ask, seen};
use crate::salt::Salt;

/// Keys looked at, at most.
const MOST: usize = 32;

pub fn look(ask: &mut Ask, salt: &Salt, keys: &[Vec<u8>], cluster_replica: bool) -> Seen<Vec<KeySize>> {
    seen(sizes(ask, salt, keys, cluster_replica), "TYPE and STRLEN/LLEN/HLEN/SCARD/ZCARD/XLEN of keys in SLOWLOG")
}

fn sizes(ask: &mut Ask, salt: &Salt, keys: &[Vec<u8>], cluster_replica: bool) -> Result<Vec<KeySize>, Error> {
    let keys = &keys[..keys.len().min(MOST)];
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    if cluster_replica {
        ask.call(&["READONLY"])?;
    }
    let questions: Vec<Vec<&[u8]>> = keys.iter().map(|k| vec![&b"TYPE"[..], k]).collect();
    let kinds = ask.pipeline(&questions)?;
    let mut lengths: Vec<Vec<&[u8]>> = Vec::new();
    let mut asked: Vec<(&[u8], String)> = Vec::new();
    for (key, kind) in keys.iter().zip(kinds) {
        // MOVED and the like: the key is another node's by now.
        let kind = match kind {
            Ok(kind) => kind.text().unwrap_or_default(),
            Err(e) if refused(&e) => return Err(e),
            Err(_) => continue,
        };
        let command: &[u8] = match kind.as_str() {
            "string" => b"STRLEN",
            "list" => b"LLEN",
            "hash" => b"HLEN",
            "set" => b"SCARD",
            "zset" => b"ZCARD",
            "stream" => b"XLEN",
            _ => continue,
        };
        lengths.push(vec![command, key]);
        asked.push((key, kind));
    }
    if lengths.is_empty() {
        return Ok(Vec::new());
    }
    let replies = ask.pipeline(&lengths)?;
    if let Some(e) = replies.iter().filter_map(|r| r.as_ref().err()).find(|e| refused(e)) {
        return Err(e.clone());
    }
    Ok(asked
        .into_iter()
        .zip(replies)
        .filter_map(|((key, kind), reply)| {
            Some(KeySize { key: salt.hide(key), kind, length: reply.ok()?.integer()? as u64 })
        })
        .collect())
}

/// No right, no such command, or a server that answers nothing at this moment: then nothing is known of any key.
fn refused(e: &Error) -> bool {
    use unslow_client::ErrorKind::{Denied, Loading, Unknown};
    matches!(e.kind, Denied | Unknown | Loading) || e.code() == Some("BUSY")
}
