#!/usr/bin/env bash
# Tries what `make dist` made, as a person would who has nothing of the sources: the wheel in an empty venv, the archive, and, as
# root on Debian, the package: installed, used, purged. `make dist-check` calls it.
set -euo pipefail
cd "$(dirname "$0")/../target/packages"
packages=$PWD
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cd "$stage"
works() { # BINARY
    "$1" --version
    "$1" explain fork_stall > "$stage/out"
    grep -q "fork" "$stage/out"
    "$1" help docs/keys.md > "$stage/out"
    grep -q "SCAN" "$stage/out"
    if "$1" doctor -p 1 --window 500ms > "$stage/out" 2>&1; then fail "a server that is not there was found healthy"; fi
    grep -q "node_unreachable" "$stage/out"
}
fail() { echo "packages: $*" >&2; exit 1; }

(cd "$packages" && sha256sum --quiet --check SHA256SUMS)

echo "== wheel"
python3 -m venv venv
venv/bin/pip install --quiet "$packages"/unslow-*.whl
works venv/bin/unslow
UNSLOW_CACHE=$stage/cache venv/bin/unslow demo --seed 7 > "$stage/out" 2>&1 || fail "the demo failed: $(tail -5 "$stage/out")"
grep -q "and gone after the fix" "$stage/out" || fail "the demo named no fault, or did not mend it"

echo "== archive"
tar -xzf "$packages"/unslow-*-linux.tar.gz
works ./unslow-*/bin/unslow

echo "== Debian package"
if ! command -v dpkg > /dev/null || [ "$(id -u)" != 0 ]; then
    echo "needs dpkg and root: skipped"
    exit 0
fi
if command -v lintian > /dev/null; then
    lintian --fail-on error,warning "$packages"/unslow_*.deb
else
    echo "lintian: not installed, skipped"
fi
! dpkg -s unslow > /dev/null 2>&1 || fail "a package called unslow is already installed"
dpkg -i "$packages"/unslow_*.deb > /dev/null
trap 'dpkg --purge unslow > /dev/null 2>&1; rm -rf "$stage"' EXIT
works /usr/bin/unslow
for unit in record gateway sink; do
    file=/lib/systemd/system/unslow-$unit.service
    grep -q "^ExecStart=/usr/bin/unslow $unit " "$file" || fail "$file does not start /usr/bin/unslow $unit"
    # What the unit starts has to exist as it is written there.
    if command -v systemd-analyze > /dev/null; then systemd-analyze verify --man=no "$file"; fi
done
gzip -dc /usr/share/man/man1/unslow-keys.1.gz > "$stage/out"
grep -q "resume" "$stage/out"
files=$(dpkg -L unslow)
dpkg --purge unslow > /dev/null
for file in $files; do
    if [ -f "$file" ] || { [ -L "$file" ] && [ ! -d "$file" ]; }; then fail "$file is left behind"; fi
done
echo "all of it works, and the package leaves nothing behind"
