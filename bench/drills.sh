#!/usr/bin/env bash
# Every drill once with all its faults and variants, repetitions of one, the clients side by side, and every case.
# Written to bench/runs/DATE-HOST/drills.md, clients.md and cases.md (the page beside it).
#
# What it can show: what a fault costs with one setting and with another, in one run on one machine. What it cannot: how long the
# same takes over real distances, or under a load that fills the servers. Takes over an hour on two cores; needs root.
# PARTS: drills repeat clients cases diagnoses. REPEAT and SEEDS: how often. STORE: a folder that keeps the evidence.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
[[ -n "${UNSLOW:-}" ]] || cargo build --release --package unslow
unslow="${UNSLOW:-$PWD/target/release/unslow}"
store="${STORE:-}"
if [[ -z $store ]]; then
    store=$(mktemp -d)
    trap 'rm -rf "$store"' EXIT
fi
head() { echo "# $1"; echo; echo "\`bench/drills.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F)."; }
# A drill that found something ends with 1: that is what it is for. 2 is unknown, and stands in its table.
run() { echo; echo '```'; echo "\$ unslow $*" | sed "s| --store [^ ]*||"; "$unslow" "$@" --quiet 2>&1 | sed "s|$store|store|g" || true; echo '```'; }
parts=" ${PARTS:-drills repeat clients cases diagnoses} "
if [[ $parts == *" drills "* ]]; then
    {
        head "Drills"
        for drill in cluster_failover sentinel_failover split_brain reshard_under_load rolling_restart zone_loss replica_reads lock_safety; do
            run drill "$drill" --store "$store"
        done
    } > "$out/drills.md"
fi
if [[ $parts == *" repeat "* ]]; then
    {
        head "The same drill again and again"
        run drill cluster_failover --fault hang --variant "node timeout 2 s" --repeat "${REPEAT:-20}" --store "$store"
    } > "$out/drills-repeated.md"
fi
if [[ $parts == *" clients "* ]]; then
    { head "Clients"; run drill client_recovery --store "$store"; } > "$out/clients.md"
fi
if [[ $parts == *" cases "* ]]; then
    { head "Cases"; run case --all --store "$store" --html "$out/cases.html"; } > "$out/cases.md"
fi
if [[ $parts == *" diagnoses "* ]]; then
    {
        head "Diagnoses of the cases, seed after seed"
        for name in fork-stall cross-zone-round-trips syscall-bound cluster-nodes-storm; do
            echo
            echo "## $name"
            echo
            "$unslow" case "$name" --diagnosis-only --repeat "${SEEDS:-10}" --seed 1 --store "$store" --quiet --format json |
                python3 -c 'import json,sys
for c in json.load(sys.stdin)["cases"]:
    d = c["diagnosis"]
    said = "right" if d["right"] else "wrong"
    print("- seed", str(c["seed"]) + ":", d["found"], "(" + said + ");", c["verdict"], *c["failed"])' || true
        done
    } > "$out/diagnoses.md"
fi
