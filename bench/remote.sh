#!/usr/bin/env bash
# Two machines: a server with and without a stack (`unslow bypass --offload`) and busy polling, and a client elsewhere.
#
#     bench/remote.sh SERVER CLIENT ADDRESS [PROGRAM]
#
# SERVER and CLIENT are machines for ssh; ADDRESS is SERVER's own, as CLIENT reaches it; PROGRAM is a Redis or Valkey server there
# (redis-server). `unslow` must be on both (UNSLOW=path), with key logins and, for --busy-poll's interrupts, root on SERVER.
# VIA names another way to run a command on a machine: VIA="ip netns exec" takes two network namespaces of this one.
#
# What it can show: CPU of the server and of the stack for each request, throughput and latency by a network card, in rounds
# that alternate (ROUNDS=5 windows of SECONDS_EACH=5 s each). What it cannot: anything about clients of the same machine. Ports 7801 to
# 7804 of SERVER must be free. It writes nothing on either machine, and ends what it started, whatever happens.
set -euo pipefail
server=${1:?usage: bench/remote.sh SERVER CLIENT ADDRESS [PROGRAM]} client=${2:?CLIENT} address=${3:?ADDRESS} program=${4:-redis-server}
VIA=${VIA:-ssh} UNSLOW=${UNSLOW:-unslow} ROUNDS=${ROUNDS:-5} SECONDS_EACH=${SECONDS_EACH:-5} CONNECTIONS=${CONNECTIONS:-50}
on() { # machine, command of its shell
    if [ "$VIA" = ssh ]; then ssh "$1" "$2" < /dev/null; else $VIA "$1" sh -c "$2" < /dev/null; fi
}

# Each variant has its port; a stack of its own has its own directory too.
at=/tmp/unslow-remote
declare -A flags=([7802]="--busy-poll" [7803]="--offload --dir $at-7803" [7804]="--offload --busy-poll --dir $at-7804")
declare -A title=([7801]="direct" [7802]="busy polling" [7803]="stack" [7804]="stack, busy polling")
ports="7801 7802 7803 7804"
end() {
    for port in $ports; do
        on "$server" "test -f $at-$port.pid && kill \$(cat $at-$port.pid); rm -rf $at-$port*" || true
    done
}
trap end EXIT
trap 'exit 130' INT TERM
started=""
for port in $ports; do
    run="$program --port $port --bind $address 127.0.0.1 --protected-mode no --appendonly no --save ''"
    [ "$port" = 7801 ] || run="$UNSLOW bypass ${flags[$port]} -- $run"
    on "$server" "mkdir -p $at-$port; cd /; $run > $at-$port.log 2>&1 < /dev/null & echo \$! > $at-$port.pid"
    up=""
    for _ in $(seq 50); do
        if on "$client" "$UNSLOW bench redis://$address:$port -n 100 --yes > /dev/null 2>&1"; then up=1; break; fi
        sleep 0.2
    done
    if [ -n "$up" ]; then started="$started $port"; else
        echo "${title[$port]}: not measured: $(on "$server" "tail -n 1 $at-$port.log")" >&2
    fi
done

# CPU in clock ticks: of the server, and of the stack that it names.
ticks() { # port
    local pids
    pids=$(on "$server" "cat $at-$1.pid; UNSLOW_BYPASS_DIR=$at-$1 $UNSLOW bypass ls --format json" | python3 -c '
import json, sys
pid, listed = sys.stdin.read().split("\n", 1)
stacks = {str(s["stack_pid"]) for s in json.loads(listed)["servers"] if s.get("stack_pid")}
print(pid, *stacks)')
    for pid in $pids; do on "$server" "cat /proc/$pid/stat"; done | python3 -c '
import sys
for line in sys.stdin:
    fields = line.rsplit(")", 1)[1].split()
    print(int(fields[11]) + int(fields[12]), end=" ")'
}
hz=$(on "$server" "getconf CLK_TCK")
results=$(mktemp)
trap 'rm -f "$results"; end' EXIT
for round in $(seq "$ROUNDS"); do
    for port in $started; do
        before=$(ticks "$port")
        report=$(on "$client" "$UNSLOW bench redis://$address:$port --mix get=1 --connections $CONNECTIONS --duration ${SECONDS_EACH}s --keys 10000 --keep-keys --yes --format json")
        after=$(ticks "$port")
        printf '%s\t%s\t%s\t%s\n' "$port" "$before" "$after" "$(printf '%s' "$report" | tr -d '\n')" >> "$results"
        echo "round $round, ${title[$port]}" >&2
    done
done
echo "# Two machines, with and without a stack"
echo
echo "\`bench/remote.sh\`, $ROUNDS rounds of ${SECONDS_EACH} s, $CONNECTIONS connections, GET; medians. CPU in us a request."
echo
echo "| | requests/s | p50 us | p99 us | server CPU | stack CPU |"
echo "|---|---|---|---|---|---|"
HZ=$hz python3 - "$results" <<'PYTHON'
import json, os, statistics, sys
titles = {"7801": "direct", "7802": "busy polling", "7803": "stack", "7804": "stack, busy polling"}
rows = {}
for line in open(sys.argv[1]):
    port, before, after, report = line.rstrip("\n").split("\t")
    run = json.loads(report)["runs"][0]
    before, after = ([float(n) for n in text.split()] for text in (before, after))
    each = [(b - a) / float(os.environ["HZ"]) * 1e6 / max(run["answered"], 1) for a, b in zip(before, after)]
    latency = run["latency_us"]
    rows.setdefault(port, []).append((run["answered_per_s"], latency["p50"], latency["p99"], each[0], each[1] if len(each) > 1 else None))
for port, all_of in sorted(rows.items()):
    median = lambda at: statistics.median(row[at] for row in all_of if row[at] is not None) if any(row[at] is not None for row in all_of) else None
    rate, p50, p99, server, stack = (median(at) for at in range(5))
    print(f"| {titles[port]} | {rate:,.0f} | {p50:,.0f} | {p99:,.0f} | {server:.2f} | {'-' if stack is None else f'{stack:.2f}'} |")
PYTHON
