# Everything that is done with this checkout. `make` lists the targets.

SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=
# Where AppArmor looks for profiles, in apparmor.d.
SYSCONFDIR ?= /etc

TARGET = $(or $(CARGO_TARGET_DIR),target)
# Cargo's name for this machine.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
# Where the release binaries are found, by whoever has no rustc in their PATH too.
BIN = $(abspath $(TARGET)/bin)
# Namespaces and cgroups need root.
ROOT = $(if $(filter-out 0,$(shell id -u)),sudo)
# What is installed: each package, with its binary's name where a manager finds that by another.
PROGRAMS = bowline bowline-shim bowline-init bowline-oci bowline-containerd:containerd-shim-bowline-v1 bowline-nomad:nomad-driver-bowline
PACKAGES = $(foreach program,$(PROGRAMS),$(firstword $(subst :, ,$(program))))
BINARIES = $(foreach program,$(PROGRAMS),$(lastword $(subst :, ,$(program))))
DENY = $(TARGET)/tools/bin/cargo-deny
CARGO_FUZZ = $(TARGET)/tools/bin/cargo-fuzz
DEB = $(TARGET)/deb/bowline.deb

.PHONY: help
help:
	@sed -n 's/^## /  make /p' Makefile

## build     release binaries: static, six files, nothing else needed to run them
.PHONY: build
build:
	@scripts/need build
	$(call release,$(PACKAGES))

# The list of what has to be relocated, packed; glibc reads it since 2.36.
GLIBC = $(lastword $(shell getconf GNU_LIBC_VERSION))
PACKED = $(if $(filter 2.36,$(firstword $(sort 2.36 $(GLIBC)))),-C link-arg=-Wl$(comma)-z$(comma)pack-relative-relocs)

# Naming the target keeps the flags away from build scripts and macros. No wrapper: the profile has programs abort, and
# the wrapper's path would be in what cargo calls each crate, and so in the binaries.
define release
RUSTC_WORKSPACE_WRAPPER= \
LIBSECCOMP_LINK_TYPE=static \
LIBSECCOMP_LIB_PATH="$$(dirname "$$(cc -print-file-name=libseccomp.a)")" \
RUSTFLAGS="$${RUSTFLAGS-} -C target-feature=+crt-static $(PACKED)" \
cargo build --release --locked --target $(HOST) $(addprefix --package ,$(1))
@ln -sfn $(HOST)/release $(BIN)
endef

## arm64     the same binaries for 64-bit ARM, in target/cross/arm64/bin; installs what it takes
.PHONY: arm64
arm64:
	@scripts/need arm64
	scripts/cross arm64 build $(if $(ARM64_QUICK),$(ARM64_TESTS) --bins,--release $(addprefix --package ,$(PACKAGES)))
	@rm -rf $(ARM64)/bin && mkdir $(ARM64)/bin && cp $(addprefix \
		$(ARM64)/aarch64-unknown-linux-gnu/$(if $(ARM64_QUICK),debug,release)/,$(BINARIES)) $(ARM64)/bin/
ARM64 = $(TARGET)/cross/arm64

# A program of others, which nobody debugs. What two of them link is compiled once.
tool = CARGO_PROFILE_DEV_DEBUG=false cargo install --locked --debug --root $(TARGET)/tools --target-dir $(TARGET)/tools/build $(1)

## demo      one task from description to exit report; installs what the build needs
.PHONY: demo
demo: build
	$(ROOT) scripts/demo $(BIN)

## demo-upgrade   a web server whose shim is upgraded and killed under load
.PHONY: demo-upgrade
demo-upgrade: build
	$(ROOT) scripts/demo-upgrade $(BIN) $(or $(TIMES),20)

## test      all tests, on this host and then in a virtual machine; installs what they need
.PHONY: test
test: everything
	$(SIDE_BY_SIDE) here test-vm

# What tests run: all programs, and the system of the virtual machine.
.PHONY: everything
everything: need-test
	@scripts/need build
	@scripts/need vm
	$(SIDE_BY_SIDE) build debug vm-image

