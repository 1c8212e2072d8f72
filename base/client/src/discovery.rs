//! From one address to the whole deployment, whatever answers there.

use crate::members::{Deployment, servers};
use crate::through::{self, Met};
use crate::{Error, Options, ReadOnly, Target};

/// Finds the deployment `target` belongs to, to look at its servers: behind `unslow gateway` too, where it lets us. Any
/// other proxy it recognises is named in [`Deployment::through`]. Fails only when `target` itself gives no usable
/// answer.
pub fn discover(target: &Target, options: &Options) -> Result<Deployment, Error> {
    match through::meet(target, options)? {
        Met::Server(connection) => servers(connection, target, options),
        Met::Proxy(proxy, at, connection) => Ok(through::beyond(&proxy, &at, connection, target, options)),
    }
}

/// As [`discover`], but a proxy is taken for the server it stands for: for tools that send load or data to the address
/// they were given, and must not bypass it. Where the first address gives no usable answer, the others of a list are
/// asked: any Sentinel of a group knows the same. Fails with the error of the last.
pub fn discover_as_client(target: &Target, options: &Options) -> Result<Deployment, Error> {
    let at = |target: &Target| servers(ReadOnly::open(target, options)?, target, options);
    let others = target
        .endpoints
        .iter()
        .skip(1)
        .map(|endpoint| Target { service: target.service.clone(), ..target.at(endpoint.clone()) });
    others.fold(at(target), |found, other| found.or_else(|_| at(&other)))
}
