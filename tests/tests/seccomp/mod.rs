//! Which system calls a seccomp filter must allow for a program to start, and what it answers to calls that it cannot
//! know.

mod notify;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::Stdio;
use bowline_tests::harness::machine_code::{call, elf, exit, hang};
use bowline_tests::harness::{Ran, patience};
use serde_json::{Value, json};

/// What such a filter does with every call that it does not name.
const DENIALS: [&str; 3] = ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS"];

/// What runtimes call between filter and program where there is no no_new_privs, since only a process with rights that
/// the program has not may load a filter.
const NEEDED: [&str; 6] = ["capset", "execve", "prctl", "setgid", "setgroups", "setuid"];

/// A script that the kernel does not execute.
const NO_INTERPRETER: &[u8] = b"#!/no/such/interpreter\n";

/// Puts the program `text` at `/probe` in the root filesystem at `root`.
fn place(host: &Host, root: &Path, text: &[u8]) {
    let program = host.work().join("probe");
    fs::write(&program, text).expect("the work folder is writable");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("it is ours");
    // Copied by another process: the kernel executes no file that is open for writing, and a child that another test
    // forks meanwhile has the files of this process open.
    let copied = Command::new("cp").arg("-p").arg(&program).arg(root).status();
    assert!(copied.expect("cp runs").success(), "the work folder is writable");
}

/// Runs the program that only exits, with a filter that denies all calls but `allowed`.
fn run(host: &Host, denial: &str, allowed: &[&str], more: &str) -> Ran {
    run_program(host, &elf(&exit(0)), denial, allowed, more)
}

/// Runs the program `text` with a filter that denies all calls but `allowed`.
fn run_program(host: &Host, text: &[u8], denial: &str, allowed: &[&str], more: &str) -> Ran {
    let root = host.busybox_root();
    place(host, root.path(), text);
    let profile = json!({
        "defaultAction": denial,
        "syscalls": [{"names": allowed, "action": "SCMP_ACT_ALLOW"}],
    });
    let profile = host.file("profile.json", &profile.to_string());
    let toml = format!("command = '/probe'\nseccomp = '{}'\n{more}", profile.display());
    host.described(&toml).rootfs(root.path()).run()
}

#[test]
fn with_no_new_privs_a_program_needs_execve_alone() {
    for denial in DENIALS {
        let host = Host::new();
        run(&host, denial, &["execve", "exit_group"], "").assert_code(0);
        host.assert_nothing_left();
    }
}

#[test]
fn without_no_new_privs_calls_that_change_user_are_needed_too() {
    let needed = [&NEEDED[..], &["exit_group"]].concat();
    for (denial, user) in DENIALS.into_iter().zip(["1000:1000", "0:0", "1000:1000"]) {
        let host = Host::new();
        run(&host, denial, &needed, &format!("no_new_privs = false\nuser = '{user}'")).assert_code(0);
        host.assert_nothing_left();
    }
}

#[test]
fn a_filter_that_denies_execve_ends_the_task_with_its_answer() {
    let host = Host::new();
    // The last has a higher number than execve on every processor: whatever is above all of them would not be there.
    let allowed = ["write", "exit_group", "statx"];
    let ran = run(&host, "SCMP_ACT_ERRNO", &allowed, "");
    assert!(ran.is_refusal() && ran.err().contains("/probe"), "{ran}");
    // Killed by SIGSYS, as under runc.
    run(&host, "SCMP_ACT_KILL_PROCESS", &allowed, "").assert_code(159);
}

/// keyctl(2), which no profile here allows, and a number that no kernel has.
const KEYCTL: u16 = if cfg!(target_arch = "x86_64") { 250 } else { 219 };
const FUTURE: u16 = 2000;
/// What runc calls after it has loaded a filter, and the program. The highest number, of faccessat2, is above keyctl's.
const RUNC_NEEDS: [&str; 53] = [
    "capget",
    "capset",
    "chdir",
    "clone",
    "clone3",
    "close",
    "close_range",
    "dup3",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "eventfd2",
    "execve",
    "exit_group",
    "faccessat",
    "faccessat2",
    "fchdir",
    "fchown",
    "fcntl",
    "fstat",
    "fstatfs",
    "futex",
    "getcwd",
    "getdents64",
    "getpid",
    "getppid",
    "gettid",
    "ioctl",
    "kill",
    "lseek",
    "madvise",
    "mmap",
    "munmap",
    "nanosleep",
    "newfstatat",
    "openat",
    "openat2",
    "pipe2",
    "prctl",
    "read",
    "readlinkat",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_yield",
    "setgid",
    "setgroups",
    "setuid",
    "sigaltstack",
    "statfs",
    "tgkill",
    "uname",
    "write",
];
const NATIVE: &str = if cfg!(target_arch = "x86_64") { "SCMP_ARCH_X86_64" } else { "SCMP_ARCH_AARCH64" };
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

