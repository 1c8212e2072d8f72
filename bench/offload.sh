#!/usr/bin/env bash
# A stack for the TCP connections of clients elsewhere: servers with and without `unslow bypass --offload`, clients in a
# network namespace behind a veth. Written to bench/runs/DATE-HOST/offload.md. Needs root and iproute2.
#
# What it can show: CPU a request, and ratios on these processors; with the server held to a fifth of a core by its cgroup
# (v1), what a server gains whose core is the limit; the stack is not held. What it cannot: a network card. Over a veth a
# sender also runs the kernel's receiving half of its peer, so some of what the server is spared is the client's; with a
# card that is the client's machine's. memcached and nginx where memcaslap and wrk are installed (libmemcached-tools, wrk).
# Takes about twelve minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out" "$UNSLOW_CACHE"
cargo build --release --package unslow
cargo build --release --package unslow-bypass --example relay_floor
unslow=$PWD/target/release/unslow
"$unslow" engine install 2> /dev/null
server() { "$unslow" engine ls --format json | python3 -c 'import json,sys; print(next(e["server"] for e in json.load(sys.stdin)["engines"] if e["name"] == sys.argv[1]))' "$1"; }
dir=$(mktemp -d)
export UNSLOW_BYPASS_DIR="$dir"
trap 'rm -rf "$dir"' EXIT
redis=$(server redis-7.0)
# Its package was unpacked, not installed: its libraries lie beside it.
libraries=$(find "$(dirname "$redis")/../.." -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
{
    echo "# Clients elsewhere, and a stack that has their connections"
    echo
    echo "\`bench/offload.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). \`unslow bench\` behind a veth, medians of ${ROUNDS:-5} pairs of windows of ${WINDOW:-2} s, interleaved; CPU in us a request, of whole processes. Over a veth the CPU of a sender includes the receiving half of its peer's kernel; the stack is never held to a share of a core."
    echo
    python3 bench/bypass/offload.py "$unslow" "$PWD/target/release/examples/relay_floor" "Redis 7.0=$redis" "Valkey 9.1=$(server valkey-9.1)"
    echo
    missing=""
    for tool in memcached nginx memcaslap wrk; do command -v "$tool" > /dev/null || missing="$missing $tool"; done
    echo "memcached by memcaslap (nine gets to a set, values of 1 kB), nginx by wrk; one thread each, windows of whole seconds."
    echo
    if test -z "$missing"; then python3 bench/bypass/programs.py "$unslow"; else echo "memcached and nginx: not measured, not installed:$missing"; fi
} | tee "$out/${NAME:-offload}.md"
