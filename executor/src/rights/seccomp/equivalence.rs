//! Checks that a rewritten filter gives every call the answer of the original: runs both, as the kernel would, for
//! calls on either side of everything that they compare with.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use bowline_spec::capability::{self, Capability};
use bowline_spec::seccomp::{Abis, default_profile, native_arch};
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::bpf::{self, Op, Test};
use super::cache::LONGEST;
use super::compile::{compile, whole};
use super::rewrite::{rewrite, shorter};

const KERNEL: (u32, u32) = (6, 12);
/// AUDIT_ARCH_X86_64, _I386, _AARCH64, _ARM, and values that are no architecture.
const ARCHITECTURES: [u32; 7] = [0xc000_003e, 0x4000_0003, 0xc000_00b7, 0x4000_0028, 0, 3, u32::MAX];
/// The numbers of system calls, with some to spare.
const CALLS: RangeInclusive<u32> = 0..=1100;
/// How often to try a call whose arguments are tested: all words of a condition have to match at once.
const TRIES: usize = 500;

/// The words of `struct seccomp_data`: number, architecture, two of the
/// instruction pointer, two of each of six arguments.
type Data = [u32; 16];

/// What `program` answers. Adds to `near` the values that it compares words after the architecture with, and their
/// neighbours.
fn answer(program: &[Op], data: &Data, near: &mut Vec<u32>) -> u32 {
    let (mut at, mut a, mut argument) = (0, 0, false);
    loop {
        let op = program[at];
        at += 1;
        match op {
            Op::Load(offset) => {
                a = data[offset as usize / 4];
                argument = offset >= 8;
            }
            Op::And(bits) => a &= bits,
            Op::Jump(further) => at += further as usize,
            Op::Return(answer) => return answer,
            Op::If(test, constant, yes, no) => {
                if argument && !near.contains(&constant) {
                    near.extend([constant.wrapping_sub(1), constant, constant.wrapping_add(1)]);
                }
                at += usize::from(if test.holds(a, constant) { yes } else { no });
            }
        }
    }
}

/// Finds a call that the programs answer differently, among those whose number is in `calls` or close to a compared
/// value, with `tries` tries.
fn difference(one: &[Op], other: &[Op], calls: RangeInclusive<u32>, tries: usize) -> Option<Data> {
    let around = |c: u32| [c.wrapping_sub(1), c, c.wrapping_add(1)];
    let compared = one.iter().chain(other).filter_map(|op| match *op {
        Op::If(_, constant, ..) => Some(constant),
        Op::Load(_) | Op::And(_) | Op::Jump(_) | Op::Return(_) => None,
    });
    let numbers = compared.chain([0, 0x4000_0000]).flat_map(around);
    let numbers: BTreeSet<u32> = numbers.chain(calls).collect();
    let architectures: BTreeSet<u32> = ARCHITECTURES.into_iter().flat_map(around).collect();
    let mut dice = Dice(1);
    for &architecture in &architectures {
        for &number in &numbers {
            let mut data = [0; 16];
            (data[0], data[1]) = (number, architecture);
            let mut near = Vec::new();
            for _ in 0..tries {
                if answer(one, &data, &mut near) != answer(other, &data, &mut near) {
                    return Some(data);
                }
                if near.is_empty() {
                    break;
                }
                data[2..].fill_with(|| dice.word(&near));
            }
        }
    }
    None
}

/// Pseudo-random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u32 {
        // Knuth's MMIX generator; its upper half is the better one.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Mostly one of `near`, sometimes with some bits changed.
    fn word(&mut self, near: &[u32]) -> u32 {
        let one = near[self.roll() as usize % near.len()];
        match self.roll() % 8 {
            0 => self.roll(),
            1 => 0,
            2 => one ^ (self.roll() & self.roll() & self.roll()),
            _ => one,
        }
    }
}

/// Asserts what the kernel requires of a program before it accepts it.
fn assert_sound(program: &[Op]) {
    assert!(program.len() * bpf::SIZE <= LONGEST, "{} instructions", program.len());
    assert!(matches!(program.last(), Some(Op::Return(_))));
    for (at, op) in program.iter().enumerate() {
        let furthest = match *op {
            Op::If(_, _, yes, no) => usize::from(yes.max(no)),
            Op::Jump(further) => further as usize,
            Op::Load(_) | Op::And(_) | Op::Return(_) => 0,
        };
        assert!(at + furthest < program.len() - usize::from(!matches!(op, Op::Return(_))), "{at}: {op:?}");
    }
}

