# Everything that is done with this checkout. `make` lists the targets.

SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=

TARGET = $(or $(CARGO_TARGET_DIR),target)
# Cargo's name for this machine.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
# Where the release binaries are found, by whoever has no rustc in their PATH too.
BIN = $(abspath $(TARGET)/bin)
# Namespaces and cgroups need root.
ROOT = $(if $(filter-out 0,$(shell id -u)),sudo)
DENY = $(TARGET)/tools/bin/cargo-deny

.PHONY: help
help:
	@sed -n 's/^## /  make /p' Makefile

## build     release binaries: static, two files, nothing else needed to run them
.PHONY: build
build:
	@scripts/need build
	$(call release,bowline)

# Naming the target keeps the flags away from build scripts and macros.
define release
LIBSECCOMP_LINK_TYPE=static \
LIBSECCOMP_LIB_PATH="$$(dirname "$$(cc -print-file-name=libseccomp.a)")" \
RUSTFLAGS="$${RUSTFLAGS-} -C target-feature=+crt-static" \
cargo build --release --locked --target $(HOST) --package $(1)
@ln -sfn $(HOST)/release $(BIN)
endef

## demo      one task from description to exit report; installs what the build needs
.PHONY: demo
demo: build
	$(ROOT) scripts/demo $(BIN)

## test      all tests, on this host and then in a virtual machine; installs what they need
.PHONY: test
test: test-host test-vm

## test-host all tests on this host
.PHONY: test-host
test-host: need-test demo check-docs unit build-bench
	$(RUN_AS_ROOT) BOWLINE_BIN_DIR=$(BIN) cargo test --locked --package bowline-tests --no-fail-fast

# Cargo stays who calls it; the test binaries become root.
RUNNER = CARGO_TARGET_$(shell tr a-z- A-Z_ <<<$(HOST))_RUNNER
KEPT = BOWLINE_BIN_DIR,CI
RUN_AS_ROOT = $(if $(ROOT),$(RUNNER)="sudo --preserve-env=$(KEPT)")

## test-vm   the black-box tests in a virtual machine with cgroup v2 and systemd; VM_TESTS="exec stop": just these
.PHONY: test-vm
VM_TESTS ?= $(filter-out layers bench,$(basename $(notdir $(wildcard tests/tests/*.rs))))
test-vm: build
	@scripts/need vm
	integration/vm $(BIN) $$(cargo test --locked --package bowline-tests --no-run --message-format json \
		$(addprefix --test ,$(VM_TESTS)) 2>/dev/null | \
		sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p')

# Older and newer systems than the one that every change is tested on.
## test-bookworm, test-sid   the same on Debian's releases before and to come
.PHONY: test-bookworm test-sid
test-bookworm test-sid: test-%:
	SUITE=$* $(MAKE) test-vm

## bench     measures bowline beside crun, runc and the kernel alone: minutes; see docs/bench.md
.PHONY: bench
bench: build-bench
	@scripts/need bench
	$(ROOT) $(BIN)/bowline-bench --bin $(BIN) --json $(TARGET)/bench.json $(BENCH)

# The same, small, in a virtual machine with cgroup v2 and systemd.
.PHONY: bench-vm
bench-vm: build-bench
	@scripts/need vm
	ARGS="--small $(BENCH)" integration/vm $(BIN) $(BIN)/bowline-bench

.PHONY: build-bench
build-bench: build
	$(call release,bowline-bench)

.PHONY: need-test
need-test:
	@scripts/need test

# The commands in README.md and docs/ do what is said of them.
.PHONY: check-docs
check-docs: build
	$(ROOT) scripts/check-docs $(BIN)

.PHONY: unit
unit:
	@scripts/need build
	cargo test --locked --workspace --exclude bowline-tests

## check     formatting, lints, unit tests, layers, dependencies
.PHONY: check
check: format lint unit layers dependencies

.PHONY: format
format:
	@scripts/need check
	cargo fmt --all --check

.PHONY: lint
lint:
	@scripts/need check
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: layers
layers:
	cargo test --locked --package bowline-tests --test layers

.PHONY: dependencies
dependencies: $(DENY)
	$(DENY) --locked --log-level error check bans licenses sources

$(DENY):
	@scripts/need build
	cargo install --locked --debug --root $(TARGET)/tools cargo-deny

## install   both binaries into $(DESTDIR)$(PREFIX)/bin; without cargo, those already built
.PHONY: install
install: $(if $(shell command -v cargo),build)
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BIN)/bowline $(BIN)/bowline-shim $(DESTDIR)$(PREFIX)/bin/

## clean     removes everything that was built
.PHONY: clean
clean:
	cargo clean

# One after the other: cargo uses all processors anyway.
.NOTPARALLEL:
