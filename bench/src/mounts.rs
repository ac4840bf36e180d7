//! Changes of mounts, as those see them who watch `/proc/1/mountinfo`, such as systemd.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_model::{Doing, Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a change may take to be seen, and how often somebody looks whether all is over.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// How often process 1 is told meanwhile. Changes that follow each other faster than anybody looks are one.
pub fn changes(act: impl FnOnce() -> Result<()>) -> Result<usize> {
    let path = "/proc/1/mountinfo";
    let file = File::open(path).doing(Kind::Internal, || format!("cannot open {path}"))?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut changes = 0;
            loop {
                // The kernel tells each open file once of what has changed (fs/proc_namespace.c, `mounts_poll`).
                let told = poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&LOOK));
                match told {
                    Ok(0) if over.load(Ordering::Relaxed) => return changes,
                    Ok(told) => changes += told,
                    Err(_) => {}
                }
            }
        });
        let done = act();
        over.store(true, Ordering::Relaxed);
        let changes = watch.join().map_err(|_| Error::new(Kind::Internal, format!("cannot watch {path}")))?;
        done.map(|()| changes)
    })
}