# A compiler's last step keeps one processor busy, and cases mostly wait. What a
# target says comes as one piece, when it has ended.
SIDE_BY_SIDE = +@$(MAKE) --no-print-directory --jobs --output-sync=target BESIDE=yes

# One step at a time, whoever asks.
ONE_BY_ONE = +$(MAKE) --no-print-directory BESIDE=

## test-host all tests on this host
.PHONY: test-host here
test-host: here
here:
	$(ONE_BY_ONE) test-once
	$(ONE_BY_ONE) test-fallbacks

.PHONY: test-once
test-once: need-test demo demo-upgrade check-docs unit test-deb debug
	$(CARGO_TEST) --doc
	$(RUN_AS_ROOT) $(CARGO_TEST) --no-fail-fast --test bundle --test networks
	$(call run-cases,$(BIN)) all

## test-all  as test, and whatever takes longer: see CONTRIBUTING.md
.PHONY: test-all
test-all: everything
	@scripts/need fuzz
	@scripts/need arm64
	$(SIDE_BY_SIDE) all-here all-in-vm

.PHONY: all-here all-in-vm
all-here: here
	$(ONE_BY_ONE) test-each-absent
	$(ONE_BY_ONE) test-every-call
	$(ONE_BY_ONE) test-remade
	$(ONE_BY_ONE) faults
	$(ONE_BY_ONE) soak FOR=3m
	$(ONE_BY_ONE) fuzz FOR=20
all-in-vm:
	$(ONE_BY_ONE) test-vm VM_TESTS="$(VM_CASES) $(VM_MORE)" VM_ABSENT="cgroup.kill clone_into_cgroup" \
		VM_ABSENT_TESTS="exec fallbacks stop" MINUTES=80
	$(foreach release,$(RELEASES),$(ONE_BY_ONE) test-$(release) VM_TESTS="$(RELEASE_TESTS)" VM_ABSENT= VM_DOCS=$(newline)	)
	$(ONE_BY_ONE) test-arm64 ARM64_CASES= ARM64_QUICK=yes
# Whatever starts, joins, ends or outlives something. An emulated machine takes minutes for a case of the bench or of the
# matrix of faults, which all-here has in full.
# reference::azure has systemd read its files again and again, for which such a machine is too slow beside the tests here.
VM_MORE = adoption containerd cri exec exec::security gc many nomad::recover nomad::task reference::azure sandbox \
	shim_death stop upgrade
RELEASES = bullseye bookworm sid
# What an older or a newer kernel, systemd and containerd could break, each in some cases.
RELEASE_TESTS = doctor exec fallbacks fields::effect limits mounts namespaces run seccomp stop containerd::task

# One selection and one set of features for whatever cargo builds for tests, so
# that nothing is compiled twice.
EVERYTHING = --locked --workspace --all-features
CARGO_TEST = cargo test $(EVERYTHING)
# Cases mostly wait.
export RUST_TEST_THREADS ?= $(shell expr 4 '*' $$(nproc))

# Cargo stays the caller's; the test binaries become root.
RUNNER = CARGO_TARGET_$(shell tr a-z- A-Z_ <<<$(HOST))_RUNNER
KEPT = BOWLINE_BIN_DIR,BOWLINE_ABSENT,BOWLINE_REMADE,UNDER_TEST,CI,RUST_TEST_THREADS
RUN_AS_ROOT = $(if $(ROOT),$(RUNNER)="sudo --preserve-env=$(KEPT)")

