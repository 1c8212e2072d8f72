//! How cases are made, where a setting or a command is not enough: a preload, control groups, clusters put together by
//! hand, clients that do not read. None of it is the lab's.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use unslow_engine::{Server, ServerSpec, view};
use unslow_testkit::servers::settings;
use unslow_testkit::slots::{id, set_slot};
use unslow_testkit::until;
use unslow_testkit::wait::until_ok;
use unslow_topology::slot_of;

use crate::stage::{Made, Stage, ms, open, words};

/// A server whose forks or syncs are slow, or whose clock is late, by a preload that is compiled here.
pub fn slow_server(stage: &mut Stage, of: &[(&str, &str)], knob: &str, ms: u32) -> Arc<Server> {
    let dir = tempfile::tempdir().expect("a directory");
    let library = dir.path().join("slow.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/odd/slow.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).args([source, "-ldl"]);
    assert!(compiler.status().expect("a C compiler").success(), "{source} compiles");
    let env = vec![("LD_PRELOAD".to_string(), library.display().to_string()), (knob.to_string(), ms.to_string())];
    stage.keep(dir);
    let engine = stage.engine.clone();
    stage.server_on(&engine, ServerSpec { settings: settings(of), env, ..ServerSpec::default() })
}

/// A control group that was made for one process. It is let go of on drop.
pub struct Group {
    dir: PathBuf,
    pid: u32,
    before: Option<PathBuf>,
}

/// Why there may be none.
const NO_GROUP: &str = "needs root and a writable cgroup file system";

impl Group {
    /// No more than `quota_us` of processor time in each period.
    pub fn with_quota(pid: u32, quota_us: u32, period_us: u32) -> Result<Group, &'static str> {
        Group::make(mount("cgroup", Some("cpu")).or_else(|| mount("cgroup2", None)), pid, |dir| {
            let v2 = dir.join("cpu.max");
            if v2.exists() {
                return fs::write(v2, format!("{quota_us} {period_us}"));
            }
            fs::write(dir.join("cpu.cfs_period_us"), period_us.to_string())?;
            fs::write(dir.join("cpu.cfs_quota_us"), quota_us.to_string())
        })
    }

    /// No more than this much memory for what it allocates from now on, and for processes that join it.
    pub fn with_memory(pid: u32, bytes: u64) -> Result<Group, &'static str> {
        Group::make(mount("cgroup", Some("memory")).or_else(|| mount("cgroup2", None)), pid, |dir| {
            let v2 = dir.join("memory.max");
            let file = if v2.exists() { v2 } else { dir.join("memory.limit_in_bytes") };
            fs::write(file, bytes.to_string())
        })
    }

    /// The file that a process joins the group by.
    pub fn door(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// What is charged to its memory.
    pub fn charged(&self) -> u64 {
        let read = |file: &str| fs::read_to_string(self.dir.join(file)).ok()?.trim().parse().ok();
        read("memory.current").or_else(|| read("memory.usage_in_bytes")).unwrap_or(0)
    }

    /// Frozen, as `docker pause` does it. The freezer of cgroup v2 only: what it holds can still be killed.
    pub fn frozen(pid: u32) -> Result<Group, &'static str> {
        let group = Group::make(mount("cgroup2", None), pid, |dir| fs::metadata(dir.join("cgroup.freeze")).map(drop))?;
        fs::write(group.dir.join("cgroup.freeze"), "1").map_err(|_| NO_GROUP)?;
        until("the process to be frozen", || {
            fs::read_to_string(group.dir.join("cgroup.events")).is_ok_and(|text| text.contains("frozen 1"))
        });
        Ok(group)
    }

    fn make(
        root: Option<PathBuf>,
        pid: u32,
        limit: impl Fn(&Path) -> std::io::Result<()>,
    ) -> Result<Group, &'static str> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let root = root.ok_or(NO_GROUP)?;
        let name = format!("unslow-odd-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = root.join(name);
        fs::create_dir(&dir).map_err(|_| NO_GROUP)?;
        let group = Group { before: current(&root, pid), dir, pid };
        limit(&group.dir).map_err(|_| NO_GROUP)?;
        fs::write(group.dir.join("cgroup.procs"), pid.to_string()).map_err(|_| NO_GROUP)?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("cgroup.freeze"), "0");
        let parent = self.before.clone().or_else(|| self.dir.parent().map(Path::to_path_buf));
        for _ in 0..50 {
            // A process that has just ended leaves a moment later.
            let _ = parent.as_ref().map(|p| fs::write(p.join("cgroup.procs"), self.pid.to_string()));
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(ms(10));
        }
    }
}

