#!/usr/bin/env bash
# Other projects' test suites, run against a server directly, through `unslow gateway`, and with server and clients under
# `unslow bypass`: Redis' own TCL suite (standalone and cluster), redis-py's and go-redis'. Written to bench/runs/DATE-HOST/suites.md:
# the counts of each way, and the failures that bench/suites/expected.txt does not list.
#
# What it can show: commands whose replies differ from a server's, in the words of tests that were not written for us. What it
# cannot: anything these suites do not test; the tests that start servers of their own, replicate or use DEBUG are left out. Go
# programs do not use the C library's sockets, so under the bypass only their server is preloaded.
# Takes about an hour on two cores. PARTS="tcl redis-py go-redis", WAYS="direct gateway bypass", MODES="standalone cluster" and
# UNITS="unit/multi unit/pubsub" (of the TCL suite) make a part of it; UNSLOW is a binary to use instead of
# building one. Ends with status 1 if a failure is not expected.
set -euo pipefail
cd "$(dirname "$0")/.."
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
out="bench/runs/$(date -u +%F)-${BENCH_HOST:-$(hostname -s)}"
cache="$UNSLOW_CACHE/suites"
mkdir -p "$out" "$cache"
parts=${PARTS:-tcl redis-py go-redis} ways=${WAYS:-direct gateway bypass} modes=${MODES:-standalone cluster}
unit_s=${UNIT_S:-180} suite_s=${SUITE_S:-1200} fetch_s=${FETCH_S:-600} # seconds that a unit, a suite, a download may take
redis_py=${REDIS_PY:-8.1.0} go_redis=${GO_REDIS:-v9.23.0}
engine="redis-7.0" # of the same release as the TCL suite

missing=""
for tool in python3:python3-venv curl:ca-certificates tclsh:tcl dpkg-source:dpkg-dev; do
    command -v "${tool%%:*}" > /dev/null || missing="$missing ${tool##*:}"
done
# shellcheck disable=SC2086 # a list of packages
test -z "$missing" || DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $missing > /dev/null || true
test -n "${UNSLOW:-}" || cargo build --release --package unslow
unslow=${UNSLOW:-$PWD/target/release/unslow}
"$unslow" engine install "$engine" 2> /dev/null
redis=$("$unslow" engine ls --format json | python3 -c 'import json,sys; print(next(e["server"] for e in json.load(sys.stdin)["engines"] if e["name"] == sys.argv[1]))' "$engine")
# Its package was unpacked, not installed: its libraries are beside it.
libraries=$(find "$(dirname "$redis")/../.." -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)

dir=$(mktemp -d)
export UNSLOW_BYPASS_DIR="$dir/meet" UNSLOW_BYPASS_QUIET=1
mkdir "$dir/meet" "$dir/logs"
pids=()
# Everything started for a run ends. A server that runs a script does not obey SIGTERM.
down() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
    for pid in "${pids[@]}"; do
        for _ in $(seq 20); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
        kill -KILL "$pid" 2> /dev/null || true
        wait "$pid" 2> /dev/null || true
    done
    pids=()
}
trap 'down; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP

launch() { # name of its log, command
    local log="$dir/logs/$1"
    shift
    "$@" > "$log" 2>&1 &
    pids+=($!)
}
# A port that is free, and whose cluster bus port is.
free() {
    python3 -c '
import random, socket
while True:
    port, held = random.randrange(20000, 30000), []
    try:
        for p in (port, port + 10000):
            held.append(socket.socket())
            held[-1].bind(("127.0.0.1", p))
        print(port)
        break
    except OSError:
        pass
    finally:
        for s in held: s.close()'
}
answers() { # port
    for _ in $(seq 100); do
        (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null && return
        sleep 0.1
    done
    echo "nothing answers at port $1" >&2
    return 1
}
cli() { LD_LIBRARY_PATH="$libraries" "$(dirname "$redis")/redis-cli" -h 127.0.0.1 -p "$@"; }

under=() # what the server runs under
client=() # what the suite runs under
serve() { # port, then more settings
    local at=$1 data
    shift
    data=$(mktemp -d -p "$dir")
    launch "server-$at" env LD_LIBRARY_PATH="$libraries" "${under[@]}" "$redis" --port "$at" --bind 127.0.0.1 --dir "$data" --save "" \
        --enable-protected-configs yes --enable-debug-command yes --enable-module-command yes "$@"
    answers "$at"
}
state_ok() { # port
    for _ in $(seq 150); do
        cli "$1" cluster info 2> /dev/null | grep -q cluster_state:ok && return
        sleep 0.2
    done
    echo "no cluster at port $1" >&2
    return 1
}

# Connections to it really go over shared memory: without that the run would show nothing.
carried() {
    local probe found=""
    LD_LIBRARY_PATH="$libraries" "${client[@]}" "$(dirname "$redis")/redis-cli" -h 127.0.0.1 -p "$port" blpop nothing 5 > /dev/null 2>&1 &
    probe=$!
    for _ in $(seq 40); do
        "$unslow" bypass ls --format json | grep -q '"client_pid"' && { found=yes; break; }
        sleep 0.1
    done
    kill "$probe" 2> /dev/null || true
    wait "$probe" 2> /dev/null || true
    test -n "$found" || { echo "port $port: nothing is carried over shared memory" >&2; return 1; }
}

# Servers for one run; `port` is where its clients connect. A cluster is one node with all slots where clients reach it directly, since
# the TCL suite follows no redirect, and three masters behind the gateway.
port=""
up() { # way, mode
    local at more addresses=()
    under=() client=()
    test "$1" != bypass || { under=("$unslow" bypass --); client=("$unslow" bypass --client --); }
    at=$(free)
    case $2-$1 in
    cluster-gateway)
        serve "$at" --cluster-enabled yes
        addresses=("127.0.0.1:$at")
        for _ in 1 2; do
            more=$(free)
            serve "$more" --cluster-enabled yes
            addresses+=("127.0.0.1:$more")
        done
        cli "$at" --cluster create "${addresses[@]}" --cluster-yes > "$dir/logs/create" 2>&1
        for more in "${addresses[@]}"; do state_ok "${more##*:}"; done
        ;;
    cluster-*)
        serve "$at" --cluster-enabled yes
        cli "$at" cluster addslotsrange 0 16383 > /dev/null
        state_ok "$at"
        ;;
    *) serve "$at" ;;
    esac
    port=$at
    test "$1" != bypass || carried
    if test "$1" = gateway; then
        port=$(free)
        launch "gateway-$port" "$unslow" gateway --listen "127.0.0.1:$port" --target "redis://127.0.0.1:$at" --quiet
        answers "$port"
    fi
}

# suite, way, kind of log, log, unit, exit status, seconds
note() { printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$@" >> "$dir/ran"; }
: > "$dir/ran"
: > "$dir/left-out"

# Sources of a Debian package, by an apt with a configuration of its own: the system's may have no deb-src, and is left as it is.
tcl_suite() {
    test -x "$cache/redis-tcl/runtest" && return
    local apt="$dir/apt" list
    mkdir -p "$apt/parts" "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/source"
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        test -f "$list" || continue
        case $list in
        *.sources) sed 's/^Types:.*/Types: deb-src/' "$list" > "$apt/parts/${list##*/}" ;;
        *.list) sed -n 's/^deb /deb-src /p' "$list" > "$apt/parts/${list##*/}" ;;
        esac
    done
    local own=(-o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$apt/parts" -o "Dir::State=$apt/state" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
    # A repository without sources is no reason to stop: the next command says whether one has them.
    timeout "$fetch_s" apt-get "${own[@]}" -q update > "$dir/logs/apt" 2>&1 || true
    (cd "$apt/source" && timeout "$fetch_s" apt-get "${own[@]}" -q source redis) >> "$dir/logs/apt" 2>&1 || return
    rm -rf "$cache/redis-tcl"
    mv "$apt"/source/redis-*/ "$cache/redis-tcl"
}