# Debug binaries, which can take what the kernel has for absent, the examples, and the
# program of the black-box tests; `target/cases` leads to it. With all tests: without them cargo gives other
# features to the libraries, and compiles each of them twice.
.PHONY: debug
debug:
	@scripts/need build
	cargo build $(EVERYTHING) --all-targets
	@cases=$$($(CARGO_TEST) --no-run --test cases --message-format json 2>/dev/null | \
		sed -n 's/.*"kind":\["test"\].*"executable":"\([^"]*\)".*/\1/p') && ln -sfn "$$cases" $(CASES)
	@mkdir -p $(ABSENT)
	@# Without what only a debugger reads: a shim that runs from memory is copied into it, 60 MB each time. Not smaller:
	@# tests know a debug binary by its size.
	@# Somebody else may be running those that are there, and unchanged, or be making them.
	@for binary in $(BINARIES); do \
		new=$(ABSENT)/$$binary.$$$$; \
		strip --strip-debug -o $$new $(TARGET)/debug/$$binary || exit; \
		cmp --silent $$new $(ABSENT)/$$binary || mv $$new $(ABSENT)/$$binary || exit; rm -f $$new; \
	done
	$(MAKE) --no-print-directory nomad-agent
	@# Where the virtual machine finds them, beside the cases.
	@mkdir -p $(EXAMPLES) && cp --update $(addprefix $(TARGET)/debug/examples/,agent embedded-agent) $(EXAMPLES)/

## test-nomad   the guide's jobs in Nomad's own agent, whose binary NOMAD_BIN names
.PHONY: test-nomad
test-nomad: need-test build
	$(ROOT) env NOMAD_BIN="$(NOMAD_BIN)" integration/nomad/real $(BIN)

# What stands in for Nomad's agent in tests: static, as the virtual machine has it too. Its modules are fetched once.
.PHONY: nomad-agent
nomad-agent:
	@scripts/need nomad
	cd integration/nomad && test -z "$$(gofmt -l *.go)" && go vet . && \
		CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o $(NOMAD_AGENT) .
NOMAD_AGENT = $(abspath $(TARGET)/debug/nomad-agent)

CASES = $(abspath $(TARGET)/cases)
ABSENT = $(abspath $(TARGET)/absent)
EXAMPLES = $(abspath $(TARGET)/examples)

## test-fallbacks   the tests that meet what a kernel may lack, as on a kernel that lacks all of it
.PHONY: test-fallbacks
test-fallbacks: need-test debug
	BOWLINE_ABSENT=$(call joined,$(FACILITIES)) $(CARGO_TEST) --lib -- recent:: memory:: inside_root:: rootfs:: accounts::
	$(call test-absent,$(call joined,$(FACILITIES)),$(sort $(foreach facility,$(FACILITIES),$(TESTS_$(facility)))))

# Then each by itself, as between two versions of the kernel.
.PHONY: test-each-absent
test-each-absent: need-test debug
	$(foreach facility,$(FACILITIES),$(call test-absent,$(facility),$(TESTS_$(facility)))$(newline))

# Where the tests deny one system call in some, here each.
.PHONY: test-every-call
test-every-call: need-test debug
	$(call run-cases,$(BIN),BOWLINE_EVERY_CALL=1) \
		seccomp::any_single_call_may_be_denied_but_those_needed_anyway \
		seccomp::so_may_any_for_an_exec

# All that a host of any cgroup version has: without cgroup.kill, which is of v2 alone.
FACILITIES = fsopen mount_setattr openat2 clone_into_cgroup close_range_cloexec
# Whatever makes, copies or changes mounts; fsopen is also how the shim's binary is sealed.
TESTS_fsopen = $(TESTS_mount_setattr) containerd::start shim_death state_disk
TESTS_mount_setattr = fallbacks bad_input::description bad_input::image containerd::mounts containerd::mounts_namespaces devices exec::security hostile::dev hostile::host_view \
	hostile::mounts hostile::null mounts namespaces output \
	run security terminal
# Whatever resolves a path of the image.
TESTS_openat2 = fallbacks bad_input::cli bad_input::image devices exec hostile::dev hostile::image_files hostile::mounts \
	mounts namespaces run security terminal
# Whatever counts the files of a process.
TESTS_close_range_cloexec = fallbacks descriptors exec::security
# Whatever starts, counts, limits or kills processes.
TESTS_clone_into_cgroup = fallbacks exec exec::security exit_report limits many run shim_cgroup shim_death stop

