//! Descriptors of carried connections that others get: a child of fork, a program that is exec'd or spawned, the
//! receiver of a message, `stdio`. Each works, or fails at once; and the connection of the one who gave it away goes
//! on.

use std::io::Write;

use super::*;

/// Runs a program that says "good" when its connections are made, and goes on when it is told to, with all of them
/// carried: what it says then.
#[track_caller]
pub fn goes_on(meeting: &Meeting, program: &[&str], connections: usize) -> String {
    let words = [&["bypass", "--client", "--", "timeout", LIMIT][..], program].concat();
    let mut child = meeting.unslow(&words);
    let mut child = Running(child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(child.0.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "good\n");
    assert_eq!(meeting.carried(), connections, "connections that are carried");
    child.0.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    rest
}

const BEGIN: &str = r#"
import ctypes, errno, os, select, shlex, socket, subprocess, sys, traceback

def begun():
    # Blocking, and not looked at: it is not decided yet whether it is carried.
    s = socket.socket()
    s.connect(("127.0.0.1", int(sys.argv[1])))
    return s

def ping(s):
    s.sendall(b"PING\r\n")
    got = b""
    while not got.endswith(b"\r\n"):
        part = s.recv(100)
        assert part, "it has ended"
        got += part
    assert got == b"+PONG\r\n", got

def connected():
    s = begun()
    ping(s)
    return s

def go_on():
    print("good", flush=True)
    if not sys.stdin.readline():
        sys.exit()

def fails(what, *arguments):
    try:
        got = what(*arguments)
    except OSError as e:
        return e.errno
    raise AssertionError(f"{what} brought {got!r}")

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
"#;

const FORKS: &str = r#"
s = connected()
go_on()

def uses_it():
    assert fails(s.recv, 1) == errno.ENOTCONN
    assert fails(s.send, b"PING\r\n") == errno.EPIPE
    p = select.poll()
    p.register(s, select.POLLIN)
    assert p.poll()
    e = select.epoll()
    e.register(s, select.EPOLLIN)
    assert e.poll()
    assert select.select([s], [], [])[0]

def ends_it():
    fails(s.shutdown, socket.SHUT_RDWR)
    s.close()

for work in (lambda: None, s.close, ends_it, uses_it):
    in_child(work)
    ping(s)
# One that is not decided yet works on both sides.
t = begun()
in_child(lambda: ping(t))
ping(t)
print("right")
"#;

#[test]
fn a_child_of_fork_cannot_use_or_harm_its_parents_connection() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    let script = format!("{BEGIN}{FORKS}");
    let said = goes_on(&meeting, &["python3", "-c", &script, &server.port.to_string()], 1);
    assert_eq!(said, "right\n");
}

const FORKS_WITHOUT_A_FREE_DESCRIPTOR: &str = r#"
import resource

s = connected()
go_on()
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    while True:
        os.dup(0)
except OSError as e:
    assert e.errno == errno.EMFILE

# There is no descriptor for a dead socket: the connection is closed there.
def uses_it():
    assert fails(s.recv, 1) == errno.EBADF
    assert fails(s.send, b"PING\r\n") == errno.EBADF

for work in (lambda: None, uses_it):
    in_child(work)
    ping(s)
print("right")
"#;

#[test]
fn a_child_of_fork_without_a_free_descriptor_cannot_use_or_harm_its_parents_connection() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    let script = format!("{BEGIN}{FORKS_WITHOUT_A_FREE_DESCRIPTOR}");
    let said = goes_on(&meeting, &["python3", "-c", &script, &server.port.to_string()], 1);
    assert_eq!(said, "right\n");
}

const EXECS: &str = r#"
s = connected()
os.dup2(s.fileno(), 50) # kept over exec, as `dup2` makes it
go_on()
assert os.get_inheritable(50) and not s.get_inheritable()
s.set_inheritable(True)
assert s.get_inheritable()

# Ends well if reading from that number fails.
READ = "import os, sys\ntry:\n    got = os.read(int(sys.argv[1]), 1)\nexcept OSError:\n    sys.exit(0)\nsys.exit(f'it read {got}')"

def program(fd):
    return [sys.executable, "-c", READ, str(fd)]

for fd in (50, s.fileno()):
    in_child(lambda: os.execv(sys.executable, program(fd)))
    assert subprocess.run(program(fd), close_fds=False).returncode == 0
    assert subprocess.run(program(fd), pass_fds=[fd]).returncode == 0
    assert os.system(shlex.join(program(fd))) == 0
    pid = os.posix_spawn(sys.executable, program(60), os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, fd, 60)])
    assert os.waitpid(pid, 0)[1] == 0
    ping(s)
assert subprocess.run(program(0), stdin=s).returncode == 0
ping(s)
os.execv(sys.executable, [sys.executable, "-c", READ.replace("sys.exit(0)", "print('right')\n    sys.exit(0)"), "50"])
"#;

#[test]
fn a_program_that_is_execed_cannot_wait_for_a_silent_connection() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    let script = format!("{BEGIN}{EXECS}");
    let said = goes_on(&meeting, &["python3", "-c", &script, &server.port.to_string()], 1);
    assert_eq!(said, "right\n");
    until("the server to see that the connection has ended", || server.clients() == 0);
}

const PASSES: &str = r#"
s = connected()
go_on()
a, b = socket.socketpair()
assert fails(socket.send_fds, a, [b"x"], [s.fileno()]) == errno.EOPNOTSUPP
ping(s)
# One that is not decided yet may go.
t = begun()
socket.send_fds(a, [b"x"], [t.fileno()])
u = socket.socket(fileno=socket.recv_fds(b, 1, 1)[1][0])
ping(u)
t.close()
ping(u)
# One that had two names before it was connected.
v = socket.socket()
w = v.dup()
v.connect(("127.0.0.1", int(sys.argv[1])))
ping(v)
ping(w)
v.close()
ping(w)
# The C library's streams.
c = ctypes.CDLL(None)
c.fdopen.argtypes, c.fdopen.restype = [ctypes.c_int, ctypes.c_char_p], ctypes.c_void_p
c.fputs.argtypes, c.fflush.argtypes = [ctypes.c_char_p, ctypes.c_void_p], [ctypes.c_void_p]
assert not c.fdopen(s.fileno(), b"w")
x = begun()
stream = c.fdopen(x.fileno(), b"w")
c.fputs(b"PING\r\n", stream)
c.fflush(stream)
assert x.recv(100) == b"+PONG\r\n"
ping(s)
print("right")
"#;

#[test]
fn a_carried_connection_is_not_handed_on_and_an_undecided_one_works_where_it_goes() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    let script = format!("{BEGIN}{PASSES}");
    let said = goes_on(&meeting, &["python3", "-c", &script, &server.port.to_string()], 1);
    assert_eq!(said, "right\n");
}
