//! Other doors to what the default filter decides by an argument: bits that the kernel ignores, the calls of i386 and x32,
//! and multiplexers.

#![cfg(target_arch = "x86_64")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::machine_code::{Door, SUCCEEDED, call_by, elf, socketcall};

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;
/// A shell's code for SIGSYS.
const KILLED: i32 = 128 + 31;

const AF_INET: u32 = 2;
const AF_ALG: u32 = 38;
const AF_VSOCK: u32 = 40;
const SOCK_STREAM: u32 = 1;
const SOCK_SEQPACKET: u32 = 5;

/// ipc(2) of i386, whose first argument says which call it is.
const IPC: u32 = 117;

/// Calls that make an object of System V's: with its number, its arguments by ipc(2), and its own.
const SYSTEM_V: [(&str, u32, [u64; 3], [u64; 3]); 3] = [
    ("semget", 64, [2, 0, 1], [0, 1, 0]),
    ("msgget", 68, [13, 0, 0], [0, 0, 0]),
    ("shmget", 29, [23, 0, 4096], [0, 4096, 0]),
];

/// A program by its name, and with what it has to exit.
type Expected = (String, Vec<u8>, i32);

/// Puts `programs` into a folder, and returns the lines of a description that run them all: each line of the output is a
/// program's name and exit code.
fn all_of(host: &Host, programs: &[Expected]) -> String {
    let (written, folder) = (host.work().join("written"), host.work().join("doors"));
    fs::create_dir(&written).expect("the work folder is writable");
    for (name, code, _) in programs {
        let path = written.join(name);
        fs::write(&path, elf(code)).expect("a new file");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
    }
    // By another process: the kernel executes no file that a child of this one has open for writing.
    let copied = Command::new("cp").arg("-rp").args([&written, &folder]).status();
    assert!(copied.expect("cp runs").success());
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("it is ours");
    format!(
        "command = 'sh'\nargs = ['-c', '''{RUN_ALL}''']\n\
         mounts = [{{source = '{}', destination = '/tmp/doors', read_only = true}}]\n",
        folder.display()
    )
}

const RUN_ALL: &str = "cd /tmp/doors; for p in *; do ./$p 2>/dev/null; echo $p $?; done 2>/dev/null";

#[track_caller]
fn assert_exits(host: &Host, description: &str, programs: &[Expected]) {
    let said = host.described(description).run().out();
    let mut expected: Vec<String> = programs.iter().map(|(name, _, code)| format!("{name} {code}")).collect();
    let mut lines: Vec<&str> = said.lines().collect();
    expected.sort();
    lines.sort_unstable();
    assert_eq!(lines, expected, "{description}");
}

fn program(name: &str, door: Door, number: u32, arguments: [u64; 3], code: i32) -> Expected {
    (format!("{name}-{door:?}"), call_by(door, number, arguments), code)
}

/// The same call by each door, with the numbers that it has for x86-64 and x32, and for i386.
fn by_each(name: &str, number: u32, of_i386: u32, arguments: [u64; 3], code: i32) -> Vec<Expected> {
    let doors = [(Door::Native, number), (Door::X32, number), (Door::I386, of_i386)];
    doors.into_iter().map(|(door, number)| program(name, door, number, arguments, code)).collect()
}

#[test]
fn what_is_decided_by_an_argument_is_shut_by_each_door() {
    let host = Host::new();
    let families = [("alg", AF_ALG, SOCK_SEQPACKET), ("vsock", AF_VSOCK, SOCK_STREAM)];
    // ADDR_NO_RANDOMIZE; CLONE_NEWUSER with SIGCHLD.
    let (personality, new_user) = ([0x0004_0000, 0, 0], [0x1000_0000 | 17, 0, 0]);
    // Bits above an int, which the kernel ignores.
    let above = |arguments: [u64; 3]| [1 << 32 | arguments[0], arguments[1], arguments[2]];
    let mut programs = Vec::new();
    for (name, family, kind) in families {
        let arguments = [family.into(), kind.into(), 0];
        programs.extend(by_each(name, 41, 359, arguments, EPERM));
        programs.extend(by_each(&format!("{name}-pair"), 53, 360, arguments, EPERM));
        for (call, number) in [("", 41), ("-pair", 53)] {
            let name = format!("{name}{call}-above");
            programs.push(program(&name, Door::Native, number, above(arguments), EPERM));
        }
    }
    programs.extend(by_each("personality", 135, 136, personality, EPERM));
    programs.extend(by_each("clone", 56, 120, new_user, EPERM));
    for (name, number, arguments) in [("personality", 135, personality), ("clone", 56, new_user)] {
        programs.push(program(&format!("{name}-above"), Door::Native, number, above(arguments), EPERM));
    }
    // Whose flags are behind a pointer.
    programs.extend(by_each("clone3", 435, 435, [0; 3], ENOSYS));
    // Other ways to the same.
    programs.extend(by_each("unshare", 272, 310, [0x1000_0000, 0, 0], EPERM));
    programs.extend(by_each("setns", 308, 346, [0; 3], EPERM));
    for (name, number) in [("io_uring_setup", 425), ("io_uring_enter", 426), ("io_uring_register", 427)] {
        programs.extend(by_each(name, number, number, [0; 3], EPERM));
    }
    // What is allowed: the programs work.
    programs.push(program("inet", Door::Native, 41, [AF_INET.into(), SOCK_STREAM.into(), 0], SUCCEEDED));
    programs.push(program("inet", Door::I386, 359, [AF_INET.into(), SOCK_STREAM.into(), 0], SUCCEEDED));
    programs.push(program("personality-query", Door::I386, 136, [0xffff_ffff, 0, 0], SUCCEEDED));
    // What ipc(2) leads to is allowed by its own numbers too, whatever its arguments are.
    for (name, number, of_ipc, arguments) in SYSTEM_V {
        programs.push(program(name, Door::Native, number, arguments, SUCCEEDED));
        programs.push(program(&format!("ipc-{name}"), Door::I386, IPC, of_ipc, SUCCEEDED));
    }
    assert_exits(&host, &all_of(&host, &programs), &programs);
}

