"""Builds of unslow beside each other: GETs over shared memory and through a gateway, in turns, with the server started anew for each.

builds.py SERVER NAME=UNSLOW...   (rounds: ROUNDS, seconds a window: WINDOW; prints a table)
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from process import cpu_ns

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
program, builds = sys.argv[1], [a.split("=", 1) for a in sys.argv[2:]]
ROUNDS, SECONDS = int(os.environ.get("ROUNDS", "5")), os.environ.get("WINDOW", "1")
PORT, GATEWAY = 17777, 17778
ROWS = [(1, 3, 1, 1), (1, 3, 10, 1), (1, 3, 50, 1), (1, 3, 200, 1), (1, 3, 50, 16), (1_000_000, 100, 50, 1)]


def bench(unslow, target, keys, size, connections, depth, *how):
    command = [unslow, "bench", target, "--yes", "--keep-keys", "--keys", str(keys), "--value-size", str(size), "--mix", "get=1"]
    command += ["--connections", str(connections), "--pipeline", str(depth), "--verify", "--format", "json", "-q", *how]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    run = json.loads(done.stdout)["runs"][0]
    assert not run["errors"] and not run["wrong_values"], run["errors"]
    return run


def window(unslow, target, spender, row):
    """Thousand requests a second, p50 us, us of CPU a request of the process `spender` and of the client."""
    before = cpu_ns(spender)
    run = bench(unslow, target, *row, "--seconds", SECONDS, "--no-preload")
    spent = (cpu_ns(spender) - before) / 1000 / run["answered"]
    return run["throughput_per_s"] / 1000, run["latency"]["us_p50"], spent, run["generator"]["cpu_us_per_request"]


def answers(port, process):
    import socket

    for _ in range(200):
        if process.poll() is not None:
            raise SystemExit(f"what was to answer at port {port} has ended: is the port taken?")
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as s:
                s.sendall(b"PING\r\n")
                if s.recv(10).startswith(b"+PONG"):
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"nothing answers at port {port}")


def end(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def measure(name, unslow, seen, dir):
    command = [unslow, "bypass", "-q", "--", program, "--port", str(PORT), "--save", "", "--dir", dir]
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
    try:
        answers(PORT, started[0])
        for row in ROWS:
            bench(unslow, f"127.0.0.1:{PORT}", *row, "--requests", "1", "--preload")
            for path in (f"127.0.0.1:{PORT}", f"shm:{PORT}"):
                seen.setdefault((row, path[:3], name), []).append(window(unslow, path, started[0].pid, row))
        command = [unslow, "gateway", "--listen", f"127.0.0.1:{GATEWAY}", "--target", f"shm:{PORT}", "-q"]
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        answers(GATEWAY, started[1])
        for row in (ROWS[2], ROWS[4]):
            seen.setdefault((row, "gateway", name), []).append(window(unslow, f"127.0.0.1:{GATEWAY}", started[1].pid, row))
    finally:
        for process in started:
            end(process)

seen = {}
for i in range(ROUNDS):
    for name, unslow in builds if i % 2 == 0 else builds[::-1]:
        with tempfile.TemporaryDirectory() as dir:
            measure(name, unslow, seen, dir)
print("| keys | bytes | connections | depth | way | build | k/s | lowest to highest | p50 us | server or gateway us | client us |")
print("|---|---|---|---|---|---|---|---|---|---|---|")
ways = {"127": "TCP", "shm": "rings", "gateway": "gateway over rings"}
for row, way, name in sorted(seen, key=lambda k: (ROWS.index(k[0]), list(ways).index(k[1]))):
    windows = seen[row, way, name]
    rate, p50, spent, own = (statistics.median(column) for column in zip(*windows))
    rates = [w[0] for w in windows]
    first = " | ".join(f"{n:,}" for n in row)
    print(f"| {first} | {ways[way]} | {name} | {rate:.0f} | {min(rates):.0f} to {max(rates):.0f} | {p50:.1f} | {spent:.2f} | {own:.2f} |")
