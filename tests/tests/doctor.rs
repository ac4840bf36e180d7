//! `bowline doctor`: what this host can do, the effect of each problem and its fix.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, binary, copy_binary, skip, write_program};
use serde_json::Value;

fn facts(ran: &Ran) -> Vec<Value> {
    ran.json()["facts"].as_array().expect("a list of facts").clone()
}

#[track_caller]
pub fn fact(ran: &Ran, name: &str) -> Value {
    let found = facts(ran).into_iter().find(|fact| fact["name"] == name);
    found.unwrap_or_else(|| panic!("nothing is said of {name}\n{ran}"))
}

#[test]
fn tasks_can_run_on_a_host_that_runs_the_tests() {
    let host = Host::new();
    let ran = host.bowline(["doctor", "--json"]);
    ran.assert_code(0);
    assert_eq!(ran.json()["runs"], true, "{ran}");
    assert!(facts(&ran).iter().all(|fact| fact["state"] != "blocks"), "{ran}");
}

#[test]
fn lines_and_json_have_the_same_facts() {
    let host = Host::new();
    let text = host.bowline(["doctor"]).assert_code(0).out();
    let listed: Vec<&str> = text
        .lines()
        .filter_map(|line| ["+ ", "- ", "! ", "? "].iter().find_map(|mark| line.strip_prefix(mark)))
        .map(|line| line.split(": ").next().expect("a name"))
        .collect();
    let facts = facts(&host.bowline(["doctor", "--json"]));
    let named: Vec<&str> = facts.iter().map(|fact| fact["name"].as_str().expect("a name")).collect();
    assert_eq!(listed, named);
}

#[test]
fn every_problem_has_an_effect() {
    let host = Host::new();
    let ran = host.bowline(["doctor", "--json"]);
    for fact in facts(&ran) {
        let lacks = fact["state"] == "lacks" && fact["name"] != "taken for absent";
        assert_eq!(lacks, fact["effect"].is_string(), "{fact}");
    }
}

#[test]
fn without_root_it_says_so_and_facts_for_root_are_unknown() {
    let host = Host::new();
    // The original may be where only root can go.
    let copy = host.work().join("bowline");
    copy_binary("bowline", &copy);
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("the test's own");
    let mut command = host.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args(["doctor", "--json"]);
    let ran = host.execute(command);
    ran.assert_code(125);
    assert_eq!(ran.json()["runs"], false, "{ran}");
    assert_eq!(fact(&ran, "root")["state"], "blocks", "{ran}");
    for name in ["mount namespaces", "pid namespaces", "overlayfs", "idmapped mounts"] {
        assert_eq!(fact(&ran, name)["state"], "unknown", "{ran}");
    }
    assert_eq!(fact(&ran, "seccomp filters")["state"], "has", "whoever gives up rights may load one\n{ran}");
}

#[test]
fn a_program_missing_from_path_comes_with_its_install_command() {
    let host = Host::new();
    let doctor = |path: &Path| {
        let mut command = host.command(binary("bowline"));
        command.args(["doctor", "--json"]).env("PATH", path);
        host.execute(command)
    };
    let ran = doctor(&host.work());
    let criu = fact(&ran, "CRIU");
    assert_eq!(criu["state"], "lacks", "{ran}");
    if Path::new("/usr/bin/apt-get").exists() {
        assert_eq!(criu["fix"], "apt-get install criu", "{ran}");
    }
    write_program(&host.work().join("criu"), "#!/bin/sh\necho 'Version: 4711'\n");
    let ran = doctor(&host.work());
    let criu = fact(&ran, "CRIU");
    assert!(criu["state"] == "has" && criu["found"] == "Version: 4711", "{ran}");
}