#[test]
fn a_call_unknown_to_the_default_profile_gets_enosys() {
    let host = Host::new();
    let root = host.busybox_root();
    for (number, errno) in [(KEYCTL, EPERM), (FUTURE, ENOSYS)] {
        place(&host, root.path(), &elf(&call(number)));
        host.task_of(["/probe"]).rootfs(root.path()).run().assert_code(errno.cast_signed());
    }
}

#[test]
fn a_call_unknown_to_a_managers_profile_gets_enosys() {
    let host = Host::new();
    let containerd = host.containerd();
    let killed = 128 + 31;
    for (default, known, future) in [
        (json!({"defaultAction": "SCMP_ACT_ERRNO"}), EPERM, ENOSYS),
        (json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 13}), 13, ENOSYS),
        (json!({"defaultAction": "SCMP_ACT_KILL_PROCESS"}), killed, ENOSYS),
        (json!({"defaultAction": "SCMP_ACT_LOG"}), ENOSYS, ENOSYS),
    ] {
        for (number, expected) in [(KEYCTL, known), (FUTURE, future)] {
            let mut profile = default.clone();
            // runc 1.1 does this for architectures that are named alone.
            profile["architectures"] = json!([NATIVE]);
            profile["syscalls"] = json!([{"names": &RUNC_NEEDS[..], "action": "SCMP_ACT_ALLOW"}]);
            let bundle = containerd.bundle().args(&["/probe"]);
            let bundle = bundle.edit(|config| config["linux"]["seccomp"] = profile);
            place(&host, &bundle.rootfs(), &elf(&call(number)));
            let io = bundle.fifos("init");
            let running = containerd.run_with(bundle, &io);
            let status = running.shim.status_at_end(&running.id, "");
            if default["defaultAction"] != "SCMP_ACT_LOG" || number == FUTURE {
                assert_eq!(status, expected, "{default} {number}");
            }
            running.end();
        }
    }
}

#[test]
fn an_unexecutable_program_is_a_clear_error_under_any_filter() {
    for denial in DENIALS {
        for (allowed, more) in [(&["execve"][..], ""), (&NEEDED, "no_new_privs = false\nuser = '1000:1000'")] {
            let host = Host::new();
            let ran = run_program(&host, NO_INTERPRETER, denial, allowed, more);
            ran.assert_refused(127, &["/probe", "interpreter"]);
            host.assert_nothing_left();
        }
    }
}

#[test]
fn so_it_is_for_an_exec() {
    let host = Host::new();
    let root = host.busybox_root();
    place(&host, root.path(), NO_INTERPRETER);
    for action in ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL_PROCESS"] {
        let rules = json!([{"names": ["write", "exit_group", "exit"], "action": action}]);
        let profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules});
        let profile = host.file("profile.json", &profile.to_string());
        let toml = format!("command = 'sleep'\nargs = ['1000']\nseccomp = '{}'", profile.display());
        let task = host.described(&toml).rootfs(root.path()).start();
        task.bowline("exec", ["--", "/probe"]).assert_refused(127, &["/probe", "interpreter"]);
        task.end();
    }
}

