//! Cases that run on the reference runtime too: first runc, with the configuration that `bowline spec`
//! prints, must give what we expect; then `bowline run`, with the description.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, Root, only_v2, skip};
use serde_json::Value;

/// Both runtimes; `None`, said aloud, where there is no reference.
fn run_both(host: &Host, toml: &str) -> Option<(Ran, Ran)> {
    let runc = ["/usr/sbin/runc", "/usr/bin/runc"].into_iter().find(|path| fs::exists(path).is_ok_and(|there| there));
    let Some(runc) = runc else {
        skip("runc, the reference, is not installed");
        return None;
    };
    let id = host.new_id();
    let file = host.file(&format!("{id}.toml"), &format!("name = '{id}'\n{toml}"));
    let spec = host.bowline(["spec".as_ref(), file.as_os_str()]);
    spec.assert_code(0);
    let bundle = host.work().join(format!("bundle-{id}"));
    fs::create_dir_all(bundle.join("rootfs")).expect("the work folder is writable");
    let mut config: Value = serde_json::from_slice(&spec.stdout).expect("a configuration is JSON");
    // Not below /bowline: it goes whenever a test beside this one leaves it empty, and the reference does not look again.
    config["linux"]["cgroupsPath"] = format!("/{id}").into();
    fs::write(bundle.join("config.json"), config.to_string()).expect("the work folder is writable");
    let mut command = host.command(runc);
    command.arg("--root").arg(host.work().join("runc")).args(["run", "--bundle"]).arg(&bundle).arg(&id);
    let reference = host.execute(command);
    let ours = host.bowline(["run".as_ref(), "--rm".as_ref(), "--file".as_ref(), file.as_os_str()]);
    Some((reference, ours))
}

/// A description that runs `script` in a busybox root, with these lines.
fn described(root: &Root, script: &str, toml: &str) -> String {
    format!("command = 'sh'\nargs = ['-c', '''{script}''']\nrootfs = '{}'\n{toml}", root.path().display())
}

/// Runs `script` on both; the reference says `out`, and so do we.
#[track_caller]
fn assert_both(toml: &str, script: &str, out: &str) {
    let host = Host::new();
    let root = host.busybox_root();
    if let Some((reference, ours)) = run_both(&host, &described(&root, script, toml)) {
        reference.assert_says(out);
        ours.assert_says(out);
    }
}

/// Runs `script` on both; we say what the reference does, whatever that is.
#[track_caller]
fn assert_alike(toml: &str, script: &str) {
    let host = Host::new();
    let root = host.busybox_root();
    if let Some((reference, ours)) = run_both(&host, &described(&root, script, toml)) {
        reference.assert_code(0);
        ours.assert_code(0);
        assert_eq!(ours.out(), reference.out(), "ours, theirs\n{ours}\n{reference}");
    }
}

#[test]
fn identity() {
    assert_both("", "id -u; id -g; id -G", "0\n0\n0");
    assert_both("user = 'app'", "id -u; id -g; id -G; echo $HOME", "1234\n2345\n2345 3456\n/home/app");
    assert_both("user = '77:88'\ngroups = [99]", "id -u; id -g; id -G | tr \" \" \"\\n\" | sort", "77\n88\n88\n99");
}

#[test]
fn capabilities() {
    let masks = "grep ^Cap /proc/self/status | cut -f2";
    let default = "0000000000000000\n00000000a80405fb\n00000000a80405fb\n00000000a80405fb\n0000000000000000";
    assert_both("", masks, default);
    let changed = default.replace("a80405fb", "a00415fb");
    assert_both("capabilities = {add = ['NET_ADMIN'], drop = ['MKNOD']}", masks, &changed);
    assert_both("capabilities = {drop = ['ALL']}", masks, &default.replace("a80405fb", "00000000"));
    assert_alike("user = 'app'", masks);
    assert_alike("user = 'app'\ncapabilities = {add = ['NET_ADMIN']}", masks);
}

