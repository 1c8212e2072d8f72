//! A client behind a wire: two TUN devices, one of them in a network namespace of its own, and a thread that carries
//! packets between them half a millisecond late each way.
//!
//! The smallest thing that gives a real round trip without netem. Addresses are from 198.18.0.0/15, the range kept for
//! benchmarks, and exist only while the fault does.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use unslow_client::{Endpoint, Target};

use super::{Active, with};
use crate::Deployment;
use crate::server::Error;

const DELAY: Duration = Duration::from_micros(500);
const NEAR: &str = "198.18.77.1";
const FAR: &str = "198.18.77.2";

pub fn far_client(deployment: &mut Deployment) -> Result<Active, Error> {
    let near = tun("unslow0")?;
    configure("unslow0", NEAR)?;
    let port = deployment.nodes[0].port;
    let target = Target { endpoints: vec![Endpoint::Tcp(NEAR.into(), port)], ..deployment.nodes[0].target() };
    // The far end lives in the namespace of its own thread; its TUN device goes with it.
    let (tx, rx) = mpsc::channel();
    let mut slot = None;
    let mut entered = false;
    let active = Active::new("batches of 20").work(move |flags| {
        if !entered {
            entered = true;
            // SAFETY: unshare changes this thread alone.
            let made = if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
                tun("unslow1").and_then(|t| configure("unslow1", FAR).map(|()| t))
            } else {
                Err(last("unshare"))
            };
            let _ = tx.send(made);
        }
        with(&mut slot, &target, flags, |c| c.call(&["INCR", "far"]).map(drop));
    });
    let far = rx.recv_timeout(Duration::from_secs(5)).map_err(|_| Error::new("the far end did not come up"))??;
    let clone = |f: &File| f.try_clone().map_err(|e| Error::new(format!("TUN: {e}")));
    let (near_in, far_in) = (clone(&near)?, clone(&far)?);
    Ok(active.work(carry(near, far_in)).work(carry(far, near_in)))
}

/// Moves packets from one device to the other, each after the delay.
fn carry(mut from: File, mut to: File) -> impl FnMut(&super::Flags) + Send + 'static {
    let mut queue: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    move |_| {
        let mut packet = [0u8; 2048];
        if let Ok(n) = from.read(&mut packet) {
            queue.push_back((Instant::now() + DELAY, packet[..n].to_vec()));
        }
        while queue.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            if let Some((_, packet)) = queue.pop_front() {
                let _ = to.write(&packet);
            }
        }
        if queue.is_empty() {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

fn last(what: &str) -> Error {
    Error::new(format!("{what}: {}; a far client needs root", std::io::Error::last_os_error()))
}

/// A non-blocking TUN device in this thread's namespace.
fn tun(name: &str) -> Result<File, Error> {
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: i16,
        rest: [u8; 22],
    }
    const IFF_TUN_NO_PI: i16 = 0x1001;
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    let mut request = Request { name: [0; 16], flags: IFF_TUN_NO_PI, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: a NUL-terminated path; the descriptor is owned by the File at once; the request has ifreq's layout and size.
    let file = unsafe {
        let fd = libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(last("/dev/net/tun"));
        }
        File::from_raw_fd(fd)
    };
    // SAFETY: as above.
    if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &mut request) } < 0 {
        return Err(last("TUNSETIFF"));
    }
    Ok(file)
}

fn configure(name: &str, ip: &str) -> Result<(), Error> {
    for arguments in [&["addr", "add", &format!("{ip}/24"), "dev", name][..], &["link", "set", name, "up"]] {
        let output = Command::new("ip")
            .args(arguments)
            .output()
            .map_err(|e| Error::new(format!("ip: {e}; it is in Debian's iproute2")))?;
        if !output.status.success() {
            return Err(Error::new(format!(
                "ip {}: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        }
    }
    Ok(())
}
