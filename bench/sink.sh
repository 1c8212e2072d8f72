#!/usr/bin/env bash
# The sink: what a message costs it and its servers, from a file and from Kafka; and the batches of incident I2 over 1 ms,
# sequential, pipelined by hand, and by the sink. Written to bench/runs/DATE-HOST/sink.md.
#
# What it can show: CPU per message, the share of the server's own limit that is used, and what a batch takes beside what its
# server needs for it. What it cannot: more processors than this machine has; the lab's wire and Kafka's Java use the same
# ones. Takes about four minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out" "$UNSLOW_CACHE"
cargo build --release --package unslow
cargo build --release --package unslow-sink --examples
unslow=./target/release/unslow
"$unslow" engine install valkey-9.1 2> /dev/null
"$unslow" engine install kafka-4.1 2> /dev/null
python="$UNSLOW_CACHE/bench-python"
test -x "$python/bin/python" || { python3 -m venv "$python" && "$python/bin/pip" install -q redis==8.0.1; }
dir=$(mktemp -d)
export UNSLOW_LABS="$dir/labs"
trap '"$unslow" lab down --all > /dev/null 2>&1 || true; rm -rf "$dir"' EXIT
python3 bench/sink/messages.py "${MESSAGES:-2000000}" 100000 > "$dir/users.ndjson"
head -n 500000 "$dir/users.ndjson" > "$dir/some.ndjson"
cat > "$dir/map.toml" <<'TOML'
[[map]]
commands = ["HSET user:{id} {fields...!id}", "EXPIRE user:{id} 129600"]
TOML

# Nanoseconds of CPU of every thread of some processes.
cpu() { for pid in "$@"; do cat /proc/"$pid"/task/*/schedstat; done | awk '{ s += $1 } END { printf "%.0f", s }'; }
servers() { "$unslow" lab ls --format json | python3 -c 'import json,sys; [print(n["address"], n["pid"], n.get("role")) for l in json.load(sys.stdin)["labs"] for n in l["servers"]]'; }

# One row: what the sink did, and what it and the servers spent. Arguments: name, server pids, then the sink's.
row() {
    local name=$1 pids=$2 before after
    shift 2
    before=$(cpu $pids)
    /usr/bin/env time -f "%U %S" -o "$dir/time" "$@" --map "$dir/map.toml" --batch-latency 0 --quiet --format json > "$dir/run.json"
    after=$(cpu $pids)
    python3 - "$name" "$dir/run.json" "$dir/time" "$((after - before))" <<'PY'
import json, sys
run = json.load(open(sys.argv[2]))
user, system = (float(x) for x in open(sys.argv[3]).read().split()[-2:])
n, ns = run["messages_done"], int(sys.argv[4])
seconds = run["seconds"]
batch_ms = ns / 1e6 / run["batches"]
print("| %s | %.0f | %.2f | %.2f | %.0f %% | %d | %d | %.1f | %.1f | %.2f |" % (
    sys.argv[1], n / seconds, (user + system) * 1e6 / n, ns / 1e3 / n, ns / 1e9 / seconds * 100,
    run["batches"], run["round_trips"], run["batch_us_p50"] / 1000, run["batch_us_p99"] / 1000, batch_ms))
PY
}
head_row() {
    echo "| what | messages/s | sink CPU us a message | servers' CPU us a message | servers busy | batches | round trips | batch p50 ms | batch p99 ms | servers' CPU ms a batch |"
    echo "|---|---|---|---|---|---|---|---|---|---|"
}

{
    echo "# The sink"
    echo
    echo "\`bench/sink.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). HSET of 6 fields and EXPIRE a message, 100,000 keys, Valkey 9.1, batches of 5,000. \"servers busy\" is the servers' CPU time over the run's: 100 % of one server is its limit."
    echo
    echo "## Loopback"
    echo
    "$unslow" lab up --name flat --flat --kind standalone --quiet > /dev/null
    read -r address pid _ < <(servers)
    head_row
    for _ in 1 2 3; do
        row "file, one master" "$pid" "$unslow" sink --from "$dir/users.ndjson" --to "redis://$address"
    done
    row "file, one master, exactly once" "$pid" "$unslow" sink --from "$dir/some.ndjson" --to "redis://$address" --exactly-once
    ./target/release/examples/broker "$dir/users.ndjson" users 4 > "$dir/broker" &
    broker=$!
    while ! grep -q ready "$dir/broker"; do sleep 0.2; done
    brokers=$(awk '{print $2}' "$dir/broker")
    for round in 1 2 3; do
        row "Kafka, 4 partitions, one master" "$pid" "$unslow" sink --from "kafka://$brokers" --topic users --group "g$round" --until-end --to "redis://$address"
    done
    kill "$broker"
    "$unslow" lab down flat > /dev/null 2>&1

    echo
    echo "## 1 ms away: the batches of incident I2"
    for kind in standalone cluster; do
        "$unslow" lab up --name far --kind "$kind" --zones 2 --rtt 1ms --quiet > /dev/null
        servers > "$dir/servers"
        address=$(head -1 "$dir/servers" | cut -d' ' -f1)
        pids=$(awk '$3 == "master" || $3 == "standalone" || $3 == null { print $2 }' "$dir/servers" | tr '\n' ' ')
        test "$kind" = cluster || pids=$(cut -d' ' -f2 "$dir/servers")
        far=("$unslow" lab exec --lab far zone-b-client-1 --)
        echo
        echo "### $kind"
        echo
        echo "| way | batch p50 ms | batch p99 ms | batches |"
        echo "|---|---|---|---|"
        hand() { "${far[@]}" "$python/bin/python" bench/sink/by_hand.py "$1" "${address%:*}" "${address##*:}" "$dir/users.ndjson" 5000 "$2" | awk -v name="$3" '{ print "| " name " | " $1 " | " $2 " | " $3 " |" }'; }
        if test "$kind" = standalone; then
            hand sequential 2 "redis-py, one call after the other"
            hand pipelined 20 "redis-py, a pipeline a batch"
        else
            hand cluster-pipelined 20 "redis-py, a cluster pipeline a batch"
        fi
        echo
        head_row
        row "sink, a batch at a time" "$pids" "${far[@]}" "$unslow" sink --from "$dir/users.ndjson" --to "redis://$address" --in-flight 1
        row "sink, a batch at a time" "$pids" "${far[@]}" "$unslow" sink --from "$dir/users.ndjson" --to "redis://$address" --in-flight 1
        row "sink, batches overlapping" "$pids" "${far[@]}" "$unslow" sink --from "$dir/users.ndjson" --to "redis://$address"
        "$unslow" lab down far > /dev/null 2>&1
    done
} > "$out/sink.md.part"
mv "$out/sink.md.part" "$out/sink.md"
cat "$out/sink.md"
