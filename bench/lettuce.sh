#!/usr/bin/env bash
# The extension of Lettuce: how soon a client knows of slots that move and masters that are replaced, what topology costs the
# servers, whether commands take longer; plain Lettuce beside it in the same run. Written to bench/runs/DATE-HOST/lettuce.md.
#
# What it can show: times on loopback, CPU of servers for the same number of refreshes. What it cannot: thousands of processes; the
# clients of one table share a JVM and two processors. Takes about twenty minutes. PARTS: moves failovers cpu latency.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
cargo build --release --package unslow
classes=fix/lettuce/core/target
(cd fix/lettuce && mvn -q -B -pl core test-compile dependency:build-classpath -Dmdep.outputFile="$PWD/core/target/classpath")
measure() { java -Xmx2g -Dserver="$server" -Dunslow.binary="$PWD/target/release/unslow" -Dorg.slf4j.simpleLogger.defaultLogLevel=error \
    -cp "$classes/classes:$classes/test-classes:$(cat $classes/classpath)" io.github.unslow.lettuce.Measure "$@"; }
parts=" ${PARTS:-moves failovers cpu latency} "
{
    echo "# Lettuce"
    echo
    echo "\`bench/lettuce.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). Three masters, a replica each, on loopback; node timeout 2 s; each client writes a key of the slot every millisecond."
    for server in ${SERVERS:-valkey-9.1 redis-7.0}; do
        echo
        echo "## $server"
        if [[ $parts == *" moves "* ]]; then
            printf '\nA slot moves (SETSLOT), known after (three moves before are not counted: a JVM loads its classes):\n\n| client | median | 99th | longest | not in 7 s |\n|---|---|---|---|---|\n'
            measure moves "${MOVES:-100}"
        fi
        if [[ $parts == *" failovers "* ]]; then
            for fault in kill hang; do
                printf '\nA master: %s; known after the promotion (less than 0: before it says so itself):\n\n| client | median | 99th | longest | not in 12 s |\n|---|---|---|---|---|\n' "$fault"
                measure failovers "$fault" "${FAILOVERS:-10}"
            done
        fi
        if [[ $parts == *" cpu "* ]]; then
            printf '\nCPU of all six servers, %s clients that do nothing; ten times as many refreshes as they make by default, so that they stand for ten times as many (their open connections are not more for it):\n\n| clients | CPU | commands a second | connections a second | sent |\n|---|---|---|---|---|\n' "${CLIENTS:-400}"
            measure cpu "${CLIENTS:-400}" "${SECONDS_EACH:-60}"
        fi
        if [[ $parts == *" latency "* ]]; then
            printf '\nGET, one thread, medians of %s windows of 20,000 side by side:\n\n| client | p50 | p99 |\n|---|---|---|\n' "${WINDOWS:-10}"
            measure latency "${WINDOWS:-10}"
        fi
    done
} | tee "$out/lettuce.md"