## test-remade   the cases of whatever waits, where every future that waits is dropped at random and made again from what the shim knows
.PHONY: test-remade
test-remade: need-test debug
	$(call run-cases,$(ABSENT),BOWLINE_REMADE=1) all $(addprefix -,$(NOT_REMADE))
# What is refused before anything waits or prints texts, and what kills or measures shims as they are: remade waits make calls.
NOT_REMADE = bad_input bench cli::flags cli::help completions cost faults fields::effect fields::refused fields::table idle_shim \
	installed_files man reference soak

joined = $(subst $(space),$(comma),$(1))
# $(1): facilities, $(2): modules.
test-absent = $(call run-cases,$(ABSENT),BOWLINE_ABSENT=$(1)) $(2)

# Black-box tests of the binaries in a folder, with variables of their own.
run-cases = $(ROOT) env CASES=$(CASES) BOWLINE_BIN_DIR=$(1) CI=$(CI) RUST_TEST_THREADS=$(RUST_TEST_THREADS) $(2) \
	integration/cases.sh

comma = ,
space = $() $()
define newline


endef

## test-vm   the tests of what differs on cgroup v2 and systemd, in a virtual machine that has both; VM_TESTS="exec stop": just these
.PHONY: test-vm
# Whatever asks about cgroups, systemd, or what only that system has: AppArmor, Docker, CRIU; of the rest, some cases that
# look at a cgroup. What an emulated machine needs longest for, and others here ask about too, is left out: see all-in-vm.
VM_CASES = apparmor bad_input::limits cgroup::commands cgroup::meddled cgroup::systemd containerd::checkpoint \
	containerd::oom containerd::options cost delegation devices docker exec::delegated \
	hostile::frozen hostile::kernel host_limits journald limits metrics::unit nomad::resources \
	oci::create oci::delete oci::exec oci::kill oci::life oci::podman oci::run oci::systemd \
	sandbox::budgets sandbox::limits sandbox::systemd service::units shim_cgroup slice stats systemd_updates units update watch \
	adoption::limits_change_and_kills_are_counted_once \
	adoption::the_installed_units_adopt_tasks_whose_shim_died \
	bundle_run::an_update_replaces_a_raw_value_of_its_bundle bundle_run::its_cgroup_may_be_a_unit \
	bundle_run::its_limits_can_be_changed_while_it_runs conformance::limits_of_the_cgroup \
	containerd::bugs::bug_10_a_kill_by_the_pods_own_limit_is_told_before_the_exit \
	containerd::control::pause_freezes_and_resume_thaws containerd::control::update_changes_limits_of_what_runs \
	containerd::control::stats_come_in_the_type_of_the_cgroup_version \
	containerd::metrics::limits_ends_and_deaths_are_told_while_the_bundle_is_there \
	containerd::metrics::what_a_pod_uses_is_told_where_systemd_makes_its_cgroup_too \
	containerd::sandbox::its_metrics_are_those_of_the_pod_s_cgroup \
	cri::containers::limits_change_while_a_container_runs cri::pods::containers_are_in_cgroups_below_that_of_their_pod \
	cri::pods::systemd_has_a_scope_per_container_in_the_slice_of_its_pod \
	containerd::mounts_namespaces::options_of_a_cgroup_mount_are_for_a_new_mount_of_v2 \
	doctor::every_controller_that_the_kernel_has_mounted_is_found doctor::tasks_can_run_on_a_host_that_runs_the_tests \
	exec::security::an_exec_with_a_deadline_is_in_the_tasks_cgroups_too \
	exec::security::its_cgroups_are_inits_seen_from_inside_and_outside \
	exec::takeover::one_that_runs_keeps_its_number_and_its_end_is_told \
	exec::takeover::leftovers_of_an_exec_ended_without_a_shim_have_no_deadline \
	exit_report::cpu_time_and_peak_memory_are_the_tasks exit_report::it_has_every_field \
	explain::a_child_that_ran_out_of_memory_and_an_init_that_lives_on \
	fields::huge_pages_are_limited_or_refused fields::on_v2_a_limit_with_swap_is_never_lost \
	fields::a_device_that_no_rule_allows_cannot_be_opened \
	fields::effect::the_cgroup_is_at_its_path fields::effect::the_weight_of_a_disk_is_set_or_refused \
	gc::a_frozen_orphan_is_ended_too gc::the_cgroup_of_a_shim_that_has_gone_is_removed \
	gc::the_processes_of_an_orphan_are_ended gc::the_units_of_an_orphan_are_stopped \
	init::memory_that_the_program_lacks_is_the_programs_end \
	many::tasks_that_end_while_others_begin_leave_their_cgroups_alone metrics::figures_are_those_of_the_kernel \
	nomad::recover::neither_shim_nor_task_is_in_the_cgroup_of_the_agents_service \
	nomad::task::what_the_agent_kills_by_the_cgroup_has_ended_by_a_signal \
	reference::ecs::build_cgroup_root_by_systemd reference::kata::rename_cgroup_path_by_systemd \
	reference::kubelet::resource_config_for_pod_enforces_memory_qos_on_v2 \
	reference::nomad::configure_cgroups_takes_cpu_fractions_down_to_a_thousandth \
	sandbox::life::a_sandbox_that_somebody_has_frozen_can_be_removed_by_force \
	shim_death::rm_kills_what_still_lives_and_removes_everything \
	stop::daemons_do_not_outlive_an_init_that_exits_by_itself stop::everything_of_the_task_dies_with_its_init \
	stop::pause_freezes_every_process_and_resume_thaws_them stop::rm_of_a_paused_task_with_force_ends_it \
	upgrade::checks_limits_and_a_stop_go_on
