//! The variant for whoever cannot preload: eBPF hands the bytes of one socket to the other below TCP.
//!
//! Two programs and a map. The first sees each TCP connection within this machine as it is established (a cgroup's
//! `sockops`) and puts both its sockets into the map under their addresses. The second sees each message such a socket sends
//! (`sk_msg`), turns the addresses round, and hands the message to the socket it finds there. Sockets that are not in the map,
//! because they are older or of another machine, go on over TCP by themselves.
//!
//! IPv4 addresses are kept as IPv6 writes them (`::ffff:127.0.0.1`): a server that listens on `::` sees its IPv4 clients so.
//!
//! The programs are a hundred instructions and are written here as such: a compiler for them (clang) is five hundred megabytes.
//! They become an ELF object, as a compiler would have made it, and the library loads that.
//!
//! Needs root (CAP_BPF, CAP_NET_ADMIN), CONFIG_CGROUP_BPF, CONFIG_BPF_STREAM_PARSER and Linux 5.15, which knows the network
//! namespace of a socket (`bpf_get_netns_cookie`) in both programs.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::SockHash;
use aya::programs::{CgroupAttachMode, SkMsg, SockOps};
use object::write::{Object, Relocation, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
};

/// Connections the map has room for, both ends counted.
const SOCKETS: u32 = 131_072;

/// Attached for as long as it lives. Connections stay in the map until they are closed or this is dropped; they are TCP's then.
pub struct Sockmap {
    _loaded: Ebpf,
}

/// What is missing.
#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl Sockmap {
    /// Attaches for connections with one end at one of these ports, or for all of this machine's when there are none.
    pub fn attach(ports: &[u16]) -> Result<Sockmap, Error> {
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Error("needs root (CAP_BPF and CAP_NET_ADMIN)".into()));
        }
        let step = |what: &'static str| move |e: &dyn fmt::Display| Error(format!("{what}: {e}"));
        let mut loaded = Ebpf::load(&object(ports)).map_err(|e| step("the map cannot be made")(&chain(&e)))?;
        let map = loaded.map("SOCKETS").ok_or_else(|| Error("no map".into()))?;
        let map: SockHash<_, [u8; KEY_BYTES]> = SockHash::try_from(map).map_err(|e| step("the map")(&e))?;
        let map = map.fd().try_clone().map_err(|e| step("the map")(&e))?;
        let program = loaded.program_mut("hand_over").ok_or_else(|| Error("no program".into()))?;
        let program: &mut SkMsg = program.try_into().map_err(|e| step("sk_msg")(&e))?;
        let old = "CONFIG_BPF_STREAM_PARSER and Linux 5.15 are needed";
        program
            .load()
            .map_err(|e| Error(format!("the kernel does not take sk_msg programs ({old}): {}", chain(&e))))?;
        program.attach(&map).map_err(|e| step("sk_msg")(&chain(&e)))?;
        let program = loaded.program_mut("put_in").ok_or_else(|| Error("no program".into()))?;
        let program: &mut SockOps = program.try_into().map_err(|e| step("sockops")(&e))?;
        let old = "CONFIG_CGROUP_BPF and Linux 5.15 are needed";
        program
            .load()
            .map_err(|e| Error(format!("the kernel does not take sockops programs ({old}): {}", chain(&e))))?;
        let root = CgroupRoot::find()?;
        let cgroup = File::open(&root.path).map_err(|e| Error(format!("{}: {e}", root.path.display())))?;
        // A link: beside others without being asked to, and gone with this process.
        program.attach(cgroup, CgroupAttachMode::Single).map_err(|e| step("the root cgroup")(&chain(&e)))?;
        Ok(Sockmap { _loaded: loaded })
    }

    /// Takes the programs out of the kernel, as dropping it does.
    pub fn detach(self) {}
}

fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(e) = next {
        text = format!("{text}: {e}");
        next = e.source();
    }
    text
}

/// Where cgroup v2 is mounted, or was just now, for the moment of attaching.
struct CgroupRoot {
    path: PathBuf,
    ours: bool,
}

