//! Names of commands and their shares, as they are typed.

use std::collections::BTreeMap;

/// A name for -t. redis-benchmark takes names in either case, and has one more for ping.
pub fn test(text: &str) -> Result<String, std::convert::Infallible> {
    let name = text.trim().to_ascii_lowercase();
    Ok(if name == "ping_mbulk" { "ping".into() } else { name })
}

/// What to type for a test of redis-benchmark that is not built in.
pub fn elsewhere(test: &str) -> Option<String> {
    if test == "ping_inline" {
        return Some("clients do not send inline commands; use -t ping".into());
    }
    let length: u32 = test.strip_prefix("lrange_")?.parse().ok()?;
    let last = length.saturating_sub(1);
    Some(format!(
        "fill a list first: -n {length} --command 'RPUSH unslow:list {{value}}' --keep-keys, then read it: --command \
         'LRANGE unslow:list 0 {last}'"
    ))
}

/// A mix that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMix {
    /// Shares for some commands and not for others: `get=0.9,set` would give set more than get.
    #[error("some have a share and some do not; write get=0.9,set=0.1")]
    SharesMissing,
    /// Not a number.
    #[error("invalid share {0:?}; expected shares such as get=0.9,set=0.1")]
    Share(String),
    /// A command that is named again.
    #[error("{0} stands there twice")]
    Twice(String),
}

/// Reads `get=0.9,set=0.1`.
pub fn mix(text: &str) -> Result<BTreeMap<String, f64>, BadMix> {
    if text.contains('=') && text.split(',').any(|part| !part.contains('=')) {
        return Err(BadMix::SharesMissing);
    }
    let mut mix = BTreeMap::new();
    for part in text.split(',') {
        let (name, share) = part.split_once('=').unwrap_or((part, "1"));
        let number = share.trim().parse().map_err(|_| BadMix::Share(share.into()))?;
        if mix.insert(name.trim().to_string(), number).is_some() {
            return Err(BadMix::Twice(name.trim().into()));
        }
    }
    Ok(mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_redis_benchmark_are_built_in_or_it_says_what_to_type() {
        const DEFAULT: &str = "PING_INLINE,PING_MBULK,SET,GET,INCR,LPUSH,RPUSH,LPOP,RPOP,SADD,HSET,SPOP,ZADD,ZPOPMIN,\
                               LRANGE_100,LRANGE_300,LRANGE_500,LRANGE_600,MSET,XADD";
        for name in DEFAULT.split(',') {
            let test = test(name).unwrap();
            let is_known = unslow_bench::built_in_names().any(|known| known == test);
            assert!(is_known != elsewhere(&test).is_some(), "{name}");
        }
        assert!(elsewhere("lrange_100").unwrap().contains("LRANGE unslow:list 0 99"));
    }

    #[test]
    fn a_mix_has_shares_for_all_its_commands_or_for_none() {
        assert_eq!(mix("get=0.9, set=0.1"), Ok(BTreeMap::from([("get".into(), 0.9), ("set".into(), 0.1)])));
        assert_eq!(mix("get,set"), Ok(BTreeMap::from([("get".into(), 1.0), ("set".into(), 1.0)])));
        assert_eq!(mix("get=0.9,set"), Err(BadMix::SharesMissing));
        assert_eq!(mix("get=most"), Err(BadMix::Share("most".into())));
        assert_eq!(mix("get=1,get=2"), Err(BadMix::Twice("get".into())));
    }
}
