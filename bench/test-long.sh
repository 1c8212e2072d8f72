#!/usr/bin/env bash
# What `make test` leaves out because it is long by nature: soaks, thousands of connections, every fault and every healthy
# deployment on each engine, and the held bench (cli/tests/odd.rs). Its closing lines go to bench/runs/DATE-HOST/test-long.md,
# failures included; the tables of the held bench to odd.md and those of the random commands to differential.md beside it.
#
# Usage: bench/test-long.sh [PART...], each of them added to the files of the day; without one, all in this order:
#   fuzz     the fuzz targets compile
#   long     the tests of `cargo xtask test --long`, on Valkey 9.1 (its faults are in `make test`)
#   ENGINE   redis-8.10 redis-7.0 redis-6.2 redis-5.0: every fault, every ill and every healthy deployment on it
#
# What it can show: that the promises hold for longer and on every engine, on this machine. About two and a half hours on two cores.
set -uo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
engines="redis-8.10 redis-7.0 redis-6.2 redis-5.0"
[ $# -gt 0 ] || set -- fuzz long $engines
for part in "$@"; do
    case " fuzz long $engines " in
        *" $part "*) ;;
        *) echo "test-long.sh: no part is called \"$part\"; the parts are: fuzz long $engines" >&2; exit 2 ;;
    esac
done
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
mkdir -p "$out"
export UNSLOW_TABLE_ODD="$PWD/$out/odd.md" UNSLOW_TABLE_REMEDIES="$PWD/$out/odd.md"
export UNSLOW_DIFFERENTIAL_RESULT="$PWD/$out/differential.md" # several tests add to it
[ -e "$out/odd.md" ] || {
    echo "# The held bench"
    echo
    echo "Faults and odd but healthy deployments, none of which is the lab's, and what the doctor said of each (cli/tests/odd.rs)."
    echo "\`make test-long\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). The window was 3 s."
    echo
    echo "What the table of remedies can show: how near the price that a finding names comes to what its remedy gives back, by the server's"
    echo "CPU clock or by a bystander's mean wait, three seconds before and after. Neighbours on the machine add to both."
} > "$out/odd.md"
[ -e "$out/test-long.md" ] || {
    echo "# The long tests"
    echo
    echo "\`bench/test-long.sh\` (\`make test-long\` runs all of its parts), $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F)."
} > "$out/test-long.md"

run() { # PART
    case "$1" in
        # Nothing else compiles them, and `make fuzz` runs them for minutes each.
        fuzz) cargo check --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz && echo "they compile" ;;
        long) ./target/release/xtask test --long ;;
        *)
            local status=0
            UNSLOW_ENGINE=$1 ./target/release/xtask test injected || status=1
            UNSLOW_ENGINE=$1 ./target/release/xtask test --long odd::ill odd::healthy || status=1
            return $status
            ;;
    esac
}

failed=0
for part in "$@"; do
    begun=$(date +%s)
    {
        printf '\n## %s, at %s\n\n```\n' "$part" "$(git rev-parse --short HEAD)"
        run "$part"
        status=$?
        printf '```\n\n%s, %s s\n' "$([ $status -eq 0 ] && echo passed || echo failed)" "$(($(date +%s) - begun))"
        exit $status
    } 2>&1 | sed -u "s|$PWD/||g" | tee -a "$out/test-long.md" || failed=1
done
exit $failed
