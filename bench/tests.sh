#!/usr/bin/env bash
# Does the suite hold on a busy machine? `make test`, NOISY times (5) with a noisy neighbour beside it and QUIET times (2) alone. Writes
# bench/runs/DATE-HOST/tests-runs.md: the closing lines, what was tried again, failures included.
#
# What it can show: failures that come with the neighbour, on this machine. What it cannot: those of one run in a hundred. The
# neighbour is $NOISE, a program that makes noise until it is ended; without it, a busy loop on each processor in bursts of one to
# eight seconds, and 64 MB written and synced every second. About an hour and a half on two cores.
set -uo pipefail
cd "$(dirname "$0")/.."
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
logs=$(mktemp -d)
neighbour=""
quiet() { # the neighbour is a session of its own, so that nothing of it is left
    test -n "$neighbour" || return 0
    kill -- "-$neighbour"
    neighbour=""
}
trap 'quiet; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM HUP

cat > "$logs/noise.sh" << 'END'
for _ in $(seq "$(nproc)"); do
    while true; do timeout "$((RANDOM % 8 + 1))" sh -c 'while :; do :; done'; sleep "0.$((RANDOM % 9 + 1))"; done &
done
while true; do dd if=/dev/zero of="${0%/*}/block" bs=1M count=64 conv=fsync status=none; sleep 1; done
END

run() { # kind, number
    local log="$logs/$1-$2" begun=$SECONDS status=0
    make test > "$log" 2>&1 || status=$?
    printf '| %s %s | %s | %s | %s | %s |\n' "$1" "$2" "$(test "$status" = 0 && echo passed || echo failed)" "$((SECONDS - begun))" \
        "$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log")" "$(grep -c '^     busy:' "$log")"
    { echo; echo "### $1 $2"; echo; echo '```'; sed -n '/^failed:/,/^[0-9]* passed/p;/^noted:/,/^[0-9]* passed/p' "$log" | awk '!seen[$0]++' | cut -c1-400
        test "$status" = 0 || grep -q '^failed:' "$log" || tail -n 20 "$log" | cut -c1-400 # it failed outside the runner
        echo '```'; } >> "$logs/details"
}

exec > >(tee "$out/tests-runs.md")
echo "# \`make test\`, again and again"
echo
echo "\`bench/tests.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). Beside the noisy runs: $(basename "${NOISE:-its own}")."
echo
echo "| run | outcome | seconds | \`cargo xtask test\` | tried again |"
echo "|---|---|---|---|---|"
for number in $(seq "${NOISY:-5}"); do
    setsid bash "${NOISE:-$logs/noise.sh}" > /dev/null 2>&1 &
    neighbour=$!
    run noisy "$number"
    quiet
done
for number in $(seq "${QUIET:-2}"); do run quiet "$number"; done
cat "$logs/details"
