//! Signals as events of the event loop.

use std::collections::VecDeque;

use bowline_executor::{Doing, Kind, Result};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use tokio::net::UnixStream;

/// The signals that by default end a foreground process.
pub const ENDING: [i32; 4] = {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT]
};

/// Signals that no longer act on this process, and are received here.
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    arrived: VecDeque<i32>,
}

impl Signals {
    /// Receives `numbers` from now on. Needs the event loop.
    pub fn watch(numbers: &[i32]) -> Result<Signals> {
        let what = || "cannot watch for signals";
        let (read, write) = std::os::unix::net::UnixStream::pair().doing(Kind::Internal, what)?;
        read.set_nonblocking(true).doing(Kind::Internal, what)?;
        let read = UnixStream::from_std(read).doing(Kind::Internal, what)?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, numbers).doing(Kind::Internal, what)?;
        Ok(Signals { delivery, arrived: VecDeque::new() })
    }

    /// The number of the next signal. May be given up.
    pub async fn next(&mut self) -> i32 {
        loop {
            if let Some(number) = self.arrived.pop_front() {
                return number;
            }
            let bytes = self.delivery.get_read();
            if bytes.readable().await.is_err() {
                return std::future::pending().await;
            }
            // To its end, before the signals are taken: one that arrives now makes it readable again.
            while bytes.try_read(&mut [0; 64]).is_ok_and(|length| length > 0) {}
            self.arrived.extend(self.delivery.pending());
        }
    }
}