/// Its arguments are behind a pointer: the default filter cannot tell families apart there. See SECURITY.md.
#[test]
fn socketcall_opens_every_family_by_the_default_filter() {
    let host = Host::new();
    let families = [("inet", AF_INET, SOCK_STREAM), ("alg", AF_ALG, SOCK_SEQPACKET), ("vsock", AF_VSOCK, SOCK_STREAM)];
    let mut programs = Vec::new();
    for (name, family, kind) in families {
        programs.push((name.to_owned(), socketcall(family, kind), SUCCEEDED));
    }
    let ran = host.described(&all_of(&host, &programs)).toml("apparmor = 'unconfined'").run();
    let out = ran.out();
    assert!(out.lines().count() == 3 && out.contains(&format!("inet {SUCCEEDED}")), "{ran}");
    // A kernel may lack the other two; the filter does not decide.
    assert!(out.lines().all(|line| !line.ends_with(&format!(" {EPERM}"))), "{ran}");
}

#[test]
fn the_native_filter_kills_32_bit_and_x32_programs() {
    let host = Host::new();
    let mut programs = Vec::new();
    for (family, kind) in [(AF_INET, SOCK_STREAM), (AF_ALG, SOCK_SEQPACKET), (AF_VSOCK, SOCK_STREAM)] {
        programs.push((format!("socketcall-{family}"), socketcall(family, kind), KILLED));
    }
    for door in [Door::X32, Door::I386] {
        let getpid = if door == Door::X32 { 39 } else { 20 };
        programs.push(program("getpid", door, getpid, [0; 3], KILLED));
        programs.push(program("unknown", door, 5000, [0; 3], KILLED));
    }
    programs.extend(SYSTEM_V.map(|(name, _, of_ipc, _)| program(name, Door::I386, IPC, of_ipc, KILLED)));
    programs.push(program("inet", Door::Native, 41, [AF_INET.into(), SOCK_STREAM.into(), 0], SUCCEEDED));
    let description = all_of(&host, &programs);
    for filter in ["seccomp = 'native'\n", "profile = 'untrusted'\n", "profile = 'untrusted'\nseccomp = 'default'\n"] {
        assert_exits(&host, &format!("{filter}{description}"), &programs);
    }
}

#[test]
fn a_killed_32_bit_program_is_explained() {
    let host = Host::new();
    let folder = host.work().join("doors");
    let description = all_of(&host, &[("i386".to_owned(), call_by(Door::I386, 20, [0; 3]), KILLED)]);
    let mount = description.lines().find(|line| line.starts_with("mounts")).expect("one").to_owned();
    assert!(folder.is_dir() && !Path::new("/tmp/doors").exists());
    let task = host.described(&format!("command = '/tmp/doors/i386'\nprofile = 'untrusted'\n{mount}")).start();
    task.wait().assert_killed_by("SYS");
    let said = task.bowline("explain", []).assert_code(0).out();
    assert!(said.contains("SIGSYS") && said.contains("32-bit") && said.contains("`native`"), "{said}");
    task.bowline("rm", []).assert_code(0);
    // An exec is no less confined.
    let task = host.described(&format!("command = 'sleep'\nargs = ['1000']\nprofile = 'untrusted'\n{mount}")).start();
    task.bowline("exec", ["--", "/tmp/doors/i386"]).assert_code(KILLED);
    task.end();
}
