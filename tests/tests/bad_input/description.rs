//! Descriptions that cannot be meant: an error that names the field, the exit
//! code 125, and nothing left.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::binary;
use rustix::fs::{CWD, FileType, mknodat};

/// `toml`, with a command, is refused for a reason that has all of `parts`.
#[track_caller]
fn assert_refused(toml: &str, parts: &[&str]) {
    assert_whole_refused(&format!("command = 'true'\n{toml}"), parts);
}

#[track_caller]
fn assert_whole_refused(toml: &str, parts: &[&str]) {
    let host = Host::new();
    host.described(toml).assert_refused(125, parts);
}

#[test]
fn an_unknown_field_is_named_with_its_line() {
    assert_refused("memori = '64M'", &["memori", "line 2"]);
    assert_refused("[memory]\nlimits = '64M'", &["memory.limits", "line 3"]);
    assert_refused(
        "[[mounts]]\nsource = '/tmp'\ndestination = '/x'\nreadonly = true",
        &["mounts[0].readonly", "line 5"],
    );
}

#[test]
fn an_unknown_field_in_json_is_named_with_its_line() {
    let host = Host::new();
    let file = host.file("task.json", "{\n \"command\": \"true\",\n \"comand\": 1\n}");
    host.task("true").flag(format!("--file={}", file.display())).assert_refused(125, &["comand", "line 3"]);
}

#[test]
fn what_is_no_toml_is_told_with_its_line_and_file() {
    let host = Host::new();
    let file = host.file("broken.toml", "command = 'true'\nargs = [");
    host.task("true").flag(format!("--file={}", file.display())).assert_refused(125, &["broken.toml", "line 2"]);
}

#[test]
fn a_wrong_unit_is_named() {
    assert_refused("memory.limit = '64Q'", &["memory.limit", "64Q"]);
    assert_refused("stop.grace = '10 parsec'", &["stop.grace", "10 parsec"]);
    assert_refused("hugepages = {2XB = '4M'}", &["hugepages", "2XB"]);
}

#[test]
fn a_wrong_type_is_named() {
    assert_refused("args = 'one'", &["args"]);
    assert_refused("pids = 'many'", &["pids"]);
    assert_refused("env = ['A=b']", &["env"]);
}

#[test]
fn an_empty_command_is_refused() {
    assert_whole_refused("command = ''", &["command"]);
    assert_whole_refused("args = ['x']", &["command"]);
    assert_whole_refused("", &["command"]);
}

#[test]
fn a_nul_byte_is_refused() {
    assert_whole_refused("command = \"a\\u0000b\"", &["command", "NUL"]);
    assert_refused("env = {A = \"a\\u0000b\"}", &["env", "NUL"]);
}

#[test]
fn memory_below_what_can_start_is_refused() {
    for limit in ["'1M'", "'4K'", "0", "1"] {
        assert_refused(&format!("memory.limit = {limit}"), &["memory.limit"]);
    }
    assert_refused("memory.limit = -1", &["memory.limit"]);
}

#[test]
fn no_cpu_or_less_is_refused() {
    for limit in ["0", "-1", "0.0", "-0.5", "nan", "inf", "'x'"] {
        assert_refused(&format!("cpu.limit = {limit}"), &["cpu.limit"]);
    }
    assert_refused("cpu.shares = 1", &["cpu.shares"]);
}

#[test]
fn a_cpuset_beyond_the_host_is_refused() {
    assert_refused("cpu.cpuset = '0-4095'", &["cpu.cpuset"]);
    assert_refused("cpu.cpuset = '9999'", &["cpu.cpuset"]);
    assert_refused("cpu.cpuset = '1-0'", &["cpu.cpuset"]);
    assert_refused("cpu.mems = '999'", &["cpu.mems"]);
}

#[test]
fn a_cgroup_path_that_leads_up_is_refused() {
    for path in ["/a/../b", "/..", "../a", "/bowline/../../x"] {
        assert_refused(&format!("cgroup = '{path}'"), &["cgroup"]);
    }
    assert_refused("cgroup = '/'", &["cgroup"]);
    assert_refused("cgroup = 'relative'", &["cgroup"]);
}

#[test]
fn a_cgroup_with_processes_in_it_is_refused_and_they_stay() {
    let host = Host::new();
    let first = host.task("exec sleep 1000").start();
    let path = first.inspect()["cgroup"].as_str().expect("a path").to_owned();
    host.described(&format!("command = 'true'\ncgroup = '{path}'")).assert_refused(125, &[&path]);
    first.exec("echo unharmed").assert_says("unharmed");
    assert_eq!(first.cgroup_file("pids", "pids.max"), "4096");
    first.end();
}

#[test]
fn a_user_or_group_that_does_not_exist_is_refused() {
    assert_refused("user = 'no-such-user'", &["user", "no-such-user"]);
    assert_refused("user = 'root:no-such-group'", &["group", "no-such-group"]);
    assert_refused("group = 'no-such-group'", &["group", "no-such-group"]);
    assert_refused("groups = ['no-such-group']", &["groups", "no-such-group"]);
    assert_refused("user = -1", &["user"]);
}

