//! Gives unused pages of the shim back to the kernel: a shim waits for most of its life, and there
//! is one for each task.
//!
//! glibc keeps freed memory for the next allocation. Two things make a shim grow by that: lists of
//! freed pieces by size, each of which holds on to the page that it is on, and free pages between
//! pieces that are in use. [`FRUGAL`] turns the first off where a shim is started; the second are
//! given back when a client, an exec or a check has left, as soon as the loop has nothing else to
//! do: a few system calls for an exec. The stack that finished calls have used is given back too. So are pages of the
//! program that the kernel mapped around used ones: after the launch few are needed again. Must not: know which client
//! left.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bowline_sys as sys;

/// A variable for a shim's environment, and its value: the shim's allocator keeps no lists of freed
/// pieces for each thread.
pub const FRUGAL: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");

/// So many that leave at once have more watched descriptors, about four each, than the loop frees at a time.
const MANY: usize = 4;

/// How many have left since pages were given back; goes down step by step.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Notes that something has left: a client with what it has asked for, an exec, or a health check.
pub fn left() {
    LEFT.fetch_add(1, Ordering::Relaxed);
}

/// Whether the process is a shim and nothing else, which runs on its first thread's stack.
static ONLY_A_SHIM: AtomicBool = AtomicBool::new(false);

/// Lets go of the program's pages until they are used again; from now on, [`give_back`] includes the stack. Call this
/// when the shim may be idle for long, and nobody waits; never in a program that somebody else has linked, as it may have
/// changed its own code, and runs the loop on any stack.
pub fn let_go_of_code() {
    ONLY_A_SHIM.store(true, Ordering::Relaxed);
    sys::let_go_of_code();
}

/// Gives back what is free if anything has left since the last call. Call this before the loop waits.
pub fn give_back() {
    let left = LEFT.swap(0, Ordering::Relaxed);
    if left > 0 {
        // The loop frees what was watched for many, sixteen at a time, after this: give back once more then.
        LEFT.store(left / MANY, Ordering::Relaxed);
        sys::give_back_memory();
        if ONLY_A_SHIM.load(Ordering::Relaxed) {
            sys::give_back_stack();
        }
    }
}
