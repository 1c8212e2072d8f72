#!/bin/sh
# Rebuilds src/sockmap.bpf.o and compares it with the committed one; `make bpf` runs this.
#
# An unchanged source has to give the committed object, byte for byte. That takes the clang that src/sockmap.sum names,
# since others choose other instructions; --replace accepts theirs. A changed source gives a new object and checksums.
set -eu
cd "$(dirname "$0")/src"
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
clang=$(clang --version | head -n 1)

# Debian keeps the headers that linux/bpf.h includes in a directory named after the architecture. -mcpu=v3 takes Linux
# 5.1, and the helpers take 5.15. No path of this machine gets into the object.
clang -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -fdebug-compilation-dir=. \
    -idirafter "/usr/include/$(uname -m)-linux-gnu" -c sockmap.bpf.c -o "$new/sockmap.bpf.o"
# aya and libbpf read in .BTF what the maps are. The other debugging sections are three quarters of the file.
llvm-strip --strip-debug --discard-all --remove-section=.BTF.ext --remove-section=.rel.BTF.ext \
    --remove-section=.llvm_addrsig "$new/sockmap.bpf.o"

recorded() { sha256sum "$1" | grep -qxsFf - sockmap.sum; }

if [ "${1:-}" != --replace ] && recorded sockmap.bpf.c; then
    if cmp -s "$new/sockmap.bpf.o" sockmap.bpf.o && recorded sockmap.bpf.o; then
        echo "sockmap.bpf.o is what $clang builds from sockmap.bpf.c"
        exit
    fi
    echo "sockmap.bpf.c is unchanged, but $clang builds another object from it than the committed one" >&2
    echo "($(sed -n "1s/# //p" sockmap.sum)). To replace it: fix/bypass/sockmap.sh --replace" >&2
    exit 1
fi
cp "$new/sockmap.bpf.o" sockmap.bpf.o
{ echo "# built by $clang"; sha256sum sockmap.bpf.c sockmap.bpf.o; } > sockmap.sum
echo "sockmap.bpf.o and sockmap.sum are new; commit them together with sockmap.bpf.c"
