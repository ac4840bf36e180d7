//! Which system calls a seccomp filter must allow for a program to start.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::Ran;

/// What such a filter does with every call that it does not name.
const DENIALS: [&str; 3] = ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS"];

/// An ELF program whose only system call is `exit_group(0)`.
fn exits() -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    const ADDRESS: u64 = 0x40_0000;
    #[cfg(target_arch = "x86_64")]
    let (machine, code) = (62u16, [0xb8, 0xe7, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05, 0x0f, 0x0b]);
    #[cfg(target_arch = "aarch64")]
    let (machine, code) = (183u16, [0xc8, 0x0b, 0x80, 0xd2, 0, 0, 0x80, 0xd2, 1, 0, 0, 0xd4, 0, 0, 0, 0]);
    let size = HEADERS + code.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let halves = |elf: &mut Vec<u8>, values: &[u16]| elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let words = |elf: &mut Vec<u8>, values: &[u32]| elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let longs = |elf: &mut Vec<u8>, values: &[u64]| elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    // An executable file of one segment, which can be read and executed: elf(5).
    halves(&mut elf, &[2, machine]);
    words(&mut elf, &[1]);
    longs(&mut elf, &[ADDRESS + HEADERS, 64, 0]);
    words(&mut elf, &[0]);
    halves(&mut elf, &[64, 56, 1, 64, 0, 0]);
    words(&mut elf, &[1, 5]);
    longs(&mut elf, &[0, ADDRESS, ADDRESS, size, size, 0x1000]);
    elf.extend(code);
    elf
}

/// Runs the program that only exits, with a filter that denies all calls but `allowed`.
fn run(host: &Host, denial: &str, allowed: &[&str], more: &str) -> Ran {
    let root = host.busybox_root();
    let program = host.work().join("exits");
    fs::write(&program, exits()).expect("the work folder is writable");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("it is ours");
    // Copied by another process: the kernel executes no file that is open for writing, and a child that another test
    // forks meanwhile has the files of this process open.
    let copied = Command::new("cp").arg("-p").arg(&program).arg(root.path()).status();
    assert!(copied.expect("cp runs").success(), "the work folder is writable");
    let profile = serde_json::json!({
        "defaultAction": denial,
        "syscalls": [{"names": allowed, "action": "SCMP_ACT_ALLOW"}],
    });
    let profile = host.file("profile.json", &profile.to_string());
    let toml = format!("command = '/exits'\nseccomp = '{}'\n{more}", profile.display());
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
fn without_it_a_program_also_needs_what_changes_user_and_capabilities() {
    let needed = ["capget", "capset", "execve", "exit_group", "prctl", "setgid", "setgroups", "setuid"];
    for denial in DENIALS {
        let host = Host::new();
        run(&host, denial, &needed, "no_new_privs = false\nuser = '1000:1000'").assert_code(0);
        host.assert_nothing_left();
    }
}

#[test]
fn a_filter_that_denies_execve_ends_the_task_with_what_it_answers() {
    let host = Host::new();
    let ran = run(&host, "SCMP_ACT_ERRNO", &["write", "exit_group"], "");
    assert!(ran.is_refusal() && ran.err().contains("/exits"), "{ran}");
    // Killed by SIGSYS, as under runc.
    run(&host, "SCMP_ACT_KILL_PROCESS", &["write", "exit_group"], "").assert_code(159);
    host.assert_nothing_left();
}