VM_TESTS ?= $(VM_CASES) $(addprefix -,$(VM_SLOW))
VM_SLOW = cost::cost_of_an_idle_shim_in_memory_and_descriptors cost::cost_of_statistics_and_a_stop_in_system_calls \
	cost::cost_of_the_binaries_in_bytes cost::cost_of_what_has_left_in_pages_is_none \
	docker::docker_exec_passes_output_and_exit_codes_through docker::docker_run_at_a_terminal \
	docker::docker_run_passes_output_and_exit_codes_through \
	limits::a_task_that_writes_too_fast_is_held_to_the_rate_of_the_disk \
	sandbox::limits::a_fork_bomb_stops_at_the_joint_limit sandbox::limits::memory_that_is_in_use_cannot_be_taken_away \
	sandbox::limits::two_busy_loops_are_held_to_the_joint_limit_together \
	sandbox::systemd::sandboxes_of_one_name_come_and_go_and_leave_no_unit
# As on kernels that lack something of cgroup v2: the tests that start and kill.
VM_ABSENT ?= cgroup.kill,clone_into_cgroup
VM_ABSENT_TESTS ?= exec::at_the_deadline_a_fork_bomb_is_gone_too exec::exec_passes_both_streams_and_the_exit_code_through \
	exec::thirty_two_execs_at_a_time_are_all_answered_rightly fallbacks stop
# The documentation's commands that need such a system.
VM_DOCS ?= scripts/check-docs
test-vm: build debug
	@scripts/need vm
	integration/vm 'failed=0; /opt/bowline/cases.sh $(VM_TESTS) || failed=1; \
		for absent in $(VM_ABSENT); do /opt/bowline/cases.sh --absent $$absent $(VM_ABSENT_TESTS) || failed=1; done; \
		$(if $(VM_DOCS),/opt/bowline/$(VM_DOCS) --vm /opt/bowline || failed=1;) exit $$failed' \
		$(addprefix $(BIN)/,$(BINARIES)) $(TARGET)/debug/bowline-bench $(NOMAD_AGENT) $(CASES) $(ABSENT) $(EXAMPLES) integration/cases.sh \
		$(PROMTOOL) README.md docs scripts apparmor
