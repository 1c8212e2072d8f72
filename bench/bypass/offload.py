"""Servers with and without --offload, clients in another network namespace behind a veth; prints tables. See
bench/offload.sh.

offload.py UNSLOW RELAY_FLOOR NAME=SERVER...   (rounds: ROUNDS, seconds a window: WINDOW, which tables: PARTS)

CPU in us a request, of whole processes. Each round measures all kinds, in an order that changes. The floor is
fix/bypass/examples/relay_floor before the direct server's socket file: a relay on one thread and nothing else, on epoll
as the stack is, and on io_uring.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from process import cpu_ns
from veth import HERE, assert_lent, end_network, network, there

unslow, relay_floor, servers = sys.argv[1], sys.argv[2], [a.split("=", 1) for a in sys.argv[3:]]
ROUNDS, SECONDS = int(os.environ.get("ROUNDS", "5")), float(os.environ.get("WINDOW", "2"))
PARTS = os.environ.get("PARTS", "free held flood").split()
CGROUPS = "/sys/fs/cgroup/cpu"
# A fifth of a core, in periods so short that a window has hundreds of them.
QUOTA, PERIOD = 1000, 5000
WAYS = ("epoll", "io_uring")


class Server:
    """One server; under a stack's care if `offload`."""

    def __init__(self, program, port, offload):
        self.port, self.offload, self.dir = port, offload, tempfile.mkdtemp()
        words = [program, "--port", str(port), "--bind", HERE, "--protected-mode", "no", "--save", "", "--dir", self.dir]
        words += ["--unixsocket", self.file()]
        if offload:
            words = [unslow, "bypass", "--offload", "--", *words]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.group = f"{CGROUPS}/unslow-offload-{port}"
        os.makedirs(self.group, exist_ok=True)
        with open(f"{self.group}/cgroup.procs", "w") as file:
            file.write(str(self.process.pid))

    def file(self):
        return f"{self.dir}/socket"

    def hold(self, quota):
        for name, value in (("cpu.cfs_period_us", PERIOD), ("cpu.cfs_quota_us", quota)):
            with open(f"{self.group}/{name}", "w") as file:
                file.write(str(value))

    def end(self):
        self.process.terminate()
        self.process.wait()
        os.rmdir(self.group)
        shutil.rmtree(self.dir)


def load(port, *more):
    command = there(unslow, "bench", f"redis://{HERE}:{port}", "--yes", "--keep-keys", "--keys", "1000", "--value-size", "64")
    return command + ["--mix", "get=1", "--no-preload", "--format", "json", "-q", *more]


class Floor:
    """A bare relay before a server, on epoll or io_uring."""

    def __init__(self, server, port, way):
        self.server, self.port = server, port
        self.process = subprocess.Popen([relay_floor, f"{HERE}:{port}", server.file(), way])

    def end(self):
        self.process.terminate()
        self.process.wait()


def window(server, stack, *more, seconds=SECONDS, port=None):
    """A run: its report, us of the server's CPU a request, and of the stack's or relay's."""
    pids = [server.process.pid, stack.pid]
    before = [cpu_ns(pid) for pid in pids]
    done = subprocess.run(load(port or server.port, "--seconds", str(seconds), *more), capture_output=True, text=True, timeout=120)
    after = [cpu_ns(pid) for pid in pids]
    report = json.loads(done.stdout)["runs"][0]
    assert not report["errors"], report["errors"]
    return report, *((b - a) / report["requests"] / 1e3 for a, b in zip(before, after))


def interleaved(direct, offload, stack, *more, floors={}):
    """Medians of each kind: requests/s, p50 us, us a request of server and stack or relay; and the median ratio of
    requests/s, with a stack to direct."""
    kinds = {"direct": lambda: window(direct, stack, *more), "offload": lambda: window(offload, stack, *more)}
    for way, floor in floors.items():
        kinds[way] = lambda floor=floor: window(floor.server, floor.process, *more, port=floor.port)
    found = {kind: [] for kind in kinds}
    for turn in range(ROUNDS):
        names = list(kinds)
        for kind in names if turn % 2 else names[::-1]:
            report, own, its = kinds[kind]()
            found[kind].append((report["throughput_per_s"], p50(report), own, its))
    medians = {kind: [statistics.median(column) for column in zip(*rows)] for kind, rows in found.items()}
    ratios = [b[0] / a[0] for a, b in zip(found["direct"], found["offload"])]
    return medians, statistics.median(ratios), (min(ratios), max(ratios))


