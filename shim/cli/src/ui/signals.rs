//! Signals as events of the event loop.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bowline_executor::internal::{ArrivedSignal, report_signal};
use bowline_model::{Doing, Kind, Result};
use rustix::net::{RecvFlags, recv};
use tokio::net::UnixStream;

/// The signals that by default end a foreground process.
pub const ENDING: [i32; 4] = {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT]
};

/// Signals that no longer act on this process, and are received here.
pub struct Signals {
    arrivals: UnixStream,
    sent: Arc<OwnedFd>,
    arrived: VecDeque<ArrivedSignal>,
}

impl Signals {
    /// Receives `numbers` from now on. Needs the event loop.
    pub fn watch(numbers: &[i32]) -> Result<Signals> {
        let what = || "cannot watch for signals";
        let (read, write) = std::os::unix::net::UnixStream::pair().doing(Kind::Internal, what)?;
        read.set_nonblocking(true).doing(Kind::Internal, what)?;
        let arrivals = UnixStream::from_std(read).doing(Kind::Internal, what)?;
        let signals = Signals { arrivals, sent: Arc::new(write.into()), arrived: VecDeque::new() };
        signals.watch_too(numbers)?;
        Ok(signals)
    }

    /// Receives `numbers` too.
    pub fn watch_too(&self, numbers: &[i32]) -> Result<()> {
        let watch = |number: &i32| report_signal(*number, self.sent.clone());
        numbers.iter().try_for_each(watch).doing(Kind::Internal, || "cannot watch for signals")
    }

    /// The next signal. May be given up.
    pub async fn next(&mut self) -> ArrivedSignal {
        loop {
            if let Some(arrived) = self.arrived.pop_front() {
                return arrived;
            }
            self.more().await;
        }
    }

    /// The next of [`ENDING`]; the others are kept for [`Signals::next`]. May be given up.
    pub async fn next_ending(&mut self) -> ArrivedSignal {
        loop {
            if let Some(arrived) = self.take_ending() {
                return arrived;
            }
            self.more().await;
        }
    }

    /// Like [`Signals::next_ending`], if it has arrived; the event loop may not have heard of it yet.
    pub fn next_ending_now(&mut self) -> Option<ArrivedSignal> {
        let mut bytes = [0; ArrivedSignal::LENGTH];
        // Each report is sent, and so received, as a whole.
        while let Ok((ArrivedSignal::LENGTH, _)) = recv(&self.arrivals, &mut bytes, RecvFlags::DONTWAIT) {
            self.arrived.push_back(ArrivedSignal::of(bytes));
        }
        self.take_ending()
    }

    /// Has [`Signals::next`] return this signal again.
    pub fn put_back(&mut self, signal: ArrivedSignal) {
        self.arrived.push_front(signal);
    }

    fn take_ending(&mut self) -> Option<ArrivedSignal> {
        let at = self.arrived.iter().position(|signal| ENDING.contains(&signal.number))?;
        self.arrived.remove(at)
    }

    async fn more(&mut self) {
        if self.arrivals.readable().await.is_err() {
            std::future::pending().await
        }
        // To the end: only then does the event loop watch the socket again.
        let mut bytes = [0; ArrivedSignal::LENGTH];
        loop {
            match self.arrivals.try_read(&mut bytes) {
                Ok(ArrivedSignal::LENGTH) => self.arrived.push_back(ArrivedSignal::of(bytes)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return,
            }
        }
    }
}

/// How soon a signal must follow one of the same number to be its repetition: `timeout` sends its signal to its command
/// and then to the process group that the command is in, and a busy machine may come between.
const AT_ONCE: Duration = Duration::from_millis(250);

/// The signals that were passed on, each with the time of its arrival.
#[derive(Debug, Default)]
pub struct PassedOn(Vec<(i32, Duration)>);

impl PassedOn {
    /// Whether `signal` is to be passed on: it does not only repeat one that has just been.
    pub fn takes(&mut self, signal: ArrivedSignal) -> bool {
        let last = self.0.iter().find(|(number, _)| *number == signal.number).map(|(_, at)| *at);
        if !signal.by_kernel && last.is_some_and(|last| signal.at.saturating_sub(last) < AT_ONCE) {
            return false;
        }
        self.0.retain(|(number, _)| *number != signal.number);
        self.0.push((signal.number, signal.at));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_comes_twice_at_once_is_passed_on_once() {
        let signal = |number, by_kernel, at| ArrivedSignal { number, by_kernel, at: Duration::from_millis(at) };
        let mut passed = PassedOn::default();
        assert!(passed.takes(signal(15, false, 1000)));
        assert!(!passed.takes(signal(15, false, 1001)), "timeout signals the group too");
        assert!(passed.takes(signal(1, false, 1001)), "another one");
        assert!(passed.takes(signal(15, false, 1300)), "later");
        assert!(passed.takes(signal(2, true, 1301)));
        assert!(passed.takes(signal(2, true, 1302)), "a key that is typed twice");
    }
}
