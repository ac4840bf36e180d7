//! Programs of a few instructions, as the kernel executes them: what they call is known to the last call.

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// An executable file (elf(5)) of one segment, which can be read and executed.
#[must_use]
pub fn elf(code: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    const ADDRESS: u64 = 0x40_0000;
    let size = HEADERS + code.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let halves = |elf: &mut Vec<u8>, values: &[u16]| elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let words = |elf: &mut Vec<u8>, values: &[u32]| elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let longs = |elf: &mut Vec<u8>, values: &[u64]| elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    halves(&mut elf, &[2, MACHINE]);
    words(&mut elf, &[1]);
    longs(&mut elf, &[ADDRESS + HEADERS, 64, 0]);
    words(&mut elf, &[0]);
    halves(&mut elf, &[64, 56, 1, 64, 0, 0]);
    words(&mut elf, &[1, 5]);
    longs(&mut elf, &[0, ADDRESS, ADDRESS, size, size, 0x1000]);
    elf.extend(code);
    elf
}

/// An instruction that there is not.
pub const CRASH: &[u8] = if cfg!(target_arch = "x86_64") { &[0x0f, 0x0b] } else { &[0; 4] };

/// The kernel's entries for system calls, each with numbers of its own.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// `syscall`.
    Native,
    /// `syscall` with the bit of x32 in the number.
    X32,
    /// `int 0x80`: the calls of 32-bit programs.
    I386,
}

#[cfg(target_arch = "x86_64")]
mod doors {
    use super::Door;

    /// The exit code of a program whose call has succeeded.
    pub const SUCCEEDED: i32 = 200;

    /// Where [`super::elf`] has its code in memory.
    const START: u32 = 0x40_0078;

    /// Exits with the call's errno, or with [`SUCCEEDED`].
    const EXIT: [u8; 24] = [
        0x85, 0xc0, 0x78, 0x07, 0xbf, 200, 0, 0, 0, 0xeb, 0x04, 0xf7, 0xd8, 0x89, 0xc7, 0xb8, 0xe7, 0, 0, 0, 0x0f,
        0x05, 0x0f, 0x0b,
    ];

    /// Makes the call `number` by `door` with three arguments, and the rest 0; exits with its errno or [`SUCCEEDED`].
    #[must_use]
    pub fn call_by(door: Door, number: u32, arguments: [u64; 3]) -> Vec<u8> {
        let number = if door == Door::X32 { number | 1 << 30 } else { number };
        let mut code = [&[0xb8], &number.to_le_bytes()[..]].concat();
        if door == Door::I386 {
            // mov ebx, ecx, edx; xor esi, edi, ebp
            for (register, argument) in [0xbb, 0xb9, 0xba].into_iter().zip(arguments) {
                code.push(register);
                code.extend(u32::try_from(argument).expect("32 bits").to_le_bytes());
            }
            code.extend([0x31, 0xf6, 0x31, 0xff, 0x31, 0xed, 0xcd, 0x80]);
        } else {
            // mov rdi, rsi, rdx; xor r10, r8, r9
            for (register, argument) in [0xbf, 0xbe, 0xba].into_iter().zip(arguments) {
                code.extend([0x48, register]);
                code.extend(argument.to_le_bytes());
            }
            code.extend([0x4d, 0x31, 0xd2, 0x4d, 0x31, 0xc0, 0x4d, 0x31, 0xc9, 0x0f, 0x05]);
        }
        code.extend(EXIT);
        code
    }

    /// Makes a socket by socketcall(2), which finds its arguments in memory; exits as [`call_by`] does.
    #[must_use]
    pub fn socketcall(family: u32, kind: u32) -> Vec<u8> {
        let with = |address: u32| call_by(Door::I386, 102, [1, address.into(), 0]);
        let behind = START + u32::try_from(with(0).len()).expect("short");
        let arguments = [family, kind, 0].map(u32::to_le_bytes).concat();
        [with(behind), arguments].concat()
    }
}

#[cfg(target_arch = "x86_64")]
pub use doors::{SUCCEEDED, call_by, socketcall};

#[cfg(target_arch = "x86_64")]
mod processor {
    /// `exit_group(code)`.
    #[must_use]
    pub fn exit(code: u8) -> Vec<u8> {
        vec![0xb8, 0xe7, 0, 0, 0, 0xbf, code, 0, 0, 0, 0x0f, 0x05]
    }

    /// Waits for ever, by `pause` alone.
    #[must_use]
    pub fn hang() -> Vec<u8> {
        vec![0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]
    }

    /// Makes the call `number`, with what the registers have for arguments, and exits with its errno.
    #[must_use]
    pub fn call(number: u16) -> Vec<u8> {
        let [low, high] = number.to_le_bytes();
        vec![0xb8, low, high, 0, 0, 0x0f, 0x05, 0xf7, 0xd8, 0x89, 0xc7, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x0b]
    }

    /// Writes `text` to `stream`, and does what `then` says.
    #[must_use]
    pub fn write(stream: u8, text: &str, then: &[u8]) -> Vec<u8> {
        let mut code = vec![0xb8, 1, 0, 0, 0, 0xbf, stream, 0, 0, 0, 0xba];
        code.extend(u32::try_from(text.len()).expect("short").to_le_bytes());
        // lea rsi, [rip + what lies between]; syscall
        code.extend([0x48, 0x8d, 0x35]);
        code.extend(u32::try_from(2 + then.len()).expect("short").to_le_bytes());
        code.extend([0x0f, 0x05]);
        [&code, then, text.as_bytes()].concat()
    }
}

#[cfg(target_arch = "aarch64")]
mod processor {
    const SVC: u32 = 0xd400_0001;

    /// `movz` of a value into a register.
    fn set(register: u32, value: u16) -> u32 {
        0xd280_0000 | u32::from(value) << 5 | register
    }

    fn code(instructions: &[u32]) -> Vec<u8> {
        instructions.iter().flat_map(|instruction| instruction.to_le_bytes()).collect()
    }

    /// `exit_group(code)`.
    #[must_use]
    pub fn exit(status: u8) -> Vec<u8> {
        code(&[set(0, status.into()), set(8, 94), SVC])
    }

    /// Waits for ever, by `ppoll` of nothing alone.
    #[must_use]
    pub fn hang() -> Vec<u8> {
        // Back to the first.
        code(&[set(0, 0), set(1, 0), set(2, 0), set(3, 0), set(8, 73), SVC, 0x17ff_fffa])
    }

    /// Makes the call `number`, with what the registers have for arguments, and exits with its errno.
    #[must_use]
    pub fn call(number: u16) -> Vec<u8> {
        // neg x0, x0
        code(&[set(8, number), SVC, 0xcb00_03e0, set(8, 94), SVC])
    }

    /// Writes `text` to `stream`, and does what `then` says.
    #[must_use]
    pub fn write(stream: u8, text: &str, then: &[u8]) -> Vec<u8> {
        // adr x1, what lies behind the four instructions from it on, and `then`
        let behind = u32::try_from(16 + then.len()).expect("short");
        let address = 0x1000_0001 | (behind & 3) << 29 | (behind >> 2) << 5;
        let length = set(2, u16::try_from(text.len()).expect("short"));
        let code = code(&[set(0, stream.into()), address, length, set(8, 64), SVC]);
        [&code, then, text.as_bytes()].concat()
    }
}

pub use processor::{call, exit, hang, write};
