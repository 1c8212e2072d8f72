#!/usr/bin/env bash
# The load generator beside its peers. Written to bench/runs/DATE-HOST/bench.md.
#
# What it can show: what a request costs each generator on this machine, in turn and on a processor of its own, and what each
# says of a server that stands still. What it cannot: what they say over a network. Takes about six minutes; needs two processors.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out" "$UNSLOW_CACHE"
cargo build --release --package unslow
cargo build --release --package unslow-bench --package unslow-reactor --examples
./target/release/unslow engine install > /dev/null
# resp-benchmark is a peer from PyPI; without it the table has one line less.
peer="$UNSLOW_CACHE/resp-benchmark"
test -x "$peer/bin/resp-benchmark" || { python3 -m venv "$peer" && "$peer/bin/pip" install --quiet resp-benchmark==0.2.5; } || true
{
    echo "# The generator beside its peers"
    echo
    echo "\`bench/bench.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). GET of 64 B, 50 connections, Valkey 9.1 on processor 0, the generator on processor 1."
    echo
    echo "redis-benchmark 7.0.15 times the first byte of each batch only; resp-benchmark 0.2.5; memtier_benchmark is not in Debian 12, PyPI or crates.io and was not run."
    echo
    ./target/release/examples/peers ./target/release/unslow "${ROUNDS:-5}" "$peer/bin/resp-benchmark"
    echo
    echo "The floor, bare loops that count bytes, on epoll and on io_uring (\`base/reactor/examples/floor.rs\`):"
    echo
    echo '```'
    dir=$(mktemp -d)
    lab=$dir/labs
    trap 'UNSLOW_LABS=$lab ./target/release/unslow lab down --all > /dev/null 2>&1; rm -rf "$dir"' EXIT
    UNSLOW_LABS=$lab ./target/release/unslow lab up --flat --quiet --name floor --kind standalone --zones 1 > /dev/null
    UNSLOW_LABS=$lab ./target/release/unslow lab ls --format json > "$lab.json"
    read -r address pid < <(python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); n=[n for l in d["labs"] for n in l["servers"]][0]; print(n["address"], n["pid"])' "$lab.json")
    taskset -acp 0 "$pid" > /dev/null
    for _ in 1 2 3; do
        for depth in 1 16 64; do taskset -c 1 ./target/release/examples/floor "$address" "$depth" 50 2; done
    done
    echo '```'
} > "$out/bench.md.part"
mv "$out/bench.md.part" "$out/bench.md"
cat "$out/bench.md"