# Each unit has servers of its own, so that one that hangs, or leaves a setting behind, costs no other one anything.
tcl() { # way, mode
    local way=$1 mode=$2 unit log begun status name how skip
    for unit in ${UNITS:-$(cd "$cache/redis-tcl" && ./runtest --list-tests | grep -E '^(unit|integration)/')}; do
        log="$dir/logs/tcl-$mode-$way-${unit//\//-}" begun=$SECONDS status=0 how=()
        test "$mode" = standalone || how=(--cluster-mode)
        skip=$(sed -n "s#^tcl\(-$mode\)\?/$way | $unit: \(.*\) | skip: .*#\2#p" bench/suites/expected.txt)
        while read -r name; do test -z "$name" || how+=(--skiptest "$name"); done <<< "$skip"
        up "$way" "$mode"
        (cd "$cache/redis-tcl" && TERM=dumb timeout --kill-after=10 "$unit_s" "${client[@]}" ./runtest --host 127.0.0.1 --port "$port" \
            --durable --no-latency --timeout 60 --single "$unit" "${how[@]}" \
            --tags "${TAGS:--slow -large-memory -needs:repl -needs:debug -needs:pfdebug -needs:save -needs:local-process}") > "$log" 2>&1 < /dev/null || status=$?
        down
        note "tcl-$mode" "$way" tcl "$log" "$unit" "$status" "$((SECONDS - begun))"
    done
}

python_suite() {
    python="$cache/python-$redis_py"
    test -d "$cache/redis-$redis_py/tests" -a -x "$python/bin/pytest" && return
    timeout "$fetch_s" python3 -m venv "$python" || return
    timeout "$fetch_s" "$python/bin/pip" install -q pytest pytest-asyncio pytest-timeout numpy packaging cryptography \
        redis-entraid pybreaker aiohttp xxhash opentelemetry-api opentelemetry-sdk opentelemetry-exporter-otlp-proto-http || return
    timeout "$fetch_s" "$python/bin/pip" download -q --no-deps --no-binary :all: --dest "$dir" "redis==$redis_py" || return
    tar -xzf "$dir/redis-$redis_py.tar.gz" -C "$cache"
}

redis_py() { # way
    local way=$1 begun=$SECONDS status=0 log="$dir/logs/redis-py-$1"
    local files=(tests/test_{commands,pipeline,pubsub,lock,scripting,function,monitor,encoding,multiprocessing}.py
        tests/test_asyncio/test_{commands,pipeline,pubsub,lock,scripting,monitor,encoding}.py)
    up "$way" standalone
    (cd "$cache/redis-$redis_py" && timeout --kill-after=10 "$suite_s" "${client[@]}" "$python/bin/python" -m pytest -q -p no:cacheprovider \
        --timeout 60 --junitxml "$log.xml" --redis-url "redis://127.0.0.1:$port/9" --redis-mod-url "redis://127.0.0.1:$port/9" \
        -m "not redismod and not ssl and not onlycluster and not replica and not experimental and not fixed_client and not cp_integration and not multidb_integration" \
        "${files[@]}") > "$log" 2>&1 < /dev/null || status=$?
    down
    note redis-py "$way" junit "$log.xml" redis-py "$status" "$((SECONDS - begun))"
}

# The module's own copy is read-only, and building its tests adds to go.sum.
go_suite() {
    test -x "$cache/go-redis-$go_redis.test" && return
    command -v go > /dev/null || return
    mkdir -p "$dir/go"
    (
        cd "$dir/go" || exit
        export GOFLAGS=-mod=mod GOMODCACHE="$cache/go-modules"
        go mod init suites
        source=$(timeout "$fetch_s" go mod download -json "github.com/redis/go-redis/v9@$go_redis" | python3 -c 'import json,sys; print(json.load(sys.stdin)["Dir"])') || exit
        rm -rf "$cache/go-redis-$go_redis"
        cp -r "$source" "$cache/go-redis-$go_redis"
        chmod -R u+w "$cache/go-redis-$go_redis"
        cd "$cache/go-redis-$go_redis" && timeout "$suite_s" go test -c -o "$cache/go-redis-$go_redis.test" .
    ) > "$dir/logs/go" 2>&1
}

