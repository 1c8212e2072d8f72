#!/usr/bin/env bash
# What a walk through a million keys costs a server: `unslow keys` beside redis-cli's --bigkeys and --memkeys, in turn.
# Usage: bench/keys.sh SERVER CLI [rounds]   (a server's binary, and redis-cli; they run on port 7799 of this machine)
set -eu
server=$1 cli=$2 rounds=${3:-3}
unslow=$(dirname "$0")/../target/release/unslow
dir=$(mktemp -d)
"$server" --port 7799 --save "" --dir "$dir" > "$dir/log" 2>&1 &
pid=$!
trap 'kill $pid; rm -rf "$dir"' EXIT
for _ in $(seq 100); do grep -q "Ready to accept" "$dir/log" && break; kill -0 $pid || { cat "$dir/log"; exit 1; }; sleep 0.1; done
grep -q "Ready to accept" "$dir/log"
"$cli" -p 7799 eval "for i=1,1000000 do redis.call('set','user:'..i..':profile',string.rep('x',i%300)) end
  for i=1,20000 do redis.call('hset','cart:'..i,'a',1,'b',2) end" 0 > "$dir/out"
spent() { awk '{print $14+$15}' "/proc/$pid/stat"; }
once() {
  local name=$1; shift
  local from before; from=$(date +%s.%N) before=$(spent)
  "$@" > "$dir/out" 2>&1
  awk -v n="$name" -v b="$before" -v a="$(spent)" -v f="$from" -v t="$(date +%s.%N)" \
    'BEGIN { printf "%-44s server CPU %5.2f s  took %5.2f s  %4.1f %% of a core\n", n, (a-b)/100, t-f, (a-b)/(t-f) }'
}
for _ in $(seq "$rounds"); do
  once "redis-cli --bigkeys" "$cli" -p 7799 --bigkeys
  once "redis-cli --memkeys" "$cli" -p 7799 --memkeys
  once "unslow keys --all --rate 1M" "$unslow" keys -p 7799 --all --rate 1M
  once "unslow keys --all --rate 1M --memory" "$unslow" keys -p 7799 --all --rate 1M --memory
  once "unslow keys --memory (10 s)" "$unslow" keys -p 7799 --memory
done
