//! A further reading end of an output's pipe, which the task's init keeps: the pipe stays open without the shim.

use std::cell::RefCell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use bowline_sys as sys;

/// The init that keeps ends, once it takes requests.
#[derive(Debug, Clone, Default)]
pub struct Keeper(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    init: Option<OwnedFd>,
    /// Ends that nobody reads, and that there was no init yet to close.
    unread: Vec<u32>,
}

impl Keeper {
    /// Names the init, by its pidfd, once it runs.
    pub fn set_init(&self, init: OwnedFd) {
        let mut state = self.0.borrow_mut();
        state.unread.drain(..).for_each(|index| close(init.as_fd(), index));
        state.init = Some(init);
    }
}

/// One end that an init keeps.
#[derive(Debug)]
pub struct KeptEnd {
    pub keeper: Keeper,
    /// Its place among those that the init keeps.
    pub index: u32,
}

impl KeptEnd {
    /// Has the init close the end, so that the pipe closes with the shim's own.
    pub fn close(&self) {
        let mut state = self.keeper.0.borrow_mut();
        match &state.init {
            Some(init) => close(init.as_fd(), self.index),
            None => state.unread.push(self.index),
        }
    }
}

/// Asks `init` to close the `index`th end that it keeps. An init that has ended has closed it.
fn close(init: BorrowedFd<'_>, index: u32) {
    if let Err(error) = sys::pidfd_send_value(init, bowline_init::REQUEST, bowline_init::request(index))
        && error.raw_os_error() != Some(libc::ESRCH)
    {
        tracing::warn!(%error, "a task's init keeps a pipe open that nobody reads");
    }
}