# It knows one way to be given an address: as that of a managed server, which also leaves out what needs a dozen servers.
go_redis() { # way
    local way=$1 begun=$SECONDS status=0 log="$dir/logs/go-redis-$1"
    up "$way" standalone
    printf '{"it": {"endpoints": ["redis://127.0.0.1:%s"]}}' "$port" > "$dir/endpoints.json"
    (cd "$cache/go-redis-$go_redis" && RE_CLUSTER=true REDIS_ENDPOINTS_CONFIG_PATH="$dir/endpoints.json" REDIS_VERSION=7.0 \
        timeout --kill-after=10 "$suite_s" "${client[@]}" "$cache/go-redis-$go_redis.test" -test.run '^TestGinkgoSuite$' -ginkgo.seed=1 -ginkgo.no-color \
        -ginkgo.focus-file='(^|/)(acl_commands|bitmap_commands|command|commands|error|iterator|monitor|pipeline|pubsub|pubsub_commands|redis|script|tx)_test\.go' \
        -ginkgo.junit-report="$log.xml") > "$log" 2>&1 < /dev/null || status=$?
    down
    note go-redis "$way" junit "$log.xml" go-redis "$status" "$((SECONDS - begun))"
}

for part in $parts; do
    case $part in
    tcl)
        tcl_suite || { echo "the TCL suite: its sources could not be had ($(tail -n 1 "$dir/logs/apt"))" | tee -a "$dir/left-out" >&2; continue; }
        for mode in $modes; do
            for way in $ways; do
                test "$mode-$way" = cluster-bypass || tcl "$way" "$mode"
            done
        done
        ;;
    redis-py)
        python_suite || { echo "redis-py: its sources or pytest could not be had" | tee -a "$dir/left-out" >&2; continue; }
        for way in $ways; do redis_py "$way"; done
        ;;
    go-redis)
        go_suite || { echo "go-redis: its tests could not be built (go $(go env GOVERSION 2> /dev/null || echo "is not installed"))" | tee -a "$dir/left-out" >&2; continue; }
        for way in $ways; do go_redis "$way"; done
        ;;
    *)
        echo "no part $part; there are tcl, redis-py, go-redis" >&2
        exit 2
        ;;
    esac
done

