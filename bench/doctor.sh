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
cargo test --release --package unslow --test injected --no-run
for engine in ${ENGINES:-valkey-9.1 redis-7.0 redis-6.2 redis-5.0}; do
    UNSLOW_ENGINE=$engine UNSLOW_TABLE="$PWD/$out/doctor-injected-$engine.txt" UNSLOW_TABLE_HEALTHY="$PWD/$out/doctor-healthy-$engine.txt" \
        cargo test --release --package unslow --test injected -- --test-threads=1 || echo "$engine: misses, see the tables"
done
{ uname -srm; nproc; rustc --version; } > "$out/machine.txt"
cargo run --release --package unslow --example doctor_cost > "$out/doctor-cost.txt"