/// The names of every call that the default profile with all capabilities knows, and of some that it never allows.
fn all_calls(host: &Host) -> Vec<String> {
    let toml = "command = 'true'\ncapabilities.add = ['BPF', 'DAC_READ_SEARCH', 'PERFMON', 'SYSLOG', 'SYS_ADMIN', \
                'SYS_BOOT', 'SYS_CHROOT', 'SYS_MODULE', 'SYS_NICE', 'SYS_PACCT', 'SYS_PTRACE', 'SYS_RAWIO', 'SYS_TIME', \
                'SYS_TTY_CONFIG']";
    let spec = host.bowline([Path::new("spec"), &host.file("all.toml", toml)]).json();
    let rules = spec["linux"]["seccomp"]["syscalls"].as_array().expect("a list").clone();
    let names = rules.iter().flat_map(|rule| rule["names"].as_array().expect("a list").clone());
    let mut names: Vec<String> = names.map(|name| name.as_str().expect("a name").to_owned()).collect();
    let denied = ["add_key", "io_uring_enter", "io_uring_setup", "kexec_load", "keyctl", "pivot_root", "request_key"];
    names.extend(denied.map(str::to_owned));
    names.extend(["swapon", "userfaultfd"].map(str::to_owned));
    names.sort();
    names.dedup();
    names
}

/// One call in so many is denied, others in each of the runs; `BOWLINE_EVERY_CALL=1` denies each.
const ONE_IN: usize = 61;

/// Runs tasks that `run` makes of a description without a command, each with one call denied that is not among `used`, nor
/// what any runtime needs: all exit with 0.
#[track_caller]
fn deny_each(host: &Host, used: &[&str], run: impl Fn(&str) -> Ran) {
    let calls = all_calls(host);
    assert!(calls.len() > 350, "{calls:?}");
    let one_in = if std::env::var_os("BOWLINE_EVERY_CALL").is_some() { 1 } else { ONE_IN };
    let mut runs = 0;
    for no_new_privs in [true, false] {
        for user in ["0:0", "1000:1000"] {
            for action in ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL"] {
                runs += 1;
                for name in calls.iter().skip(runs % one_in).step_by(one_in).map(String::as_str) {
                    let needed = if no_new_privs { &["execve"][..] } else { &NEEDED };
                    if needed.contains(&name) || used.contains(&name) {
                        continue;
                    }
                    let rules = json!([{"names": [name], "action": action}]);
                    let profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules});
                    let profile = host.file("profile.json", &profile.to_string());
                    let profile = profile.display();
                    let ran = run(&format!("seccomp = '{profile}'\nuser = '{user}'\nno_new_privs = {no_new_privs}"));
                    assert!(ran.code == Some(0), "{name} {action} {user} {no_new_privs}: {ran}");
                }
            }
        }
    }
}

#[test]
fn any_single_call_may_be_denied_but_those_needed_anyway() {
    let host = Host::new();
    let root = host.busybox_root();
    place(&host, root.path(), &elf(&exit(0)));
    deny_each(&host, &["exit_group"], |more| {
        host.described(&format!("command = '/probe'\n{more}")).rootfs(root.path()).run()
    });
}

#[test]
fn so_may_any_for_an_exec() {
    let host = Host::new();
    let root = host.busybox_root();
    place(&host, root.path(), &elf(&hang()));
    fs::rename(root.path().join("probe"), root.path().join("waits")).expect("ours");
    place(&host, root.path(), &elf(&exit(0)));
    deny_each(&host, &["exit_group", "pause", "ppoll"], |more| {
        let task = host.described(&format!("command = '/waits'\n{more}")).rootfs(root.path()).start();
        let ran = task.bowline("exec", ["--", "/probe"]);
        task.end();
        ran
    });
}

/// What a container with a `startContainer` hook needs beyond the calls of its program, where there is no
/// no_new_privs: its init starts the hook and waits for it under the filter. Some have another name on ARM.
const NEEDED_BY_HOOKS: [&str; 20] = [
    "chdir",
    "clone",
    "close",
    "close_range",
    "dup2",
    "dup3",
    "fcntl",
    "getpid",
    "lseek",
    "memfd_create",
    "open",
    "openat",
    "pipe2",
    "ppoll",
    "read",
    "rt_sigaction",
    "rt_sigprocmask",
    "setsid",
    "waitid",
    "write",
];