unexpected=0
{
    echo "# Other projects' test suites"
    echo
    echo "\`bench/suites.sh\`, $(nproc) cores, kernel $(uname -r | cut -d. -f1,2), $(date -u +%F). $(cli 0 --version | sed 's/redis-cli/Redis/'), redis-py $redis_py, go-redis $go_redis."
    echo
    while read -r line; do echo "Not run: $line"; done < "$dir/left-out"
    python3 - "$dir/ran" bench/suites/expected.txt << 'PY'
import os, re, sys
import xml.etree.ElementTree as xml

def short(text):
    return " ".join(text.split())[:200].replace("|", "/")

class Result:
    def __init__(self):
        self.passed, self.failed, self.skipped, self.unfinished, self.seconds = set(), {}, 0, 0, 0

    def broken(self, unit, why):
        """The later tests of the unit did not run."""
        self.unfinished += 1
        self.failed[f"{unit}: (not finished)"] = why

def read_tcl(result, log, unit, status):
    text = open(log, errors="replace").read()
    for kind, rest in re.findall(r"^\[(ok|err|exception|skip|ignore)\]: (.*(?:\n(?!\[|\s*$).*)?)", text, re.M):
        line, _, detail = rest.partition("\n")
        if kind == "ok":
            result.passed.add(f"{unit}: " + re.sub(r" \(\d+ ms\)$", "", line))
        elif kind in ("skip", "ignore"):
            result.skipped += 1
        elif kind == "err" and (named := re.match(r"(.*) in tests/\S+\.tcl$", line)):
            result.failed[f"{unit}: {named[1]}"] = short(detail)
        else:
            result.failed[f"{unit}: (outside of a test)"] = short(line + " " + detail)
    if status == 124 or "[TIMEOUT]" in text:
        last = re.findall(r"\(IN PROGRESS\) (.*)", text)
        result.broken(unit, "it hung" + (f" in \"{short(last[-1])}\"" if last else ""))
    elif "The End" not in text:
        result.broken(unit, f"status {status}: {short(text.strip().splitlines()[-1] if text.strip() else '')}")

def read_junit(result, log, unit, status):
    if not os.path.exists(log) or not os.path.getsize(log):
        result.broken(unit, f"status {status}, no report")
        return
    for case in xml.parse(log).iter("testcase"):
        name = f"{case.get('classname')} {case.get('name')}"
        wrong = next((w for w in map(case.find, ("failure", "error")) if w is not None), None)
        if wrong is not None:
            result.failed[name] = short(wrong.get("message") or wrong.text or "")
        elif case.find("skipped") is not None or case.get("status") in ("skipped", "pending"):
            result.skipped += 1
        else:
            result.passed.add(name)

results = {}
for line in open(sys.argv[1]):
    suite, way, kind, log, unit, status, seconds = line.rstrip("\n").split("\t")
    result = results.setdefault((suite, way), Result())
    result.seconds += int(seconds)
    (read_tcl if kind == "tcl" else read_junit)(result, log, unit, int(status))

expected = []
for line in open(sys.argv[2]):
    if line.strip() and not line.startswith("#"):
        suite, *name, reason = line.rstrip("\n").split(" | ")
        expected.append((suite, " | ".join(name)))

def covers(entry, suite, way, name, why=""):
    where, listed = entry
    if where not in (suite, f"{suite}/{way}", f"{suite.partition('-')[0]}/{way}"):
        return False
    if listed.startswith("* => "):
        return listed[5:] in why
    return name.startswith(listed[:-1]) if listed.endswith("*") else name == listed

def is_expected(suite, way, name, why):
    return any(covers(entry, suite, way, name, why) for entry in expected)

def news(suite, way):
    """Failures that are neither on the list nor the suite's own against this server."""
    direct = results.get((suite, "direct"), Result()).failed if way != "direct" else results[suite, way].failed
    return {n: why for n, why in sorted(results[suite, way].failed.items()) if n not in direct and not is_expected(suite, way, n, why)}

print("| suite | way | passed | failed | of these not expected | skipped | not finished | s |\n|---|---|---|---|---|---|---|---|")
for (suite, way), r in results.items():
    fresh = "" if way == "direct" else len(news(suite, way))
    print(f"| {suite} | {way} | {len(r.passed)} | {len(r.failed)} | {fresh} | {r.skipped} | {r.unfinished} | {r.seconds} |")
print("\n\"Expected\" is what failed directly in the same run, or what [expected.txt](../../suites/expected.txt) lists with the reason. \"Skipped\" includes what needs a server of its own.")
found = False
for (suite, way), r in results.items():
    failures = news(suite, way)
    found |= bool(failures)
    if failures:
        print(f"\n## {suite}, {way}: not expected\n")
        print("\n".join(f"- {name}: {why}" for name, why in failures.items()))
direct = [f"- {suite}: {name}: {why}" for (suite, way), r in results.items() if way == "direct" for name, why in sorted(r.failed.items())]
if direct:
    print("\n## Failed directly, without anything of ours\n\n" + "\n".join(direct))
stale = [f"- {where} | {name}" for where, name in expected if any(
    name in r.passed for (suite, way), r in results.items() if way != "direct" and covers((where, name), suite, way, name))]
if stale:
    print("\n## Expected to fail, and passed: to be taken off the list\n\n" + "\n".join(stale))
sys.exit(1 if found else 0)
PY
} > "$out/suites.md.part" || unexpected=$?
mv "$out/suites.md.part" "$out/suites.md"
cat "$out/suites.md"
exit "$unexpected"
