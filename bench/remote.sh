#!/usr/bin/env bash
# Two machines: a server with and without a stack (`unslow bypass --offload`) and busy polling, and a client elsewhere.
#
#     bench/remote.sh SERVER CLIENT ADDRESS [PROGRAM]
#
# SERVER and CLIENT are machines for ssh with key logins; ADDRESS is SERVER's own, as CLIENT reaches it; PROGRAM is a Redis or Valkey
# server there (redis-server). `unslow` must be on both (UNSLOW=path), python3 here, and root on SERVER for the interrupts of
# --busy-poll. VIA names another way to run a command on a machine: VIA="ip netns exec" takes two network namespaces of this one.
#
# What it can show: CPU of the server and of the stack for each request, throughput and latency by a network card, in rounds
# that alternate (ROUNDS=5 windows of SECONDS_EACH=5 s each). What it cannot: anything about clients of the same machine. Ports
# 7801 to 7804 of SERVER must be free. Logs and process ids are in a directory of SERVER's /tmp, which goes in the end.
set -euo pipefail
server=${1:?usage: bench/remote.sh SERVER CLIENT ADDRESS [PROGRAM]} client=${2:?CLIENT} address=${3:?ADDRESS} program=${4:-redis-server}
VIA=${VIA:-ssh} UNSLOW=${UNSLOW:-unslow} ROUNDS=${ROUNDS:-5} SECONDS_EACH=${SECONDS_EACH:-5} CONNECTIONS=${CONNECTIONS:-50}
on() { # machine, command of its shell
    if [ "$VIA" = ssh ]; then ssh "$1" "$2" < /dev/null; else $VIA "$1" sh -c "$2" < /dev/null; fi
}
bench() { on "$client" "$UNSLOW bench redis://$address:$1 --keys 10000 --yes --keep-keys $2"; } # port, flags

# Each variant has its port; a stack of its own has its own directory too, and ends by itself when its server has ended.
at=$(on "$server" "mktemp -d /tmp/unslow-remote.XXXXXX")
declare -A flags=([7802]="--busy-poll" [7803]="--offload --dir $at/7803" [7804]="--offload --busy-poll --dir $at/7804")
declare -A title=([7801]="direct" [7802]="busy polling" [7803]="stack" [7804]="stack, busy polling")
results=$(mktemp)
started=""
end() {
    rm -f "$results"
    on "$server" "for pid in \$(cat $at/*.pid 2> /dev/null); do [ \"\$(readlink /proc/\$pid/cwd)\" = $at ] && kill \$pid; done; rm -rf $at" || true
}
trap end EXIT
trap 'exit 130' INT TERM
for port in 7801 7802 7803 7804; do
    # Its directory tells it from a later process of the same number.
    run="$program --port $port --bind $address 127.0.0.1 --protected-mode no --appendonly no --save '' --dir $at"
    [ "$port" = 7801 ] || run="$UNSLOW bypass ${flags[$port]} -- $run"
    on "$server" "mkdir -p $at/$port; $run > $at/$port.log 2>&1 < /dev/null & echo \$! > $at/$port.pid"
    up=""
    for _ in $(seq 50); do
        # Its keys are written here, and not in the windows.
        if bench "$port" "--mix get=1 -n 100 > /dev/null 2>&1"; then up=1; break; fi
        sleep 0.2
    done
    if [ -n "$up" ]; then started="$started $port"; else
        echo "${title[$port]}: not measured: $(on "$server" "tail -n 1 $at/$port.log")" >&2
    fi
done

# CPU in clock ticks: of the server, and of the stack that it names.
ticks() { # port
    local pids
    pids=$(on "$server" "cat $at/$1.pid; UNSLOW_BYPASS_DIR=$at/$1 $UNSLOW bypass ls --format json" | python3 -c '
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
for round in $(seq "$ROUNDS"); do
    for port in $started; do
        before=$(ticks "$port")
        # A run that is doubted has an exit status of 1, and its report says why.
        report=$(bench "$port" "--mix get=1 --no-preload --connections $CONNECTIONS --seconds $SECONDS_EACH --format json" || true)
        after=$(ticks "$port")
        printf '%s\t%s\t%s\t%s\n' "$port" "$before" "$after" "$(printf '%s' "$report" | tr -d '\n')" >> "$results"
        echo "round $round, ${title[$port]}" >&2
    done
done
echo "# Two machines, with and without a stack"
echo
echo "\`bench/remote.sh\`, $ROUNDS rounds of ${SECONDS_EACH} s, $CONNECTIONS connections, GET; medians. CPU in us a request."
echo
echo "| | requests/s | p50 us | p99 us | server CPU | stack CPU | doubted |"
echo "|---|---|---|---|---|---|---|"
HZ=$hz python3 - "$results" <<'PYTHON'
import json, os, statistics, sys
titles = {"7801": "direct", "7802": "busy polling", "7803": "stack", "7804": "stack, busy polling"}
rows = {}
for line in open(sys.argv[1]):
    port, before, after, report = line.rstrip("\n").split("\t")
    run = json.loads(report)["runs"][0]
    before, after = ([float(n) for n in text.split()] for text in (before, after))
    each = [(b - a) / float(os.environ["HZ"]) * 1e6 / max(run["answered"], 1) for a, b in zip(before, after)]
    latency = run["latency"]
    row = (run["throughput_per_s"], latency["us_p50"], latency["us_p99"], each[0], each[1] if len(each) > 1 else None)
    rows.setdefault(port, []).append((row, bool(run.get("doubts"))))
for port, runs in sorted(rows.items()):
    def median(at):
        known = [row[at] for row, _ in runs if row[at] is not None]
        return statistics.median(known) if known else None
    rate, p50, p99, server, stack = (median(at) for at in range(5))
    doubted = sum(doubt for _, doubt in runs)
    told = "-" if stack is None else f"{stack:.2f}"
    print(f"| {titles[port]} | {rate:,.0f} | {p50:,.0f} | {p99:,.0f} | {server:.2f} | {told} | {doubted} of {len(runs)} |")
PYTHON