/// Where control groups of this kind are mounted.
fn mount(kind: &str, controller: Option<&str>) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let fits = words.get(2) == Some(&kind)
            && controller.is_none_or(|c| words.get(3).is_some_and(|options| options.split(',').any(|o| o == c)));
        fits.then(|| PathBuf::from(words[1]))
    })
}

/// The group of this hierarchy that a process is in.
fn current(root: &Path, pid: u32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let v2 = controllers.is_empty() && (root.ends_with("unified") || root == Path::new("/sys/fs/cgroup"));
        let v1 = controllers.split(',').any(|c| !c.is_empty() && root.ends_with(c));
        (v1 || v2).then(|| root.join(path.trim_start_matches('/')))
    })
}

/// A cluster of masters on one address, put together by hand: `owner` says whose a slot is, if anyone's.
pub fn loose_cluster(
    stage: &mut Stage,
    masters: usize,
    of: &[(&str, &str)],
    owner: fn(u16) -> Option<usize>,
) -> Vec<Arc<Server>> {
    // A short timeout while they meet: a node that has just met the others waits that long before it serves.
    let own = [("cluster-enabled", "yes"), ("cluster-config-file", "nodes.conf"), ("cluster-node-timeout", "1000")];
    let nodes: Vec<Arc<Server>> = (0..masters).map(|_| stage.server(&[&own[..], of].concat())).collect();
    for (i, node) in nodes.iter().enumerate() {
        let mut add = words(&["CLUSTER", "ADDSLOTS"]);
        add.extend((0..16_384).filter(|slot| owner(*slot) == Some(i)).map(|slot| slot.to_string()));
        let mut c = open(node);
        c.call(&add).expect("slots are free");
        c.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]).expect("a new node");
        for other in &nodes[..i] {
            c.call(&["CLUSTER", "MEET", &other.ip, &other.port.to_string()]).expect("a node meets another");
        }
    }
    for node in &nodes {
        let mut c = open(node);
        until_ok("the nodes to know each other and to serve", || {
            let view = view(&mut c)?;
            let known = view.nodes.len() == masters && view.masters().count() == masters;
            let met = view.nodes.iter().all(|n| !n.is("handshake") && (n.connected || n.is("myself")));
            let says = c.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default();
            Ok::<_, unslow_engine::Error>(known && met && says.contains("cluster_state:ok"))
        });
        c.call(&["CONFIG", "SET", "cluster-node-timeout", "15000"]).expect("a setting");
    }
    nodes
}

/// Slots in halves.
pub fn halves(slot: u16) -> Option<usize> {
    Some(usize::from(slot >= 8192))
}

/// A key of one of these slots.
pub fn key_in(slots: std::ops::Range<u16>) -> String {
    (0..).map(|i| format!("{{o{i}}}")).find(|k| slots.contains(&slot_of(k.as_bytes()))).expect("a key")
}

/// Opens a slot on the way from one node to the other, on both or on the receiving one alone.
pub fn open_slot(slot: u16, from: &Server, to: &Server, on_both: bool) {
    let (slot, source, destination) = (slot.to_string(), id(from), id(to));
    set_slot(&mut open(to), &[&slot, "IMPORTING", &source]);
    if on_both {
        set_slot(&mut open(from), &[&slot, "MIGRATING", &destination]);
    }
}

/// A client with a small receive buffer that sends this and reads only the first byte that comes back.
pub fn asleep(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect((server.ip.as_str(), server.port)).expect("a connection");
    let size: libc::c_int = 16 * 1024;
    // SAFETY: the descriptor is open, and the value is an int that outlives the call.
    unsafe {
        let value = std::ptr::from_ref(&size).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, value, size_of_val(&size) as u32);
    }
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a limit");
    stream.write_all(bytes).expect("the server takes it");
    stream.read_exact(&mut [0]).expect("the server answers");
    stream
}

/// The largest output buffer of any client.
pub fn output_bytes(server: &Server) -> u64 {
    let list = open(server).call(&["CLIENT", "LIST"]).expect("CLIENT LIST").text().unwrap_or_default();
    list.split(" omem=").skip(1).filter_map(|t| t.split(' ').next()?.parse().ok()).max().unwrap_or(0)
}

/// An address of this machine that is not loopback.
pub fn outer_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the kernel only looks up the way.
    socket.connect("192.0.2.1:9").or_else(|_| socket.connect("198.51.100.1:9")).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then(|| ip.to_string())
}

/// Holds a process down to one core of this machine.
pub fn pin(pid: u32, core: usize) -> Made {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| "the process has ended")?;
    for thread in threads.flatten() {
        let Some(tid) = thread.file_name().to_str().and_then(|t| t.parse().ok()) else { continue };
        // SAFETY: the set is initialised and its size is given.
        let done = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &set)
        };
        if done != 0 {
            return Err("processes cannot be pinned to a core here");
        }
    }
    Ok(())
}
