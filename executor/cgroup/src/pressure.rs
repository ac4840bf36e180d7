//! Learns that processes of a cgroup wait for a resource, without polling.
//!
//! A trigger that is written to a pressure file makes that fd ready with POLLPRI whenever the
//! processes have waited so long within the window, at most once a window (the kernel's
//! accounting/psi). The files are in the unified hierarchy, also on a hybrid host.

use std::os::fd::OwnedFd;
use std::time::Duration;

use bowline_error::{Error, Kind, Result};
use bowline_sys as sys;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, write};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use crate::cgroup::Cgroup;
use crate::layout::Layout;
use crate::tree::read_fd;

/// A window that is a multiple of this needs no privilege.
const EVERYBODYS: Duration = Duration::from_secs(2);

/// A watch on a cgroup's pressure.
#[derive(Debug)]
pub struct PressureWatch(AsyncFd<OwnedFd>);

impl Layout {
    /// Watches how long `who` (`some` or `full`) waits for `resource` (`cpu`, `memory` or `io`):
    /// ready whenever that is `above` within `window`.
    ///
    /// # Errors
    /// `Unsupported` where the kernel does not measure it.
    pub fn watch_pressure(
        &self,
        cgroup: &Cgroup,
        resource: &str,
        who: &str,
        above: Duration,
        window: Duration,
    ) -> Result<PressureWatch> {
        let file = format!("{resource}.pressure");
        let failed = |errno: Errno| {
            let message = format!("the kernel does not tell of {resource} pressure here: {file}: {errno}");
            Error::new(Kind::Unsupported, message).hint(
                "pressure needs cgroup v2, or a hybrid host, and a kernel with CONFIG_PSI that was not booted with psi=0",
            )
        };
        let dir = self.unified().and_then(|unified| cgroup.dir(unified)).ok_or_else(|| failed(Errno::NOENT))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let trigger = openat(dir, &file, flags, Mode::empty()).map_err(failed)?;
        let text = format!("{who} {} {}", above.as_micros(), window.as_micros());
        write(&trigger, text.as_bytes()).map_err(|errno| match errno {
            // psi_trigger_create in kernel/sched/psi.c.
            Errno::INVAL if !window.as_micros().is_multiple_of(EVERYBODYS.as_micros()) => {
                let message = format!("the kernel refuses a window of {window:?} for {resource} pressure");
                let hint = format!("without CAP_SYS_RESOURCE, a window is a multiple of {EVERYBODYS:?}");
                Error::new(Kind::Unsupported, message).hint(hint)
            }
            errno => failed(errno),
        })?;
        let watched = sys::register_fd_for(trigger, Interest::PRIORITY);
        watched.map(PressureWatch).map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))
    }
}

impl PressureWatch {
    /// Returns when the processes have waited so long; false when there is nothing to watch any more.
    pub async fn exceeded(&self) -> bool {
        let Ok(mut ready) = self.0.ready(Interest::PRIORITY).await else { return false };
        ready.clear_ready();
        true
    }

    /// Makes [`exceeded`](Self::exceeded) wait for what comes from now on.
    pub async fn forget(&self) {
        if let Ok(Ok(mut ready)) = timeout(Duration::ZERO, self.0.ready(Interest::PRIORITY)).await {
            ready.clear_ready();
        }
    }

    /// How long `who` has waited in total, in µs.
    pub fn total_usec(&self, who: &str) -> Option<u64> {
        let text = read_fd(self.0.get_ref()).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(who)?.strip_prefix(' '))?;
        line.split(' ').find_map(|field| field.strip_prefix("total=")?.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::{RecvFlags, SendFlags, recv, send};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn what_has_come_before_may_be_forgotten() {
        // Urgent data causes POLLPRI, as a trigger does.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let sender = TcpStream::connect(listener.local_addr().expect("its own")).expect("it listens");
        let trigger = OwnedFd::from(listener.accept().expect("one has connected").0);
        let other = trigger.try_clone().expect("an fd");
        let watch = PressureWatch(sys::register_fd_for(trigger, Interest::PRIORITY).expect("it can be watched"));
        let exceeded_now = async || timeout(Duration::from_millis(1), watch.exceeded()).await.is_ok();
        for forgotten in [false, true] {
            send(&sender, b"x", SendFlags::OOB).expect("it is connected");
            poll(&mut [PollFd::new(&other, PollFlags::PRI)], None).expect("it comes");
            // Let the loop see it.
            tokio::time::sleep(Duration::from_millis(1)).await;
            if forgotten {
                watch.forget().await;
            }
            assert_eq!(exceeded_now().await, !forgotten);
            watch.forget().await;
            // Else the next look finds this one, perhaps before the next has come.
            recv(&other, &mut [0; 1][..], RecvFlags::OOB).expect("it is there");
        }
    }
}