#[test]
fn protection() {
    let status = "grep -E \"^(NoNewPrivs|Seccomp):\" /proc/self/status | cut -f2";
    assert_both("", status, "1\n2");
    assert_both("no_new_privs = false", status, "0\n2");
    assert_both("seccomp = 'unconfined'", status, "1\n0");
    assert_alike("", "umask; grep SigBlk /proc/self/status; cut -d\" \" -f1,5,6 /proc/1/stat");
}

#[test]
fn environment_and_working_directory() {
    assert_both("env = {A = 'a b', PATH = '/bin:/x'}\nworkdir = '/tmp'", "echo \"$A\" $PATH; pwd", "a b /bin:/x\n/tmp");
    assert_both("workdir = '/made/by/it'", "pwd; stat -c \"%a %u\" /made/by/it", "/made/by/it\n755 0");
    assert_alike("", "env | sort");
    assert_alike("user = 'app'\nhostname = 'knot'", "env | sort");
}

#[test]
fn host_name_and_kernel_settings() {
    assert_both("hostname = 'knot'", "hostname", "knot");
    assert_both("sysctls = {'kernel.msgmax' = '4321'}", "cat /proc/sys/kernel/msgmax", "4321");
    let network = "namespaces.network = 'private'\nsysctls = {'net.core.somaxconn' = '77'}";
    assert_both(network, "cat /proc/sys/net/core/somaxconn; ls /sys/class/net", "77\nlo");
}

#[test]
fn limits() {
    assert_both("rlimits = {nofile = '256:1024', core = 0}", "ulimit -Sn; ulimit -Hn; ulimit -c", "256\n1024\n0");
    // Of pending signals ours leaves the host half: `hostile::counts`.
    assert_alike("rlimits = {nofile = '256:1024'}", "grep -v 'Max pending signals' /proc/self/limits");
    assert_both("oom_score_adj = 321", "cat /proc/self/oom_score_adj", "321");
    assert_both("cpu.cpuset = '0'", "grep Cpus_allowed_list /proc/self/status | cut -f2", "0");
}

#[test]
fn limits_of_the_cgroup() {
    let toml = "memory = {limit = '64M', low = '32M', swap = '16M'}\ncpu = {limit = 0.5, shares = 512}\npids = 17\n\
                namespaces.cgroup = 'host'\n\
                mounts = [{source = '/sys/fs/cgroup', destination = '/cg', read_only = true}]";
    let own = "c=$(cut -d: -f3 /proc/self/cgroup | head -n 1)";
    let host = Host::new();
    let root = host.busybox_root();
    // By the host's path: each runtime was given the same one.
    let (script, expected) = if only_v2() {
        // Without cpu.weight: runc before 1.3.2 makes 20 of these shares.
        let files = "memory.max memory.swap.max memory.low cpu.max pids.max";
        (format!("{own}; cd /cg$c; cat {files}"), "67108864\n16777216\n33554432\n50000 100000\n17")
    } else {
        let files = "memory/memory.limit_in_bytes memory/memory.memsw.limit_in_bytes \
                     memory/memory.soft_limit_in_bytes cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us cpu/cpu.shares \
                     pids/pids.max";
        // runc before 1.2 lets every container have /dev/net/tun, 10:200.
        let devices = "sort /cg/devices$c/devices.list | grep -v 10:200";
        let script = format!("{own}; for f in {files}; do cat /cg/${{f%%/*}}$c/${{f##*/}}; done; {devices}");
        (script, "67108864\n83886080\n33554432\n50000\n100000\n512\n17\n")
    };
    if let Some((reference, ours)) = run_both(&host, &described(&root, &script, toml)) {
        assert!(reference.assert_code(0).out().starts_with(expected), "{reference}");
        assert_eq!(ours.assert_code(0).out(), reference.out(), "{ours}");
    }
}