# Where `scripts/need test` finds or puts it.
PROMTOOL = $(or $(shell command -v promtool),$(TARGET)/tools/bin/promtool)

# The system that it boots.
.PHONY: vm-image
vm-image:
	@scripts/need vm
	integration/vm

# Each case holds on containerd's own shim for runc, but for those that say why not.
## test-reference   the tests of containerd's shim and the attacks on it, with containerd's own in place of bowline's
.PHONY: test-reference
test-reference: need-test
	UNDER_TEST=reference $(RUN_AS_ROOT) $(CARGO_TEST) --no-fail-fast --test cases -- containerd:: cri:: hostile::

# Older and newer systems than the one that every change is tested on.
## test-bullseye, test-bookworm, test-sid   the same on Debian's releases before and to come
.PHONY: test-bullseye test-bookworm test-sid
test-bullseye test-bookworm test-sid: test-%:
	SUITE=$* $(MAKE) test-vm

## test-systemd-v1   the tests of what is asked of systemd and of the watch, on bookworm with cgroup v1
.PHONY: test-systemd-v1
test-systemd-v1:
	SUITE=bookworm CGROUP=v1 $(MAKE) test-vm VM_ABSENT= VM_DOCS= \
		VM_TESTS="bad_input::limits host_limits slice metrics metrics::unit watch"

## test-arm64   unit tests for 64-bit ARM, on an emulated processor; the demo and some cases, none with ARM64_CASES=, in an emulated machine
# With ARM64_QUICK=yes the binaries are debug ones, whose libraries are those of the unit tests.
.PHONY: test-arm64
test-arm64: arm64
	scripts/cross arm64 test $(ARM64_TESTS) --lib -- $(addprefix --skip ,$(ARM64_KERNEL) harness::)
	scripts/cross arm64 test $(ARM64_TESTS) $(if $(ARM64_CASES),,--lib) --no-run --message-format json | \
		sed -nE 's,.*"executable":"/target/([^"]*/(cases|bowline_executor|bowline_sys)-[0-9a-f]*)".*,\1 \2,p' | \
		while read -r program name; do ln -sfn "$$program" $(ARM64)/$$name; done
	ARCH=arm64 integration/vm 'failed=0; bash /opt/bowline/scripts/demo /opt/bowline || failed=1; \
		for units in bowline_sys bowline_executor; do /opt/bowline/$$units $(ARM64_KERNEL) || failed=1; done; \
		$(if $(ARM64_CASES),/opt/bowline/cases.sh $(ARM64_CASES) || failed=1;) exit $$failed' \
		$(addprefix $(ARM64)/bin/,$(BINARIES)) $(addprefix $(ARM64)/,$(if $(ARM64_CASES),cases) bowline_sys bowline_executor) \
		integration/cases.sh scripts docs
ARM64_TESTS = --workspace --all-features --exclude bowline-bench
# Unit tests of what an emulated processor alone has not: calls that the emulation does not know. The machine runs them.
ARM64_KERNEL = memory::tests::a_child memory::tests::a_worker cloning::tests::the_pid_is_known recent::tests \
	hooks::tests::the_hook hooks::tests::a_hook_reads network::attach network::plugin program::tests rootfs::layers \
	systemd::tests::a_program a_listener_is_wanted only_what_denies_by_default
# Whatever differs between processors: numbers of calls, what executes a program, what init is written in.
ARM64_CASES = adoption containerd::task exec fields::effect hardening init limits mounts namespaces run sandbox::life \
	seccomp stop terminal upgrade

## bench     measures bowline beside crun, runc and the kernel alone: a quarter of an hour or more; see docs/bench.md
.PHONY: bench
bench: build-bench
	@scripts/need bench
	$(ROOT) $(BIN)/bowline-bench --bin $(BIN) --json $(TARGET)/bench.json --chart $(TARGET)/bench.svg $(BENCH)

# A small bench in a virtual machine with cgroup v2 and systemd.
.PHONY: bench-vm
bench-vm: build-bench
	@scripts/need vm
	integration/vm '/opt/bowline/bowline-bench --small $(BENCH)' $(addprefix $(BIN)/,$(BINARIES) bowline-bench)

