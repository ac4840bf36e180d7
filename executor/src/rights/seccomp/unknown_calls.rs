//! System calls that are newer than the profile answer ENOSYS, as on an older kernel, so that a program falls back to
//! an older call. With EPERM it would give up.
//!
//!   number above the highest that any rule names ─► ENOSYS ; any other ─► the profile's own program
//!
//! The rule is runc's (libcontainer/seccomp/patchbpf): each architecture has its own highest number, whatever the
//! action of the rule, and a profile that allows by default has none of this.

use bowline_error::Result;
use bowline_spec::seccomp::native_arch;
use libseccomp::ScmpSyscall;
use oci_spec::runtime::{Arch, LinuxSeccomp, LinuxSeccompAction};

use super::architecture;
use super::bpf::{self, ARCHITECTURE, NUMBER, Op, Test};

/// SECCOMP_RET_ERRNO with ENOSYS (linux/seccomp.h).
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
/// Set in the number of each call of x32, whose architecture is that of x86-64 (asm/unistd.h).
const X32: u32 = 1 << 30;
/// Stands for a jump to the end, until the end is known.
const TO_THE_END: Op = Op::Jump(u32::MAX);

/// `program`, which libseccomp has made of `profile`, with the answer for newer calls in front.
///
/// # Errors
/// As [`architecture::scmp`].
pub fn answered(profile: &LinuxSeccomp, program: Vec<u8>) -> Result<Vec<u8>> {
    match profile.default_action() {
        // A tracer knows what to do with new calls.
        LinuxSeccompAction::ScmpActAllow | LinuxSeccompAction::ScmpActLog | LinuxSeccompAction::ScmpActTrace => {
            Ok(program)
        }
        LinuxSeccompAction::ScmpActKill
        | LinuxSeccompAction::ScmpActKillThread
        | LinuxSeccompAction::ScmpActKillProcess
        | LinuxSeccompAction::ScmpActTrap
        | LinuxSeccompAction::ScmpActErrno
        | LinuxSeccompAction::ScmpActNotify => Ok([bpf::write(&in_front(profile)?), program].concat()),
    }
}

fn in_front(profile: &LinuxSeccomp) -> Result<Vec<Op>> {
    // The native architecture is part of every program of libseccomp.
    let mut architectures = vec![native_arch()];
    for named in profile.architectures().iter().flatten().filter(|named| **named != Arch::ScmpArchNative) {
        if !architectures.contains(named) {
            architectures.push(*named);
        }
    }
    let highest = |wanted: Arch| if architectures.contains(&wanted) { highest(profile, wanted) } else { Ok(None) };
    let mut ops = vec![Op::Load(ARCHITECTURE)];
    for one in &architectures {
        let ranges = match one {
            // Both have one section.
            Arch::ScmpArchX32 if architectures.contains(&Arch::ScmpArchX86_64) => continue,
            Arch::ScmpArchX86_64 | Arch::ScmpArchX32 => {
                let [x86_64, x32] = [highest(Arch::ScmpArchX86_64)?, highest(Arch::ScmpArchX32)?];
                vec![(X32 | (1 << 31), x32), (1 << 31, x86_64), (X32, x32), (0, x86_64)]
            }
            other => vec![(0, highest(*other)?)],
        };
        let audit = if *one == Arch::ScmpArchX32 { Arch::ScmpArchX86_64 } else { *one };
        let section: Vec<Op> = [Op::Load(NUMBER)].into_iter().chain(ranges.into_iter().flat_map(range)).collect();
        // At most 17 instructions.
        ops.push(Op::If(Test::Equal, audit as u32, 0, section.len() as u8));
        ops.extend(section);
    }
    let end = ops.len();
    for (at, op) in ops.iter_mut().enumerate().filter(|(_, op)| **op == TO_THE_END) {
        *op = Op::Jump((end - at - 1) as u32);
    }
    Ok(ops)
}

/// Decides the numbers from `start` on; without a highest one the profile knows none of them.
fn range((start, highest): (u32, Option<u32>)) -> Vec<Op> {
    let decision = match highest {
        Some(highest) => vec![Op::If(Test::Greater, highest, 0, 1), Op::Return(ENOSYS), TO_THE_END],
        None => vec![TO_THE_END],
    };
    [Op::If(Test::AtLeast, start, 0, decision.len() as u8)].into_iter().chain(decision).collect()
}

/// The highest number on `architecture` that a rule names.
fn highest(profile: &LinuxSeccomp, architecture: Arch) -> Result<Option<u32>> {
    let architecture = architecture::scmp(architecture)?;
    let names = profile.syscalls().iter().flatten().flat_map(|rule| rule.names());
    let numbers = names.filter_map(|name| ScmpSyscall::from_name_by_arch(name, architecture).ok());
    // Calls that an architecture does not have are negative. 0 counts as none, as in runc.
    Ok(numbers.filter_map(|number| u32::try_from(i32::from(number)).ok()).filter(|number| *number > 0).max())
}

#[cfg(test)]
mod tests {
    use bowline_spec::seccomp::{self, Abis};
    use serde_json::json;

