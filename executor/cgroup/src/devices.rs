//! The device allow-list on cgroup v2: an eBPF program that runs at every open and mknod, because
//! v2 has no devices controller.
//!
//! The program checks the rules from the last to the first; the first that fits decides. If no rule
//! fits, access is refused.

use std::os::fd::BorrowedFd;

use bowline_error::{Doing, Kind, Result};
use bowline_sys as sys;
use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType};

// linux/bpf.h: struct bpf_cgroup_dev_ctx and the instruction classes used.
const BLOCK: i32 = 1;
const CHARACTER: i32 = 2;
const MKNOD: i32 = 1;
const READ: i32 = 2;
const WRITE: i32 = 4;
const EVERYTHING: i32 = MKNOD | READ | WRITE;

const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xb7;
const COPY: u8 = 0xbf;
const AND: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const JUMP_IF_NOT: u8 = 0x55;
const JUMP_IF: u8 = 0x15;
const JUMP_IF_NOT_REGISTER: u8 = 0x5d;
const EXIT: u8 = 0x95;

/// The register with the program's result.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;
const SCRATCH: u8 = 6;

/// Enforces `rules` on the cgroup `dir`.
pub fn enforce(dir: BorrowedFd<'_>, rules: &[LinuxDeviceCgroup]) -> Result<()> {
    let what = || "cannot enforce the device allow-list by eBPF";
    sys::attach_device_program(dir, &program(rules)).doing(Kind::Unsupported, what)
}

/// One instruction: code, registers, jump offset, immediate value.
fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    u64::from(code)
        | u64::from(to | from << 4) << 8
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(value.cast_unsigned()) << 32
}