def p50(report):
    return report["latency"]["us_p50"]


def row(what, found):
    medians, ratio, (low, high) = found
    direct, offload = medians["direct"], medians["offload"]
    cells = [what, f"{direct[0] / 1e3:.0f}k", f"{offload[0] / 1e3:.0f}k", f"{ratio:.2f} ({low:.2f} to {high:.2f})"]
    cells += [f"{direct[1]:.0f}", f"{offload[1]:.0f}", f"{direct[2]:.2f}", f"{offload[2]:.2f}", f"{offload[3]:.2f}"]
    for way in WAYS:
        floor = medians.get(way)
        cells += [f"{floor[3]:.2f}", f"{floor[2]:.2f}", f"{floor[0] / 1e3:.0f}k"] if floor else ["", "", ""]
    print("| " + " | ".join(cells) + " |", flush=True)


def fairness(name, kinds, stack):
    """p99 of 2,000 requests/s on one server, alone and while another one is flooded; the kinds in turns."""
    found = {kind: ([], []) for kind in kinds}
    for _ in range(ROUNDS):
        for kind, (quiet, loud) in kinds.items():
            alone, flooded = found[kind]
            alone.append(window(quiet, stack, "--rate", "2000")[0]["latency"]["us_p99"])
            flood = subprocess.Popen(load(loud.port, "-c", "200", "-P", "32", "--seconds", str(SECONDS + 2)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(1)
            flooded.append(window(quiet, stack, "--rate", "2000")[0]["latency"]["us_p99"])
            # Invalid runs end with 2: it has no more to prove than that it was there.
            assert flood.wait() in (0, 2), "the flood failed"
    for kind, (alone, flooded) in found.items():
        print(f"| {name}, {kind} | {statistics.median(alone):.0f} | {statistics.median(flooded):.0f} |", flush=True)


def main():
    running, pairs = [], {}
    stack = subprocess.Popen([unslow, "bypass", "stack"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        network()
        time.sleep(1)
        for i, (name, program) in enumerate(servers):
            for n in range(4):
                running.append(Server(program, 17900 + 4 * i + n, n % 2 == 1))
            pairs[name] = running[-4:]
        time.sleep(2)
        assert_lent(unslow, stack, {server.port for server in running if server.offload})
        for server in running:
            fill = [*load(server.port, "--requests", "1"), "--preload"]
            fill.remove("--no-preload")
            subprocess.run(fill, check=True, capture_output=True)
        if "free" in PARTS or "held" in PARTS:
            print("| GET, clients over a veth | requests/s, direct | offload | ratio (lowest to highest) | p50 us, direct | offload | server's CPU us, direct | offload | stack's CPU us | bare relay's CPU us | its server's | its requests/s | relay's on io_uring | its server's | its requests/s |")
            print("|" + "---|" * 15, flush=True)
        for name, (direct, offload, *_) in pairs.items() if "free" in PARTS else ():
            floors = {way: Floor(direct, direct.port + 50 + 10 * n, way) for n, way in enumerate(WAYS)}
            running.extend(floors.values())
            time.sleep(0.5)
            for depth in (1, 16):
                row(f"{name}, 50 connections, depth {depth}", interleaved(direct, offload, stack, "-c", "50", "-P", str(depth), floors=floors))
        for name, (direct, offload, *_) in pairs.items() if "held" in PARTS else ():
            direct.hold(QUOTA), offload.hold(QUOTA)
            found = interleaved(direct, offload, stack, "-c", "50")
            row(f"{name}, a fifth of a core", found)
            rate = str(int(found[0]["direct"][0] * 0.7))
            row(f"{name}, a fifth of a core, {rate} a second", interleaved(direct, offload, stack, "-c", "50", "--rate", rate))
            direct.hold(-1), offload.hold(-1)
        if "flood" in PARTS:
            print("\n| p99 us of 2,000 GET/s | alone | while another server is flooded (200 connections, depth 32) |\n|---|---|---|")
        for name, (direct, offload, direct_other, other) in pairs.items() if "flood" in PARTS else ():
            fairness(name, {"direct": (direct, direct_other), "offload": (offload, other)}, stack)
    finally:
        for process in running[::-1]:
            process.end()
        stack.terminate()
        stack.wait()
        end_network()


main()
