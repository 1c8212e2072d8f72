#!/usr/bin/env bash
# What the gateway and the watcher cost at rest, as nodes, ranges of slots and clients grow. Written to
# bench/runs/DATE-HOST/growth.md.
#
# What it can show: whether anything grows faster than what it is for. What it cannot: real servers at a thousand nodes, whose
# bus alone has a million connections: stand-ins answer what is asked about them (bench/growth/cluster.py) and hold no keys.
# Takes about six minutes; on a machine at rest. UNSLOW is another binary to measure.
set -euo pipefail
cd "$(dirname "$0")/.."
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
if [ -z "${UNSLOW:-}" ]; then
    cargo build --release --package unslow --bins
    UNSLOW="$PWD/target/release/unslow"
fi
{
    echo "# At rest, as deployments grow"
    echo
    echo "\`bench/growth.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F), $("$UNSLOW" --version). A gateway with one thread and a" \
        "watcher, nobody asking: shares of a core over 20 s after 15 s to settle (a tick is 0.05 %), resident MB, and seconds from the" \
        "gateway's start to its first answer."
    echo
    echo "| masters | ranges | idle clients | first answer, s | gateway | MB | watcher | MB |"
    echo "|---|---|---|---|---|---|---|---|"
    while read -r masters ranges clients; do
        python3 bench/growth/idle.py "$UNSLOW" "$masters" "$ranges" "$clients"
    done << 'ROWS'
6 6 1
6 16384 1
60 60 1
60 16384 1
250 250 1
1000 1000 1
1000 16384 1
6 6 1000
6 6 10000
ROWS
} | tee "$out/growth.md"
