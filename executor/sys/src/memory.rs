//! The memory of this process.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, Ordering};

/// Gives pages without allocations back to the kernel, wherever they are; malloc_trim(3).
pub fn give_back_memory() {
    // SAFETY: it takes a lock of the allocator, and touches only free memory.
    unsafe { libc::malloc_trim(0) };
}

/// A pid in a page that the shim shares with a worker. The kernel stores the pid of the worker's
/// child there (clone(2), CLONE_PARENT_SETTID) before the child runs, so the shim knows it even if
/// the worker was killed before it could report.
pub struct SharedPid(NonNull<AtomicI32>);

impl SharedPid {
    const SIZE: usize = size_of::<AtomicI32>();

    /// Maps the page; no pid is stored yet.
    pub fn new() -> io::Result<SharedPid> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping overlaps no existing one.
        let page = unsafe { libc::mmap(ptr::null_mut(), Self::SIZE, access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(page.cast()).map(SharedPid).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }

    /// The stored pid, if any.
    pub fn get(&self) -> Option<i32> {
        // SAFETY: the mapping lasts as long as `self`, is aligned to a page, and its zeroes are a
        // valid value; every write replaces the whole value.
        let pid = unsafe { self.0.as_ref() }.load(Ordering::Acquire);
        (pid != 0).then_some(pid)
    }

    /// Unmaps the page in children that are cloned later. The worker calls this.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours, and nothing refers to it in a child of the worker.
        let rc = unsafe { libc::madvise(self.0.as_ptr().cast(), Self::SIZE, libc::MADV_DONTFORK) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

impl Drop for SharedPid {
    fn drop(&mut self) {
        // SAFETY: it is mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Self::SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::{self as sys, Cloned};

    #[test]
    fn what_a_worker_clones_is_known_without_its_word() {
        let told = SharedPid::new().expect("a page");
        assert_eq!(told.get(), None);
        let Cloned::Parent { pidfd, .. } = sys::fork().expect("a worker") else {
            let cloned = told.keep_from_children().and_then(|()| sys::clone_beside(0, None, &told));
            sys::exit_now(i32::from(cloned.is_err()));
        };
        rustix::process::waitid(rustix::process::WaitId::PidFd(pidfd.as_fd()), rustix::process::WaitIdOptions::EXITED)
            .expect("ours");
        let pid = told.get().and_then(rustix::process::Pid::from_raw).expect("it has cloned somebody");
        let ended =
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).expect("a child of ours");
        assert_eq!(ended.and_then(|(_, status)| status.exit_status()), Some(0));
    }
}
