//! Pages of the shim that nobody uses any more, back to the kernel: a shim waits for most of its life, and there is one for
//! each task.
//!
//! glibc keeps what is freed for the next who asks. Two things make a shim grow by that: lists of freed pieces by size,
//! each of which holds on to the page that it is on, and free pages between pieces that are in use. The first are turned
//! off where a shim is started, by [`FRUGAL`]; the second are given back when somebody has left, as soon as the loop has
//! nothing else to do: a few system calls for an exec. Must not: know who has left.

use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_sys as sys;

/// A variable of a shim's environment, and its value: its allocator keeps no lists of freed pieces for each thread.
pub const FRUGAL: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");

/// So many who have left at once are watched by more than the loop frees at a time: each by four descriptors or so.
const MANY: usize = 4;

/// How many have left since pages were given back; less by and by.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Somebody has left: a client with what it has asked for, an exec, or a health check.
pub fn left() {
    LEFT.fetch_add(1, Ordering::Relaxed);
}

/// Gives back what is free if somebody has left since the last time. To be called before the loop waits.
pub fn give_back() {
    let left = LEFT.swap(0, Ordering::Relaxed);
    if left > 0 {
        // What was watched for many is freed by the loop itself, sixteen at a time, after this: then once more.
        LEFT.store(left / MANY, Ordering::Relaxed);
        sys::give_back_memory();
    }
}
