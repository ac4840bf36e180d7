//! The memory of this process.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use libc::c_void;

/// Gives pages without allocations back to the kernel, wherever they are; malloc_trim(3).
pub fn give_back_memory() {
    // SAFETY: it takes a lock of the allocator, and touches only free memory.
    unsafe { libc::malloc_trim(0) };
}

/// Gives the stack below the caller back to the kernel: pages that calls which have returned have used. The next calls
/// find zeroes there.
///
/// For the first thread alone, where nothing else is mapped within 1 MiB below the stack (`stack_guard_gap`); another
/// thread's stack has neighbours.
#[inline(never)]
pub fn give_back_stack() {
    /// The least distance that the kernel keeps between the stack and what is mapped below.
    const GAP: usize = 1 << 20;
    let here = 0u8;
    let page = rustix::param::page_size();
    // What this function calls, and a red zone, fit on the page below this one.
    let end = (&raw const here).addr() / page * page - page;
    let start = end - GAP + 2 * page;
    // SAFETY: nothing below the stack pointer is in use while this thread, which has the stack, is here; a signal handler
    // that begins now begins on zeroes. Beyond the stack nothing is mapped, which is an error that changes nothing.
    unsafe { libc::madvise(ptr::without_provenance_mut(start), end - start, libc::MADV_DONTNEED) };
}

/// Unmaps the pages of the program's code and constants, which are those of its file: each is mapped again when it is
/// used, from the page cache, with its neighbours.
pub fn let_go_of_code() {
    unsafe extern "C" {
        /// The first byte of the program, and the end of its code (ld(1)).
        static __executable_start: u8;
        static etext: u8;
    }
    let (start, end) = ((&raw const __executable_start).addr(), (&raw const etext).addr());
    let length = end.saturating_sub(start) / rustix::param::page_size() * rustix::param::page_size();
    // SAFETY: up to the end of the code, all is mapped from the program's file and never written to: what is read there
    // later is the same. An error changes nothing.
    unsafe { libc::madvise((&raw const __executable_start).cast_mut().cast(), length, libc::MADV_DONTNEED) };
}

/// A pid in memory that the shim shares with a worker. The kernel stores the pid of the worker's
/// child there (clone(2), CLONE_PARENT_SETTID) before the child runs, so the shim knows it even if
/// the worker was killed before it could report.
pub struct SharedPid {
    memory: Rc<MappedFile>,
    offset: usize,
}

impl SharedPid {
    /// Memory for it alone; no pid is stored yet.
    pub fn new() -> io::Result<SharedPid> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let length = size_of::<AtomicU32>();
        // SAFETY: a new mapping overlaps no existing one.
        let at = unsafe { libc::mmap(ptr::null_mut(), length, access, kind, -1, 0) };
        Ok(SharedPid { memory: Rc::new(MappedFile { at: mapped(at)?, length }), offset: 0 })
    }

    /// At `offset` of a file, which outlives the shim. Clears what is stored there.
    pub fn within(memory: &Rc<MappedFile>, offset: usize) -> SharedPid {
        memory.store(offset, 0);
        SharedPid { memory: memory.clone(), offset }
    }

    /// The stored pid, if any.
    pub fn get(&self) -> Option<i32> {
        let pid = self.memory.load(self.offset) as i32;
        (pid != 0).then_some(pid)
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.number(self.offset).as_ptr() as u64
    }
}

/// A text in memory that the shim shares with a child: for a child that may not write to a pipe, since its seccomp
/// filter denies it.
pub struct SharedText(NonNull<Text>);

/// What is mapped; zeroes are an empty text.
#[repr(C)]
struct Text {
    length: AtomicUsize,
    bytes: [u8; SharedText::MOST],
}

impl SharedText {
    /// The most bytes that are kept: more than the JSON of the longest error has. Memory is used only for what is stored.
    const MOST: usize = 64 << 10;

    /// Maps the memory; no text is stored yet.
    pub fn new() -> io::Result<SharedText> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping overlaps no existing one.
        let memory = unsafe { libc::mmap(ptr::null_mut(), size_of::<Text>(), access, kind, -1, 0) };
        mapped(memory).map(SharedText)
    }

    /// Stores `text` without a system call, unless it is too long. The child calls this once.
    pub fn store(&self, text: &[u8]) {
        if text.len() > Self::MOST {
            return;
        }
        let text_at = self.0.as_ptr();
        // SAFETY: the mapping lasts as long as `self`, and the field is within it.
        let bytes = unsafe { &raw mut (*text_at).bytes };
        // SAFETY: `text` fits, and is not in the mapping; nobody reads the bytes before their length is there.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), bytes.cast(), text.len()) };
        // SAFETY: as above; the field is only used as an atomic.
        unsafe { &(*text_at).length }.store(text.len(), Ordering::Release);
    }

    /// The stored text, if any.
    pub fn get(&self) -> Option<Vec<u8>> {
        // SAFETY: the mapping lasts as long as `self`, and its zeroes are a valid value.
        let length = unsafe { &(*self.0.as_ptr()).length }.load(Ordering::Acquire).min(Self::MOST);
        // SAFETY: as above.
        let bytes = unsafe { &raw const (*self.0.as_ptr()).bytes };
        // SAFETY: the child has stored that much, and stores no more.
        let text = unsafe { std::slice::from_raw_parts(bytes.cast(), length) };
        (length > 0).then(|| text.to_vec())
    }
}

