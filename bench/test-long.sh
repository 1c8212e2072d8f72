#!/usr/bin/env bash
# What `make test` leaves out because it is long by nature: soaks, thousands of connections, every fault and every healthy
# deployment on each engine, and the held bench (cli/tests/odd.rs). Its closing lines go to bench/runs/DATE-HOST/test-long.md,
# failures included; the tables of the held bench to odd.md and those of the random commands to differential.md beside it.
#
# What it can show: that the promises hold for longer and on every engine, on this machine. About two and a half hours on two cores.
set -uo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
export UNSLOW_TABLE_ODD="$PWD/$out/odd.md" UNSLOW_TABLE_REMEDIES="$PWD/$out/odd.md"
export UNSLOW_DIFFERENTIAL_RESULT="$PWD/$out/differential.md" # several tests add to it
rm -f "$UNSLOW_DIFFERENTIAL_RESULT"
{
    echo "# The held bench"
    echo
    echo "Faults and odd but healthy deployments, none of which is the lab's, and what the doctor said of each (cli/tests/odd.rs)."
    echo "\`make test-long\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). The window was 3 s."
    echo
    echo "What the table of remedies can show: how near the price that a finding names comes to what its remedy gives back, by the server's"
    echo "CPU clock or by a bystander's mean wait, three seconds before and after. Neighbours on the machine add to both."
} > "$out/odd.md"
failed=0
{
    echo "# The long tests"
    echo
    echo "\`make test-long\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F)."
    echo
    echo '```'
    # Nothing else compiles the fuzz targets, and `make fuzz` runs them for minutes each.
    if cargo check --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz; then echo "the fuzz targets compile"; else failed=1; fi
    ./target/release/xtask test --long || failed=1
    for engine in ${ENGINES:-redis-8.10 redis-7.0 redis-6.2 redis-5.0}; do # valkey-9.1 is in `make test`
        echo
        echo "every fault and every healthy deployment on $engine"
        UNSLOW_ENGINE=$engine ./target/release/xtask test injected || failed=1
        UNSLOW_ENGINE=$engine ./target/release/xtask test --long odd::ill odd::healthy || failed=1
    done
    echo '```'
    exit "$failed"
} 2>&1 | tee "$out/test-long.md"
exit "${PIPESTATUS[0]}"
