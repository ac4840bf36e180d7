//! Reaping: one sweep for all children, whoever waits for which.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::error::{Doing, Kind, Result};
use crate::sys::{self, Ended};

/// A signal, as something to await.
pub struct Signal(AsyncFd<UnixStream>);

impl Signal {
    pub fn new(number: i32) -> Result<Signal> {
        let what = || format!("cannot watch for signal {number}");
        let (receive, send) = UnixStream::pair().doing(Kind::Internal, what)?;
        receive.set_nonblocking(true).doing(Kind::Internal, what)?;
        signal_hook::low_level::pipe::register(number, send).doing(Kind::Internal, what)?;
        Ok(Signal(sys::watch(receive).doing(Kind::Internal, what)?))
    }

    /// Returns when at least one has come since the last time.
    pub async fn received(&mut self) {
        let mut buffer = [0u8; 64];
        loop {
            if self.0.readable().await.is_err() {
                return;
            }
            let read = self.0.try_io(Interest::READABLE, |mut stream| io::Read::read(&mut stream, &mut buffer));
            if read.is_ok() {
                return;
            }
        }
    }
}

/// Who waits for which child.
#[derive(Default)]
pub struct Children {
    waiting: RefCell<HashMap<i32, oneshot::Sender<Ended>>>,
    /// Ended before anybody asked: an exec can end before its worker has told
    /// its pid. Workers themselves, for whom nobody asks, are in here too
    /// until the last launch is over.
    unclaimed: RefCell<HashMap<i32, Ended>>,
    /// Launches and execs whose pid is not known yet.
    expected: RefCell<usize>,
}

/// While it lives, children that nobody waits for are remembered.
pub struct Expecting<'a>(&'a Children);

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        let mut expected = self.0.expected.borrow_mut();
        *expected -= 1;
        if *expected == 0 {
            self.0.unclaimed.borrow_mut().clear();
        }
    }
}

impl Children {
    /// To be held from before a clone until its child is claimed.
    pub fn expect(&self) -> Expecting<'_> {
        *self.expected.borrow_mut() += 1;
        Expecting(self)
    }

    /// The end of `pid`, which must be a child that was not claimed before.
    pub fn claim(&self, pid: i32) -> oneshot::Receiver<Ended> {
        let (tell, hear) = oneshot::channel();
        if let Some(ended) = self.unclaimed.borrow_mut().remove(&pid) {
            let _ = tell.send(ended);
        } else {
            self.waiting.borrow_mut().insert(pid, tell);
        }
        hear
    }

    /// Reaps every child that has ended.
    pub fn sweep(&self) {
        loop {
            match sys::reap() {
                Ok(Some((pid, ended))) => self.ended(pid, ended),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot reap");
                    return;
                }
            }
        }
    }

    fn ended(&self, pid: i32, ended: Ended) {
        match self.waiting.borrow_mut().remove(&pid) {
            // Whoever waited may have given up.
            Some(tell) => drop(tell.send(ended)),
            None if *self.expected.borrow() > 0 => drop(self.unclaimed.borrow_mut().insert(pid, ended)),
            None => {}
        }
    }
}
