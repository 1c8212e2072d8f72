"""redis-py against one port, over TCP and over shared memory: the same answers.

python3 smoke.py PORT [fast]: prints a line a check, ends with "all good". Everything waits with a limit.
"""

import os
import select
import socket
import subprocess
import sys
import threading
import time

import redis

port = int(sys.argv[1])


def client(**more):
    return redis.Redis(port=port, socket_timeout=100, **more)


def raw():
    s = socket.create_connection(("127.0.0.1", port), 100)
    s.settimeout(100)
    return s


def lines(s, n):
    got = b""
    while got.count(b"\r\n") < n:
        part = s.recv(4096)
        assert part, f"ended after {got!r}"
        got += part
    return got


r = client()
assert r.ping()

# Sizes around every ring, in both directions.
for size in [0, 1, 100, 8191, 8192, 8193, 70_000, 131_072, 1_000_000, 5_000_000, 64 << 20]:
    value = os.urandom(min(size, 4096)) * (size // 4096 + 1)
    value = value[:size]
    r.set("v", value)
    assert r.get("v") == value, size
print("sizes")

# Deep pipelines, while nothing is read.
p = r.pipeline(transaction=False)
for i in range(50_000):
    p.set(f"k{i % 100}", i)
assert len(p.execute()) == 50_000
print("pipelines")

# Addresses are the ones TCP has.
mine = [c for c in r.client_list() if c["cmd"].startswith("client")][0]
assert mine["addr"].startswith("127.0.0.1:") and mine["laddr"] == f"127.0.0.1:{port}", mine
s = raw()
s.sendall(b"CLIENT INFO\r\n")
assert f"addr={s.getsockname()[0]}:{s.getsockname()[1]} ".encode() in lines(s, 2)
assert s.getpeername() == ("127.0.0.1", port)
print("addresses")

# Flags of recv, FIONREAD, poll, select, epoll in one thread.
s.sendall(b"PING\r\n")
assert select.select([s], [], [], 100)[0] == [s]
assert s.recv(3, socket.MSG_PEEK) == b"+PO"
assert s.recv(7, socket.MSG_WAITALL) == b"+PONG\r\n"
s.setblocking(True)
try:
    s.recv(1, socket.MSG_DONTWAIT)
    raise SystemExit("bytes from nowhere")
except BlockingIOError:
    pass
import fcntl, struct, termios

s.sendall(b"PING\r\n")
poller = select.poll()
poller.register(s, select.POLLIN)
assert poller.poll(100_000) == [(s.fileno(), select.POLLIN)]
assert struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, b"\0" * 4))[0] == 7
assert s.recv(100) == b"+PONG\r\n"
begun = time.time()
assert poller.poll(100) == [] and time.time() - begun > 0.09
readable, writable = os.pipe()
epoll = select.epoll()
epoll.register(s, select.EPOLLIN)
epoll.register(readable, select.EPOLLIN)
os.write(writable, b"x")
assert epoll.poll(100) == [(readable, select.EPOLLIN)]
s.sendall(b"PING\r\n")
seen = set()
while len(seen) < 2:
    seen.update(fd for fd, _ in epoll.poll(100))
assert s.recv(100) == b"+PONG\r\n"
os.read(readable, 1)
assert epoll.poll(0.05) == []
epoll.modify(s, select.EPOLLIN | select.EPOLLET)
s.sendall(b"PING\r\n")
assert epoll.poll(100) == [(s.fileno(), select.EPOLLIN)]
assert epoll.poll(0.05) == [], "an edge comes once"
assert s.recv(100) == b"+PONG\r\n"
epoll.modify(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLONESHOT)
assert epoll.poll(100) == [(s.fileno(), select.EPOLLOUT)]
assert epoll.poll(0.05) == [], "once"
epoll.unregister(s)
epoll.close()
print("waiting")

# A second name of a socket; a child that closes everything; a child that ends.
twin = s.dup()
s.close()
twin.sendall(b"PING\r\n")
assert lines(twin, 1) == b"+PONG\r\n"
assert subprocess.run(["true"], close_fds=True).returncode == 0
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
twin.sendall(b"PING\r\n")
assert lines(twin, 1) == b"+PONG\r\n"
print("names and children")

# Half-close: what was asked before is answered, then comes the end.
twin.sendall(b"PING\r\n" * 3)
twin.shutdown(socket.SHUT_WR)
got = b""
while part := twin.recv(100):
    got += part
assert got in (b"+PONG\r\n" * 3, b"+PONG\r\n" * 2, b"+PONG\r\n", b""), got
twin.close()

# Killed by the server: an end, and writing fails.
s = raw()
s.sendall(b"CLIENT ID\r\n")
r.client_kill_filter(_id=int(lines(s, 1)[1:-2]))
assert s.recv(10) == b""
try:
    for _ in range(100):
        s.sendall(b"PING\r\n")
        time.sleep(0.01)
    raise SystemExit("written to nobody")
except (BrokenPipeError, ConnectionResetError):
    pass
print("ends")

# Timeouts are the socket's.
s = raw()
s.settimeout(0.2)
begun = time.time()
try:
    s.recv(1)
    raise SystemExit("bytes from nowhere")
except TimeoutError:
    assert time.time() - begun > 0.19
s.setblocking(True)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200_000))
try:
    s.recv(1)
    raise SystemExit("bytes from nowhere")
except BlockingIOError:
    pass
s.close()
begun = time.time()
assert r.blpop("nothing", timeout=1) is None and time.time() - begun > 0.9
threading.Timer(0.1, lambda: client().rpush("list", "x")).start()
assert r.blpop("list", timeout=100) == (b"list", b"x")
print("timeouts")

# Messages, MONITOR, transactions, scripts.
ps = client().pubsub()
ps.subscribe("c")
while ps.get_message(timeout=100)["type"] != "subscribe":
    pass
assert r.publish("c", "hello") == 1
assert ps.get_message(timeout=100)["data"] == b"hello"
with client().monitor() as m:
    r.set("seen", "x")
    for _ in range(100):
        if "seen" in m.next_command()["command"]:
            break
    else:
        raise SystemExit("MONITOR says nothing")
t = r.pipeline()
t.set("a", 1)
t.incr("a")
assert t.execute() == [True, 2]
assert r.eval("return redis.call('INCR', KEYS[1])", 1, "a") == 3
print("messages and scripts")

# Many threads, each with a connection; some share.
wrong = []


def pairs(n):
    mine = client()
    for i in range(200):
        mine.set(f"t{n}", i)
        if mine.get(f"t{n}") != str(i).encode():
            wrong.append((n, i))


threads = [threading.Thread(target=pairs, args=(n,)) for n in range(16)]
for t in threads:
    t.start()
for t in threads:
    t.join(100)
    assert not t.is_alive(), "a thread hangs"
assert not wrong, wrong
print("threads")

# Connections that come and go.
for i in range(300):
    s = raw()
    s.sendall(b"PING\r\n")
    assert lines(s, 1) == b"+PONG\r\n"
    s.close()
print("coming and going")
print("all good")
