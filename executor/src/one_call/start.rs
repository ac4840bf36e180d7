//! Starting a container that was created.

use std::cell::Cell;

use bowline_error::{Doing, Kind, Result};
use bowline_model::folder::Owner;
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};

use super::{Container, Containers, ORDERS, REPORT, Status, busy, said};
use crate::process::worker;
use crate::start::hooks::{Container as Hooked, Point};
use crate::start::launch::Held;

impl Containers {
    /// Has init execute the program; returns once it does, and the poststart hooks have run. `before` is called for a container
    /// that can be started, before that.
    ///
    /// # Errors
    /// `WrongState` where the container was started before, is paused, or has ended; why the program cannot be executed;
    /// the first poststart hook that fails, which ends the container.
    pub async fn start(&self, id: &str, before: impl FnOnce(&Container) -> Result<()>) -> Result<Container> {
        let mut container = self.find(id)?;
        let owner = container.folder.owner().map_err(|error| said(error, &container.id))?;
        let Owner::Nobody(lock) = owner else { return Err(busy(&container.id)) };
        // It may have been started meanwhile.
        container = self.to_act_on(id)?;
        match self.status(&container)? {
            Status::Created => {}
            status => return Err(container.wrong_state(status, "only a created one can be started")),
        }
        let (Some(init), Some(orders)) = (self.init(&container)?, container.orders()?) else {
            return Err(container.wrong_state(Status::Stopped, "it cannot be started"));
        };
        // Before the program runs: what it joins may be gone by then.
        let configuration = container.configuration()?;
        let path = container.folder.file(REPORT);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let what = || format!("cannot open {}", path.display());
        let report = rustix::fs::open(&path, flags, Mode::empty()).doing(Kind::Internal, what)?;
        let (bundle, executes) = (container.bundle(), Cell::new(false));
        let hooked = Hooked { id, bundle: &bundle, spec: &configuration.spec };
        // Before the order, which cannot be taken back where the disk is full. Whether it was given, the FIFO tells.
        container.record.started_at = Some(Timestamp::now());
        container.folder.write_record(&container.record)?;
        before(&container)?;
        let held = Held::again(orders, report, hooked.has(Point::StartContainer))?;
        let ended = init.pidfd.try_clone().doing(Kind::Internal, || "cannot watch init")?;
        tokio::select! {
            biased;
            started = held.start(|| executes.set(true)) => started?,
            // Its end closes the pipe too, unless a hook of its has that open.
            () = worker::ended(ended) => {
                if !executes.get() {
                    return Err(container.wrong_state(Status::Stopped, "it ended before its program was executed"));
                }
            }
        }
        for name in [ORDERS, REPORT] {
            // They go with the folder otherwise.
            let _ = std::fs::remove_file(container.folder.file(name));
        }
        // Whoever deletes it need not wait for its hooks.
        drop(lock);
        let hooks = hooked.run(Point::Poststart, Some(init.pid), std::future::pending(), Err).await;
        self.reap_workers(Some(init.pid));
        if let Err(error) = hooks {
            self.end_all(&container, &init)?;
            return Err(error);
        }
        Ok(container)
    }
}