impl Drop for SharedText {
    fn drop(&mut self) {
        // SAFETY: it is mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Text>()) };
    }
}

/// What mmap(2) has returned.
fn mapped<T>(at: *mut c_void) -> io::Result<NonNull<T>> {
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// The beginning of a file, mapped into memory: what is stored there outlives this process.
#[derive(Debug)]
pub struct MappedFile {
    at: NonNull<u8>,
    length: usize,
}

impl MappedFile {
    /// Maps the first `length` bytes of `file`, which has them: a store beyond its end would end the process.
    pub fn of(file: &File, length: usize) -> io::Result<MappedFile> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping overlaps no existing one.
        let at = unsafe { libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        Ok(MappedFile { at: mapped(at)?, length })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: all of it is mapped for as long as `self`; nobody else stores there while this process has the file.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.length) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.length) }
    }

    /// The number at this offset, which is a multiple of four.
    pub fn load(&self, offset: usize) -> u32 {
        self.number(offset).load(Ordering::Acquire)
    }

    /// Stores a number at this offset, after all that was stored before.
    pub fn store(&self, offset: usize, number: u32) {
        self.number(offset).store(number, Ordering::Release);
    }

    /// Stores `bytes` at this offset, where no number is and nobody borrows any.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.length), "it is within the mapping");
        // SAFETY: just checked.
        let to = unsafe { self.at.as_ptr().add(offset) };
        // SAFETY: the bytes fit, and are not in the mapping's part that is written.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn number(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length, "it is within the mapping, and aligned");
        // SAFETY: just checked.
        let at = unsafe { self.at.as_ptr().add(offset) };
        // SAFETY: aligned, as the mapping begins at a page; mapped for as long as `self`; used as an atomic alone.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: it is mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

    use super::*;
    use crate::{self as sys, Cloned};

    #[test]
    fn a_worker_that_goes_on_as_another_process_tells_its_pid_twice() {
        let told = SharedPid::new().expect("a page");
        assert_eq!(told.get(), None);
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        let memory = vec![7u8; 1 << 20];
        // It allocates.
        let Cloned::Parent { pidfd, .. } = sys::fork_among_threads().expect("a worker") else {
            let before = rustix::process::getpid();
            let went_on = sys::go_on_beside(libc::CLONE_VM as u64, None, &told, write.as_raw_fd(), b'P');
            drop(told);
            let is_another = went_on.is_ok() && rustix::process::getpid() != before;
            sys::exit_now(if is_another { memory.iter().map(|byte| i32::from(*byte)).sum::<i32>() % 100 } else { 1 });
        };
        drop(write);
        let ended = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).expect("ours");
        assert_eq!(ended.and_then(|status| status.exit_status()), Some(0), "the worker");
        let pid = told.get().expect("it has gone on");
        let mut said = [0; 6];
        assert_eq!(rustix::io::read(&read, &mut said), Ok(5));
        assert_eq!(said[..5], [b"P", &pid.to_ne_bytes()[..]].concat());
        let ended = waitpid(Pid::from_raw(pid), WaitOptions::empty()).expect("a child of ours");
        assert_eq!(
            ended.and_then(|(_, status)| status.exit_status()),
            Some((7 << 20) % 100),
            "with the worker's memory"
        );
    }

    #[test]
    fn a_worker_that_cannot_go_on_as_another_process_stays_itself() {
        let told = SharedPid::new().expect("a page");
        let Cloned::Parent { pidfd, .. } = sys::fork_among_threads().expect("a worker") else {
            let went_on = sys::go_on_beside(0, Some(-1), &told, -1, b'P');
            sys::exit_now(if went_on.is_err() { 7 } else { 1 });
        };
        let ended = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).expect("ours");
        assert_eq!(ended.and_then(|status| status.exit_status()), Some(7));
        assert_eq!(told.get(), None);
    }

    #[test]
    fn a_child_stores_a_text_for_its_parent() {
        let text = SharedText::new().expect("memory");
        assert_eq!(text.get(), None);
        let Cloned::Parent { pidfd, .. } = sys::fork().expect("a child") else {
            text.store(b"why it failed");
            sys::exit_now(0);
        };
        waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).expect("ours");
        assert_eq!(text.get().as_deref(), Some(&b"why it failed"[..]));
        text.store(&[0; SharedText::MOST + 1]);
        assert_eq!(text.get().as_deref(), Some(&b"why it failed"[..]));
    }
}
