//! Memory of this process.

/// Gives the kernel back the pages that nothing allocated is on, wherever they are; malloc_trim(3).
pub fn give_back_memory() {
    // SAFETY: it takes a lock of the allocator's own, and touches what is free alone.
    unsafe { libc::malloc_trim(0) };
}
