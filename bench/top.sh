#!/usr/bin/env bash
# What `unslow top` costs with many servers, and how often its screen really changes: a master with its replicas,
# a terminal of 120 x 40 and --interval 500ms, a minute at a time, after a minute for everybody to settle.
# Appended to bench/runs/DATE-HOST/top.md.
#
# What it can show: that a live view of a large deployment is cheap and alive. What it cannot: servers on other machines.
# Takes about RUNS + 1 minutes. UNSLOW is another binary to measure; SERVERS (300), RUNS (3), PORT (20001).
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
pids=()
trap 'kill "${pids[@]}" 2> /dev/null || true; rm -rf "$dir"' EXIT
first=${PORT:-20001} servers=${SERVERS:-300}
for ((port = first; port < first + servers; port++)); do
    follows=()
    ((port == first)) || follows=(--replicaof "127.0.0.1 $first")
    "$server" --port "$port" --save "" --dir "$dir" --repl-diskless-sync-delay 0 --maxmemory 10mb "${follows[@]}" \
        > /dev/null 2>&1 &
    pids+=($!)
done
sleep 30
{
    echo "\`SERVERS=$servers bench/top.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F)," \
        "$("$UNSLOW" --version); \`--interval 500ms\`, a minute each:"
    echo
    echo "| CPU, share of a core | resident, MB | frames in 60 s |"
    echo "|---|---|---|"
    for ((run = 0; run < ${RUNS:-3}; run++)); do
        python3 - "$UNSLOW" "$first" << 'PYTHON'
import fcntl, os, pty, select, struct, sys, termios, time

unslow, port = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(unslow, [unslow, "top", f"redis://127.0.0.1:{port}", "--interval", "500ms"])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))


def cpu_s():
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watch(seconds):
    """Reads the terminal, and counts what comes a tenth of a second or more after what came before."""
    frames, last, until = 0, 0.0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            os.read(terminal, 65536)
            now = time.monotonic()
            frames += now - last > 0.1
            last = now
    return frames


watch(30)
before, begun = cpu_s(), time.monotonic()
frames = watch(60)
share = (cpu_s() - before) / (time.monotonic() - begun)
resident = next(line for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS")).split()[1]
print(f"| {share * 100:.1f} % | {int(resident) // 1024} | {frames} |", flush=True)
os.write(terminal, b"q")
try:
    watch(5)
except OSError:
    pass  # it has ended
os.kill(pid, 9)
os.waitpid(pid, 0)
PYTHON
    done
} | tee -a "$out/top.md"