#[test]
fn any_single_call_may_be_denied_beside_a_startcontainer_hook() {
    let host = Host::new();
    let calls = all_calls(&host);
    let every = std::env::var_os("BOWLINE_EVERY_CALL").is_some();
    let root = host.busybox_root();
    place(&host, root.path(), &elf(&exit(0)));
    let folder = host.work().join("bundle");
    fs::create_dir(&folder).expect("a new folder");
    let file = host.file("probe.toml", &format!("command = '/probe'\nrootfs = '{}'", root.path().display()));
    let printed = host.bowline(["spec", file.to_str().expect("ASCII")]);
    let config: Value = serde_json::from_str(&printed.assert_code(0).out()).expect("JSON");
    let mut wrong = Vec::new();
    let combined = [true, false].map(|late| ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL_PROCESS"].map(|action| (late, action)));
    for (no_new_privs, action) in combined.into_iter().flatten() {
        for (at, name) in calls.iter().map(String::as_str).enumerate() {
            let skipped = !every && at % ONE_IN != 0 && !NEEDED_BY_HOOKS.contains(&name);
            if skipped || ["execve", "exit_group"].contains(&name) {
                continue;
            }
            let mut config = config.clone();
            config["process"]["noNewPrivileges"] = json!(no_new_privs);
            let rules = json!([{"names": [name], "action": action}]);
            config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules});
            config["hooks"] = json!({"startContainer": [{"path": "/probe", "timeout": 5}]});
            fs::write(folder.join("config.json"), config.to_string()).expect("written");
            let ran = host.task_of([]).flag(format!("--bundle={}", folder.display())).run();
            let by_program = !no_new_privs && NEEDED.contains(&name);
            let by_hook = !no_new_privs && NEEDED_BY_HOOKS.contains(&name);
            let is_told = action != "SCMP_ACT_ERRNO" || ran.err().contains("startContainer hook #0 (/probe)");
            if ran.code != Some(0) && !by_program && !(by_hook && is_told) {
                wrong.push(format!("{name} {action} {no_new_privs}: {:?} {}", ran.code, ran.err()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_denied_call_that_every_runtime_needs_is_an_error() {
    let host = Host::new();
    let containerd = host.containerd();
    // A start under runc has no part in execve: see above for ours.
    for call in NEEDED.into_iter().filter(|call| *call != "execve") {
        let rules = json!([{"names": [call], "action": "SCMP_ACT_ERRNO"}]);
        let profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules});
        let bundle = containerd.bundle().args(&["/bin/true"]).edit(|config| {
            config["linux"]["seccomp"] = profile;
            config["process"]["noNewPrivileges"] = json!(false);
            config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
        });
        let shim = containerd.start(&bundle);
        let created = shim.create(&bundle, &Stdio::null());
        let failure = created.and_then(|_| shim.start(&bundle.id, "")).expect_err(call);
        assert!(!failure.message.is_empty(), "{call}");
        // Whether it is left to be deleted depends on which of both calls has failed.
        let _ = shim.delete(&bundle.id, "");
        shim.over();
    }
}

/// Two rules that libseccomp 2.5 goes through without end, and runc with it.
const ENDLESS: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
    {"names": ["openat2"], "action": "SCMP_ACT_LOG", "args": [
        {"index": 2, "value": 13253932390241052024, "valueTwo": 13253932390241052024, "op": "SCMP_CMP_MASKED_EQ"},
        {"index": 1, "value": 18446744073709551615, "op": "SCMP_CMP_NE"}]},
    {"names": ["openat2"], "action": "SCMP_ACT_LOG", "args": [
        {"index": 1, "value": 18446744073709551615, "op": "SCMP_CMP_NE"},
        {"index": 3, "value": 18446744073709551615, "op": "SCMP_CMP_LT"}]}]}"#;

#[test]
fn a_profile_that_libseccomp_never_finishes_is_refused() {
    let host = Host::new();
    let profile = host.file("endless.json", ENDLESS);
    let option = format!("--security-opt=seccomp={}", profile.display());
    let ran = host.spawn(["run", "--name", &host.new_id(), &option, "--", "true"]);
    // Ten seconds of the processor, which others use too.
    let ran = ran.finish_within(4 * patience());
    // A later libseccomp may come to an end.
    if ran.err().is_empty() {
        ran.assert_code(0);
        return host.assert_nothing_left();
    }
    ran.assert_code(125);
    assert!(ran.err().contains("seccomp: 10 s of the processor") && ran.err().contains("hint: libseccomp"), "{ran}");
}
