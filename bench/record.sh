#!/usr/bin/env bash
# What `unslow record` costs an idle server and itself, in turn with no questions and with the same ones asked by a bare
# loop, which is the floor on this machine; and whether a recording survives
# recorders that are killed at random moments. Appended to bench/runs/DATE-HOST/record-cost.md.
#
# What it can show: CPU per node and second, and what is lost to kills. What it cannot: a busy server, whose own work
# varies by more than a recorder costs. Takes about 3 x ROUNDS + KILLS / 30 minutes. UNSLOW is another binary to
# measure; ROUNDS (4), KILLS (100), PORT (20001).
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
if [ -z "${UNSLOW:-}" ]; then
    cargo build --release --package unslow --bins
    UNSLOW="$PWD/target/release/unslow"
fi
"$UNSLOW" engine install valkey-9.1 --quiet
server=$(find "$UNSLOW_CACHE/engines/valkey-9.1" -name valkey-server -type f | head -1)
dir=$(mktemp -d)
port=${PORT:-20001}
"$server" --port "$port" --save "" --dir "$dir" > /dev/null 2>&1 &
server_pid=$!
trap 'kill "$server_pid" 2> /dev/null || true; rm -rf "$dir"' EXIT
until (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do sleep 0.2; done
python3 - "$UNSLOW" "$port" "$server_pid" "$dir" "${ROUNDS:-4}" "${KILLS:-100}" << 'PYTHON' | tee -a "$out/record-cost.md"
import itertools, json, os, random, signal, socket, subprocess, sys, threading, time

unslow, port, server, top, rounds, kills = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
server = int(server)
url = f"redis://127.0.0.1:{port}"


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def record(directory, *more):
    command = [unslow, "record", url, "--dir", f"{top}/{directory}", "--quiet", *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def listed(directory):
    """The end of what can be read; None before anything is there."""
    got = subprocess.run([unslow, "record", "ls", f"{top}/{directory}", "--format", "json"], capture_output=True)
    return json.loads(got.stdout)["to_ms"] if got.returncode == 0 else None


def ask(stop):
    """What a recorder asks every second, and nothing else: a PING every 100 ms and an INFO."""
    with socket.create_connection(("127.0.0.1", int(port))) as server, server.makefile("rb") as replies:
        for tick in itertools.count():
            if stop.wait(0.1):
                return
            server.sendall(b"PING\r\n" + (b"INFO everything\r\n" if tick % 10 == 0 else b""))
            replies.readline()
            if tick % 10 == 0:
                replies.read(int(replies.readline()[1:]) + 2)


def share(how):
    recorder = record("cost") if how == "recorded" else None
    stop, asks = threading.Event(), None
    if how == "asked the same by a bare loop":
        asks = threading.Thread(target=ask, args=(stop,))
        asks.start()
    time.sleep(10)  # the first questions, all of them
    begun, before, own = time.monotonic(), cpu_s(server), cpu_s(recorder.pid) if recorder else 0
    time.sleep(50)
    took = time.monotonic() - begun
    result = (cpu_s(server) - before) / took, ((cpu_s(recorder.pid) - own) / took) if recorder else 0
    stop.set()
    if asks:
        asks.join()
    if recorder:
        recorder.send_signal(signal.SIGINT)
        recorder.wait()
    return result


version = subprocess.run([unslow, "--version"], capture_output=True, text=True).stdout.strip()
print(f"`bench/record.sh`, {os.cpu_count()} cores, {version}, {time.strftime('%F %R', time.gmtime())} UTC:\n")
print("| an idle server, 50 s each | server, % of a core | recorder, ms of CPU per second |\n|---|---|---|", flush=True)
for _ in range(rounds):
    for how in ("asked nothing", "asked the same by a bare loop", "recorded"):
        of_server, of_recorder = share(how)
        print(f"| {how} | {100 * of_server:.3f} | {1000 * of_recorder:.2f} |", flush=True)

random.seed(1)
until, worst, back = None, 0.0, 0
for _ in range(kills):
    recorder = record("kills", "--every", "1s")
    time.sleep(random.uniform(0.05, 3.0))
    recorder.kill()
    recorder.wait()
    killed_ms, ends = time.time() * 1000, listed("kills")
    back += until is not None and (ends is None or ends < until)
    if ends is not None:
        until, worst = ends, max(worst, killed_ms - ends) if ends != until else worst
check = subprocess.run([unslow, "record", "check", f"{top}/kills"], capture_output=True, text=True)
torn = [line for line in check.stdout.splitlines() if "killed there" not in line and "all of it" not in line]
print(f"\n{kills} recorders were killed after 0.05 to 3 s, one after the other on one directory: the readable end moved")
print(f"backwards {back} times; at most {worst / 1000:.1f} s before a kill were lost; `record check` found {len(torn)} other")
print("damaged places.\n")
PYTHON
