//! A plain relay beside `unslow bypass stack`: it moves bytes between TCP connections and a server's socket file, on
//! one thread, and does nothing else. It has no bounds, no fairness and no half-close; bench/offload.sh measures its
//! CPU a request beside the stack's, on epoll as the stack is, and on io_uring.
//!
//! relay_floor ADDRESS:PORT SOCKET_FILE epoll|io_uring   (until it is killed)

use std::error::Error;
use std::net::{SocketAddr, TcpListener};

mod epoll;
mod uring;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, file, way] = &words[..] else {
        return Err("usage: relay_floor ADDRESS:PORT SOCKET_FILE epoll|io_uring".into());
    };
    let listener = TcpListener::bind(address.parse::<SocketAddr>()?)?;
    match way.as_str() {
        "epoll" => epoll::run(&listener, file)?,
        "io_uring" => uring::run(&listener, file)?,
        other => return Err(format!("{other:?} is no way to relay; epoll or io_uring").into()),
    }
    Ok(())
}
