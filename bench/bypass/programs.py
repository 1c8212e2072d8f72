"""memcached and nginx with and without --offload, clients in another network namespace behind a veth; prints tables. See
bench/offload.sh.

programs.py UNSLOW   (rounds: ROUNDS, seconds a window: WINDOW; needs memcached, nginx, memcaslap and wrk)

CPU in us a request, of whole programs. The kinds are measured in turns.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from process import cpu_ns
from veth import HERE, assert_lent, end_network, network, there

unslow = sys.argv[1]
ROUNDS, SECONDS = int(os.environ.get("ROUNDS", "5")), max(1, round(float(os.environ.get("WINDOW", "2"))))
NGINX = """user root;
worker_processes 2;
daemon off;
pid {dir}/pid;
error_log {dir}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on;
  keepalive_requests 1000000;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  server {{ listen {address}:{port}; root {dir}; }}
}}
"""


class Program:
    def __init__(self, port, offload, words):
        self.port = port
        words = [unslow, "bypass", "--offload", "--", *words] if offload else words
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def pids(self):
        """The process and its workers."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return [self.process.pid, *map(int, file.read().split())]

    def end(self):
        self.process.terminate()
        self.process.wait()


def memcached(port, offload):
    return Program(port, offload, ["memcached", "-u", "root", "-l", HERE, "-t", "4", "-m", "256", "-p", str(port)])


def nginx(port, offload):
    dir = tempfile.mkdtemp()
    os.chmod(dir, 0o755)
    with open(f"{dir}/nginx.conf", "w") as file:
        file.write(NGINX.format(dir=dir, address=HERE, port=port))
    for name, size in (("small", 1000), ("large", 3_000_000)):
        with open(f"{dir}/{name}", "wb") as file:
            file.write(os.urandom(size))
    program = Program(port, offload, ["nginx", "-p", dir, "-c", f"{dir}/nginx.conf"])
    ended = program.end
    program.end = lambda: (ended(), shutil.rmtree(dir, ignore_errors=True))
    return program


def slap(port):
    """Nine gets to a set, values of 1 kB, which is memcaslap's default: requests, requests/s."""
    said = subprocess.run(there("memcaslap", "-s", f"{HERE}:{port}", "-T", "1", "-c", "50", "-t", f"{SECONDS}s"), check=True, capture_output=True, text=True).stdout
    found = re.search(r"Ops: (\d+) TPS: (\d+)", said)
    return int(found[1]), int(found[2])


def wrk(path, connections):
    def run(port):
        said = subprocess.run(there("wrk", "-t", "1", "-c", str(connections), "-d", f"{SECONDS}s", f"http://{HERE}:{port}/{path}"), check=True, capture_output=True, text=True).stdout
        assert "Non-2xx" not in said and "Socket errors" not in said, said
        requests = int(re.search(r"(\d+) requests in", said)[1])
        return requests, float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])

    return run


def window(program, stack, load):
    """Requests/s, us of the program's CPU a request, and of the stack's."""
    groups = [program.pids(), [stack.pid]]
    spent = lambda: [sum(map(cpu_ns, pids)) for pids in groups]
    before = spent()
    requests, rate = load(program.port)
    return rate, *((b - a) / requests / 1e3 for a, b in zip(before, spent()))


def row(what, direct, offload, stack, load):
    kinds = {"direct": direct, "offload": offload}
    found = {kind: [] for kind in kinds}
    for turn in range(ROUNDS):
        for kind in list(kinds) if turn % 2 else list(kinds)[::-1]:
            found[kind].append(window(kinds[kind], stack, load))
    medians = {kind: [statistics.median(column) for column in zip(*rows)] for kind, rows in found.items()}
    ratios = [b[0] / a[0] for a, b in zip(found["direct"], found["offload"])]
    (rate, cpu, _), (its_rate, its_cpu, stack_cpu) = medians["direct"], medians["offload"]
    cells = [what, f"{rate:,.0f}", f"{its_rate:,.0f}", f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"]
    print("| " + " | ".join([*cells, f"{cpu:.2f}", f"{its_cpu:.2f}", f"{stack_cpu:.2f}"]) + " |", flush=True)


def main():
    stack = subprocess.Popen([unslow, "bypass", "stack"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = []
    try:
        network()
        time.sleep(1)
        for kind, port, offload in ((memcached, 17960, False), (memcached, 17961, True), (nginx, 17962, False), (nginx, 17963, True)):
            running.append(kind(port, offload))
        time.sleep(2)
        assert_lent(unslow, stack, {17961, 17963})
        print("| clients over a veth | requests/s, direct | offload | ratio (lowest to highest) | program's CPU us, direct | offload | stack's CPU us |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for load, ports in ((slap, (17960, 17961)), (wrk("small", 1), (17962, 17963))):
            for port in ports:
                load(port)  # once, so that every worker has begun
        row("memcached, 4 threads, 50 connections", *running[:2], stack, slap)
        row("nginx, 2 workers, 1 kB, 50 connections", *running[2:], stack, wrk("small", 50))
        row("nginx, 2 workers, 3 MB, 10 connections", *running[2:], stack, wrk("large", 10))
    finally:
        for program in running[::-1]:
            program.end()
        stack.terminate()
        stack.wait()
        end_network()


main()
