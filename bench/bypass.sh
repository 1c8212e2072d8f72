#!/usr/bin/env bash
# The bypass: a GET over loopback TCP, a unix socket and shared memory, in pairs of adjacent windows. Written to
# bench/runs/DATE-HOST/bypass.md.
#
# What it can show: ratios and CPU a request on two processors; every reply is verified. What it cannot: a network card; more
# processors (a stack process of its own needs a third). Takes about half an hour; PARTS="sockmap idle"
# and NAME=bypass-some make a part of it, in a file of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out" "$UNSLOW_CACHE"
cargo build --release --package unslow
unslow=$PWD/target/release/unslow
"$unslow" engine install 2> /dev/null
server() { "$unslow" engine ls --format json | python3 -c 'import json,sys; print(next(e["server"] for e in json.load(sys.stdin)["engines"] if e["name"] == sys.argv[1]))' "$1"; }
dir=$(mktemp -d)
export UNSLOW_BYPASS_DIR="$dir"
ulimit -n "$(ulimit -Hn)"
trap 'rm -rf "$dir"' EXIT
redis=$(server redis-7.0)
# Its package was unpacked, not installed: its libraries lie beside it.
libraries=$(find "$(dirname "$redis")/../.." -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
{
    echo "# The bypass"
    echo
    echo "\`bench/bypass.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). GET, \`unslow bench\` with every reply verified, medians of ${ROUNDS:-5} pairs of windows of ${WINDOW:-1} s; ratios are medians of the pairs'. CPU in us a request, of whole processes."
    python3 bench/bypass/table.py "$unslow" "$(dirname "$redis")/redis-benchmark" "Redis 7.0=$redis" "Valkey 9.1=$(server valkey-9.1)"
} | tee "$out/${NAME:-bypass}.md"