#[test]
fn mounts_and_devices() {
    // What is masked is alike by what can be read of it: below.
    // The files of names are made at a launch.
    assert_alike(
        "names.files = false",
        "cut -d\" \" -f2-4 /proc/mounts | grep -vE \"^/(proc|sys)/.* (tmpfs|devtmpfs) \"",
    );
    // Where the host has /proc/kcore, runc links /dev/core to it, which is masked.
    assert_alike(
        "",
        "cd /dev && rm -f core && stat -c \"%n %F %a %u %g %t %T\" * pts/*; for l in fd stdin stdout stderr ptmx; do readlink $l; done",
    );
    assert_alike("readonly_rootfs = true", "touch /x 2>&1; touch /etc/x 2>&1; touch /tmp/x 2>&1; true");
    let tmpfs = "mounts = [{type = 'tmpfs', destination = '/a', size = '128K', mode = '0700'}, {source = '/usr', destination = '/b', read_only = true}]";
    assert_both(
        tmpfs,
        "stat -c %a /a; df -k /a | tail -n 1 | awk \"{print \\$2}\"; touch /b/x 2>&1 | grep -o Read-only",
        "700\n128\nRead-only",
    );
    let device = "devices = [{path = '/dev/mine', host_path = '/dev/null', access = 'r'}]";
    assert_alike(device, "stat -c \"%F %a %u %g %t %T\" /dev/mine");
}

#[test]
fn masked_and_read_only_paths() {
    let masked = "for p in acpi asound interrupts kcore keys latency_stats sched_debug scsi timer_list; do \
                  if [ -d /proc/$p ]; then ls -A /proc/$p; elif [ -e /proc/$p ]; then head -c 1 /proc/$p; fi; done; ls -A /sys/firmware";
    assert_both("", masked, "");
    assert_alike(
        "",
        "for p in bus fs irq sys; do mkdir /proc/$p/x 2>&1; done; (: >> /proc/sys/vm/swappiness) 2>&1; true",
    );
    assert_both("masked_paths = ['/etc/passwd', '/tmp']", "cat /etc/passwd; ls -A /tmp", "");
}

#[test]
fn namespaces() {
    assert_both(
        "",
        "echo $$; ls -d /proc/[0-9]* | head -n 1; cut -d: -f3 /proc/self/cgroup | sort -u",
        "1\n/proc/1\n/",
    );
    let user = "namespaces.user = 'private'\nuid_mappings = [{container = 0, host = 100000, size = 65536}]\n\
                gid_mappings = [{container = 0, host = 100000, size = 65536}]";
    assert_both(
        user,
        "id -u; awk \"{print \\$1, \\$2, \\$3}\" /proc/self/uid_map /proc/self/gid_map",
        "0\n0 100000 65536\n0 100000 65536",
    );
    assert_alike(
        user,
        "grep -E \"^(Cap|Seccomp:|NoNewPrivs)\" /proc/self/status; cat /proc/self/setgroups; cd /dev && rm -f core && stat -c \"%n %F\" *",
    );
}

#[test]
fn the_host_view() {
    let host = Host::new();
    let script = "ls -A /; touch /usr/x 2>&1; touch /x 2>&1; echo private > /tmp/x && cat /tmp/x; grep -c rw, /proc/mounts > /dev/null; true";
    let toml = format!("command = 'sh'\nargs = ['-c', '''{script}''']");
    if let Some((reference, ours)) = run_both(&host, &toml) {
        assert!(reference.assert_code(0).out().contains("private"), "{reference}");
        assert_eq!(ours.assert_code(0).out(), reference.out(), "{ours}");
    }
}

#[test]
fn exit_codes() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)] {
        let host = Host::new();
        let root = host.busybox_root();
        if let Some((reference, ours)) = run_both(&host, &described(&root, script, "")) {
            reference.assert_code(code);
            ours.assert_code(code);
        }
        host.assert_nothing_left();
    }
}