.PHONY: build-bench
build-bench: build
	$(call release,bowline-bench)

.PHONY: need-test
need-test:
	@scripts/need test

## soak      mixed load for FOR (10m): what a shim and the machine have at the end is what they had at the start
.PHONY: soak
soak: FOR = 10m
soak: build need-test debug
	$(ROOT) env --default-signal BOWLINE_BIN_DIR=$(BIN) BOWLINE_SOAK=$(FOR) $(CASES) soak:: --nocapture

## faults    the matrix of faults in full: kills and errors at every system call, where the tests take one in eleven; 200 upgrades and kills under load; 200 rounds of each storm
.PHONY: faults
faults: build need-test debug
	$(ROOT) env --default-signal BOWLINE_BIN_DIR=$(BIN) BOWLINE_FAULTS=1 $(CASES) faults oci::killed --nocapture
	$(ROOT) env --default-signal BOWLINE_BIN_DIR=$(BIN) BOWLINE_UPGRADES=200 BOWLINE_KILLS=200 $(CASES) upgrade::load:: --nocapture
	$(ROOT) env --default-signal BOWLINE_BIN_DIR=$(BIN) BOWLINE_STORM=200 $(CASES) storm --nocapture --test-threads=1

## lines     the lines of the product's code, by crate, and those of the tests
.PHONY: lines
lines:
	@scripts/lines

