#!/usr/bin/env bash
# Did the hot path become dearer? Two binaries of unslow as gateways before one server, in turn: bench/gateway-pair.sh OLD NEW.
# Prints CPU per GET of the gateway's process (all of it, from /proc/PID/task/*/schedstat), medians of ROUNDS (7) interleaved rounds.
# Each measurement starts a process of its own, since where one lies in memory makes several percent, and the old binary is
# measured twice a round: "again / before" is what two of the same differ by.
#
# What it can show: a difference larger than that. What it cannot: anything about latency, the processors are shared.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
old=${1:?the binary before} new=${2:?the binary after}
rounds=${ROUNDS:-7}
dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2> /dev/null || true; rm -rf "$dir"' EXIT
command -v redis-benchmark > /dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends redis-tools > /dev/null
server=$(find "$UNSLOW_CACHE" -name valkey-server -path '*9.1*' | head -1)
"$server" --port 7601 --save '' --daemonize no --dir "$dir" > /dev/null & pids+=($!)
answers() { # port
    for _ in $(seq 100); do redis-cli -p "$1" ping 2> /dev/null | grep -q PONG && return; sleep 0.1; done
    echo "nothing answers at 127.0.0.1:$1" >&2
    exit 1
}
answers 7601 # a gateway does not start without a server
redis-cli -p 7601 set key:000000000000 "$(printf 'x%.0s' $(seq 64))" > /dev/null
cpu() { cat /proc/"$1"/task/*/schedstat | awk '{ s += $1 } END { printf "%.0f", s }'; }
measure() { # which, depth, requests
    local binary=$old pid begun
    [ "$1" = after ] && binary=$new
    "$binary" gateway --listen 127.0.0.1:7610 --target redis://127.0.0.1:7601 --quiet > /dev/null 2>&1 & pid=$!
    pids[1]=$pid
    answers 7610
    redis-benchmark -p 7610 -t get -n "$(($3 / 20))" -c 50 -P "$2" -q > /dev/null
    begun=$(cpu "$pid")
    redis-benchmark -p 7610 -t get -n "$3" -c 50 -P "$2" -q > /dev/null
    echo "$2 $1 $(($(cpu "$pid") - begun)) $3" >> "$dir/rounds"
    kill "$pid"
    wait "$pid" 2> /dev/null || true
}
echo "| pipelined | before, us a GET | after | after / before | again / before |"
echo "|---|---|---|---|---|"
for depth in 1 16; do
    requests=$((depth == 1 ? 200000 : 2000000))
    for round in $(seq "$rounds"); do
        case $((round % 3)) in # whoever is first in a round is not always the same
            0) order="before after again" ;;
            1) order="after again before" ;;
            2) order="again before after" ;;
        esac
        for which in $order; do measure "$which" "$depth" "$requests"; done
    done
    awk -v d="$depth" '$1 == d { v[$2, ++n[$2]] = $3 / $4 / 1000 }
        function median(w,   i, j, t, c) { c = n[w]; for (i = 1; i <= c; i++) for (j = i + 1; j <= c; j++) if (v[w, j] < v[w, i]) { t = v[w, i]; v[w, i] = v[w, j]; v[w, j] = t }
            return c % 2 ? v[w, (c + 1) / 2] : (v[w, c / 2] + v[w, c / 2 + 1]) / 2 }
        END { b = median("before"); a = median("after"); g = median("again"); printf "| %d | %.3f | %.3f | %.3f | %.3f |\n", d, b, a, a / b, g / b }' "$dir/rounds"
done