    use super::super::compile::{by_libseccomp, compile};
    use super::*;

    const X86_64: u32 = Arch::ScmpArchX86_64 as u32;
    const X86: u32 = Arch::ScmpArchX86 as u32;
    const AARCH64: u32 = Arch::ScmpArchAarch64 as u32;
    const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

    fn profile(default: &str, architectures: &[&str], names: &[&str]) -> LinuxSeccomp {
        let rules = json!([{"names": names, "action": "SCMP_ACT_ALLOW"}]);
        let json = json!({"defaultAction": default, "architectures": architectures, "syscalls": rules});
        serde_json::from_value(json).expect("a profile")
    }

    fn decides(profile: &LinuxSeccomp, calls: &[(u32, u32, u32)]) {
        let program = bpf::read(&compile(profile).expect("it compiles")).expect("known");
        for &(architecture, number, expected) in calls {
            let answer = bpf::answer(&program, architecture, number);
            assert_eq!(answer, Some(expected), "{number:#x} of {architecture:#x}: {answer:#x?}");
        }
    }

    #[test]
    fn each_architecture_has_its_own_highest_number() {
        let architectures = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_AARCH64"];
        let of = profile("SCMP_ACT_ERRNO", &architectures, &["read", "kexec_load", "no such call"]);
        // kexec_load is 246, 283, 0x40000210 and 104; read is 0, 3, 0x40000000 and 63.
        decides(
            &of,
            &[
                (X86_64, 0, ALLOW),
                (X86_64, 1, EPERM),
                (X86_64, 245, EPERM),
                (X86_64, 246, ALLOW),
                (X86_64, 247, ENOSYS),
                (X86_64, X32 - 1, ENOSYS),
                (X86_64, X32, ALLOW),
                (X86_64, X32 | 247, EPERM),
                (X86_64, 0x4000_0210, ALLOW),
                (X86_64, 0x4000_0211, ENOSYS),
                (X86_64, 1 << 31, ENOSYS),
                (X86_64, u32::MAX, ENOSYS),
                (X86, 247, EPERM),
                (X86, 283, ALLOW),
                (X86, 284, ENOSYS),
                (AARCH64, 103, EPERM),
                (AARCH64, 104, ALLOW),
                (AARCH64, 105, ENOSYS),
            ],
        );
    }

    #[test]
    fn without_x32_its_numbers_are_left_to_the_profile() {
        let of = profile("SCMP_ACT_ERRNO", &["SCMP_ARCH_X86_64"], &["write"]);
        let program = bpf::read(&by_libseccomp(&of).expect("it compiles")).expect("known");
        for number in [X32, X32 | 500, u32::MAX] {
            decides(&of, &[(X86_64, number, bpf::answer(&program, X86_64, number).expect("no arguments"))]);
        }
        decides(&of, &[(X86_64, 0, EPERM), (X86_64, 2, ENOSYS), (X86_64, 500, ENOSYS)]);
    }

    #[test]
    fn the_native_profile_kills_calls_of_other_architectures() {
        let capabilities = bowline_spec::capability::default_set();
        let of = |abis| seccomp::default_profile(&capabilities, native_arch(), (6, 12), abis);
        // getpid, and a number that no kernel has.
        let foreign = match native_arch() {
            Arch::ScmpArchX86_64 => vec![(X86, 20), (X86, 5000), (X86_64, X32 | 39), (X86_64, X32 | 5000)],
            Arch::ScmpArchAarch64 => vec![(Arch::ScmpArchArm as u32, 20), (Arch::ScmpArchArm as u32, 5000)],
            _ => vec![],
        };
        let killed: Vec<_> = foreign.iter().map(|(arch, call)| (*arch, *call, libc::SECCOMP_RET_KILL_THREAD)).collect();
        decides(&of(Abis::Native), &killed);
        let program = bpf::read(&compile(&of(Abis::All)).expect("it compiles")).expect("known");
        for (architecture, number) in foreign {
            assert_ne!(bpf::answer(&program, architecture, number), Some(libc::SECCOMP_RET_KILL_THREAD), "{number}");
        }
    }

    #[test]
    fn only_what_denies_by_default_answers_newer_calls() {
        for (default, expected) in [
            ("SCMP_ACT_KILL", ENOSYS),
            ("SCMP_ACT_KILL_PROCESS", ENOSYS),
            ("SCMP_ACT_TRAP", ENOSYS),
            ("SCMP_ACT_ALLOW", ALLOW),
            ("SCMP_ACT_LOG", libc::SECCOMP_RET_LOG),
            ("SCMP_ACT_TRACE", libc::SECCOMP_RET_TRACE | libc::EPERM as u32),
        ] {
            decides(&profile(default, &["SCMP_ARCH_X86_64"], &["read", "write"]), &[(X86_64, 2000, expected)]);
        }
    }

    #[test]
    fn a_profile_that_names_no_call_is_left_as_it_is() {
        decides(&profile("SCMP_ACT_ERRNO", &["SCMP_ARCH_X86_64"], &["no such call"]), &[(X86_64, 2000, EPERM)]);
    }
}
