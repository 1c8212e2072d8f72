# What people and CI both run. Everything is installed by these targets themselves; caches stay inside the clone.
export UNSLOW_CACHE ?= $(CURDIR)/.cache
CHROMIUM := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

.PHONY: demo test test-long check build lint loom bench dist dist-check fuzz bpf tools compilers

compilers: ## what the build needs beside Rust: librdkafka is C and C++, and wants OpenSSL
	@missing=""; \
	for tool in make:make gcc:gcc g++:g++ pkg-config:pkg-config; do command -v $${tool%%:*} > /dev/null || missing="$$missing $${tool##*:}"; done; \
	pkg-config --exists openssl 2> /dev/null || missing="$$missing libssl-dev"; \
	if test -n "$$missing"; then echo "installing$$missing"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $$missing; fi

demo: compilers ## the tour, on an embedded six-node cluster; without Kafka and eBPF, which it does not need
	cargo build --release --package unslow --no-default-features
	./target/release/unslow demo $(DEMO)

check: build lint ## formatting, lints, tidy: no servers needed

build: compilers ## everything, formatted
	cargo fmt --all --check
	cargo fmt --manifest-path fix/bypass/preload/Cargo.toml --check
	cargo build --release --workspace --all-targets # all at once: one package alone has other features, and is compiled again

lint: ## after a build
	cargo clippy --release --manifest-path fix/bypass/preload/Cargo.toml --target-dir target/preload -- -D warnings
	./target/release/xtask lint # Clippy has compiled the tests: .cargo/compile
	./target/release/xtask tidy
	@if command -v cargo-deny > /dev/null; then cargo deny --offline check bans licenses sources; else echo "cargo deny: not installed, skipped (cargo install cargo-deny)"; fi

tools: ## what the tests need beside Rust: Chromium for the page, tmux for the screen, openssl for certificates, jq for the recipes, util-linux for the lab of an ordinary user, Go, Node and Maven for the clients that go through the gateway, memcached, nginx and iproute2 for the bypass, nutcracker for a bench that asks nothing
	@missing=""; \
	for tool in openssl:openssl jq:jq tmux:tmux setpriv:util-linux ip:iproute2 memcached:memcached nginx:nginx-light nutcracker:nutcracker java:default-jre-headless go:golang-go node:nodejs npm:npm mvn:maven; do command -v $${tool%%:*} > /dev/null || missing="$$missing $${tool##*:}"; done; \
	test -n "$(CHROMIUM)" || missing="$$missing chromium"; \
	if test -n "$$missing"; then echo "installing$$missing"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $$missing; fi

# Not optimized: they take four seconds instead of half a second, and build in half the time.
loom: ## the rings and the wake-up rule, in every order of loads and stores
	RUSTFLAGS="--cfg loom" cargo test --package unslow-bypass --test loom --target-dir target/loom

# Side by side is what waits for the network or compiles on one processor, beside what does not. The tests wait for the engines
# themselves, once they need them.
test: compilers ## everything CI runs; tests.toml says what runs beside what
	@$(MAKE) --no-print-directory tools & tools=$$!; failed=0; \
	trap 'wait $$tools; exit 130' INT TERM; \
	$(MAKE) --no-print-directory build || failed=1; \
	wait $$tools || { echo "make tools failed, see above" >&2; exit 1; }; \
	exit $$failed
	@./target/release/unslow engine install kafka-4.1 & kafka=$$!; ./target/release/unslow engine install & engines=$$!; failed=0; \
	trap 'kill $$kafka $$engines; exit 130' INT TERM; \
	if $(MAKE) --no-print-directory lint && $(MAKE) --no-print-directory loom && cargo test --release --doc --package unslow-resp; then \
		./target/release/xtask test || failed=1; \
	else \
		failed=1; kill $$kafka $$engines 2> /dev/null; \
	fi; \
	wait $$kafka || failed=1; \
	wait $$engines || failed=1; \
	exit $$failed

test-long: tools compilers ## what is long by nature: soaks, thousands of connections, every fault on every engine; before a release
	cargo build --release --workspace --all-targets
	./target/release/unslow engine install
	./target/release/unslow engine install kafka-4.1
	./bench/test-long.sh

FUZZ_S ?= 120
fuzz: compilers ## every parser of foreign bytes under libFuzzer, FUZZ_S seconds each; stable Rust will do
	command -v cargo-fuzz > /dev/null || cargo install --locked cargo-fuzz
	cd fuzz && for target in $$(RUSTC_BOOTSTRAP=1 cargo fuzz list); do \
		RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer address $$target -- -max_total_time=$(FUZZ_S) -rss_limit_mb=4096 -print_final_stats=1 || exit 1; done

, := ,
# Equal functions are kept once; rust-lld, which does that, links on x86_64 only.
FOLDED := $(if $(filter x86_64,$(shell uname -m)),-C link-arg=-Wl$(,)--icf=all)

dist: compilers ## what is given to others, in target/packages: a wheel, a Debian package, an archive, their checksums
	@command -v perl > /dev/null || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends perl; } # OpenSSL's build
	@python3 -c 'import ensurepip' 2> /dev/null || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends python3-venv; }
	RUSTFLAGS="$(FOLDED)" ./deploy/package.sh

dist-check: ## tries what `make dist` made: the wheel in an empty venv, the archive, and as root the package, installed and purged
	./deploy/check.sh

bpf: ## fix/bypass/src/sockmap.bpf.o from its C source, compared with the committed one; after a change to that source
	@missing=""; \
	for tool in clang:clang llvm-strip:llvm; do command -v $${tool%%:*} > /dev/null || missing="$$missing $${tool##*:}"; done; \
	test -e /usr/include/bpf/bpf_helpers.h || missing="$$missing libbpf-dev"; \
	if test -n "$$missing"; then echo "installing$$missing"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $$missing; fi
	./fix/bypass/sockmap.sh

bench: tools compilers ## measures the tables in bench/runs again
	cargo build --release --package unslow
	./bench/doctor.sh
	./bench/lab.sh
	./bench/bench.sh
	./bench/gateway.sh
	./bench/sink.sh
	./bench/bypass.sh
	./bench/offload.sh
	./bench/drills.sh
	./bench/lettuce.sh
