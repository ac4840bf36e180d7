//! The shim's current or last pause process: its facts and its end.

use std::cell::RefCell;
use std::os::fd::AsFd as _;
use std::rc::Rc;

use bowline_error::{Error, Kind, Result};
use bowline_model::liveness::Live;
use bowline_sys as sys;

use crate::facts::PauseProcessFacts;
use crate::process::worker;
use crate::request::PauseEnd;
use crate::start::pause_process::RECORDED;
use crate::supervise::children::Children;
use crate::waits::claim::Claim;

/// The current pause process, or the last one.
#[derive(Default)]
pub struct PauseSlot(pub(crate) RefCell<Option<Rc<LivePauseProcess>>>);

/// A pause process; it lives until `claim` has its end.
pub(crate) struct LivePauseProcess {
    pub live: Live,
    pub claim: Claim,
}

impl LivePauseProcess {
    /// Lets the process outlive the shim: the record on disk names it.
    pub fn outlive_shim(&self) {
        // An error means that the process has ended.
        let _ = sys::pidfd_send_signal(self.live.pidfd.as_fd(), RECORDED);
    }

    /// Asks the process to end by itself. SIGCONT wakes it if it was stopped.
    fn end(&self) {
        if !self.claim.is_unreaped() {
            return;
        }
        for signal in [libc::SIGTERM, libc::SIGCONT] {
            // An error means that the process has already ended.
            let _ = sys::pidfd_send_signal(self.live.pidfd.as_fd(), signal);
        }
    }
}

impl PauseSlot {
    pub(crate) fn get(&self) -> Result<Rc<LivePauseProcess>> {
        let one = self.0.borrow().clone();
        one.ok_or_else(|| Error::new(Kind::NotFound, "there is no pause process here"))
    }

    /// The facts about the pause process, if there is or was one.
    pub fn facts(&self) -> Option<PauseProcessFacts> {
        let process = self.get().ok()?;
        let end = process.claim.end();
        Some(PauseProcessFacts { pid: end.is_none().then_some(process.claim.pid), end })
    }

    /// Waits until the pause process has ended.
    pub async fn ended(&self) -> Result<PauseEnd> {
        let end = self.get()?.claim.ended().await;
        Ok(PauseEnd { code: end.ended.code(), at: end.at })
    }

    /// Ends the pause process, unless it has ended already.
    pub async fn end(&self) -> Result<PauseEnd> {
        self.get()?.end();
        self.ended().await
    }

    /// Like [`Self::end`], after the loop has ended: reaps the process itself.
    pub async fn leave(&self, children: &Children) {
        let Ok(process) = self.get() else { return };
        if !process.claim.is_unreaped() {
            return;
        }
        process.end();
        if let Ok(pidfd) = process.live.pidfd.try_clone() {
            worker::ended(pidfd).await;
        }
        children.sweep();
    }
}
