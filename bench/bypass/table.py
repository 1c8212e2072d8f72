"""Pairs of adjacent windows over TCP, a unix socket and shared memory; prints the table. See bench/bypass.sh.

table.py UNSLOW BENCHMARK NAME=SERVER...   (rounds: ROUNDS, seconds a window: WINDOW)
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from process import cpu_ns

unslow, benchmark = sys.argv[1:3]
servers = [a.split("=", 1) for a in sys.argv[3:]]
ROUNDS, SECONDS = int(os.environ.get("ROUNDS", "5")), float(os.environ.get("WINDOW", "1"))
PORT = 17777


def pin(pid, cpus):
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), cpus)


class Server:
    def __init__(self, program, *flags):
        self.dir = tempfile.mkdtemp()
        self.unix = f"{self.dir}/s"
        command = [unslow, "bypass", *flags, "--", program, "--port", str(PORT), "--unixsocket", self.unix, "--save", "", "--dir", self.dir, "--maxclients", "20000"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            time.sleep(0.05)
            if os.path.exists(self.unix) and self.ready():
                return
        raise SystemExit(f"{program} does not answer")

    def ready(self):
        import socket

        try:
            with socket.create_connection(("127.0.0.1", PORT), 1) as s:
                s.sendall(b"PING\r\n")
                return s.recv(10).startswith(b"+PONG")
        except OSError:
            return False

    def end(self):
        self.process.terminate()
        self.process.wait()


def window(url, server, connections, depth, keys, size, cpus=None):
    """One run of unslow bench: requests a second, p50 us, server and client us of CPU a request."""
    command = [unslow, "bench", url, "--yes", "--keep-keys", "--connections", str(connections), "--pipeline", str(depth), "--keys", str(keys)]
    command += ["--value-size", str(size), "--mix", "get=1", "--seconds", str(SECONDS), "--no-preload", "--verify", "--format", "json", "-q"]
    if cpus:
        command = ["taskset", "-c", ",".join(map(str, cpus))] + command
    before = cpu_ns(server.process.pid)
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    spent = cpu_ns(server.process.pid) - before
    run = json.loads(output.stdout)["runs"][0]
    assert not run["errors"] and not run["wrong_values"], run["errors"]
    return run, spent


def preload(server, keys, size):
    command = [unslow, "bench", f"127.0.0.1:{PORT}", "--yes", "--keep-keys", "--keys", str(keys), "--value-size", str(size), "--mix", "get=1", "--requests", "1", "--preload", "--verify", "--format", "json", "-q"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)


def hogs(n):
    return [subprocess.Popen(["taskset", "-c", str(c), "sh", "-c", "while :; do :; done"]) for c in range(n)]


def row(name, server, connections=50, depth=1, keys=1, size=3, server_cpus=None, client_cpus=None, unix=False, hog=False):
    preload(server, keys, size)
    pin(server.process.pid, server_cpus or {0, 1})
    busy = hogs(2) if hog else []
    paths = {"tcp": f"127.0.0.1:{PORT}", "shm": f"shm:{PORT}"}
    if unix:
        paths["unix"] = f"unix:{server.unix}"
    rates = {p: [] for p in paths}
    p50 = {p: [] for p in paths}
    cost = {p: [] for p in paths}
    own = {p: [] for p in paths}
    try:
        for i in range(ROUNDS):
            order = list(paths) if i % 2 == 0 else list(paths)[::-1]
            for p in order:
                run, spent = window(paths[p], server, connections, depth, keys, size, client_cpus)
                done = run["answered"]
                rates[p].append(run["throughput_per_s"])
                p50[p].append(run["latency"]["us_p50"])
                cost[p].append(spent / 1000 / done)
                own[p].append(run["generator"]["cpu_us_per_request"])
    finally:
        for h in busy:
            h.kill()
            h.wait()
        pin(server.process.pid, {0, 1})
    m = statistics.median
    ratio = m([b / a for a, b in zip(rates["tcp"], rates["shm"])])
    lower = 1 - m([b / a for a, b in zip(p50["tcp"], p50["shm"])])
    cells = [name, f"{m(rates['tcp']) / 1000:.0f}", f"{m(rates['unix']) / 1000:.0f}" if unix else "", f"{m(rates['shm']) / 1000:.0f}"]
    cells += [f"{ratio:.2f}", f"{m(p50['tcp']):.1f}", f"{m(p50['shm']):.1f}", f"{lower * 100:.0f} %"]
    cells += [f"{m(cost['tcp']):.2f}", f"{m(cost['shm']):.2f}", f"{m(own['tcp']):.2f}", f"{m(own['shm']):.2f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


HEAD = "| what | TCP k/s | unix k/s | shm k/s | shm : TCP | TCP p50 us | shm p50 us | lower | server us TCP | shm | client us TCP | shm |\n|---|---|---|---|---|---|---|---|---|---|---|---|"


def redis_benchmark(server, connections):
    base = [benchmark, "-p", str(PORT), "-t", "get", "-c", str(connections), "-q"]
    paths = {"tcp": (base, "300000"), "shm": ([unslow, "bypass", "--client", "-q", "--"] + base, "1500000")}
    rates, p50 = {p: [] for p in paths}, {p: [] for p in paths}
    for _ in range(ROUNDS):
        for p, (command, n) in paths.items():
            said = subprocess.run(command + ["-n", n], capture_output=True, text=True, timeout=120).stdout
            found = re.findall(r"([\d.]+) requests per second, p50=([\d.]+)", said)[-1]
            rates[p].append(float(found[0]))
            p50[p].append(float(found[1]) * 1000)
    m = statistics.median
    ratio = m([b / a for a, b in zip(rates["tcp"], rates["shm"])])
    print(f"| {connections} connections | {m(rates['tcp']) / 1000:.0f} | {m(rates['shm']) / 1000:.0f} | {ratio:.2f} | {m(p50['tcp']):.0f} | {m(p50['shm']):.0f} |", flush=True)


def gateway(server):
    command = [unslow, "gateway", "--listen", "127.0.0.1:16400", "--target", f"shm:{PORT}", "-q"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1.5)
        paths = {"direct over TCP": f"127.0.0.1:{PORT}", "through the gateway over rings": "127.0.0.1:16400"}
        seen = {p: [] for p in paths}
        for i in range(ROUNDS):
            for p in list(paths) if i % 2 == 0 else list(paths)[::-1]:
                before = cpu_ns(process.pid)
                run, spent = window(paths[p], server, 50, 1, 1, 3)
                done = run["answered"]
                seen[p].append((run["throughput_per_s"] / 1000, run["latency"]["us_p50"], spent / 1000 / done, (cpu_ns(process.pid) - before) / 1000 / done))
        for p in paths:
            a, b, c, d = (statistics.median(x) for x in zip(*seen[p]))
            print(f"| {p} | {a:.0f} | {b:.0f} | {c:.2f} | {d if 'gateway' in p else 0:.2f} |", flush=True)
    finally:
        process.terminate()
        process.wait()


def pair(program):
    """Two masters of a cluster behind one gateway, at a rate that leaves processors over: each alone, then both."""
    import socket

    def say(port, *words):
        with socket.create_connection(("127.0.0.1", port), 2) as s:
            s.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in map(str, words)))
            return s.recv(4096).decode()

    def waited(what):
        for _ in range(200):
            try:
                if what():
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise SystemExit("the two servers of the pair do not get ready")

    # Hash tags whose slots lie in the first and the second half.
    ports, tags, halves = (17801, 17802), ("{bar}", "{foo}"), ((0, 8191), (8192, 16383))
    processes = []
    try:
        for port in ports:
            command = [unslow, "bypass", "-q", "--", program, "--port", str(port), "--cluster-enabled", "yes", "--save", "", "--dir", tempfile.mkdtemp()]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for port, half in zip(ports, halves):
            waited(lambda: "PONG" in say(port, "PING"))
            assert "OK" in say(port, "CLUSTER", "ADDSLOTSRANGE", *half)
        say(ports[0], "CLUSTER", "MEET", "127.0.0.1", ports[1])
        for port in ports:
            waited(lambda: "cluster_state:ok" in say(port, "CLUSTER", "INFO") and "known_nodes:2" in say(port, "CLUSTER", "INFO"))
        command = [unslow, "gateway", "--listen", "127.0.0.1:16400", "--target", f"shm:127.0.0.1:{ports[0]}", "-q"]
        processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        waited(lambda: "PONG" in say(16400, "PING"))

        def load(tag):
            command = [unslow, "bench", "127.0.0.1:16400", "--yes", "--keep-keys", "--rate", "40000", "--connections", "50", "--keys", "1000", "--value-size", "3", "--key-prefix", tag]
            command += ["--mix", "get=1", "--seconds", str(2 * SECONDS), "--preload", "--verify", "--format", "json", "-q"]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def measured(indices):
            running = [(i, load(tags[i])) for i in indices]
            for i, p in running:
                run = json.loads(p.communicate(timeout=120)[0])["runs"][0]
                assert not run["errors"] and not run["wrong_values"], run["errors"]
                where = "first" if i == 0 else "second"
                seen.setdefault((where, len(indices)), []).append((run["throughput_per_s"] / 1000, run["latency"]["us_p50"], run["latency"]["us_p99"]))

        seen = {}
        for _ in range(ROUNDS):
            measured([0])
            measured([1])
            measured([0, 1])
        for (where, n), runs in sorted(seen.items()):
            a, b, c = (statistics.median(x) for x in zip(*runs))
            print(f"| {where}, {'alone' if n == 1 else 'with the other'} | {a:.0f} | {b:.0f} | {c:.0f} |", flush=True)
    finally:
        for p in reversed(processes):
            p.terminate()
            p.wait()


def attached():
    command = [unslow, "bypass", "--sockmap", "--port", str(PORT)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = process.stderr.readline()
    assert "bypass TCP from now on" in said, said
    return process


def sockmap(server):
    def ours():
        run, spent = window(f"127.0.0.1:{PORT}", server, 50, 1, 1, 3)
        return run["throughput_per_s"] / 1000, run["latency"]["us_p50"], spent / 1000 / run["answered"]

    def theirs():
        before = cpu_ns(server.process.pid)
        command = [benchmark, "-p", str(PORT), "-t", "get", "-c", "50", "-q", "-n", "300000"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        found = re.findall(r"([\d.]+) requests per second, p50=([\d.]+)", said)[-1]
        return float(found[0]) / 1000, float(found[1]) * 1000, (cpu_ns(server.process.pid) - before) / 1000 / 300_000

    for name, measure in (("unslow bench", ours), ("redis-benchmark", theirs)):
        seen = {"TCP": [], "sockmap": []}
        for i in range(ROUNDS):
            for way in ("TCP", "sockmap") if i % 2 == 0 else ("sockmap", "TCP"):
                process = attached() if way == "sockmap" else None
                seen[way].append(measure())
                if process:
                    process.terminate()
                    process.wait()
        m = statistics.median
        gain = m([b[0] / a[0] for a, b in zip(seen["TCP"], seen["sockmap"])]) - 1
        lower = 1 - m([b[1] / a[1] for a, b in zip(seen["TCP"], seen["sockmap"])])
        cells = [f"{m([x[i] for x in seen[w]]):.{d}f}" for i, d in ((0, 0), (1, 0), (2, 2)) for w in ("TCP", "sockmap")]
        print(f"| {name} | {cells[0]} | {cells[1]} | {gain * 100:+.0f} % | {cells[2]} | {cells[3]} | {lower * -100:+.0f} % | {cells[4]} | {cells[5]} |", flush=True)


SHMEM = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"


def huge_pages(program):
    """Rings in small pages and in huge ones, a server each time."""
    with open(SHMEM) as f:
        before = re.search(r"\[(\w+)\]", f.read())[1]

    def setting(value):
        with open(SHMEM, "w") as f:
            f.write(value)

    m = statistics.median
    try:
        setting("advise")
        for connections in (50, 2000, 9500):
            seen = {"small": [], "huge": []}
            for i in range(ROUNDS):
                for pages in ("small", "huge") if i % 2 == 0 else ("huge", "small"):
                    os.environ["UNSLOW_BYPASS_HUGE_PAGES"] = "1" if pages == "huge" else ""
                    server = Server(program, *(["--huge-pages"] if pages == "huge" else []))
                    try:
                        run, spent = window(f"shm:{PORT}", server, connections, 1, 1000, 3)
                        with open(f"/proc/{server.process.pid}/status") as f:
                            rss = int(re.search(r"RssShmem:\s+(\d+) kB", f.read())[1]) / 1024
                        seen[pages].append((run["throughput_per_s"] / 1000, spent / 1000 / run["answered"], run["generator"]["cpu_us_per_request"], rss))
                    finally:
                        server.end()
            ratio = m([h[1] / s[1] for s, h in zip(seen["small"], seen["huge"])])
            cells = [f"{m([x[i] for x in seen[p]]):.{d}f}" for i, d in ((0, 0), (1, 2), (2, 2), (3, 0)) for p in ("small", "huge")]
            print(f"| {connections} | " + " | ".join(cells) + f" | {ratio:.2f} |", flush=True)
    finally:
        del os.environ["UNSLOW_BYPASS_HUGE_PAGES"]
        setting(before)


def idle(server, connections):
    """Connections that say something once and then nothing: memory of the rings, and CPU of both sides."""
    script = "import socket,sys,time,os\nss=[]\nfor i in range(int(sys.argv[2])):\n    s=socket.create_connection(('127.0.0.1',int(sys.argv[1])));s.sendall(b'PING\\r\\n');s.recv(100);ss.append(s)\nprint('up',flush=True)\nsys.stdin.read()"
    command = [unslow, "bypass", "--client", "--", "python3", "-c", script, str(PORT), str(connections)]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout.readline() == "up\n"
        time.sleep(1)
        rings = 0
        for part in open(f"/proc/{server.process.pid}/smaps").read().split("memfd:unslow-bypass-rings")[1:]:
            rings += int(re.search(r"Rss:\s+(\d+) kB", part)[1])
        before = cpu_ns(server.process.pid), cpu_ns(client.pid)
        time.sleep(5)
        spent = [(b - a) / 5e7 for a, b in zip(before, (cpu_ns(server.process.pid), cpu_ns(client.pid)))]
        print(f"\n{connections} idle connections of one client: {rings / 1024:.0f} MB of rings; server {spent[0]:.2f} % of a processor, client {spent[1]:.2f} %", flush=True)
    finally:
        client.kill()
        client.wait()


PARTS = os.environ.get("PARTS", "rows benchmark gateway pair many sockmap idle huge").split()

for name, program in servers:
    server = Server(program)
    try:
        print(f"\n## {name}")
        if "rows" in PARTS:
            print(f"\n{HEAD}")
            row("hot key, 50 connections", server, unix=True)
            row("the same, pinned to a processor each", server, server_cpus={1}, client_cpus=[0], unix=True)
            row("both on one processor", server, server_cpus={0}, client_cpus=[0], unix=True)
            row("a busy neighbour on each processor", server, hog=True)
            row("both on one processor, busy neighbours", server, server_cpus={0}, client_cpus=[0], hog=True)
            row("depth 16", server, depth=16, unix=True)
            for n in (1, 10, 200):
                row(f"{n} connections", server, connections=n)
            for size in (100, 1024, 8192):
                row(f"values of {size} B", server, size=size)
            row("1,000,000 keys of 100 B", server, keys=1_000_000, size=100)
        if "benchmark" in PARTS:
            print("\nredis-benchmark (the client is what saturates):\n\n| | TCP k/s | shm k/s | ratio | TCP p50 us | shm p50 us |\n|---|---|---|---|---|---|")
            for n in (1, 50):
                redis_benchmark(server, n)
        if "gateway" in PARTS:
            print("\nRemote clients (TCP to the gateway; all on two processors):\n\n| | k/s | p50 us | server us | gateway us |\n|---|---|---|---|---|")
            gateway(server)
        if "pair" in PARTS:
            print("\nTwo servers behind one gateway, 40,000 GET/s each, open loop:\n\n| | k/s | p50 us | p99 us |\n|---|---|---|---|")
            pair(program)
        if "many" in PARTS:
            print(f"\n{HEAD}")
            row("9,500 connections", server, connections=9500)
        if "sockmap" in PARTS and os.geteuid() == 0:
            print("\neBPF sockmap under the same TCP sockets (50 connections, hot key):\n\n| client | TCP k/s | sockmap k/s | | TCP p50 us | sockmap p50 us | | server us TCP | sockmap |\n|---|---|---|---|---|---|---|---|---|")
            sockmap(server)
        if "idle" in PARTS:
            idle(server, 9000)
    finally:
        server.end()
    if "huge" in PARTS and os.geteuid() == 0 and os.path.exists(SHMEM):
        print("\nRings in small and in huge pages, 1,000 keys; memory is the server's part of the rings:\n\n| connections | small k/s | huge k/s | server us small | huge | client us small | huge | MB small | huge | server us, huge : small |\n|---|---|---|---|---|---|---|---|---|---|")
        huge_pages(program)
