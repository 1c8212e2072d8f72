//! Built-in commands, which a mix names without giving a template.

use crate::template::Template;

/// Ten keys of one slot, as a cluster wants it.
const MSET: &str = "MSET {p}ten:{{{key}}}:0 {value} {p}ten:{{{key}}}:1 {value} {p}ten:{{{key}}}:2 {value} \
                    {p}ten:{{{key}}}:3 {value} {p}ten:{{{key}}}:4 {value} {p}ten:{{{key}}}:5 {value} \
                    {p}ten:{{{key}}}:6 {value} {p}ten:{{{key}}}:7 {value} {p}ten:{{{key}}}:8 {value} \
                    {p}ten:{{{key}}}:9 {value}";

/// Built-in commands: name and template behind the prefix.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("get", "GET {p}{key}"),
    ("set", "SET {p}{key} {value}"),
    ("mset", MSET),
    ("del", "DEL {p}{key}"),
    ("unlink", "UNLINK {p}{key}"),
    ("exists", "EXISTS {p}{key}"),
    ("ttl", "TTL {p}{key}"),
    ("strlen", "STRLEN {p}{key}"),
    ("incr", "INCR {p}count:{key}"),
    ("hset", "HSET {p}hash:{key} field {value}"),
    ("hget", "HGET {p}hash:{key} field"),
    ("hgetall", "HGETALL {p}hash:{key}"),
    ("lpush", "LPUSH {p}list:{key} {value}"),
    ("rpush", "RPUSH {p}list:{key} {value}"),
    ("lpop", "LPOP {p}list:{key}"),
    ("rpop", "RPOP {p}list:{key}"),
    ("lrange", "LRANGE {p}list:{key} 0 9"),
    ("sadd", "SADD {p}set:{key} {value}"),
    ("sismember", "SISMEMBER {p}set:{key} {value}"),
    ("spop", "SPOP {p}set:{key}"),
    ("zadd", "ZADD {p}zset:{key} {key} {value}"),
    ("zpopmin", "ZPOPMIN {p}zset:{key}"),
    ("zrange", "ZRANGE {p}zset:{key} 0 9"),
    ("xadd", "XADD {p}stream:{key} MAXLEN ~ 1000 * field {value}"),
    ("publish", "PUBLISH {p}channel:{key} {now}{value}"),
    ("ping", "PING"),
];

/// Those that write nothing; of all others that is not known before the server was asked.
pub const READS: &[&str] =
    &["GET", "EXISTS", "TTL", "STRLEN", "HGET", "HGETALL", "LRANGE", "SISMEMBER", "ZRANGE", "PUBLISH", "PING"];

/// Positions of the keys of a command that is built in; none of others.
pub fn keys_of(name: &str, template: &Template) -> Vec<usize> {
    let is_built_in = BUILT_IN.iter().any(|(known, _)| *known == name) && template.name().eq_ignore_ascii_case(name);
    match name {
        _ if !is_built_in => Vec::new(),
        "mset" => (1..template.arguments()).step_by(2).collect(),
        "del" | "unlink" | "exists" => (1..template.arguments()).collect(),
        _ => (1..template.arguments()).take(1).collect(),
    }
}

/// Their names.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}