#[test]
fn a_capability_of_no_such_name_is_refused() {
    assert_refused("capabilities.add = ['NOPE']", &["capabilities.add", "NOPE"]);
    assert_refused("capabilities.drop = ['CAP_NOPE']", &["capabilities.drop", "NOPE"]);
}

#[test]
fn a_capability_that_bowline_does_not_have_itself_is_refused() {
    let host = Host::new();
    let file = host.file("task.toml", "command = 'true'\ncapabilities.add = ['SYS_RESOURCE']");
    let mut command = host.command("setpriv");
    command.args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]);
    command.arg(bowline_tests::harness::binary("bowline")).arg("--state").arg(host.state());
    command.args(["run", "--name", &host.new_id(), "--file"]).arg(file);
    host.execute(command).assert_refused(125, &["SYS_RESOURCE"]);
}

#[test]
fn a_signal_of_no_such_name_is_refused() {
    for signal in ["'NOPE'", "0", "65", "-1", "''"] {
        assert_refused(&format!("stop.signal = {signal}"), &["stop.signal"]);
    }
}

#[test]
fn an_rlimit_of_no_such_name_or_value_is_refused() {
    assert_refused("rlimits = {nope = 1}", &["rlimits", "nope"]);
    assert_refused("rlimits = {nofile = 'x'}", &["rlimits.nofile"]);
    assert_refused("rlimits = {nofile = '10:5'}", &["rlimits.nofile"]);
    // systemd 262 raises it to almost the largest int.
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").expect("procfs");
    let more = most.trim_end().parse::<u64>().expect("a number") + 1;
    assert_refused(&format!("rlimits = {{nofile = {more}}}"), &["rlimits"]);
}

#[test]
fn a_malformed_id_is_refused() {
    let long = "a".repeat(64);
    for id in ["", "-a", ".a", "a/b", "..", "a b", "ä", &long] {
        assert_refused(&format!("name = '{id}'"), &["name"]);
    }
}

#[test]
fn a_variable_of_a_megabyte_is_refused() {
    let big = "x".repeat(1 << 20);
    assert_refused(&format!("env = {{BIG = '{big}'}}"), &["env.BIG"]);
}

#[test]
fn an_environment_of_a_megabyte_is_refused() {
    let value = "x".repeat(1024);
    let variables: Vec<_> = (0..1024).map(|n| format!("V{n} = '{value}'")).collect();
    assert_refused(&format!("[env]\n{}", variables.join("\n")), &["env"]);
}

#[test]
fn an_environment_of_half_a_megabyte_arrives() {
    let host = Host::new();
    let value = "x".repeat(1024);
    let variables: Vec<_> = (0..480).map(|n| format!("V{n} = '{value}'")).collect();
    let toml = format!("command = 'sh'\nargs = ['-c', 'env | grep -c ^V']\n[env]\n{}", variables.join("\n"));
    host.described(&toml).run().assert_says("480");
}

#[test]
fn a_variable_without_a_proper_name_is_refused() {
    assert_refused("env = {'' = 'x'}", &["env"]);
    assert_refused("env = {'A=B' = 'x'}", &["env"]);
}

#[test]
fn a_relative_path_is_refused_where_an_absolute_one_is_meant() {
    assert_refused("workdir = 'tmp'", &["workdir"]);
    assert_refused("rootfs = 'root'", &["rootfs"]);
    assert_refused("output.stdout = 'log'", &["output.stdout"]);
    assert_refused("mounts = [{source = 'a', destination = '/b'}]", &["mounts[0].source"]);
    assert_refused("mounts = [{source = '/a', destination = 'b'}]", &["mounts[0].destination"]);
    assert_refused("devices = [{path = 'null'}]", &["devices[0].path"]);
    assert_refused("namespaces.network = 'ns'", &["namespaces.network"]);
    assert_refused("seccomp = 'profile.json'", &["seccomp"]);
}

#[test]
fn a_mount_over_proc_or_sys_is_refused() {
    for path in ["/proc", "/proc/", "/proc/sys", "/proc/self/attr", "//proc", "/proc/.", "/sys"] {
        assert_refused(&format!("mounts = [{{source = '/tmp', destination = '{path}'}}]"), &["mounts[0].destination"]);
    }
    assert_refused("mounts = [{source = '/tmp', destination = '/'}]", &["mounts[0].destination"]);
    assert_refused("mounts = [{source = '/tmp', destination = '/a/../proc'}]", &["mounts[0].destination"]);
}

#[test]
fn a_mount_of_something_that_does_not_exist_is_refused() {
    assert_refused("mounts = [{source = '/no/such/source', destination = '/tmp/x'}]", &["/no/such/source"]);
}

