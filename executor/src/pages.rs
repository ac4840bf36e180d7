//! Pages of the shim that nobody uses any more, back to the kernel: a shim waits for most of its life, and there is one for
//! each task.
//!
//! glibc keeps what is freed for the next who asks. Two things make a shim grow by that: lists of freed pieces by size,
//! each of which holds on to the page that it is on, and free pages between pieces that are in use. The first are turned
//! off where a shim is started, by [`FRUGAL`]; the second are given back when somebody has left, as soon as the loop has
//! nothing else to do: a few system calls for an exec. Must not: count, or know who has left.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

/// A variable of a shim's environment, and its value: its allocator keeps no lists of freed pieces for each thread.
pub const FRUGAL: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");

static LEFT: AtomicBool = AtomicBool::new(false);

/// Somebody has left: a client with what it has asked for, an exec, or a health check.
pub fn left() {
    LEFT.store(true, Ordering::Relaxed);
}

/// Gives back what is free if somebody has left since the last time. To be called before the loop waits.
pub fn give_back() {
    if LEFT.swap(false, Ordering::Relaxed) {
        sys::give_back_memory();
    }
}