/// The program for `profile` before it is rewritten, and after.
fn both(profile: &LinuxSeccomp) -> (Vec<Op>, Vec<Op>) {
    let original = bpf::read(&whole(profile).expect("it compiles")).expect("all of it is known");
    let rewritten = rewrite(&original).expect("it can be");
    assert_sound(&rewritten);
    (original, rewritten)
}

fn default_for(capabilities: &BTreeSet<Capability>) -> LinuxSeccomp {
    default_profile(capabilities, native_arch(), KERNEL, Abis::All)
}

#[test]
fn the_default_profile_decides_as_before_in_a_fraction_of_the_instructions() {
    let usual = capability::default_set();
    let all = Capability::all();
    let admin = usual.iter().copied().chain(["SYS_ADMIN".parse().expect("one")]).collect();
    for capabilities in [BTreeSet::new(), usual, admin, all] {
        let (original, rewritten) = both(&default_for(&capabilities));
        assert!(rewritten.len() * 7 < original.len() * 2, "{} of {}", rewritten.len(), original.len());
        assert_eq!(difference(&original, &rewritten, CALLS, TRIES), None);
    }
}

/// Tests the comparison itself: it notices every test of number or architecture that is off by one, and every test
/// of any kind that is the wrong way round.
#[test]
fn a_difference_is_found_wherever_it_is() {
    let whole = default_for(&capability::default_set());
    let (original, rewritten) = both(&whole);
    assert_every_change_is_seen(&original, &rewritten, |op| match op {
        Op::If(test, constant, yes, no) => vec![Op::If(test, constant, no, yes)],
        _ => vec![],
    });
    // Without argument conditions, where libseccomp tests some things twice.
    let mut plain = whole.clone();
    let rules = whole.syscalls().iter().flatten().filter(|rule| rule.args().is_none());
    plain.set_syscalls(Some(rules.cloned().collect()));
    let (original, rewritten) = both(&plain);
    assert_every_change_is_seen(&original, &rewritten, |op| match op {
        Op::If(test, constant, yes, no) => {
            vec![Op::If(test, constant.wrapping_add(1), yes, no), Op::If(test, constant.wrapping_sub(1), yes, no)]
        }
        _ => vec![],
    });
}

fn assert_every_change_is_seen(original: &[Op], rewritten: &[Op], changes: fn(Op) -> Vec<Op>) {
    for (at, op) in rewritten.iter().enumerate() {
        for changed in changes(*op) {
            let mut broken = rewritten.to_vec();
            broken[at] = changed;
            assert!(difference(original, &broken, CALLS, TRIES).is_some(), "{at}: {changed:?} goes unnoticed");
        }
    }
}

/// Every call has its own outcome, so that jumps are longer than a byte can express.
#[test]
fn what_is_further_away_than_a_comparison_jumps_is_reached() {
    let usual = default_for(&BTreeSet::new());
    let names = usual.syscalls().as_ref().expect("rules")[0].names().clone();
    let rules = names.into_iter().zip(0..).map(|(name, number)| {
        let first = argument(0, LinuxSeccompOperator::ScmpCmpGt, number << 31, None);
        let second = argument(3, LinuxSeccompOperator::ScmpCmpMaskedEq, 0xff00, Some(number & 0x7f00));
        rule(vec![name], LinuxSeccompAction::ScmpActErrno, Some(number as u32 % 4000), vec![first, second])
    });
    let profile = profile(LinuxSeccompAction::ScmpActAllow, vec![native_arch()], rules.collect());
    let (original, rewritten) = both(&profile);
    assert!(rewritten.iter().any(|op| matches!(op, Op::Jump(256..))), "none is");
    assert_eq!(difference(&original, &rewritten, CALLS, TRIES), None);
}

