"""What a gateway and a watcher cost while nobody asks for anything: CPU of 20 s, after 15 s to settle, and memory.

Usage: idle.py UNSLOW MASTERS RANGES CLIENTS [old]   (prints one row of a table; old: servers of cluster.py's old kind)
"""
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import time

unslow, masters, ranges, clients = sys.argv[1], *map(int, sys.argv[2:5])
GATEWAY = 7999
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
started = []
for end in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(end, lambda *_: sys.exit(1))


def start(*words, stdout=subprocess.DEVNULL):
    child = subprocess.Popen(words, stdout=stdout, stderr=subprocess.DEVNULL, text=True)
    started.append(child)
    return child


def cpu_s(child):
    fields = open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(child):
    line = next(line for line in open(f"/proc/{child.pid}/status") if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def asked():
    """A connection to the gateway that has had an answer, or None while it is not there."""
    try:
        client = socket.create_connection(("127.0.0.1", GATEWAY), timeout=10)
        client.sendall(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
        if client.recv(100).startswith(b"$-1"):
            return client
    except OSError:
        pass
    return None


try:
    script = str(pathlib.Path(__file__).with_name("cluster.py"))
    stand_in = start(sys.executable, script, str(masters), str(ranges), *sys.argv[5:], stdout=subprocess.PIPE)
    if stand_in.stdout.readline() != "ready\n":
        sys.exit("the stand-ins do not listen: is port 7000 taken?")
    url = "redis://127.1.0.1:7000"
    begun = time.monotonic()
    gateway = start(unslow, "gateway", "--listen", f"127.0.0.1:{GATEWAY}", url)
    while not (first := asked()):
        time.sleep(0.05)
        if time.monotonic() - begun > 60 or gateway.poll() is not None:
            sys.exit("the gateway did not answer within a minute")
    answered = time.monotonic() - begun
    if gateway.poll() is not None:
        sys.exit(f"another gateway answers on port {GATEWAY}")
    watcher = start(unslow, "watch", "-q", url)
    held = [first] + [asked() for _ in range(clients - 1)]
    if None in held:
        sys.exit("a client was refused")
    time.sleep(15)
    before, at = (cpu_s(gateway), cpu_s(watcher)), time.monotonic()
    time.sleep(20)
    length = time.monotonic() - at
    shares = [(cpu_s(child) - was) / length * 100 for child, was in zip((gateway, watcher), before)]
    print(
        f"| {masters:,} | {max(masters, ranges):,} | {clients:,} | {answered:.2f} | {shares[0]:.2f} % | {resident_mb(gateway):.1f} "
        f"| {shares[1]:.2f} % | {resident_mb(watcher):.1f} |",
        flush=True,
    )
finally:
    for child in reversed(started):
        child.kill()
        child.wait()
