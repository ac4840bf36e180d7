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
