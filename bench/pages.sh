#!/usr/bin/env bash
# Makes the pictures in docs/pages again. Usage: bench/pages.sh SERVER   (a server's binary, for the load; takes two minutes)
set -eu
cd "$(dirname "$0")/.."
server=$1
unslow=$PWD/target/release/unslow
dir=$(mktemp -d)
"$server" --port 7791 --save "" --dir "$dir" > "$dir/log" 2>&1 &
pid=$!
trap 'kill $pid; rm -rf "$dir"' EXIT
for _ in $(seq 100); do grep -q "Ready to accept" "$dir/log" && break; sleep 0.1; done
mkdir "$dir/pages"
"$unslow" doctor --from explain/doctor/tests/facts/keys_command.json --html "$dir/pages/doctor.html" --fail-on never -q > /dev/null
"$unslow" bench -p 7791 --seconds 4 --mix get=0.5,set=0.5 --html "$dir/pages/bench.html" -q > /dev/null
"$unslow" drill cluster_failover --fault kill --variant "node timeout 2 s" --store "$dir" --html "$dir/pages/drill.html" -q > /dev/null
"$unslow" drill client_recovery --fault partition --client lettuce --client jedis --store "$dir" --html "$dir/pages/clients.html" -q > /dev/null
"$unslow" case syscall-bound --store "$dir" --html "$dir/pages/case.html" -q > /dev/null
cp cli/tests/page/* "$dir"
(cd "$dir" && npm install --silent --no-audit --no-fund && node shots.cjs "${CHROMIUM:-chromium}" "$OLDPWD/docs/pages" pages/*.html)
