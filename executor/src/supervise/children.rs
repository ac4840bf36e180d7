//! Reaping: one sweep for all children, whichever caller waits for which child.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::unix::net::UnixStream;

use bowline_error::{Doing, Kind, Result};
use bowline_sys as sys;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::waits::claim::{Claim, End};

/// A set of signals, as something to await.
pub struct Signal(AsyncFd<UnixStream>);

impl Signal {
    /// Watches for any of these signals.
    pub fn new(numbers: &[i32]) -> Result<Signal> {
        let what = || format!("cannot watch for signals {numbers:?}");
        let (receive, send) = UnixStream::pair().doing(Kind::Internal, what)?;
        receive.set_nonblocking(true).doing(Kind::Internal, what)?;
        let register = |number: &i32| {
            let send = send.try_clone().doing(Kind::Internal, what)?;
            signal_hook::low_level::pipe::register(*number, send).doing(Kind::Internal, what)
        };
        // Its handler is there before it knows what to do: a signal that comes in between would be lost.
        sys::with_signals_blocked(|| numbers.iter().try_for_each(|number| register(number).map(drop)))?;
        Ok(Signal(sys::register_fd(receive).doing(Kind::Internal, what)?))
    }

    /// Returns when at least one signal has come since the last call.
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

/// Matches the ends of children with the launches and execs that wait for them.
///
/// A process can end before its worker has reported its pid, so the end of an unclaimed child is kept for as long
/// as a launch or exec may still claim it, and no longer: the pid is then free for another process.
#[derive(Default)]
pub struct Children {
    /// The claims on unreaped children, by pid.
    claimed: RefCell<HashMap<i32, Claim>>,
    /// The ends that no caller has claimed, by pid, each with the turn in which it was seen.
    unclaimed: RefCell<HashMap<i32, (Turn, End)>>,
    /// The turns in which the launches and execs began that may still claim an end.
    expecting: RefCell<BTreeSet<Turn>>,
    now: Cell<Turn>,
}

/// A logical clock: a larger value is later.
type Turn = u64;

/// A launch or exec whose child may end before its pid is known.
pub struct Expecting<'a> {
    children: &'a Children,
    since: Turn,
}

impl Expecting<'_> {
    /// Claims the end of `pid`, a child that was cloned since this began.
    pub fn claim(&self, pid: i32) -> Claim {
        let claim = Claim::new(pid);
        match self.children.unclaimed.borrow_mut().remove(&pid) {
            // If a child with this pid still exists, the end that was seen belongs to an earlier child, such as a
            // worker.
            Some((seen, end)) if seen > self.since && !sys::is_child(pid) => claim.reaped(end),
            // An end that was seen belongs to an earlier process that had the same pid.
            _ => drop(self.children.claimed.borrow_mut().insert(pid, claim.clone())),
        }
        claim
    }
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        let mut expecting = self.children.expecting.borrow_mut();
        expecting.remove(&self.since);
        let oldest = expecting.first().copied();
        let wanted = |seen: Turn| oldest.is_some_and(|oldest| seen > oldest);
        self.children.unclaimed.borrow_mut().retain(|_, (seen, _)| wanted(*seen));
    }
}

impl Children {
    /// Returns a guard to hold from before a clone until its child is claimed.
    pub fn expect(&self) -> Expecting<'_> {
        let since = self.tick();
        self.expecting.borrow_mut().insert(since);
        Expecting { children: self, since }
    }

    /// Claims the end of a child that the program before this one has cloned.
    pub fn claim_again(&self, pid: i32) -> Claim {
        let claim = Claim::new(pid);
        self.claimed.borrow_mut().insert(pid, claim.clone());
        claim
    }

    fn tick(&self) -> Turn {
        self.now.replace(self.now.get() + 1)
    }

    /// The ends that no caller has claimed yet.
    pub fn unclaimed(&self) -> BTreeMap<i32, End> {
        self.unclaimed.borrow().iter().map(|(pid, (_, end))| (*pid, *end)).collect()
    }

    /// Reaps every child that has ended.
    pub fn sweep(&self) {
        loop {
            match sys::reap() {
                Ok(Some(sys::Reaped { pid, ended, cpu_usec })) => {
                    self.ended(pid, End { cpu_usec: Some(cpu_usec), ..End::now(ended) });
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot reap");
                    return;
                }
            }
        }
    }

    fn ended(&self, pid: i32, end: End) {
        match self.claimed.borrow_mut().remove(&pid) {
            // The caller that waited may have given up.
            Some(claim) => claim.reaped(end),
            None if self.expecting.borrow().is_empty() => {}
            None => drop(self.unclaimed.borrow_mut().insert(pid, (self.tick(), end))),
        }
    }
}

#[cfg(test)]
mod tests {
    use bowline_sys::Ended;

    use super::*;

    fn how(claim: &Claim) -> Option<Ended> {
        claim.end().map(|end| end.ended)
    }

    #[test]
    fn an_end_that_comes_before_its_claim_is_kept() {
        let children = Children::default();
        let expecting = children.expect();
        children.ended(7, End::now(Ended::Exited(3)));
        assert_eq!(how(&expecting.claim(7)), Some(Ended::Exited(3)));
    }

    #[test]
    fn the_end_of_an_earlier_process_of_the_same_pid_is_not_taken_for_ours() {
        let children = Children::default();
        let first = children.expect();
        children.ended(7, End::now(Ended::Exited(1)));
        let second = children.expect();
        let end = second.claim(7);
        assert!(end.is_unreaped(), "7 had ended before the second began");
        children.ended(7, End::now(Ended::Exited(2)));
        assert_eq!(how(&end), Some(Ended::Exited(2)));
        drop(first);
    }

    #[test]
    fn the_end_of_a_worker_is_not_taken_for_that_of_who_has_its_pid_by_now() {
        let children = Children::default();
        let expecting = children.expect();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat");
        let pid = child.id().cast_signed();
        children.ended(pid, End::now(Ended::Exited(0)));
        let end = expecting.claim(pid);
        assert!(end.is_unreaped(), "the child lives");
        drop(child.stdin.take());
        child.wait().expect("ours");
        children.ended(pid, End::now(Ended::Exited(3)));
        assert_eq!(how(&end), Some(Ended::Exited(3)));
    }

    #[test]
    fn what_nobody_can_ask_for_any_more_is_forgotten() {
        let children = Children::default();
        let first = children.expect();
        children.ended(7, End::now(Ended::Exited(0)));
        let second = children.expect();
        drop(first);
        assert!(children.unclaimed.borrow().is_empty());
        children.ended(8, End::now(Ended::Exited(0)));
        drop(second);
        assert!(children.unclaimed.borrow().is_empty());
    }
}