#[test]
fn what_the_flags_of_networks_and_systemd_need_is_told() {
    let host = Host::new();
    let mut command = host.command("unshare");
    let script = "for folder in /usr/sbin /opt/cni/bin /usr/lib/cni /usr/libexec/cni; do \
        [ ! -d $folder ] || mount -t tmpfs none $folder; done; exec \"$0\" doctor --json";
    command.args(["--mount", "/bin/sh", "-c", script]).arg(binary("bowline"));
    let ran = host.execute(command);
    for name in ["network plugins", "iptables"] {
        let fact = fact(&ran, name);
        let effect = fact["effect"].as_str().expect("an effect");
        assert!(fact["state"] == "lacks" && effect.contains("`--network bridge`"), "{fact}");
    }
    let systemd = fact(&ran, "systemd");
    if !Path::new("/run/systemd/system").exists() {
        assert!(systemd["effect"].as_str().is_some_and(|effect| effect.contains("`--slice`")), "{systemd}");
        assert!(!ran.out().contains("kernel parameter systemd."), "{ran}");
    }
}

#[test]
fn a_namespace_that_is_switched_off_names_the_sysctl() {
    let host = Host::new();
    // The sysctls of a user namespace are its own.
    let mut command = host.command("unshare");
    let script =
        "cd /proc/sys/user && echo 0 >max_user_namespaces && echo 0 >max_pid_namespaces && exec \"$0\" doctor --json";
    command.args(["--user", "--map-root-user", "/bin/sh", "-c", script]).arg(binary("bowline"));
    let ran = host.execute(command);
    if ran.code == Some(1) {
        skip("no user namespaces here");
        return host.assert_nothing_left();
    }
    ran.assert_code(125);
    let user = fact(&ran, "user namespaces");
    assert!(user["state"] == "lacks" && user["fix"] == "sysctl -w user.max_user_namespaces=15000", "{ran}");
    let pid = fact(&ran, "pid namespaces");
    assert!(pid["state"] == "blocks" && pid["fix"] == "sysctl -w user.max_pid_namespaces=15000", "{ran}");
}

#[test]
fn without_cgroups_tasks_cannot_run() {
    let host = Host::new();
    let mut command = host.command("unshare");
    let script = "umount -lR /sys/fs/cgroup && exec \"$0\" doctor --json";
    command.args(["--mount", "/bin/sh", "-c", script]).arg(binary("bowline"));
    let ran = host.execute(command);
    ran.assert_code(125);
    let cgroups = fact(&ran, "cgroups");
    assert!(cgroups["state"] == "blocks", "{ran}");
    assert_eq!(cgroups["fix"], "mount -t cgroup2 cgroup2 /sys/fs/cgroup", "{ran}");
}

#[test]
fn an_unwritable_state_folder_keeps_tasks_from_running() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    disk.read_only();
    let state = disk.path().join("deep/below");
    let ran = host.bowline(["--state", state.to_str().expect("ASCII"), "doctor", "--json"]);
    ran.assert_code(125);
    let found = fact(&ran, "state folder");
    assert!(found["state"] == "blocks" && found["fix"].as_str().is_some_and(|m| m.contains("--state")), "{ran}");
    drop(disk);
}

#[test]
fn a_full_state_folder_is_told() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let ran = host.bowline(["--state", disk.path().to_str().expect("ASCII"), "doctor", "--json"]);
    ran.assert_code(0);
    let found = fact(&ran, "state folder");
    assert!(found["state"] == "lacks" && found["found"].as_str().is_some_and(|f| f.contains("tmpfs, 0 MiB")), "{ran}");
    drop(disk);
}

#[test]
fn every_controller_that_the_kernel_has_mounted_is_found() {
    let host = Host::new();
    let ran = host.bowline(["doctor", "--json"]);
    // pids is what no task can do without.
    for name in ["cgroup controller memory", "cgroup controller pids", "cgroup controller cpu"] {
        let fact = fact(&ran, name);
        let place = fact["found"].as_str().expect("a place");
        assert!(fact["state"] == "has" && Path::new(place).is_dir(), "{fact}");
    }
}
