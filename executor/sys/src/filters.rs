//! Programs that the kernel runs for us: over devices, and over system calls.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::{io, ptr};

use libc::c_int;

use super::{check, own};

/// Loads an eBPF program that decides over devices (BPF_PROG_TYPE_CGROUP_DEVICE) and attaches it to
/// the cgroup v2 `cgroup`; the program goes with the cgroup.
///
/// `program` is an array of `struct bpf_insn`, 8 bytes each.
pub fn attach_device_program(cgroup: BorrowedFd<'_>, program: &[u64]) -> io::Result<()> {
    const BPF_PROG_LOAD: c_int = 5;
    const BPF_PROG_ATTACH: c_int = 8;
    const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
    const BPF_CGROUP_DEVICE: u32 = 6;
    const BPF_F_ALLOW_MULTI: u32 = 2;
    /// A signal interrupts a load once, and many children may end at a time.
    const TRIES: u32 = 100;

    /// The head of `union bpf_attr` for BPF_PROG_LOAD; the kernel takes missing fields as zero.
    #[repr(C)]
    struct Load {
        kind: u32,
        length: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
    }
    /// The attributes of BPF_PROG_ATTACH.
    #[repr(C)]
    struct Attach {
        target: u32,
        program: u32,
        kind: u32,
        flags: u32,
    }
    let length = u32::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let load = Load {
        kind: BPF_PROG_TYPE_CGROUP_DEVICE,
        length,
        instructions: program.as_ptr() as u64,
        license: c"Apache".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
    };
    let mut tries = 0..TRIES;
    let loaded = loop {
        // SAFETY: `load` is a valid head of bpf_attr of the size passed; what it
        // points at outlives the call, and the kernel verifies the program.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, ptr::from_ref(&load), size_of::<Load>()) };
        match check(rc) {
            // A signal came while the kernel verified the program: a child has ended.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries.next().is_some() => {}
            loaded => break own(loaded? as RawFd),
        }
    };
    let attach = Attach {
        target: cgroup.as_raw_fd() as u32,
        program: loaded.as_raw_fd() as u32,
        kind: BPF_CGROUP_DEVICE,
        flags: BPF_F_ALLOW_MULTI,
    };
    // SAFETY: as above; both fds are open.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, ptr::from_ref(&attach), size_of::<Attach>()) };
    check(rc).map(drop)
}

/// Loads a seccomp filter for the calling thread, and for all that it becomes.
///
/// `program` is an array of `sock_filter` as libseccomp exports it (8 bytes
/// each); `flags` are SECCOMP_FILTER_FLAG_*. With NEW_LISTENER among them the
/// listener is returned.
pub fn seccomp_load(program: &[u8], flags: u64) -> io::Result<Option<OwnedFd>> {
    let length = program.len() / size_of::<libc::sock_filter>();
    let instructions = program.chunks_exact(size_of::<libc::sock_filter>()).map(|c| libc::sock_filter {
        code: u16::from_ne_bytes([c[0], c[1]]),
        jt: c[2],
        jf: c[3],
        k: u32::from_ne_bytes([c[4], c[5], c[6], c[7]]),
    });
    // Never freed: that may need a system call which the filter denies.
    let mut instructions = ManuallyDrop::new(Vec::from_iter(instructions));
    let Ok(len) = u16::try_from(length) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let fprog = libc::sock_fprog { len, filter: instructions.as_mut_ptr() };
    // SAFETY: `fprog` points at `len` instructions that live until the call
    // returns; the kernel copies and verifies them.
    let rc = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, ptr::from_ref(&fprog)) };
    let result = check(rc)?;
    Ok((flags & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0).then(|| own(result as RawFd)))
}
