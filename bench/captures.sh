#!/usr/bin/env bash
# What each verb leaves on a terminal of 80 columns and 24 lines: the last screen, as it stands there. Needs tmux and the
# engines; takes about four minutes, as root.   bench/captures.sh > bench/runs/DATE-HOST/captures.md
set -eu
cd "$(dirname "$0")/.."
unslow=$PWD/target/release/unslow
export UNSLOW_CACHE="${UNSLOW_CACHE:-$PWD/.cache}"
dir=$(mktemp -d)
server=$UNSLOW_CACHE/engines/redis-8.10/redis-server
"$server" --port 7791 --save "" --dir "$dir" > "$dir/log" 2>&1 &
pid=$!
trap 'tmux -L captures kill-server 2> /dev/null || true; kill $pid 2> /dev/null || true; rm -rf "$dir"' EXIT
for _ in $(seq 100); do grep -q "Ready to accept" "$dir/log" && break; sleep 0.1; done
ln -s "$unslow" "$dir/unslow"
cp explain/doctor/tests/facts/keys_command.json docs/sink.toml docs/gateway.toml "$dir"
printf '[[map]]\ncommands = ["SET user:{id} {name}"]\n' > "$dir/map.toml"
printf '{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n' > "$dir/users.jsonl"
wide=0

# capture SECONDS COMMAND: runs it to its end, or for so long, and prints the screen.
capture() {
    local seconds=$1 name=$2
    tmux -L captures -f /dev/null new-session -d -x 80 -y 24 -c "$dir" \
        "PATH=$dir:$PATH UNSLOW_CACHE=$UNSLOW_CACHE sh -c '$name'; printf '[exit %s]' \$?; sleep 600"
    tmux -L captures set-option -g status off
    for _ in $(seq $((seconds * 5))); do
        tmux -L captures capture-pane -p | grep -q '\[exit [0-9]*\]' && break
        sleep 0.2
    done
    echo
    echo "## \`$name\`"
    echo
    echo '```'
    tmux -L captures capture-pane -p | sed -e 's/ *$//' -e "s#$dir#DIR#g; s#$UNSLOW_CACHE#CACHE#g" | awk 'NF { for (; blank > 0; blank--) print ""; print; next } { blank++ }'
    echo '```'
    # A line that was wrapped by the terminal is one that did not fit.
    tmux -L captures capture-pane -pJ | python3 -c 'import sys
long = [line for line in sys.stdin.read().splitlines() if len(line.rstrip()) > 80]
print("".join(f"{sys.argv[1]}: {line}\n" for line in long), end="", file=sys.stderr)
sys.exit(bool(long))' "$name" || wide=1
    tmux -L captures kill-session
}

echo "# Every verb at 80 columns and 24 lines"
echo
echo "The last screen of each, by \`bench/captures.sh\`, $(nproc) cores, $(date -u +%F). \`[exit N]\` is the exit status; without it the verb"
echo "was still running. What can be seen: what stays on a small terminal when a verb has ended."
capture 5 'unslow --help | tail -n 22'
capture 20 'unslow doctor -p 7791 --window 2s'
capture 5 'unslow doctor --from keys_command.json'
capture 5 'unslow explain keys_command | tail -n 22'
capture 5 'unslow explain | tail -n 22'
capture 30 'unslow bench -p 7791 --for 3s'
capture 30 'unslow bench -p 7791 --for 2s -q --save a.json; unslow bench -p 7791 --for 2s -q --save b.json; unslow compare a.json b.json'
capture 20 'unslow keys -p 7791 --hot --for 2s'
capture 20 'unslow record redis://127.0.0.1:7791 --dir rec --for 5s; unslow record ls rec; unslow incidents rec'
capture 4 'unslow top redis://127.0.0.1:7791'
capture 5 'unslow host | head -n 20'
capture 60 'unslow demo'
capture 60 'unslow lab up --name captures'
capture 10 'unslow lab ls'
capture 10 'unslow lab fault'
capture 60 'unslow lab down captures'
capture 5 'unslow gateway redis://127.0.0.1:7791 --listen 127.0.0.1:7792'
capture 5 'unslow sink --help | tail -n 22'
capture 5 'unslow sink --dry-run --map map.toml --from users.jsonl'
capture 5 'unslow bypass ls'
capture 3 'unslow watch redis://127.0.0.1:7791'
capture 10 'unslow drill ls'
capture 90 'unslow drill cluster_failover --fault kill --variant "node timeout 2 s"'
capture 10 'unslow case ls'
capture 10 'unslow engine ls'
capture 10 'unslow clean --dry-run'
capture 5 'unslow completions bash | head -n 5'
capture 5 'unslow help keys | tail -n 22'
exit $wide