#[test]
fn a_device_that_does_not_exist_or_is_none_is_refused() {
    assert_refused("devices = [{path = '/dev/nothing-here'}]", &["/dev/nothing-here"]);
    assert_refused("devices = [{path = '/dev/x', host_path = '/etc/passwd'}]", &["/etc/passwd"]);
    assert_refused("devices = [{path = '/dev/null', access = 'x'}]", &["devices[0].access"]);
}

#[test]
fn a_profile_that_does_not_exist_or_is_none_is_refused() {
    assert_refused("seccomp = '/no/such/profile.json'", &["seccomp", "/no/such/profile.json"]);
    assert_refused("seccomp = '/etc/passwd'", &["seccomp"]);
}

#[test]
fn a_setting_that_would_change_the_host_is_refused() {
    for name in ["kernel.hostname", "vm.swappiness", "net.core.somaxconn", "kernel.panic", "nonsense"] {
        assert_refused(&format!("sysctls = {{'{name}' = '1'}}"), &["sysctls"]);
    }
    assert_refused("hostname = 'x'\nnamespaces.uts = 'host'", &["hostname"]);
    assert_refused("hostname = 'a b'", &["hostname"]);
}

#[test]
fn a_setting_that_does_not_exist_is_refused_and_named() {
    let toml = "namespaces.network = 'private'\nsysctls = {'net.no_such_setting' = '1'}";
    assert_refused(toml, &["net", "no_such_setting"]);
}

#[test]
fn mappings_that_make_no_sense_are_refused() {
    assert_refused("namespaces.user = 'private'", &["uid_mappings"]);
    let overlap = "[{container = 0, host = 1000, size = 10}, {container = 5, host = 2000, size = 10}]";
    assert_refused(
        &format!("namespaces.user = 'private'\nuid_mappings = {overlap}\ngid_mappings = {overlap}"),
        &["uid_mappings[1]"],
    );
}

#[test]
fn a_cgroup_file_that_is_none_or_lies_elsewhere_is_refused() {
    for key in ["../memory.max", "/memory.max", "a/memory.max", "..", ""] {
        assert_refused(&format!("unified = {{'{key}' = '1'}}"), &["unified"]);
    }
    // What is the cgroup's own life is bowline's to do.
    for key in ["cgroup.procs", "cgroup.kill", "cgroup.freeze"] {
        assert_refused(&format!("unified = {{'{key}' = '1'}}"), &["unified"]);
    }
}

#[test]
fn a_huge_page_size_that_the_kernel_does_not_have_is_refused() {
    assert_refused("hugepages = {3MB = '6M'}", &["hugepages", "3MB"]);
}

#[test]
fn an_apparmor_profile_that_cannot_be_applied_is_refused() {
    assert_refused("apparmor = 'no-such-profile'", &["apparmor", "no-such-profile"]);
}

#[test]
fn an_oom_score_that_cannot_be_had_is_refused() {
    assert_refused("oom_score_adj = 1001", &["oom_score_adj"]);
    assert_refused("oom_score_adj = -1001", &["oom_score_adj"]);
}

#[test]
fn a_file_that_does_not_exist_is_named() {
    let host = Host::new();
    host.task("true").flag("--file=/no/such/task.toml").assert_refused(125, &["/no/such/task.toml"]);
    host.task("true").flag("--file=/etc").assert_refused(125, &["/etc"]);
}

/// The shim reads it, which must not wait for anybody.
#[test]
fn a_seccomp_profile_without_end_or_without_a_writer_is_refused() {
    let host = Host::new();
    let fifo = host.work().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    let large = host.work().join("large");
    let file = fs::File::create(&large).expect("the test's own");
    file.set_len(17 << 20).expect("sparse");
    for (profile, why) in [
        (Path::new("/dev/zero"), "not a regular file"),
        (&fifo, "not a regular file"),
        (&host.work(), "not a regular file"),
        (&large, "larger than 16384 KiB"),
    ] {
        let task = host.described(&format!("command = 'true'\nseccomp = '{}'", profile.display()));
        task.assert_refused(125, &["seccomp", &profile.display().to_string(), why]);
    }
}

#[test]
fn a_file_without_end_is_refused_before_memory_is_short() {
    let host = Host::new();
    let commands: [(&[&str], i32, &str); 5] = [
        (&["run", "-f", "/dev/zero"], 125, "larger than 4096 KiB"),
        (&["run", "-f", "-"], 125, "larger than 4096 KiB"),
        (&["sandbox", "create", "-f", "/dev/zero"], 125, "larger than 4096 KiB"),
        (&["gc", "--alive", "/dev/zero"], 2, "larger than 4096 KiB"),
        (&["stats", "--from", "/dev/zero", "--plot", "/x.svg"], 125, "is not how a recording begins"),
    ];
    for (args, code, part) in commands {
        let mut command = host.command("/bin/sh");
        // In a gigabyte, which the whole file does not fit into.
        command.args(["-c", "ulimit -v 1000000; exec \"$0\" \"$@\" </dev/zero"]).arg(binary("bowline")).args(args);
        let ran = host.execute(command);
        ran.assert_refused(code, &[part]);
        assert!(ran.err().len() < 500, "{ran}");
    }
}
