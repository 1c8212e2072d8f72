#!/usr/bin/env bash
# How long labs take up and down, and the wire's own table. Written to bench/runs/DATE-HOST/lab.md and wire.md.
#
# What it can show: whether a lab is at hand in seconds on this machine. What it cannot: the same on a machine that is busy
# with something else; run it on an idle one. Takes about six minutes on two cores; needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
cargo build --release --package unslow --package unslow-lab --examples --bins
unslow="$PWD/target/release/unslow"
export UNSLOW_LABS
UNSLOW_LABS=$(mktemp -d)/labs
seconds() { date +%s.%N; }
{
    echo "# Labs: up and down"
    echo
    echo "\`bench/lab.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). Seconds of the whole command, three runs each."
    echo
    echo "| lab | up | down |"
    echo "|---|---|---|"
    while read -r what options; do
        ups="" downs=""
        for _ in 1 2 3; do
            begun=$(seconds)
            # shellcheck disable=SC2086 # options are words
            "$unslow" lab up --quiet --name bench $options > /dev/null
            up=$(seconds)
            "$unslow" lab down bench > /dev/null
            down=$(seconds)
            ups+=$(printf ' %.1f' "$(echo "$up - $begun" | bc)")
            downs+=$(printf ' %.2f' "$(echo "$down - $up" | bc)")
        done
        echo "| ${what//_/ } (\`lab up $options\`) |$ups |$downs |"
    done << 'CASES'
the_default
one_server --kind standalone --zones 1
Sentinel --kind sentinel --replicas 2
Redis_7.0 --server redis-7.0
Redis_6.2 --server redis-6.2
Redis_5.0 --server redis-5.0
60_nodes --masters 30
60_nodes_of_Redis_7.0 --masters 30 --server redis-7.0
60_nodes_on_loopback --masters 30 --flat
CASES
} > "$out/lab.md"
{
    echo "# The wire: asked and seen"
    echo
    echo "\`cargo run --release --example wire\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F)."
    echo
    ./target/release/examples/wire 10000
} > "$out/wire.md"
cat "$out/lab.md"
