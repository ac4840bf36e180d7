//! The part of classic BPF that libseccomp writes: loads of a word of the call, comparisons with constants, masks,
//! forward jumps, and returns.

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_LD, BPF_RET};

/// Bytes of one instruction, `struct sock_filter`: code, two jumps, a constant.
pub const SIZE: usize = 8;

/// The offsets of the call's number and of its architecture in `struct seccomp_data`.
pub const NUMBER: u32 = 0;
pub const ARCHITECTURE: u32 = 4;

const LOAD: u32 = BPF_LD | BPF_ABS;
const MASK: u32 = BPF_ALU | BPF_AND;
const JUMP: u32 = BPF_JMP | BPF_JA;

/// One instruction. It works on A, the only register used, which is 0 at first. Jumps count from the next
/// instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A becomes the word at this offset of `struct seccomp_data`.
    Load(u32),
    /// A keeps these bits only.
    And(u32),
    /// Jumps ahead by this many instructions.
    Jump(u32),
    /// Jumps by the first distance if A passes the test, else by the second.
    If(Test, u32, u8, u8),
    /// Ends with this answer: an action and its data.
    Return(u32),
}

/// How A is compared with a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Test {
    /// A is the constant.
    Equal,
    /// A is greater, without a sign.
    Greater,
    /// A is greater or equal, without a sign.
    AtLeast,
    /// A and the constant have a bit in common.
    AnyBit,
}

impl Test {
    /// Whether `a` passes the test with `constant`.
    pub fn holds(self, a: u32, constant: u32) -> bool {
        match self {
            Test::Equal => a == constant,
            Test::Greater => a > constant,
            Test::AtLeast => a >= constant,
            Test::AnyBit => a & constant != 0,
        }
    }

    fn code(self) -> u32 {
        match self {
            Test::Equal => BPF_JMP | BPF_JEQ,
            Test::Greater => BPF_JMP | BPF_JGT,
            Test::AtLeast => BPF_JMP | BPF_JGE,
            Test::AnyBit => BPF_JMP | BPF_JSET,
        }
    }
}

/// The instructions of `program`; `None` if one is of another kind.
pub fn read(program: &[u8]) -> Option<Vec<Op>> {
    program.chunks(SIZE).map(read_one).collect()
}

/// What `program` answers to this call whatever its arguments are; `None` if that depends on them.
pub fn answer(program: &[Op], architecture: u32, number: u32) -> Option<u32> {
    let (mut at, mut a) = (0, 0);
    loop {
        let op = *program.get(at)?;
        at += 1;
        match op {
            Op::Load(NUMBER) => a = number,
            Op::Load(ARCHITECTURE) => a = architecture,
            Op::Load(_) => return None,
            Op::And(bits) => a &= bits,
            Op::Jump(further) => at += further as usize,
            Op::If(test, constant, yes, no) => at += usize::from(if test.holds(a, constant) { yes } else { no }),
            Op::Return(answer) => return Some(answer),
        }
    }
}

fn read_one(bytes: &[u8]) -> Option<Op> {
    let [c0, c1, yes, no, k0, k1, k2, k3] = <[u8; SIZE]>::try_from(bytes).ok()?;
    let code = u32::from(u16::from_ne_bytes([c0, c1]));
    let constant = u32::from_ne_bytes([k0, k1, k2, k3]);
    let tests = [Test::Equal, Test::Greater, Test::AtLeast, Test::AnyBit];
    Some(match code {
        LOAD => Op::Load(constant),
        MASK => Op::And(constant),
        JUMP => Op::Jump(constant),
        BPF_RET => Op::Return(constant),
        _ => Op::If(*tests.iter().find(|test| test.code() == code)?, constant, yes, no),
    })
}

/// `program` as the kernel takes it.
pub fn write(program: &[Op]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(program.len() * SIZE);
    for op in program {
        let (code, yes, no, constant) = match *op {
            Op::Load(offset) => (LOAD, 0, 0, offset),
            Op::And(bits) => (MASK, 0, 0, bits),
            Op::Jump(further) => (JUMP, 0, 0, further),
            Op::If(test, constant, yes, no) => (test.code(), yes, no, constant),
            Op::Return(answer) => (BPF_RET, 0, 0, answer),
        };
        // Every code is below 0x100.
        bytes.extend((code as u16).to_ne_bytes());
        bytes.extend([yes, no]);
        bytes.extend(constant.to_ne_bytes());
    }
    bytes
}