impl CgroupRoot {
    fn find() -> Result<CgroupRoot, Error> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mounted = mounts.lines().find_map(|line| {
            let mut words = line.split(' ');
            let (_, at, kind) = (words.next()?, words.next()?, words.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(at))
        });
        if let Some(path) = mounted {
            return Ok(CgroupRoot { path, ours: false });
        }
        let path = std::env::temp_dir().join(format!("unslow-cgroup2-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| Error(format!("{}: {e}", path.display())))?;
        let root = CgroupRoot { path, ours: true };
        let at = c_path(&root.path)?;
        // SAFETY: terminated strings, no data.
        if unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), c"cgroup2".as_ptr(), 0, std::ptr::null()) } != 0 {
            let why = std::io::Error::last_os_error();
            return Err(Error(format!("cgroup v2 is not mounted and cannot be ({why})")));
        }
        Ok(root)
    }
}

fn c_path(path: &Path) -> Result<std::ffi::CString, Error> {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| Error("a zero in a path".into()))
}

impl Drop for CgroupRoot {
    fn drop(&mut self) {
        if self.ours {
            if let Ok(at) = c_path(&self.path) {
                // SAFETY: a terminated string.
                unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
            }
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

// The programs.

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const R6: u8 = 6;
const FRAME: u8 = 10;

/// Helpers by their number in the kernel's interface.
const SOCK_HASH_UPDATE: i32 = 70;
const MSG_REDIRECT_HASH: i32 = 71;
const GET_NETNS_COOKIE: i32 = 122;
/// As if it had come from the network.
const BPF_F_INGRESS: i32 = 1;

/// A key on the stack: namespace (8 bytes), own address, peer's address (16 each), own port, peer's port (4 each, as numbers).
const KEY_BYTES: usize = 48;
const KEY: i16 = -(KEY_BYTES as i16);
const OWN: i16 = KEY + 8;
const PEER: i16 = KEY + 24;
const OWN_PORT: i16 = KEY + 40;
const PEER_PORT: i16 = KEY + 44;

/// Instructions being put together; jumps go to labels that are filled in at the end.
#[derive(Default)]
struct Program {
    code: Vec<u64>,
    /// Where a jump to the end stands.
    out: Vec<usize>,
    /// Where the map's address goes.
    map: Vec<usize>,
}

impl Program {
    fn push(&mut self, op: u8, to: u8, from: u8, offset: i16, value: i32) {
        let registers = to | from << 4;
        let word =
            u64::from(op) | u64::from(registers) << 8 | u64::from(offset as u16) << 16 | u64::from(value as u32) << 32;
        self.code.push(word);
    }
    fn copy(&mut self, to: u8, from: u8) {
        self.push(0xbf, to, from, 0, 0);
    }
    fn set(&mut self, to: u8, value: i32) {
        self.push(0xb7, to, 0, 0, value);
    }
    fn add(&mut self, to: u8, value: i32) {
        self.push(0x07, to, 0, 0, value);
    }
    /// A 32-bit word of what a register points to.
    fn load(&mut self, to: u8, from: u8, offset: i16) {
        self.push(0x61, to, from, offset, 0);
    }
    fn store(&mut self, offset: i16, from: u8) {
        self.push(0x63, FRAME, from, offset, 0);
    }
    fn store_long(&mut self, offset: i16, from: u8) {
        self.push(0x7b, FRAME, from, offset, 0);
    }
    /// 32 bits from the network's order.
    fn swap(&mut self, register: u8) {
        self.push(0xdc, register, 0, 0, 32);
    }
    fn call(&mut self, helper: i32) {
        self.push(0x85, 0, 0, 0, helper);
    }
    fn map_address(&mut self, to: u8) {
        self.map.push(self.code.len());
        self.push(0x18, to, 0, 0, 0);
        self.push(0, 0, 0, 0, 0);
    }
    /// To the end, if a register is not this.
    fn out_unless(&mut self, register: u8, value: i32) {
        self.out.push(self.code.len());
        self.push(0x55, register, 0, 0, value);
    }
    fn out_unless_same(&mut self, a: u8, b: u8) {
        self.out.push(self.code.len());
        self.push(0x5d, a, b, 0, 0);
    }
    fn out(&mut self) {
        self.out.push(self.code.len());
        self.push(0x05, 0, 0, 0, 0);
    }
    /// To where it `lands`, if a register is this.
    fn jump_if(&mut self, register: u8, value: i32) -> usize {
        self.push(0x15, register, 0, 0, value);
        self.code.len() - 1
    }
    fn jump(&mut self) -> usize {
        self.push(0x05, 0, 0, 0, 0);
        self.code.len() - 1
    }
    fn land(&mut self, jump: usize) {
        let distance = (self.code.len() - jump - 1) as u16;
        self.code[jump] |= u64::from(distance) << 16;
    }
    /// Over `n` instructions, if a register is this.
    fn skip_if(&mut self, register: u8, value: i32, n: i16) {
        self.push(0x15, register, 0, n, value);
    }
    /// A helper with the context, the map and the key, whose namespace is filled in.
    fn with_key(&mut self, helper: i32, flags: i32) {
        self.copy(R1, R6);
        self.call(GET_NETNS_COOKIE);
        self.store_long(KEY, R0);
        self.copy(R1, R6);
        self.map_address(R2);
        self.copy(R3, FRAME);
        self.add(R3, i32::from(KEY));
        self.set(R4, flags);
        self.call(helper);
    }
    /// The peer's address and one's own, from where the context (R6) has them, into the key. To the end if they are neither
    /// IPv4 nor IPv6. Uses R1 and R2.
    fn addresses(&mut self, context: &Context, own: i16, peer: i16) {
        self.load(R1, R6, context.family);
        let six = self.jump_if(R1, AF_INET6);
        self.out_unless(R1, AF_INET);
        self.set(R2, 0);
        for at in [own, own + 4, peer, peer + 4] {
            self.store(at, R2);
        }
        self.set(R2, 0xffff_u32.to_be() as i32);
        self.store(own + 8, R2);
        self.store(peer + 8, R2);
        for (to, from) in [(own, context.local_ip4), (peer, context.remote_ip4)] {
            self.load(R2, R6, from);
            self.store(to + 12, R2);
        }
        let done = self.jump();
        self.land(six);
        for (to, from) in [(own, context.local_ip6), (peer, context.remote_ip6)] {
            for word in [0, 4, 8, 12] {
                self.load(R2, R6, from + word);
                self.store(to + word, R2);
            }
        }
        self.land(done);
    }
    /// The end, where 1 is "go on".
    fn end(mut self) -> (Vec<u8>, Vec<usize>) {
        for jump in std::mem::take(&mut self.out) {
            self.land(jump);
        }
        self.set(R0, 1);
        self.push(0x95, 0, 0, 0, 0);
        (self.code.iter().flat_map(|word| word.to_le_bytes()).collect(), self.map)
    }
}

const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;

/// Where a program's context has what.
struct Context {
    family: i16,
    remote_ip4: i16,
    local_ip4: i16,
    remote_ip6: i16,
    local_ip6: i16,
    /// In the network's order.
    remote_port: i16,
    local_port: i16,
}

/// `struct bpf_sock_ops`; `op` is its first word.
const SOCK_OPS: Context = Context {
    family: 20,
    remote_ip4: 24,
    local_ip4: 28,
    remote_ip6: 32,
    local_ip6: 48,
    remote_port: 64,
    local_port: 68,
};

/// `struct sk_msg_md`.
const SK_MSG: Context = Context {
    family: 16,
    remote_ip4: 20,
    local_ip4: 24,
    remote_ip6: 28,
    local_ip6: 44,
    remote_port: 60,
    local_port: 64,
};

/// A socket of a connection that was just made goes into the map, if both ends are here.
fn put_in(ports: &[u16]) -> Program {
    let mut p = Program::default();
    p.copy(R6, R1);
    p.load(R1, R6, 0);
    // BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB and BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB.
    p.skip_if(R1, 4, 1);
    p.out_unless(R1, 5);
    p.addresses(&SOCK_OPS, OWN, PEER);
    // Both ends have one address: within this machine.
    for word in [0, 4, 8, 12] {
        p.load(R2, FRAME, OWN + word);
        p.load(R3, FRAME, PEER + word);
        p.out_unless_same(R2, R3);
    }
    p.load(R4, R6, SOCK_OPS.local_port);
    p.load(R5, R6, SOCK_OPS.remote_port);
    p.swap(R5);
    if !ports.is_empty() {
        let left = |i: usize| (2 * (ports.len() - i) - 1) as i16;
        for (i, port) in ports.iter().enumerate() {
            p.skip_if(R4, i32::from(*port), left(i) + 1);
            p.skip_if(R5, i32::from(*port), left(i));
        }
        p.out();
    }
    p.store(OWN_PORT, R4);
    p.store(PEER_PORT, R5);
    p.with_key(SOCK_HASH_UPDATE, 0);
    p
}

/// A message goes to the socket whose own address is this one's peer's.
fn hand_over() -> Program {
    let mut p = Program::default();
    p.copy(R6, R1);
    p.addresses(&SK_MSG, PEER, OWN);
    p.load(R4, R6, SK_MSG.remote_port);
    p.swap(R4);
    p.load(R5, R6, SK_MSG.local_port);
    p.store(OWN_PORT, R4);
    p.store(PEER_PORT, R5);
    p.with_key(MSG_REDIRECT_HASH, BPF_F_INGRESS);
    // Whatever it says: who is not in the map goes on over TCP.
    p
}

/// The object file a compiler would have made: the map, both programs, their licence.
fn object(ports: &[u16]) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let licence = object.add_section(Vec::new(), b"license".to_vec(), SectionKind::Data);
    object.append_section_data(licence, b"GPL\0", 1);
    let maps = object.add_section(Vec::new(), b"maps".to_vec(), SectionKind::Data);
    // struct bpf_map_def: type (BPF_MAP_TYPE_SOCKHASH), bytes of a key and of a value, entries, flags.
    let definition: Vec<u8> =
        [18u32, KEY_BYTES as u32, 4, SOCKETS, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let at = object.append_section_data(maps, &definition, 8);
    let symbol = |name: &str, kind, value, size, section| Symbol {
        name: name.as_bytes().to_vec(),
        value,
        size,
        kind,
        scope: SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    };
    let map = object.add_symbol(symbol("SOCKETS", SymbolKind::Data, at, definition.len() as u64, maps));
    for (name, section, program) in [("put_in", "sockops", put_in(ports)), ("hand_over", "sk_msg", hand_over())] {
        let (code, uses) = program.end();
        let section = object.add_section(Vec::new(), section.as_bytes().to_vec(), SectionKind::Text);
        object.append_section_data(section, &code, 8);
        object.add_symbol(symbol(name, SymbolKind::Text, 0, code.len() as u64, section));
        for instruction in uses {
            let flags = RelocationFlags::Elf { r_type: object::elf::R_BPF_64_64 };
            let relocation = Relocation { offset: instruction as u64 * 8, symbol: map, addend: 0, flags };
            object.add_relocation(section, relocation).expect("the format has this relocation");
        }
    }
    object.write().expect("it is small and complete")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_end_at_the_end_and_ports_are_compared_with_both_ends() {
        for ports in [&[][..], &[6379], &[1, 2, 3]] {
            let (code, map) = put_in(ports).end();
            let words: Vec<u64> = code.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
            let end = words.len() - 2;
            assert_eq!(words[end] & 0xff, 0xb7);
            assert_eq!(map.len(), 1);
            assert_eq!(words[map[0]] & 0xff, 0x18);
            let (op, target) = (|w: u64| w & 0xff, |at: usize| at + 1 + (words[at] >> 16 & 0xffff) as usize);
            let compared = words.iter().rposition(|w| op(*w) == 0x5d).unwrap();
            for (at, word) in words.iter().enumerate() {
                // What ends early; the jump before is from one family's addresses over the other's.
                if matches!(op(*word), 0x55 | 0x5d) || op(*word) == 0x05 && at > compared {
                    assert_eq!(target(at), end, "{ports:?}: {at}");
                }
            }
            let stores = words.iter().position(|w| op(*w) == 0x63 && (*w >> 16) as i16 == OWN_PORT).unwrap();
            let jumps = (compared..words.len()).filter(|at| op(words[*at]) == 0x15);
            let targets: Vec<usize> = jumps.map(target).collect();
            assert_eq!(targets, vec![stores; 2 * ports.len()], "{ports:?}");
        }
    }
}
