//! Every field of the runtime specification's schema: its effect and the tests that prove it, or its refusal, which is
//! tried here, or why it has none. `docs/conformance.md` is made from this:
//! `UPDATE_DOCS=1 target/cases fields::table`.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use crate::fields::refused::{assert_refused, assert_unsupported, reference_fails};

/// What becomes of a field.
enum Verdict {
    /// Something can be seen of it, as these tests prove.
    Effect { what: &'static str, tests: &'static [&'static str] },
    /// This value of it, or of the field that it is in, is refused by name.
    Refused { at: &'static str, value: &'static str, why: &'static str },
    /// It has no effect, for this reason.
    Nothing { why: &'static str, tests: &'static [&'static str] },
}

use Verdict::{Effect, Nothing, Refused};

/// The fields of `config.json`, in the order of the schema of version 1.3, with those of earlier ones; those of other platforms by their sections.
/// `[]` is any item of a list, `*` any key.
#[rustfmt::skip]
const FIELDS: &[(&[&str], Verdict)] = &[
    (&["ociVersion"], Effect { what: "another major version than 1 is refused", tests: &["fields::refused::what_runc_leaves_out_without_a_word_is_refused"] }),
    (&["hooks.prestart[].path", "hooks.prestart[].args", "hooks.prestart[].env", "hooks.createRuntime[].path", "hooks.createRuntime[].args", "hooks.createRuntime[].env", "hooks.createContainer[].path", "hooks.createContainer[].args", "hooks.createContainer[].env", "hooks.startContainer[].path", "hooks.startContainer[].args", "hooks.startContainer[].env", "hooks.poststart[].path", "hooks.poststart[].args", "hooks.poststart[].env", "hooks.poststop[].path", "hooks.poststop[].args", "hooks.poststop[].env"], Effect { what: "run at their points", tests: &["fields::effect::hooks_run_at_all_their_points_with_arguments_and_environment"] }),
    (&["hooks.prestart[].timeout", "hooks.createRuntime[].timeout", "hooks.createContainer[].timeout", "hooks.startContainer[].timeout", "hooks.poststart[].timeout", "hooks.poststop[].timeout"], Effect { what: "a hook that takes longer fails", tests: &["containerd::hooks::a_hook_that_takes_too_long_is_killed_with_its_descendants"] }),
    (&["annotations"], Effect { what: "in the state that hooks read; those of containerd and bowline have an effect", tests: &["containerd::start::the_runtime_s_own_annotation_counts_before_the_pod_s"] }),
    (&["hostname", "domainname"], Effect { what: "set in the UTS namespace; refused without one", tests: &["fields::effect::names_and_sysctls_are_as_the_configuration_says"] }),
    (&["mounts[].source", "mounts[].destination", "mounts[].type"], Effect { what: "in `/proc/mounts`", tests: &["fields::effect::a_mount_is_what_the_configuration_says"] }),
    (&["mounts[].options"], Effect { what: "in `/proc/mounts`; a bind has the flags it names, or else those of its source", tests: &["fields::effect::a_mount_is_what_the_configuration_says", "containerd::mounts_flags::a_bind_has_exactly_the_flags_that_it_names"] }),
    (&["mounts[].uidMappings[].containerID", "mounts[].uidMappings[].hostID", "mounts[].uidMappings[].size", "mounts[].gidMappings[].containerID", "mounts[].gidMappings[].hostID", "mounts[].gidMappings[].size"], Effect { what: "the owners of the mount's files are mapped", tests: &["fields::effect::a_mount_s_owners_are_mapped"] }),
    (&["root.path"], Effect { what: "the root filesystem; a symlink is followed, which runc refuses", tests: &["containerd::bad_input::a_root_filesystem_that_is_not_there", "bundle_run::a_root_may_be_named_by_a_symlink"] }),
    (&["root.readonly"], Effect { what: "the root cannot be written", tests: &["fields::effect::a_read_only_root_and_paths_cannot_be_written"] }),
    (&["process.args"], Effect { what: "the command", tests: &["containerd::bad_input::an_empty_command"] }),
    (&["process.commandLine"], Refused { at: "process.commandLine", value: r#""x""#, why: "it is for Windows" }),
    (&["process.consoleSize.height", "process.consoleSize.width"], Effect { what: "the terminal's first size; no effect without a terminal, as specified", tests: &["fields::a_terminal_has_the_size_that_the_configuration_says"] }),
    (&["process.cwd", "process.env"], Effect { what: "in the process's status", tests: &["fields::effect::a_process_is_as_the_configuration_says"] }),
    (&["process.terminal"], Effect { what: "the process has a terminal", tests: &["containerd::terminal::a_terminal_is_one_for_all_three_streams"] }),
    (&["process.user.uid", "process.user.gid", "process.user.umask", "process.user.additionalGids"], Effect { what: "in the process's status; an unmapped id and a umask above 0777 are refused", tests: &["fields::effect::a_process_is_as_the_configuration_says", "fields::refused::what_runc_leaves_out_without_a_word_is_refused"] }),
    (&["process.user.username"], Refused { at: "process.user.username", value: r#""x""#, why: "it is for Windows" }),
    (&["process.capabilities.bounding", "process.capabilities.permitted", "process.capabilities.effective", "process.capabilities.inheritable", "process.capabilities.ambient"], Effect { what: "in the process's status", tests: &["fields::effect::a_process_is_as_the_configuration_says"] }),
    (&["process.apparmorProfile"], Effect { what: "the process's profile; refused if the kernel has no AppArmor", tests: &["apparmor::a_named_profile_holds_for_the_task_and_its_execs", "apparmor::a_profile_that_is_not_there_is_refused_with_the_reason"] }),
    (&["process.oomScoreAdj"], Effect { what: "in the process's status", tests: &["fields::effect::a_process_is_as_the_configuration_says"] }),
    (&["process.selinuxLabel"], Refused { at: "process.selinuxLabel", value: r#""u:r:t:s0""#, why: "the host uses no SELinux; on a host that does, it is the label" }),
    (&["process.ioPriority.class", "process.ioPriority.priority"], Effect { what: "as the kernel schedules it; a priority for `IOPRIO_CLASS_IDLE`, which has none, is logged", tests: &["fields::effect::a_process_is_scheduled_as_the_configuration_says", "fields::what_has_no_effect_is_in_the_log"] }),
    (&["process.noNewPrivileges"], Effect { what: "in the process's status", tests: &["fields::effect::a_process_is_as_the_configuration_says"] }),
    (&["process.scheduler.policy", "process.scheduler.nice", "process.scheduler.priority", "process.scheduler.flags", "process.scheduler.runtime", "process.scheduler.deadline", "process.scheduler.period"], Effect { what: "as the kernel schedules it; fields that the policy lacks are refused, but `nice` is logged", tests: &["fields::effect::a_process_is_scheduled_as_the_configuration_says"] }),
    (&["process.rlimits[].hard", "process.rlimits[].soft"], Effect { what: "in the process's status", tests: &["fields::effect::a_process_is_as_the_configuration_says"] }),
    (&["process.rlimits[].type"], Effect { what: "a repeated type is refused", tests: &["fields::refused::what_runc_leaves_out_without_a_word_is_refused"] }),
    (&["process.execCPUAffinity.initial", "process.execCPUAffinity.final"], Effect { what: "the CPUs of an exec, before and after it enters the cgroup; anything but a list is refused", tests: &["fields::effect::an_exec_runs_on_the_cpus_that_it_is_given"] }),
    (&["linux.devices[].type", "linux.devices[].path", "linux.devices[].fileMode", "linux.devices[].major", "linux.devices[].minor", "linux.devices[].uid", "linux.devices[].gid"], Effect { what: "the node in `/dev`; another file there and an unmapped owner are refused", tests: &["fields::default_devices_take_owner_and_mode_of_the_configuration", "fields::refused::a_device_over_another_file_is_refused"] }),
    (&["linux.netDevices.*.name"], Effect { what: "the device's name in the container, by default its own; refused without a network namespace", tests: &["net_devices::a_device_of_the_host_moves_with_its_addresses", "net_devices::what_cannot_be_moved_is_named"] }),
    (&["linux.uidMappings[].containerID", "linux.uidMappings[].hostID", "linux.uidMappings[].size", "linux.gidMappings[].containerID", "linux.gidMappings[].hostID", "linux.gidMappings[].size"], Effect { what: "the map of the new user namespace; refused without one, and if a joined namespace has other mappings", tests: &["fields::effect::a_user_namespace_maps_what_the_configuration_says", "fields::refused::what_runc_refuses_is_refused_too_and_named", "joined_users::mappings_that_differ_from_the_joined_namespace_are_refused"] }),
    (&["linux.namespaces[].type", "linux.namespaces[].path"], Effect { what: "new, or the one at the path", tests: &["fields::effect::a_namespace_is_new_or_the_one_at_its_path"] }),
    (&["linux.resources.unified"], Effect { what: "the files of cgroup v2; refused on v1", tests: &["fields::effect::limits_are_those_of_the_configuration", "fields::refused::what_runc_refuses_is_refused_too_and_named"] }),
    (&["linux.resources.devices[].allow", "linux.resources.devices[].type", "linux.resources.devices[].major", "linux.resources.devices[].minor", "linux.resources.devices[].access"], Effect { what: "what can be opened: the last matching rule applies; on cgroup v1 denying part of an allowed set is refused", tests: &["fields::a_rule_for_all_kinds_of_one_number_is_for_no_other", "devices::a_denial_of_a_part_of_what_is_allowed_is_never_lost", "devices::a_denial_takes_back_all_that_was_allowed_before"] }),
    (&["linux.resources.pids.limit"], Effect {
        what: "`pids.max`; 0 becomes 1, since nothing could start; negative is unlimited",
        tests: &["fields::effect::limits_are_those_of_the_configuration", "fields::a_limit_of_no_processes_is_one"],
    }),
    (&["linux.resources.blockIO.weight"], Effect { what: "`blkio.weight`, `io.weight`, or those of BFQ; refused if the kernel has none", tests: &["fields::effect::the_weight_of_a_disk_is_set_or_refused"] }),
    (&["linux.resources.blockIO.leafWeight"], Effect { what: "`blkio.leaf_weight`, before Linux 5.0; refused otherwise", tests: &["fields::a_leaf_weight_that_no_kernel_has_is_refused"] }),
    (&["linux.resources.blockIO.throttleReadBpsDevice[].major", "linux.resources.blockIO.throttleReadBpsDevice[].minor", "linux.resources.blockIO.throttleReadBpsDevice[].rate", "linux.resources.blockIO.throttleWriteBpsDevice[].major", "linux.resources.blockIO.throttleWriteBpsDevice[].minor", "linux.resources.blockIO.throttleWriteBpsDevice[].rate", "linux.resources.blockIO.throttleReadIOPSDevice[].major", "linux.resources.blockIO.throttleReadIOPSDevice[].minor", "linux.resources.blockIO.throttleReadIOPSDevice[].rate", "linux.resources.blockIO.throttleWriteIOPSDevice[].major", "linux.resources.blockIO.throttleWriteIOPSDevice[].minor", "linux.resources.blockIO.throttleWriteIOPSDevice[].rate"], Effect { what: "`blkio.throttle.*`, `io.max`", tests: &["fields::effect::limits_are_those_of_the_configuration"] }),
    (&["linux.resources.blockIO.weightDevice[].major", "linux.resources.blockIO.weightDevice[].minor", "linux.resources.blockIO.weightDevice[].weight"], Effect { what: "`blkio.weight`, `io.weight`, or those of BFQ; refused if the kernel has none", tests: &["fields::effect::the_weight_of_a_disk_is_set_or_refused"] }),
    (&["linux.resources.blockIO.weightDevice[].leafWeight"], Effect { what: "`blkio.leaf_weight`, before Linux 5.0; refused otherwise", tests: &["fields::a_leaf_weight_that_no_kernel_has_is_refused"] }),
    (&["linux.resources.cpu.cpus", "linux.resources.cpu.mems", "linux.resources.cpu.period", "linux.resources.cpu.quota"], Effect { what: "`cpu.*`, `cpuset.*`", tests: &["fields::effect::limits_are_those_of_the_configuration"] }),
    (&["linux.resources.cpu.burst"], Effect { what: "`cpu.idle`, `cpu.cfs_burst_us`, `cpu.max.burst`", tests: &["fields::cpu_time_that_nobody_wants_and_that_was_left_over"] }),
    (&["linux.resources.cpu.realtimePeriod", "linux.resources.cpu.realtimeRuntime"], Effect { what: "`cpu.rt_*`; refused on cgroup v2 and where the kernel has none", tests: &["fields::time_for_realtime_processes"] }),
    (&["linux.resources.cpu.shares"], Effect { what: "`cpu.*`, `cpuset.*`", tests: &["fields::effect::limits_are_those_of_the_configuration"] }),
    (&["linux.resources.cpu.idle"], Effect { what: "`cpu.idle`, `cpu.cfs_burst_us`, `cpu.max.burst`", tests: &["fields::cpu_time_that_nobody_wants_and_that_was_left_over"] }),
    (&["linux.resources.hugepageLimits[].pageSize", "linux.resources.hugepageLimits[].limit"], Effect { what: "`hugetlb.*`; refused if the kernel has none, or none of that size", tests: &["fields::huge_pages_are_limited_or_refused", "fields::huge_pages_without_a_size_the_host_has_are_refused"] }),
    (&["linux.resources.memory.kernel", "linux.resources.memory.kernelTCP"], Nothing { why: "logged: the kernel counts this memory under `memory.limit`", tests: &["fields::what_has_no_effect_is_in_the_log"] }),
    (&["linux.resources.memory.limit", "linux.resources.memory.reservation"], Effect { what: "`memory.*`", tests: &["fields::effect::limits_are_those_of_the_configuration"] }),
    (&["linux.resources.memory.swap"], Effect { what: "`memory.memsw.limit_in_bytes`, or the part beyond the memory limit in `memory.swap.max`", tests: &["fields::effect::limits_are_those_of_the_configuration", "fields::on_v2_a_limit_with_swap_is_never_lost"] }),
    (&["linux.resources.memory.swappiness"], Effect { what: "`memory.swappiness`; no effect on cgroup v2, logged: it has only the host's", tests: &["fields::effect::limits_are_those_of_the_configuration", "fields::what_has_no_effect_is_in_the_log"] }),
    (&["linux.resources.memory.disableOOMKiller"], Effect { what: "`memory.oom_control`; refused on cgroup v2", tests: &["fields::the_oom_killer_can_be_switched_off"] }),
    (&["linux.resources.memory.useHierarchy"], Effect { what: "`memory.use_hierarchy`; cgroup v2 always has it", tests: &["fields::the_oom_killer_can_be_switched_off"] }),
    (&["linux.resources.memory.checkBeforeUpdate"], Nothing { why: "as it always applies: an update below memory in use that cannot be reclaimed is refused", tests: &["update::a_limit_below_what_is_in_use_is_refused_and_nobody_is_killed"] }),
    (&["linux.resources.network.classID"], Effect { what: "`net_cls.classid`; refused on cgroup v2 and if it is not mounted", tests: &["fields::the_class_and_priorities_of_packets"] }),
    (&["linux.resources.network.priorities[].name", "linux.resources.network.priorities[].priority"], Effect { what: "`net_prio.ifpriomap`; refused on cgroup v2 and if it is not mounted", tests: &["fields::the_class_and_priorities_of_packets"] }),
    (&["linux.resources.rdma.*.hcaHandles", "linux.resources.rdma.*.hcaObjects"], Effect { what: "`rdma.max`; refused without the device", tests: &["fields::an_rdma_device_that_is_not_there_is_refused"] }),
    (&["linux.cgroupsPath"], Effect { what: "the cgroup; one with `..` is refused", tests: &["fields::effect::the_cgroup_is_at_its_path"] }),
    (&["linux.rootfsPropagation"], Effect { what: "in `/proc/self/mountinfo`, with `rshared` for all mounts; an unknown value is refused", tests: &["fields::effect::the_propagation_of_the_root_is_what_the_configuration_says", "containerd::mounts::a_shared_root_shares_its_mounts_unless_they_say_otherwise", "fields::refused::what_runc_refuses_is_refused_too_and_named"] }),
    (&["linux.seccomp.defaultAction", "linux.seccomp.defaultErrnoRet"], Effect { what: "the answer to a system call", tests: &["fields::effect::a_system_call_gets_the_answer_of_its_rule"] }),
    (&["linux.seccomp.flags"], Effect { what: "the filter is loaded with them", tests: &["fields::effect::a_filter_is_loaded_with_the_flags_of_the_configuration"] }),
    (&["linux.seccomp.listenerPath", "linux.seccomp.listenerMetadata"], Effect { what: "the listener gets the filter; without a rule with `SCMP_ACT_NOTIFY` a path is logged", tests: &["fields::effect::a_listener_gets_the_filter", "fields::what_has_no_effect_is_in_the_log"] }),
    (&["linux.seccomp.architectures", "linux.seccomp.syscalls[].names", "linux.seccomp.syscalls[].action", "linux.seccomp.syscalls[].errnoRet", "linux.seccomp.syscalls[].args[].index", "linux.seccomp.syscalls[].args[].value", "linux.seccomp.syscalls[].args[].valueTwo", "linux.seccomp.syscalls[].args[].op"], Effect { what: "the answer to a system call", tests: &["fields::effect::a_system_call_gets_the_answer_of_its_rule"] }),
    (&["linux.sysctl"], Effect { what: "below `/proc/sys`; refused if it would change the host", tests: &["fields::effect::names_and_sysctls_are_as_the_configuration_says"] }),
    (&["linux.maskedPaths"], Effect { what: "cannot be read", tests: &["fields::effect::names_and_sysctls_are_as_the_configuration_says"] }),
    (&["linux.readonlyPaths"], Effect { what: "cannot be written", tests: &["fields::effect::a_read_only_root_and_paths_cannot_be_written"] }),
    (&["linux.mountLabel"], Refused { at: "linux.mountLabel", value: r#""u:r:t:s0""#, why: "the host uses no SELinux; on a host that does, it is the label" }),
    (&["linux.intelRdt.closID", "linux.intelRdt.schemata", "linux.intelRdt.l3CacheSchema", "linux.intelRdt.memBwSchema", "linux.intelRdt.enableMonitoring"], Refused { at: "linux.intelRdt", value: r#"{"closID":"x","schemata":["L3:0=f"],"l3CacheSchema":"L3:0=f","memBwSchema":"MB:0=10","enableMonitoring":true}"#, why: "resource groups are not managed" }),
    (&["linux.intelRdt.enableCMT"], Refused { at: "linux.intelRdt.enableCMT", value: "true", why: "resource groups are not managed" }),
    (&["linux.intelRdt.enableMBM"], Refused { at: "linux.intelRdt.enableMBM", value: "true", why: "resource groups are not managed" }),
    (&["linux.memoryPolicy.mode", "linux.memoryPolicy.nodes", "linux.memoryPolicy.flags"], Effect { what: "in `/proc/self/numa_maps`", tests: &["fields::effect::the_memory_policy_is_the_one_of_the_configuration"] }),
    (&["linux.personality.domain"], Effect { what: "in `uname -m`", tests: &["fields::effect::a_personality_is_another_machine"] }),
    (&["linux.personality.flags"], Refused { at: "linux.personality", value: r#"{"domain":"LINUX","flags":["ADDR_NO_RANDOMIZE"]}"#, why: "the specification defines none" }),
    (&["linux.timeOffsets.boottime.secs", "linux.timeOffsets.boottime.nanosecs", "linux.timeOffsets.monotonic.secs", "linux.timeOffsets.monotonic.nanosecs"], Effect { what: "in `/proc/self/timens_offsets`; refused without a new time namespace", tests: &["fields::effect::a_time_namespace_has_the_offsets_of_the_configuration", "fields::refused::what_runc_refuses_is_refused_too_and_named"] }),
    (&["solaris"], Refused { at: "solaris", value: r#"{"milestone":"x"}"#, why: "it is another platform" }),
    (&["windows"], Refused { at: "windows", value: r#"{"layerFolders":["x"]}"#, why: "it is another platform" }),
    (&["vm"], Refused { at: "vm", value: r#"{"kernel":{"path":"/x"}}"#, why: "it is another platform" }),
    (&["zos"], Refused { at: "zos", value: r#"{"namespaces":[{"type":"pid"}]}"#, why: "it is another platform" }),
    (&["freebsd"], Nothing { why: "logged like any unknown field", tests: &["fields::what_has_no_effect_is_in_the_log"] }),];

/// How many fields the schema has.
const COUNT: usize = 181;

const HEAD: &str = "# Conformance

Each field of the [runtime specification](https://github.com/opencontainers/runtime-spec), up to version 1.3, in a
`config.json`. `[]` is any item of a list, `*` any key, `a.{b,c}` both `a.b` and `a.c`. A field has an effect, or a
container with it is refused and the message names it. False, 0, null and empty mean unset, except a `pids.limit` of 0;
a value of another type is refused. The few fields without effect, where runc has none either, are logged, as are fields
that the specification lacks.

| field | effect |
| --- | --- |
";

fn text() -> String {
    // Fields with the same effect share a row.
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for (fields, verdict) in FIELDS {
        let what = match verdict {
            Effect { what, .. } => (*what).to_owned(),
            Refused { why, .. } => format!("refused: {why}"),
            Nothing { why, .. } => format!("no effect, {why}"),
        };
        match rows.iter_mut().find(|(known, _)| *known == what) {
            Some((_, row)) => row.extend(*fields),
            None => rows.push((what, fields.to_vec())),
        }
    }
    let rows = rows.iter().map(|(what, fields)| format!("| {} | {what} |\n", by_parent(fields)));
    HEAD.to_owned() + &rows.collect::<String>()
}

/// Each field between backquotes, those of the same parent together: `a.{b,c}`.
fn by_parent(fields: &[&str]) -> String {
    let mut parents: Vec<(&str, Vec<&str>)> = Vec::new();
    for field in fields {
        let name = field.rsplit('.').next().unwrap_or(field);
        let parent = field.trim_end_matches(name);
        match parents.iter_mut().find(|(known, _)| *known == parent && !parent.is_empty()) {
            Some((_, names)) => names.push(name),
            None => parents.push((parent, vec![name])),
        }
    }
    let joined = parents.iter().map(|(parent, names)| match names.as_slice() {
        [name] => format!("`{parent}{name}`"),
        names => format!("`{parent}{{{}}}`", names.join(",")),
    });
    joined.collect::<Vec<_>>().join(", ")
}

#[test]
fn the_documentation_has_every_field() {
    let fields: Vec<&str> = FIELDS.iter().flat_map(|(fields, _)| fields.iter().copied()).collect();
    assert_eq!(fields.len(), COUNT);
    assert_eq!(fields.iter().collect::<HashSet<_>>().len(), COUNT, "a field is there twice");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conformance.md");
        return std::fs::write(file, text()).expect("the sources are writable");
    }
    assert_eq!(text(), include_str!("../../../docs/conformance.md"), "UPDATE_DOCS=1 target/cases fields::table");
}

#[test]
fn every_test_that_is_named_is_there() {
    let listed = Command::new(std::env::current_exe().expect("it runs")).arg("--list").output().expect("it runs");
    let listed = String::from_utf8(listed.stdout).expect("ASCII");
    let there: HashSet<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    for (fields, verdict) in FIELDS {
        let (Effect { tests, .. } | Nothing { tests, .. }) = verdict else { continue };
        assert!(!tests.is_empty(), "{fields:?}");
        tests.iter().for_each(|test| assert!(there.contains(test), "{test}, of {fields:?}"));
    }
}

#[test]
fn what_is_refused_is_named() {
    if reference_fails("runc leaves some of it out, and knows some") {
        return;
    }
    // The one that is wrong on every host.
    let is_wrong = |at: &str| at == "linux.personality";
    let cases = FIELDS.iter().filter_map(|(_, verdict)| match verdict {
        Refused { at, value, .. } => Some((*at, serde_json::from_str(value).expect("JSON"), *at)),
        _ => None,
    });
    let (wrong, unsupported): (Vec<_>, Vec<_>) = cases.partition(|(at, ..)| is_wrong(at));
    assert_refused(&wrong);
    assert_unsupported(&unsupported);
}
