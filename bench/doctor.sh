#!/usr/bin/env bash
# The doctor's two tables for every engine: each fault alone and what was named first; healthy deployments and what was
# named above risk. Written to bench/runs/DATE-HOST/, misses included.
#
# What they can show: that the rules tell these faults apart on these servers on this machine. What they cannot: how often
# these causes happen elsewhere, or two at once. The whole takes about 20 minutes on two cores.
set -uo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
for engine in ${ENGINES:-valkey-9.1 redis-8.10 redis-7.0 redis-6.2 redis-5.0}; do
    injected="$PWD/$out/doctor-injected-$engine.txt" healthy="$PWD/$out/doctor-healthy-$engine.txt"
    echo "$engine injected -> named first, its chain, other measured findings" > "$injected"
    echo "$engine healthy deployment -> findings above risk" > "$healthy"
    UNSLOW_ENGINE=$engine UNSLOW_TABLE=$injected UNSLOW_TABLE_HEALTHY=$healthy UNSLOW_TEST_SLOTS=1 \
        cargo xtask test injected || echo "$engine: misses, see the tables"
done
{ uname -srm; nproc; rustc --version; } > "$out/machine.txt"
cargo run --release --package unslow --example doctor_cost > "$out/doctor-cost.txt"
