//! Waiting for who reads a manager's FIFO: a process that begins before would find a FIFO without a reader.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

use bowline_error::Result;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::time::Instant;

use super::outlet::cannot_open;

/// How long to wait. Other shims wait without limit.
const READER: Duration = Duration::from_secs(5);

/// The pause between two looks, at first and at most.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// Waits until each FIFO of `paths` has a reader, five seconds for all. Returns writing ends, so that the readers find a
/// writer until the process has its own ends; and the error for a FIFO that nobody reads by then, if there is one.
pub async fn until_read<'a>(paths: impl IntoIterator<Item = &'a Path>) -> (Vec<OwnedFd>, Result<()>) {
    let is_fifo = |path: &&Path| path.metadata().is_ok_and(|meta| meta.file_type().is_fifo());
    let deadline = Instant::now() + READER;
    let (mut writers, mut read) = (Vec::new(), Ok(()));
    for path in paths.into_iter().filter(is_fifo) {
        let mut pause = LOOKS[0];
        loop {
            // Other errors are reported when the FIFO is opened.
            match rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
                Err(Errno::NXIO) if Instant::now() < deadline => {}
                Err(unread @ Errno::NXIO) => {
                    read = read.and(Err(cannot_open(&unread.into(), path)));
                    break;
                }
                opened => break writers.extend(opened.ok()),
            }
            // Poll, because the kernel does not report a reader that waits for a writer.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOKS[1]);
        }
    }
    (writers, read)
}