fn program(rules: &[LinuxDeviceCgroup]) -> Vec<u64> {
    let mut code = vec![
        // access_type is (access << 16) | kind.
        instruction(LOAD_WORD, KIND, CONTEXT, 0, 0),
        instruction(COPY, ACCESS, KIND, 0, 0),
        instruction(AND, KIND, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in rules.iter().rev() {
        let (asked, always) = asked(rule);
        code.extend(asked);
        if always {
            // The kernel refuses a program with code that is never reached.
            return code;
        }
    }
    code.extend(answer(false));
    code
}

fn answer(allow: bool) -> [u64; 2] {
    [instruction(MOVE, RESULT, 0, 0, i32::from(allow)), instruction(EXIT, 0, 0, 0, 0)]
}

/// The rule's conditions, each of which jumps past the rule's answer when it fails; and whether
/// there are none, so that the rule always answers.
fn asked(rule: &LinuxDeviceCgroup) -> (Vec<u64>, bool) {
    let mut conditions: Vec<Vec<(u8, u8, u8, i32)>> = Vec::new();
    let kind = match rule.typ().unwrap_or(LinuxDeviceType::A) {
        LinuxDeviceType::B => Some(BLOCK),
        LinuxDeviceType::C | LinuxDeviceType::U => Some(CHARACTER),
        LinuxDeviceType::A | LinuxDeviceType::P => None,
    };
    if let Some(kind) = kind {
        conditions.push(vec![(JUMP_IF_NOT, KIND, 0, kind)]);
    }
    let access = access_bits(rule.access().as_deref().unwrap_or("rwm"));
    if access != EVERYTHING {
        let masked = [(COPY, SCRATCH, ACCESS, 0), (AND, SCRATCH, 0, access)];
        // A rule that allows must cover all of the requested access; one that refuses, any of it.
        let last = if rule.allow() { (JUMP_IF_NOT_REGISTER, SCRATCH, ACCESS, 0) } else { (JUMP_IF, SCRATCH, 0, 0) };
        conditions.push(masked.into_iter().chain([last]).collect());
    }
    for (register, number) in [(MAJOR, rule.major()), (MINOR, rule.minor())] {
        // A negative number stands for all; no number is above 32 bits.
        if let Some(number) = number.and_then(|n| i32::try_from(n).ok()).filter(|n| *n >= 0) {
            conditions.push(vec![(JUMP_IF_NOT, register, 0, number)]);
        }
    }
    let steps: Vec<(u8, u8, u8, i32)> = conditions.into_iter().flatten().collect();
    let (end, always) = (steps.len() + 2, steps.is_empty());
    let step = |(at, (code, to, from, value)): (usize, (u8, u8, u8, i32))| {
        let jumps = matches!(code, JUMP_IF | JUMP_IF_NOT | JUMP_IF_NOT_REGISTER);
        // A rule has eight steps at most.
        let offset = if jumps { (end - at - 1) as i16 } else { 0 };
        instruction(code, to, from, offset, value)
    };
    let mut code: Vec<u64> = steps.into_iter().enumerate().map(step).collect();
    code.extend(answer(rule.allow()));
    (code, always)
}

fn access_bits(access: &str) -> i32 {
    let bit = |letter| match letter {
        'r' => READ,
        'w' => WRITE,
        'm' => MKNOD,
        _ => 0,
    };
    access.chars().map(bit).fold(0, |all, bit| all | bit)
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::LinuxDeviceCgroupBuilder;

    use super::*;

    fn rule(allow: bool, kind: LinuxDeviceType, numbers: (i64, i64), access: &str) -> LinuxDeviceCgroup {
        let builder = LinuxDeviceCgroupBuilder::default().allow(allow).typ(kind).access(access);
        builder.major(numbers.0).minor(numbers.1).build().expect("a rule")
    }

    /// Runs a program as the kernel would.
    fn run(program: &[u64], kind: i32, access: i32, numbers: (i32, i32)) -> bool {
        let mut registers = [0i64; 7];
        let mut at = 0;
        loop {
            let word = program[at];
            let (code, to, from) = (word as u8, (word >> 8 & 15) as usize, (word >> 12 & 15) as usize);
            let (offset, value) = ((word >> 16) as i16, i64::from((word >> 32) as i32));
            at += 1;
            let taken = match code {
                LOAD_WORD => {
                    registers[to] = i64::from([access << 16 | kind, numbers.0, numbers.1][offset as usize / 4]);
                    false
                }
                MOVE => {
                    registers[to] = value;
                    false
                }
                COPY => {
                    registers[to] = registers[from];
                    false
                }
                AND => {
                    registers[to] &= value;
                    false
                }
                SHIFT_RIGHT => {
                    registers[to] >>= value;
                    false
                }
                JUMP_IF_NOT => registers[to] != value,
                JUMP_IF => registers[to] == value,
                JUMP_IF_NOT_REGISTER => registers[to] != registers[from],
                EXIT => return registers[usize::from(RESULT)] != 0,
                other => panic!("unknown instruction {other:#x}"),
            };
            if taken {
                at += usize::try_from(offset).expect("only forwards");
            }
        }
    }

    #[test]
    fn what_no_rule_allows_is_refused() {
        assert!(!run(&program(&[]), CHARACTER, READ, (1, 3)));
    }

    #[test]
    fn an_exception_from_deny_all_allows_just_that() {
        let rules = [
            rule(false, LinuxDeviceType::A, (-1, -1), "rwm"),
            rule(true, LinuxDeviceType::C, (1, 3), "rw"),
            rule(true, LinuxDeviceType::B, (-1, -1), "m"),
        ];
        let program = program(&rules);
        assert!(run(&program, CHARACTER, READ, (1, 3)));
        assert!(run(&program, CHARACTER, READ | WRITE, (1, 3)));
        assert!(!run(&program, CHARACTER, READ | MKNOD, (1, 3)), "more than is allowed");
        assert!(!run(&program, CHARACTER, READ, (1, 5)), "another minor");
        assert!(!run(&program, BLOCK, READ, (1, 3)), "another kind");
        assert!(run(&program, BLOCK, MKNOD, (8, 0)));
        assert!(!run(&program, BLOCK, READ, (8, 0)));
    }

    #[test]
    fn nothing_follows_a_rule_that_always_answers() {
        let all = [rule(true, LinuxDeviceType::C, (1, 3), "r"), rule(false, LinuxDeviceType::A, (-1, -1), "rwm")];
        assert_eq!(program(&all).len(), program(&[]).len());
        assert!(!run(&program(&all), CHARACTER, READ, (1, 3)));
    }

    #[test]
    fn a_later_refusal_of_any_access_wins() {
        let rules = [rule(true, LinuxDeviceType::A, (-1, -1), "rwm"), rule(false, LinuxDeviceType::C, (10, 200), "w")];
        let program = program(&rules);
        assert!(run(&program, CHARACTER, READ, (10, 200)));
        assert!(!run(&program, CHARACTER, READ | WRITE, (10, 200)));
        assert!(run(&program, BLOCK, READ | WRITE, (8, 0)));
    }
}
