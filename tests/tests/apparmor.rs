//! AppArmor's profiles: one that is named, the default, and none.
//!
//! Where the kernel has none, as on hosts that boot with another security
//! module, what is asked for is refused, and the default does not apply; the
//! virtual machine's kernel has it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::Ran;

const DEFAULT: &str = "bowline-default";

fn is_in_use() -> bool {
    let on = fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'));
    on && Path::new("/sys/kernel/security/apparmor/profiles").exists()
}

fn is_loaded(name: &str) -> bool {
    let all = fs::read_to_string("/sys/kernel/security/apparmor/profiles").unwrap_or_default();
    all.lines().any(|line| line.starts_with(&format!("{name} (")))
}

/// A profile, loaded until this is dropped.
struct Loaded(PathBuf);

impl Loaded {
    fn new(host: &Host, name: &str, text: &str) -> Loaded {
        let file = host.file(name, text);
        Loaded::parser("-rK", &file);
        assert!(is_loaded(name), "{text}");
        Loaded(file)
    }

    fn parser(how: &str, file: &Path) {
        let ran = Command::new("apparmor_parser").arg(how).arg(file).output().expect("apparmor_parser runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        Loaded::parser("-RK", &self.0);
    }
}

/// The profile of whoever runs it.
const OWN: &str = "cat /proc/self/attr/current";

/// With the default profile loaded, if AppArmor is in use: alone, as it is that of
/// every task that is started meanwhile.
fn with_default(check: impl FnOnce(&Host)) {
    if !is_in_use() {
        return;
    }
    let host = Host::alone();
    assert!(!is_loaded(DEFAULT), "it would be taken away here");
    let loaded = Loaded::new(&host, DEFAULT, include_str!("../../apparmor/bowline-default"));
    check(&host);
    drop(loaded);
}

fn doctors(host: &Host) -> serde_json::Value {
    let said = host.bowline(["doctor", "--json"]).json();
    let mut facts = said["facts"].as_array().expect("a list").iter();
    facts.find(|fact| fact["name"] == "AppArmor").expect("doctor reports it").clone()
}

#[test]
fn a_profile_that_is_not_there_is_refused_with_the_reason() {
    let host = Host::new();
    let reason = if is_in_use() { "not loaded" } else { "AppArmor is not in use on this host" };
    let task = host.task("true").toml("apparmor = 'no-such-profile'");
    task.assert_refused(125, &["apparmor", "no-such-profile", reason]);
}

#[test]
fn none_can_be_had_whatever_the_kernel_has() {
    let host = Host::new();
    let ran = host.task("echo fine").toml("apparmor = 'unconfined'").run();
    ran.assert_says("fine");
}

#[test]
fn doctor_says_that_tasks_lack_the_default() {
    let host = Host::new();
    let fact = doctors(&host);
    let expected = if is_in_use() { "not loaded" } else { "not in use" };
    assert!(fact["found"].as_str().is_some_and(|value| value.contains(expected)), "{fact}");
    assert_eq!(fact["state"], "lacks", "{fact}");
}

#[test]
fn doctor_says_that_tasks_have_the_default() {
    with_default(|host| {
        let fact = doctors(host);
        assert_eq!(fact["state"], "has", "{fact}");
        assert!(fact["found"].as_str().is_some_and(|value| value.contains(DEFAULT)), "{fact}");
    });
}

#[test]
fn a_named_profile_holds_for_the_task_and_its_execs() {
    if !is_in_use() {
        return;
    }
    let host = Host::new();
    let name = format!("bowline-test-{}", std::process::id());
    let text = format!(
        "profile {name} flags=(attach_disconnected) {{\n  file,\n  network,\n  capability,\n  \
         signal (receive) peer=unconfined,\n  deny /tmp/denied w,\n}}\n"
    );
    let loaded = Loaded::new(&host, &name, &text);
    let confined = format!("{name} (enforce)");
    for more in ["", "namespaces.user = 'private'\n", "user = '1000:1000'\n"] {
        let toml = format!("apparmor = '{name}'\n{more}{}", if more.contains("namespaces") { MAPPED } else { "" });
        let task = host.task(&format!("{OWN}; echo ready; exec sleep 1000")).toml(&toml).start();
        task.wait_for_line(&confined);
        task.wait_for_line("ready");
        task.exec(OWN).assert_says(&confined);
        let denied = task.exec("> /tmp/allowed && > /tmp/denied");
        assert!(denied.err().contains("denied: Permission denied"), "{denied}");
        task.stop(["--grace=0"]);
    }
    drop(loaded);
}

#[test]
fn a_task_of_nomads_has_the_profile_that_its_job_names() {
    if !is_in_use() {
        return;
    }
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let name = format!("bowline-nomad-{}", std::process::id());
    let text = format!("profile {name} flags=(attach_disconnected) {{\n  file,\n  signal,\n}}\n");
    let loaded = Loaded::new(&host, &name, &text);
    let task = plugin.task(&format!("{OWN}; exec sleep 1000")).config("apparmor", name.as_str()).start();
    task.out().wait_for(&format!("{name} (enforce)\n"));
    let (said, _) = plugin.exec(&task, OWN, "10s").expect("it runs");
    assert_eq!(said, format!("{name} (enforce)\n"));
    plugin.destroy_by_force(&task);
    drop(loaded);
    plugin.task("true").config("apparmor", name.as_str()).assert_refused(&["config.apparmor", "not loaded"]);
    plugin.kill();
}

const MAPPED: &str = "uid_mappings = [{ container = 0, host = 100000, size = 65536 }]\n\
    gid_mappings = [{ container = 0, host = 100000, size = 65536 }]\n";

#[test]
fn a_task_that_names_none_has_the_default_where_it_is_loaded() {
    with_default(|host| {
        let confined = format!("{DEFAULT} (enforce)");
        let task = host.task(&format!("trap 'exit 7' TERM; {OWN}; echo ready; sleep 1000 & wait")).start();
        task.wait_for_line("ready");
        task.wait_for_line(&confined);
        task.exec(OWN).assert_says(&confined);
        // Its own signals, and those of the shim.
        task.exec("sleep 1000 & kill -9 $!; wait $!; [ $? = 137 ] && echo killed").assert_says("killed");
        task.stop(["--grace=60s"]).assert_code(7);
        // Some systems have a profile for a program by its path that confines nothing.
        let ran = host.task(OWN).toml("apparmor = 'unconfined'").run();
        assert!(ran.out().contains("unconfined") && !ran.out().contains(DEFAULT), "{ran}");
    });
}

/// By the system call itself: mount(8) has reasons of its own for a failure.
const MOUNT: &str = "perl -e '($kind, $to) = (\"tmpfs\", \"/tmp\"); \
    syscall(165, $kind, $to, $kind, 0, 0) == 0 or die \"$!\\n\"'";

#[test]
fn the_default_denies_what_a_description_gives_away() {
    with_default(|host| {
        let open = "readonly_paths = []\nmasked_paths = []\ncapabilities.add = ['SYS_ADMIN', 'SYS_PTRACE']\n\
             seccomp = 'unconfined'\n";
        let denied = |script: &str| -> Ran {
            let ran = host.task(script).toml(open).run();
            assert!(ran.err().contains("ermission denied"), "{ran}");
            ran
        };
        denied(": >> /proc/sys/vm/swappiness");
        denied(": >> /proc/sysrq-trigger");
        denied("head -c 1 /proc/kcore");
        denied(MOUNT);
        // Allowed where nothing confines it: the profile has denied it.
        let none = format!("{open}apparmor = 'unconfined'\n");
        let ran = host.task(&format!(": >> /proc/sys/vm/swappiness && {MOUNT} && echo done")).toml(&none).run();
        ran.assert_says("done");
    });
}

/// By socketcall(2) too, where no filter sees the family.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_default_denies_socket_families_to_32_bit_programs() {
    use std::os::unix::fs::PermissionsExt as _;

    use bowline_tests::harness::machine_code::{SUCCEEDED, elf, socketcall};

    with_default(|host| {
        let program = host.work().join("written");
        let placed = host.work().join("program");
        // AF_INET and SOCK_STREAM, AF_ALG and SOCK_SEQPACKET, AF_VSOCK and SOCK_STREAM; EACCES is 13.
        for (family, kind, expected) in [(2, 1, SUCCEEDED), (38, 5, 13), (40, 1, 13)] {
            fs::write(&program, elf(&socketcall(family, kind))).expect("the work folder is writable");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
            // By another process: the kernel executes no file that a child of this one has open for writing.
            assert!(Command::new("cp").arg("-p").args([&program, &placed]).status().expect("cp runs").success());
            let mount = format!(
                "mounts = [{{source = '{}', destination = '/tmp/program', read_only = true}}]",
                placed.display()
            );
            host.described(&format!("command = '/tmp/program'\n{mount}")).run().assert_code(expected);
        }
    });
}
