#!/usr/bin/env bash
# What `make test` leaves out because it is long by nature: soaks, thousands of connections, and every fault and every healthy
# deployment on each engine. Its closing lines go to bench/runs/DATE-HOST/test-long.md, failures included.
#
# What it can show: that the promises hold for longer and on every engine, on this machine. About an hour and a half on two cores.
set -uo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
failed=0
{
    echo "# The long tests"
    echo
    echo "\`make test-long\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F)."
    echo
    echo '```'
    ./target/release/xtask test --long || failed=1
    for engine in ${ENGINES:-redis-7.0 redis-6.2 redis-5.0}; do # valkey-9.1 is in `make test`
        echo
        echo "every fault and every healthy deployment on $engine"
        UNSLOW_ENGINE=$engine ./target/release/xtask test injected || failed=1
    done
    echo '```'
    exit "$failed"
} 2>&1 | tee "$out/test-long.md"
exit "${PIPESTATUS[0]}"
