//! How the binaries are linked, and what an idle shim has mapped.
//!
//! Of the debug binaries as of those that are installed: both are linked by the
//! same compiler, with its defaults, and the second are static besides.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::binary;

const BINARIES: [&str; 4] = ["bowline", "bowline-shim", "containerd-shim-bowline-v1", "nomad-driver-bowline"];

/// A program header of an ELF file of 64 bits (elf(5)).
#[derive(Debug)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: usize,
    size: usize,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_X: u32 = 1;
const PF_W: u32 = 2;

struct Elf {
    bytes: Vec<u8>,
}

impl Elf {
    fn of(name: &str) -> Elf {
        let bytes = fs::read(binary(name)).expect("a binary");
        assert_eq!(bytes[..6], *b"\x7fELF\x02\x01", "{name} is not of 64 bits, lowest byte first");
        Elf { bytes }
    }

    fn number<const N: usize>(&self, at: usize) -> u64 {
        let mut number = [0; 8];
        number[..N].copy_from_slice(&self.bytes[at..at + N]);
        u64::from_le_bytes(number)
    }

    fn segments(&self) -> Vec<Segment> {
        let (table, size, count) = (self.number::<8>(0x20), self.number::<2>(0x36), self.number::<2>(0x38));
        let segment = |index: u64| {
            let at = (table + index * size) as usize;
            Segment {
                kind: self.number::<4>(at) as u32,
                flags: self.number::<4>(at + 4) as u32,
                offset: self.number::<8>(at + 8) as usize,
                size: self.number::<8>(at + 32) as usize,
            }
        };
        (0..count).map(segment).collect()
    }

    /// The first value with this tag in the dynamic section.
    fn dynamic(&self, tag: u64) -> Option<u64> {
        let segments = self.segments();
        let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
        let mut entries = (dynamic.offset..dynamic.offset + dynamic.size).step_by(16);
        entries.find(|at| self.number::<8>(*at) == tag).map(|at| self.number::<8>(at + 8))
    }
}

#[test]
fn binaries_are_position_independent() {
    const ET_DYN: u64 = 3;
    const DT_FLAGS_1: u64 = 0x6fff_fffb;
    const DF_1_PIE: u64 = 0x0800_0000;
    for name in BINARIES {
        let elf = Elf::of(name);
        assert_eq!(elf.number::<2>(0x10), ET_DYN, "{name}");
        let flags = elf.dynamic(DT_FLAGS_1).unwrap_or_default();
        assert_ne!(flags & DF_1_PIE, 0, "{name}: DT_FLAGS_1 is {flags:#x}");
    }
}

#[test]
fn what_is_relocated_is_read_only_from_then_on() {
    const DT_BIND_NOW: u64 = 24;
    const DT_FLAGS: u64 = 30;
    const DF_BIND_NOW: u64 = 8;
    for name in BINARIES {
        let elf = Elf::of(name);
        assert!(elf.segments().iter().any(|segment| segment.kind == PT_GNU_RELRO), "{name}: {:?}", elf.segments());
        // Else the table of what is called would be relocated, and stay writable, as calls come.
        let now = elf.dynamic(DT_FLAGS).is_some_and(|flags| flags & DF_BIND_NOW != 0);
        assert!(now || elf.dynamic(DT_BIND_NOW).is_some(), "{name}: it is bound lazily");
    }
}

#[test]
fn nothing_is_mapped_writable_and_executable() {
    for name in BINARIES {
        let segments = Elf::of(name).segments();
        let both = |segment: &&Segment| segment.flags & (PF_W | PF_X) == PF_W | PF_X;
        let loaded = segments.iter().filter(|segment| segment.kind == PT_LOAD).find(both);
        assert!(loaded.is_none(), "{name}: {loaded:?}");
        let stack = segments.iter().find(|segment| segment.kind == PT_GNU_STACK);
        let stack = stack.unwrap_or_else(|| panic!("{name} says nothing of its stack, which is then executable"));
        assert_eq!(stack.flags & PF_X, 0, "{name}: {stack:?}");
    }
}

#[test]
fn an_idle_shim_has_nothing_that_is_writable_and_executable() {
    let host = Host::new();
    let task = host.task("echo ready; exec sleep 1000").start();
    task.wait_for_line("ready");
    let maps = fs::read_to_string(format!("/proc/{}/maps", task.shim_pid())).expect("a shim has mappings");
    assert!(maps.lines().any(|line| line.contains("r-xp")), "{maps}");
    let both = |line: &&str| line.split(' ').nth(1).is_some_and(|how| how.contains('w') && how.contains('x'));
    let found: Vec<&str> = maps.lines().filter(both).collect();
    assert!(found.is_empty(), "{found:?} in\n{maps}");
    task.stop(["--grace=0"]);
}