#[test]
fn what_is_not_understood_or_no_shorter_stays_as_it_is() {
    let allow = Op::Return(libc::SECCOMP_RET_ALLOW);
    let deny = Op::Return(libc::SECCOMP_RET_KILL_THREAD);
    for strange in [
        vec![],
        // Tests of bits of number and architecture.
        vec![Op::Load(0), Op::And(1), Op::If(Test::Equal, 1, 0, 1), allow, deny],
        vec![Op::Load(4), Op::If(Test::AnyBit, 1, 0, 1), allow, deny],
        // Programs that leave themselves, or read beyond the data.
        vec![Op::Load(0), Op::If(Test::Equal, 1, 0, 2), allow, deny],
        vec![Op::Jump(u32::MAX), allow],
        vec![Op::Load(0)],
        vec![Op::Load(64), allow],
        vec![Op::Load(17), allow],
    ] {
        assert_eq!(rewrite(&strange), None, "{strange:?}");
        assert_eq!(shorter(bpf::write(&strange)), bpf::write(&strange));
    }
    // RET A, a load from memory, half an instruction.
    for strange in [&[0x16, 0, 0, 0, 0, 0, 0, 0][..], &[0x60, 0, 0, 0, 0, 0, 0, 0], &[6, 0, 0, 0, 0, 0, 0]] {
        assert_eq!(bpf::read(strange), None, "{strange:x?}");
        assert_eq!(shorter(strange.to_vec()), strange);
    }
    let shortest = bpf::write(&[Op::Load(0), Op::If(Test::AtLeast, 7, 0, 1), allow, deny]);
    assert_eq!(shorter(shortest.clone()), shortest);
}

#[test]
fn the_same_profile_makes_the_same_filter() {
    let profile = default_for(&capability::default_set());
    assert_eq!(compile(&profile).expect("it compiles"), compile(&profile).expect("again"));
}

fn profile(default: LinuxSeccompAction, architectures: Vec<Arch>, rules: Vec<LinuxSyscall>) -> LinuxSeccomp {
    let profile = LinuxSeccompBuilder::default().default_action(default).architectures(architectures);
    profile.syscalls(rules).build().expect("every required field is set")
}

fn rule(
    names: Vec<String>,
    action: LinuxSeccompAction,
    errno: Option<u32>,
    arguments: Vec<LinuxSeccompArg>,
) -> LinuxSyscall {
    let rule = LinuxSyscallBuilder::default().names(names).action(action);
    let mut rule = rule.build().expect("every required field is set");
    rule.set_errno_ret(errno).set_args((!arguments.is_empty()).then_some(arguments));
    rule
}

fn argument(index: usize, operator: LinuxSeccompOperator, value: u64, second: Option<u64>) -> LinuxSeccompArg {
    let argument = LinuxSeccompArgBuilder::default().index(index).op(operator).value(value);
    argument.value_two(second.unwrap_or(0)).build().expect("every required field is set")
}

/// Calls that are neighbours and calls that are not; some have other numbers, are part of another call or missing
/// on another architecture.
const NAMES: &[&str] = &[
    "read",
    "write",
    "open",
    "close",
    "stat",
    "fstat",
    "lseek",
    "mmap",
    "ioctl",
    "socket",
    "connect",
    "accept4",
    "clone",
    "clone3",
    "personality",
    "semop",
    "shmat",
    "time",
    "stime",
    "recv",
    "prctl",
    "arch_prctl",
    "modify_ldt",
    "futex",
    "futex_time64",
    "openat2",
    "bpf",
    "pidfd_open",
    "set_thread_area",
    "waitpid",
    "no_such_call",
];

fn actions() -> impl Strategy<Value = LinuxSeccompAction> {
    select(vec![
        LinuxSeccompAction::ScmpActAllow,
        LinuxSeccompAction::ScmpActErrno,
        LinuxSeccompAction::ScmpActErrno,
        LinuxSeccompAction::ScmpActKillProcess,
        LinuxSeccompAction::ScmpActTrap,
        LinuxSeccompAction::ScmpActTrace,
        LinuxSeccompAction::ScmpActLog,
    ])
}

fn arguments() -> impl Strategy<Value = LinuxSeccompArg> {
    let operator = select(vec![
        LinuxSeccompOperator::ScmpCmpNe,
        LinuxSeccompOperator::ScmpCmpLt,
        LinuxSeccompOperator::ScmpCmpLe,
        LinuxSeccompOperator::ScmpCmpEq,
        LinuxSeccompOperator::ScmpCmpGe,
        LinuxSeccompOperator::ScmpCmpGt,
        LinuxSeccompOperator::ScmpCmpMaskedEq,
    ]);
    let value = || prop_oneof![0..4u64, any::<u64>(), any::<u32>().prop_map(u64::from), Just(u64::MAX)];
    (0..6usize, operator, value(), value()).prop_map(|(index, operator, value, second)| match operator {
        LinuxSeccompOperator::ScmpCmpMaskedEq => argument(index, operator, value, Some(second & value)),
        _ => argument(index, operator, value, None),
    })
}

