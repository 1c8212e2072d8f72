#!/usr/bin/env bash
# The extension of Lettuce: how soon a client knows of slots that move and masters that are replaced, what topology costs the
# servers, whether commands take longer; plain Lettuce beside it in the same run. Written to bench/runs/DATE-HOST/lettuce-PART.md.
#
# What it can show: times on loopback, CPU of servers under thousands of clients. What it cannot: thousands of processes; the clients of
# one table share a JVM and two processors. Takes about an hour. PARTS: moves failovers cpu latency.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
cargo build --release --package unslow
classes=fix/lettuce/core/target
(cd fix/lettuce && mvn -q -B -pl core test-compile dependency:build-classpath -Dmdep.outputFile="$PWD/core/target/classpath")
measure() { java -Xmx10g -Dserver="$server" -Dunslow.binary="$PWD/target/release/unslow" -Dorg.slf4j.simpleLogger.defaultLogLevel=error \
    -cp "$classes/classes:$classes/test-classes:$(cat $classes/classpath)" io.github.unslow.lettuce.Measure "$@"; }
moves=${MOVES:-40} failovers=${FAILOVERS:-10} seconds=${SECONDS_EACH:-60} windows=${WINDOWS:-10}
ulimit -n 100000 2> /dev/null || ulimit -n "$(ulimit -Hn)"
most=$(($(ulimit -n) / 8)) # a client here has up to seven connections
clients=${CLIENTS:-$((most < 4000 ? most : 4000))}
table() { printf '\n%s\n\n' "$1"; printf '|%s\n' "$2" "${2//[!|]/-}" | sed 's/--*/---/g'; }
for part in ${PARTS:-moves failovers cpu latency}; do
    {
        echo "# Lettuce: $part"
        echo
        echo "\`PARTS=$part bench/lettuce.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). Three masters, a replica each, on loopback; node timeout 2 s."
        for server in ${SERVERS:-valkey-9.1 redis-7.0}; do
            echo
            echo "## $server"
            case $part in
            moves)
                for pause in 6000 1000; do
                    table "A slot moves (SETSLOT) $moves times for each client in its turn, each $pause ms after the client knew of the one before; it writes a key of the slot every millisecond, the others are idle. Known after (three moves before are not counted: a JVM loads its classes):" " client | median | 99th | longest | not in 7 s |"
                    measure moves "$moves" $pause
                done
                ;;
            failovers)
                for fault in kill hang; do
                    table "A master ($fault) $failovers times, each client writing every millisecond; known after the promotion:" " client | median | 99th | longest | not in 12 s |"
                    measure failovers $fault "$failovers"
                done
                ;;
            cpu)
                table "CPU of all six servers under $clients clients in one JVM, each with one connection that does nothing ($seconds s each):" " clients | CPU | commands a second | connections a second | sent |"
                measure cpu "$clients" "$seconds"
                ;;
            latency)
                table "GET, one thread, medians of $windows windows of 20,000 side by side:" " client | p50 | p99 |"
                measure latency "$windows"
                ;;
            *)
                echo "no part $part; there are moves, failovers, cpu, latency" >&2
                exit 2
                ;;
            esac
        done
    } | tee "$out/lettuce-$part.md"
done
