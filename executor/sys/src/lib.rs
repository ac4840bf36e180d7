//! All `unsafe` of the project: the system calls that rustix lacks, thinly; and what the kernel lists in `/proc`.
//!
//! Must not: decide, log, or know what a task is.

#![allow(unsafe_code)]

#[cfg(feature = "absent")]
mod absent;
#[cfg(not(feature = "absent"))]
mod absent {
    /// Without the feature `absent`, nothing is taken for absent.
    pub const fn absent(_: &str) -> bool {
        false
    }
}
mod clones;
mod fds;
mod files;
mod filters;
mod links;
mod loops;
mod memory;
pub mod mountinfo;
mod mounts;
pub mod proc_stat;
mod processes;
mod recent;
mod signals;
mod sockets;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use libc::c_long;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use absent::absent;
#[cfg(feature = "absent")]
pub use absent::all as all_absent;
pub use clones::{Cloned, clone3, clones_into_cgroups, fork, fork_among_threads, go_on_beside, in_user_namespace};
pub use fds::{
    close_all, close_all_but, close_fd, close_fds, close_on_exec_from_3, hand_down, inherited_fd, is_handed_down,
    lock_byte, place_fd, place_fd_at, read_fd, register_fd, register_fd_for, set_fd_flags, write_fd,
};
pub use files::{read_file, read_of_length, read_regular_file, read_up_to, remove_if_there};
pub use filters::{attach_device_program, seccomp_load};
pub use links::{loopback_up, remove_bridge};
pub use loops::{LOOP_AUTOCLEAR, LOOP_DIRECT_IO, LOOP_READ_ONLY, configure_loop, free_loop};
pub use memory::{MappedFile, SharedPid, SharedText, give_back_memory, give_back_stack, let_go_of_code};
pub use mounts::{MountAttributes, mount_idmap, mount_setattr};
pub use processes::{
    CLONE_NEWTIME, Ended, Image, Reaped, SchedulingAttributes, default_memory_policy, ended_elsewhere, exit_now,
    in_first_user_namespace, ioprio_set, is_child, new_session_keyring, open_process, overwrite_command_line,
    owner_of_namespace, personality, pid_of, pidfd_open, pidfd_send_signal, pidfd_send_value, reap, run_on_any_cpu,
    sched_setattr, set_memory_policy, setns, signal_group, unless_gone, unshare,
};
pub use recent::{fsconfig, fsmount, fsopen, has_mount_fds, is_absent, marks_many_fds, move_mount, open_tree, openat2};
pub use signals::{
    ALL_SIGNALS, Arrived, block_signals, changed_signals, default_signals, exit_on, is_signal_ignored, report_signal,
    wait_for_signal, with_signals_blocked,
};
pub use sockets::{BACKLOG, listen_privately};

/// The text of a file of the kernel's, whose size is not known before it is read.
///
/// # Errors
/// The kernel's.
pub fn read_kernel_text(path: &str) -> io::Result<String> {
    read_kernel_bytes(path).map(lossy)
}

/// Bytes as text. What is no UTF-8 becomes U+FFFD: a file of the kernel's has names that any process may choose, such as
/// its own.
pub fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// `std::fs::read` asks for the size, and then reads twice as much each time from 32 bytes on.
fn read_kernel_bytes(path: &str) -> io::Result<Vec<u8>> {
    const ROOM: usize = 4096;
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::with_capacity(ROOM);
    loop {
        text.reserve(ROOM);
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut text)) {
            Ok(0) => return Ok(text),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: every caller passes an fd that the kernel has just returned and that nothing else knows of.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn check(rc: c_long) -> io::Result<c_long> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}