fn profiles() -> impl Strategy<Value = LinuxSeccomp> {
    let names = vec(select(NAMES), 1..6).prop_map(|names| names.into_iter().map(str::to_owned).collect());
    let rules = (names, actions(), option::of(0..100u32), vec(arguments(), 0..3));
    let rules = rules.prop_map(|(names, action, errno, arguments)| rule(names, action, errno, arguments));
    let architectures = select(vec![
        vec![],
        vec![Arch::ScmpArchX86_64],
        vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86],
        vec![Arch::ScmpArchX86, Arch::ScmpArchX32, Arch::ScmpArchX86_64],
        vec![Arch::ScmpArchAarch64, Arch::ScmpArchArm],
    ]);
    (actions(), architectures, vec(rules, 0..16))
        .prop_map(|(default, arches, rules)| profile(default, arches, few_conditions(rules)))
}

/// `rules`, with one of several conditions for a call at most: with two libseccomp does not always come to an end.
fn few_conditions(rules: Vec<LinuxSyscall>) -> Vec<LinuxSyscall> {
    let mut with_several = BTreeSet::new();
    let fewer = |mut rule: LinuxSyscall| {
        if rule.args().iter().flatten().count() > 1 {
            let mut names = rule.names().clone();
            names.retain(|name| with_several.insert(name.clone()));
            rule.set_names(names);
        }
        (!rule.names().is_empty()).then_some(rule)
    };
    rules.into_iter().filter_map(fewer).collect()
}

/// Programs that nobody would write, made from every instruction that is understood.
fn programs() -> impl Strategy<Value = Vec<Op>> {
    let constant = || prop_oneof![4 => 0..5u32, 3 => select(&ARCHITECTURES), 1 => Just(0x4000_0000), 1 => any::<u32>()];
    let test = select(vec![
        Test::Equal,
        Test::Greater,
        Test::AtLeast,
        Test::Equal,
        Test::Greater,
        Test::AtLeast,
        Test::AnyBit,
    ]);
    let offset = prop_oneof![3 => Just(0), 2 => Just(4), 3 => (2..16u32).prop_map(|word| word * 4)];
    let op = prop_oneof![
        3 => offset.prop_map(Op::Load),
        1 => constant().prop_map(Op::And),
        1 => (0..20u32).prop_map(Op::Jump),
        8 => (test, constant(), 0..20u8, 0..20u8).prop_map(|(test, constant, yes, no)| Op::If(test, constant, yes, no)),
        1 => (0..3u32).prop_map(Op::Return),
    ];
    vec(op, 1..60).prop_map(|mut program| {
        program.extend([Op::Return(7), Op::Return(8)]);
        let last = program.len() - 1;
        for (at, op) in program.iter_mut().enumerate() {
            let furthest = last.saturating_sub(at + 1);
            match op {
                Op::Jump(further) => *further = (*further).min(furthest as u32),
                Op::If(_, _, yes, no) => (*yes, *no) = ((*yes).min(furthest as u8), (*no).min(furthest as u8)),
                Op::Load(_) | Op::And(_) | Op::Return(_) => {}
            }
        }
        program
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_profile_decides_as_before(profile in profiles()) {
        // Some rules contradict each other.
        let compiled = whole(&profile);
        prop_assume!(compiled.is_ok());
        let (original, rewritten) = both(&profile);
        prop_assert_eq!(difference(&original, &rewritten, CALLS, TRIES), None);
    }
}

proptest! {
    #[test]
    fn any_program_decides_as_before(program in programs()) {
        assert_sound(&program);
        prop_assert_eq!(bpf::read(&bpf::write(&program)), Some(program.clone()));
        let rewritten = rewrite(&program);
        prop_assume!(rewritten.is_some());
        let rewritten = rewritten.unwrap();
        assert_sound(&rewritten);
        prop_assert_eq!(difference(&program, &rewritten, 0..=8, 20), None);
    }
}
