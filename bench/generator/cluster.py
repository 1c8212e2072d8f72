"""CPU of the generator and of the servers for a GET in a cluster, beside redis-benchmark's, in turn.

Usage: cluster.py NAME=BINARY...   from the project's root; ROUNDS (5), DEPTHS (1 16 64), UNSLOW_CACHE
(and redis-benchmark 7, where it is installed). A lab of three masters on processor 0, the generators on processor 1,
51 connections, a thousand keys of 64 B that are there. A round takes every binary once, each time another one first.

What it can show: what a request costs each generator and the servers behind it on this machine. What it cannot: latency,
and what a network of its own would add.
"""
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys

BENCH = os.path.join(os.path.dirname(__file__), "..")
sys.path[:0] = [BENCH, os.path.join(BENCH, "bypass")]
from masters import three_masters  # noqa: E402
from process import cpu_ns  # noqa: E402

CONNECTIONS, SECONDS = "51", 3
ON_ONE = ["taskset", "-c", "1"]


def children_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def unslow(binary, url, depth, first=False):
    """Answers, and the generator's CPU in us."""
    command = [binary, "bench", url, "--seconds", str(SECONDS), "--connections", CONNECTIONS, "--pipeline", str(depth)]
    command += ["--mix", "get=1", "--keys", "1000", "--value-size", "64", "--threads", "1", "--yes", "--keep-keys"]
    command += ["--preload" if first else "--no-preload"]
    done = subprocess.run(ON_ONE + command + ["--format", "json", "--quiet"], capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"{binary}: {done.stderr}")
    report = json.loads(done.stdout)["runs"][0]
    answered = report["answered"]
    return answered, report["generator"]["cpu_us_per_request"] * answered


def redis_benchmark(url, depth):
    host, port = url.removeprefix("redis://").split("/")[0].split(":")
    count = 100_000 * SECONDS * min(depth, 16) // (1 if depth > 1 else 2)
    command = ["redis-benchmark", "-h", host, "-p", port, "--cluster", "-c", CONNECTIONS, "-P", str(depth), "-r", "1000"]
    command += ["-d", "64", "-q", "-n", str(count)]
    subprocess.run(ON_ONE + command + ["-t", "set"], check=True, capture_output=True)
    return command + ["-t", "get"], count


def main():
    binaries = [argument.split("=", 1) for argument in sys.argv[1:]]
    if not binaries:
        sys.exit(__doc__)
    rounds, depths = int(os.environ.get("ROUNDS", "5")), [int(d) for d in os.environ.get("DEPTHS", "1 16 64").split()]
    with three_masters(binaries[-1][1]) as servers:
        pids = [server["pid"] for server in servers]
        for pid in pids:
            subprocess.run(["taskset", "-acp", "0", str(pid)], check=True, capture_output=True)
        measure(binaries, f"redis://{servers[0]['address']}", pids, rounds, depths)


def measure(binaries, url, pids, rounds, depths):
    names = [name for name, _ in binaries]
    unslow(binaries[-1][1], url, 16, first=True)
    if shutil.which("redis-benchmark"):
        names.append("redis-benchmark")
    print("| pipelined | | generator, us a GET | servers, us a GET |\n|---|---|---|---|")
    for depth in depths:
        seen = {name: [] for name in names}
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                binary = dict(binaries).get(name)
                prepared = redis_benchmark(url, depth) if binary is None else None
                before, spent = sum(map(cpu_ns, pids)), children_s()
                if prepared:
                    subprocess.run(ON_ONE + prepared[0], check=True, capture_output=True)
                    answered, us = prepared[1], (children_s() - spent) * 1e6
                else:
                    answered, us = unslow(binary, url, depth)
                served_us = (sum(map(cpu_ns, pids)) - before) / 1000
                seen[name].append((us / answered, served_us / answered))
        for name, rows in seen.items():
            cells = []
            for column in zip(*rows):
                cells.append(f"{statistics.median(column):.3f} ({min(column):.3f} to {max(column):.3f})")
            print(f"| {depth} | {name} | {' | '.join(cells)} |", flush=True)


main()
