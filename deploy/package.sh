#!/usr/bin/env bash
# What is given to others, in target/packages: a wheel, a Debian package and an archive, all with the same binary, which needs
# nothing but glibc; and their checksums. `make dist` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
machine=$(uname -m)
out=$PWD/target/packages
if commit=$(git -c log.showSignature=false log -1 --abbrev=9 --format='%h %cs' 2> /dev/null); then
    [ -z "$(git status --porcelain)" ] || commit="$commit, changed"
    export UNSLOW_COMMIT="$commit"
fi
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
rm -rf "$out"
mkdir -p "$out"

# maturin builds, checks that no symbol is newer than the glibc that the wheel's name promises, and lists what is inside (SBOM).
tools=$PWD/target/packages-tools
if [ ! -x "$tools/bin/maturin" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet 'maturin>=1.8,<2'
fi
(cd deploy/python && "$tools/bin/maturin" build --quiet --out "$out" --target-dir "$PWD/../../target")
wheel=$(ls "$out"/unslow-*.whl)
python3 -m zipfile -e "$wheel" "$stage/wheel"
binary=$stage/unslow
install -m 0755 "$stage/wheel/unslow-$version.data/scripts/unslow" "$binary"
strip "$binary"

# What belongs to a binary that is installed.
tree() { # PREFIX
    install -D -m 0755 "$binary" "$1/bin/unslow"
    "$binary" completions --man "$1/share/man/man1" --quiet
    gzip -9n "$1"/share/man/man1/*.1
    local scripts=$1/share
    mkdir -p "$scripts/bash-completion/completions" "$scripts/zsh/vendor-completions" "$scripts/fish/vendor_completions.d"
    "$binary" completions bash > "$scripts/bash-completion/completions/unslow"
    "$binary" completions zsh > "$scripts/zsh/vendor-completions/_unslow"
    "$binary" completions fish > "$scripts/fish/vendor_completions.d/unslow.fish"
    install -D -m 0644 -t "$1/share/doc/unslow" README.md docs/gateway.toml docs/sink.toml
    gzip -9nc CHANGELOG.md > "$1/share/doc/unslow/NEWS.gz"
    chmod 0644 "$1/share/doc/unslow/NEWS.gz"
}

# The archive: ./unslow runs as it stands, the rest is for /usr/local.
tree "$stage/unslow-$version"
install -D -m 0644 -t "$stage/unslow-$version/share/doc/unslow" LICENSE
install -D -m 0644 -t "$stage/unslow-$version/share/doc/unslow/systemd" deploy/systemd/*.service
tar -C "$stage" --owner=0 --group=0 --sort=name -czf "$out/unslow-$version-$machine-linux.tar.gz" "unslow-$version"

# The Debian package. Its services are neither enabled nor started: each needs a configuration first.
if command -v dpkg-deb > /dev/null; then
    root=$stage/deb
    tree "$root/usr"
    for unit in deploy/systemd/*.service; do
        mkdir -p "$root/lib/systemd/system"
        sed 's,/usr/local/bin/unslow,/usr/bin/unslow,' "$unit" > "$root/lib/systemd/system/$(basename "$unit")"
    done
    {
        printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
        printf 'Upstream-Name: unslow\n\nFiles: *\nCopyright: 2026 the unslow authors\nLicense: Apache-2.0\n'
        printf ' On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n'
    } > "$root/usr/share/doc/unslow/copyright"
    {
        printf 'unslow (%s) unstable; urgency=medium\n\n  * What changed is in /usr/share/doc/unslow/NEWS.gz.\n\n' "$version"
        printf ' -- %s  %s\n' "$(sed -n 's/^Maintainer: //p' deploy/debian-control)" "$(date -uR)"
    } | gzip -9n > "$root/usr/share/doc/unslow/changelog.gz"
    mkdir -p "$root/DEBIAN"
    sed "s/@VERSION@/$version/; s/@ARCHITECTURE@/$(dpkg --print-architecture)/; s/@SIZE@/$(du -sk "$root/usr" | cut -f1)/" \
        deploy/debian-control > "$root/DEBIAN/control"
    (cd "$root" && find usr lib -type f -exec md5sum {} + > DEBIAN/md5sums)
    chmod -R u=rwX,go=rX "$root"
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out" > /dev/null
fi

cd "$out"
sha256sum ./*.whl ./*.tar.gz ./*.deb > SHA256SUMS 2> /dev/null || true
ls -l | awk 'NR > 1 {printf "target/packages/%s: %.1f MB\n", $9, $5 / 1e6}'
