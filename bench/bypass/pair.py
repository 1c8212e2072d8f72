"""What a GET over shared memory costs with one unslow and with another, in interleaved rounds; prints a table.

pair.py SERVER NAME=UNSLOW NAME=UNSLOW...   (rounds: ROUNDS, seconds a window: WINDOW)

CPU in us a request, server and client together, each with its own binary on both sides. The order changes every round.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from process import cpu_ns

PORT = 17779
ROUNDS, SECONDS = int(os.environ.get("ROUNDS", "7")), float(os.environ.get("WINDOW", "2"))
DEPTHS = {1: 50, 16: 50}


def run(unslow, server):
    """us of CPU a request, by depth."""
    with tempfile.TemporaryDirectory() as directory:
        command = [unslow, "bypass", "--", server, "--port", str(PORT), "--save", "", "--dir", directory]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            base = [unslow, "bench", "--yes", "--keep-keys", "--format", "json", "-q", "--mix", "get=1", "--keys", "1000", "--value-size", "64"]
            for _ in range(100):
                time.sleep(0.1)
                filled = subprocess.run(base + [f"127.0.0.1:{PORT}", "--requests", "1", "--preload"], capture_output=True)
                if filled.returncode == 0:
                    break
            found = {}
            for depth, connections in DEPTHS.items():
                more = [f"shm:{PORT}", "--pipeline", str(depth), "--connections", str(connections)]
                more += ["--seconds", str(SECONDS), "--no-preload"]
                before = cpu_ns(process.pid)
                timed = subprocess.run(["/usr/bin/env", "time", "-f", "%U %S", *base, *more], capture_output=True, text=True)
                spent = cpu_ns(process.pid) - before
                report = json.loads(timed.stdout)["runs"][0]
                assert not report["errors"], report["errors"]
                client = sum(float(part) for part in timed.stderr.split()[-2:]) * 1e9
                found[depth] = (spent + client) / report["requests"] / 1e3
            return found
        finally:
            process.terminate()
            process.wait()


def main():
    server, *named = sys.argv[1:]
    binaries = [name.split("=", 1) for name in named]
    figures = {name: {depth: [] for depth in DEPTHS} for name, _ in binaries}
    for number in range(ROUNDS):
        for name, unslow in binaries if number % 2 == 0 else reversed(binaries):
            for depth, us in run(unslow, server).items():
                figures[name][depth].append(us)
    print("| pipelined | " + " | ".join(name for name, _ in binaries) + " |")
    print("|---" * (len(binaries) + 1) + "|")
    for depth in DEPTHS:
        cells = []
        for name, _ in binaries:
            all = sorted(figures[name][depth])
            cells.append(f"{statistics.median(all):.3f} ({all[0]:.3f} to {all[-1]:.3f})")
        print(f"| {depth} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
