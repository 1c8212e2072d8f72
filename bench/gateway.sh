#!/usr/bin/env bash
# The gateway beside nutcracker, predixy (where PREDIXY is the path of its binary) and the direct way. Written to
# bench/runs/DATE-HOST/gateway.md.
#
# What it can show: what a GET costs the proxy and the server, how that changes with clients and pipelining, and what latency is
# added, on one machine. What it cannot: a network, or more processors than two. Takes about ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out" "$UNSLOW_CACHE"
command -v nutcracker > /dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends nutcracker > /dev/null || true
cargo build --release --package unslow
cargo build --release --package unslow-bench --examples
./target/release/unslow engine install > /dev/null
lab=./target/release/unslow
dir=$(mktemp -d)
export UNSLOW_LABS="$dir/labs"
trap '"$lab" lab down --all > /dev/null 2>&1 || true; rm -rf "$dir"' EXIT

# The lab's wire carries the packets, on the same processors; what the server spends is its own.
cross_zone() {
    "$lab" lab up --name xz --kind standalone --zones 2 --rtt 1ms --quiet > /dev/null
    "$lab" lab ls --format json > "$dir/ls.json"
    read -r address pid < <(python3 -c 'import json,sys; n=[n for l in json.load(open(sys.argv[1]))["labs"] for n in l["servers"]][0]; print(n["address"], n["pid"])' "$dir/ls.json")
    cpu() { cat /proc/"$pid"/task/*/schedstat | awk '{ s += $1 } END { printf "%.0f", s }'; }
    bench() { "$lab" lab exec --lab xz zone-b-client-1 -- "$lab" bench "$1" --yes --keep-keys --mix get=1 --keys 10000 --connections 200 --seconds 5 --quiet --lateness-max 1s --format json --no-preload; }
    "$lab" lab exec --lab xz zone-b-client-1 -- "$lab" bench "$address" --yes --keep-keys --keys 10000 --preload --requests 1 --quiet > /dev/null
    "$lab" lab exec --lab xz zone-b-client-1 -- "$lab" gateway --listen 127.0.0.1:6400 --target "redis://$address" --quiet &
    sleep 2
    echo "| way | requests/s | p50 us | server CPU us a GET | requests per second of the server's CPU |"
    echo "|---|---|---|---|---|"
    for way in "direct $address" "gateway 127.0.0.1:6400" "direct $address" "gateway 127.0.0.1:6400"; do
        before=$(cpu)
        bench "${way#* }" > "$dir/run.json"
        after=$(cpu)
        python3 -c 'import json,sys; r=json.load(open(sys.argv[2]))["runs"][0]; us=(int(sys.argv[4])-int(sys.argv[3]))/1000/r["answered"]; print("| %s | %.0f | %.0f | %.2f | %.0f |" % (sys.argv[1], r["throughput_per_s"], r["latency"]["us_p50"], us, 1e6/us))' "${way% *}" "$dir/run.json" "$before" "$after"
    done
    "$lab" lab down xz > /dev/null
}

{
    echo "# The gateway beside nutcracker and the direct way"
    echo
    echo "\`bench/gateway.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). GET of 64 B, Valkey 9.1, one gateway thread unless it says two, nutcracker 0.5.0 with one server connection; medians of ${ROUNDS:-3} interleaved rounds; load by redis-benchmark 7.0.15 on the same two processors. predixy is in no registry: it is run where PREDIXY is its binary. redis-cluster-proxy was not run."
    echo
    ./target/release/examples/proxies ./target/release/unslow "${ROUNDS:-3}"
    echo
    echo "## topology_storm: 4,000 clients that look at the topology once in ten seconds"
    echo
    ./target/release/examples/proxies storm ./target/release/unslow
    echo
    echo "## cross_zone_round_trips: 200 clients on one host, 1 ms from the server, one command at a time"
    echo
    cross_zone
} > "$out/gateway.md.part"
mv "$out/gateway.md.part" "$out/gateway.md"
cat "$out/gateway.md"
