"""CPU of the gateway for an MGET over many slots, one binary beside another, in turn.

Usage: gateway-mget.py NAME=BINARY...   from the project's root; ROUNDS (7), UNSLOW_CACHE
A lab of three masters, a gateway of each binary, 20 connections with MGET of ten keys (that are not there) in ten slots, 50,000 each
time. A round takes every binary once, each time another one first, each in a process of its own; the first binary twice.

What it can show: what of the gateway's CPU a command costs, larger than what two runs of the same binary differ by ("again").
What it cannot: latency, since all of it shares the machine.
"""
import json
import os
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "bypass"))
from masters import three_masters  # noqa: E402
from process import cpu_ns  # noqa: E402

REQUESTS, LISTEN = 50_000, "127.0.0.1:7611"
MGET = "MGET " + " ".join(f"{letter}:{{key}}" for letter in "abcdefghij")


def load(binary, command, requests, more=()):
    done = subprocess.run(
        [binary, "bench", f"redis://{LISTEN}", "--command", command, "--requests", str(requests), "--connections", "20",
         "--keys", "1000", "--value-size", "64", "--threads", "1", "--yes", "--keep-keys", "--quiet", "--format", "json", *more],
        capture_output=True, text=True)
    run = json.loads(done.stdout)["runs"][0] if done.stdout else {}
    if run.get("answered") != requests:
        sys.exit(f"{binary}: {done.stderr} {run.get('errors')}")


def listens():
    host, port = LISTEN.split(":")
    for _ in range(100):
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"nobody listens at {LISTEN}")


def measure(binary, url, generator):
    gateway = subprocess.Popen([binary, "gateway", "--listen", LISTEN, "--target", url, "--quiet"], stdout=subprocess.DEVNULL)
    try:
        listens()  # start-up is not measured
        load(generator, MGET, REQUESTS // 20)
        before = cpu_ns(gateway.pid)
        load(generator, MGET, REQUESTS)
        return (cpu_ns(gateway.pid) - before) / 1000 / REQUESTS
    finally:
        gateway.kill()
        gateway.wait()


def main():
    binaries = [argument.split("=", 1) for argument in sys.argv[1:]]
    if not binaries:
        sys.exit(__doc__)
    generator = binaries[-1][1]
    binaries.append(("again", binaries[0][1]))
    seen = {name: [] for name, _ in binaries}
    with three_masters(generator) as servers:
        url = f"redis://{servers[0]['address']}"
        for number in range(int(os.environ.get("ROUNDS", "7"))):
            turn = number % len(binaries)
            for name, binary in binaries[turn:] + binaries[:turn]:
                seen[name].append(measure(binary, url, generator))
    print("| gateway | us a command |\n|---|---|")
    for name, all_us in seen.items():
        print(f"| {name} | {statistics.median(all_us):.2f} ({min(all_us):.2f} to {max(all_us):.2f}) |")


main()