## fuzz      everything that reads others' bytes, each parser for FOR seconds (60); installs what it needs
.PHONY: fuzz
FOR ?= 60
FUZZERS = $(sort $(basename $(notdir $(wildcard fuzz/targets/*.rs))))
FUZZED = $(abspath $(TARGET))/fuzz
fuzz: $(CARGO_FUZZ)
	@scripts/need fuzz
	$(FUZZ) build --fuzz-dir fuzz --target-dir $(FUZZED)
	@mkdir -p $(FUZZED)/found $(addprefix $(FUZZED)/corpus/,$(FUZZERS))
	$(foreach fuzzer,$(FUZZERS),$(call fuzz-one,$(fuzzer))$(newline))

# What instruments the code are switches of the compiler that are not stable.
FUZZ = PATH=$(abspath $(dir $(CARGO_FUZZ))):$$PATH RUSTC_BOOTSTRAP=1 cargo fuzz
# $(1): a target. What is new to it goes to the first folder, what breaks it to the third.
fuzz-one = $(FUZZED)/$(HOST)/release/$(1) $(FUZZED)/corpus/$(1) fuzz/corpus/$(1) -artifact_prefix=$(FUZZED)/found/$(1)- \
	-max_total_time=$(FOR) -max_len=65536 -rss_limit_mb=1024 -timeout=10 -verbosity=0 -print_final_stats=1

$(CARGO_FUZZ):
	@scripts/need fuzz
	$(call tool,cargo-fuzz)

# The commands in README.md and docs/ do what is said of them.
.PHONY: check-docs
check-docs: need-test build
	$(ROOT) scripts/check-docs $(BIN)

.PHONY: unit
unit: need-test
	$(CARGO_TEST) $(UNIT)

# bowline-init has no standard library, and so no tests beside its code: see `tests/tests/init.rs`.
UNIT = --exclude bowline-init --lib --bins --test golden --test properties --test reference --test layers

## check     formatting, lints, unit tests, the layer test, dependencies
.PHONY: check
check: format lint unit dependencies

.PHONY: format
format:
	@scripts/need check
	cargo fmt --all --check

.PHONY: lint
lint:
	@scripts/need check
	cargo clippy $(EVERYTHING) --all-targets -- -D warnings
	cargo clippy --locked --workspace -- -D warnings
	@# As other programs link it: without libseccomp.
	cargo clippy --locked --package bowline-client -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --quiet

.PHONY: dependencies
dependencies: $(DENY)
	$(DENY) --locked --log-level error check bans licenses sources

$(DENY):
	@scripts/need build
	$(call tool,cargo-deny)

## install   binaries, man pages, completions, documentation, units of systemd into $(DESTDIR)$(PREFIX), an AppArmor profile into $(DESTDIR)$(SYSCONFDIR); without cargo, binaries already built
.PHONY: install
install: $(if $(and $(shell command -v cargo),$(if $(BUILT),,yes)),build)
	install -d $(addprefix $(INSTALLED)/,bin $(MAN) $(dir $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION)))
	install -m 755 $(addprefix $(BIN)/,$(BINARIES)) $(INSTALLED)/bin/
	$(EMULATOR) $(BIN)/bowline man $(INSTALLED)/$(MAN)
	$(EMULATOR) $(BIN)/bowline completions bash >$(INSTALLED)/$(BASH_COMPLETION)
	$(EMULATOR) $(BIN)/bowline completions zsh >$(INSTALLED)/$(ZSH_COMPLETION)
	$(EMULATOR) $(BIN)/bowline completions fish >$(INSTALLED)/$(FISH_COMPLETION)
	install -d $(INSTALLED)/$(DOC)/docs
	install -m 644 README.md CHANGELOG.md SECURITY.md LICENSE $(INSTALLED)/$(DOC)/
	cp -r docs/. $(INSTALLED)/$(DOC)/docs
	install -D -m 644 apparmor/bowline-default $(DESTDIR)$(SYSCONFDIR)/apparmor.d/bowline-default
	install -d $(INSTALLED)/$(UNITS)
	$(call units,$(PREFIX)/bin,$(INSTALLED)/$(UNITS))

# systemd's units, which name where the binaries are.
define units
for unit in systemd/*; do sed 's,@bindir@,$(1),' $$unit >$(2)/$${unit##*/} && chmod 644 $(2)/$${unit##*/}; done
endef

INSTALLED = $(DESTDIR)$(PREFIX)
DOC = share/doc/bowline
MAN = share/man/man1
UNITS = lib/systemd/system
# Where each shell looks for what is not its own.
BASH_COMPLETION = share/bash-completion/completions/bowline
ZSH_COMPLETION = share/zsh/site-functions/_bowline
FISH_COMPLETION = share/fish/vendor_completions.d/bowline.fish

## deb       a Debian package of the same, in target/deb
.PHONY: deb
deb: build
	@scripts/need deb
	scripts/release --deb $(BIN) $(dir $(DEB))
	@mv $(dir $(DEB))bowline_*.deb $(DEB)

# It is installed into an empty root, runs there, and leaves nothing behind.
.PHONY: test-deb
test-deb: $(if $(shell command -v dpkg-deb),deb)
	$(ROOT) scripts/test-deb $(DEB)

## release   tarball, .deb, .rpm, parts list and checksums in target/dist, the same bytes wherever it is made; SIGN=KEY signs
.PHONY: release
release: export SOURCE_DATE_EPOCH = $(or $(RELEASED),$(shell git log -1 --format=%ct))
release: export RUSTC_WRAPPER = $(abspath scripts/rustc-anywhere)
release: build
	@scripts/need release
	scripts/release $(BIN) $(abspath $(TARGET))/dist $(SIGN)

## release-arm64   the same for 64-bit ARM, in target/dist-arm64
.PHONY: release-arm64
release-arm64: arm64
	@scripts/need release
	FOR=arm64 scripts/release $(ARM64)/bin $(TARGET)/dist-arm64 $(SIGN)

# Built twice, by two users, from two folders.
## test-release   makes a release twice, as two users in two folders, and compares the checksums: half an hour
.PHONY: test-release
test-release:
	@scripts/need release
	$(ROOT) scripts/test-release

## clean     removes everything that was built
.PHONY: clean
clean:
	cargo clean

# What a variable here is, for scripts.
print-%:
	@echo $($*)

# One after the other, but for what is known to go together.
ifndef BESIDE
.NOTPARALLEL:
endif
