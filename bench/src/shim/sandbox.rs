//! Sandboxes: made, joined, changed and removed through the shim's socket, the
//! shim up. A member shares the sandbox's network, which is loopback alone.

use std::time::{Duration, Instant};

use bowline_client::Shim;
use bowline_executor::CgroupDriver;
use bowline_executor::internal::undo_sandbox;
use bowline_model::Result;
use bowline_model::folder::{Folder, Lock, StateDir};
use bowline_model::report::ExitReport;
use bowline_model::sandbox::SandboxRecord;
use bowline_spec::Format;
use bowline_spec::id::TaskId;

use super::{Shims, Up, expect_success, request, waited};

/// Each limit is there that the kernel has a file for everywhere.
const DESCRIPTION: &str = "network.mode = 'none'\ncpu.limit = 2\nmemory.limit = '256M'\npids = 512";

/// A sandbox of ours; dropped, it is gone with its members.
pub struct Sandbox {
    up: Up,
    id: TaskId,
    members: u32,
    /// By which limit it was changed last.
    more: bool,
}

/// A member that is being launched.
struct Joining {
    folder: Folder,
    lock: Lock,
    shim: Shim,
}

impl Shims {
    pub fn sandbox(&mut self) -> Result<Sandbox> {
        let sandbox = self.sandboxs_shim()?;
        self.runtime.block_on(sandbox.up.shim.create_sandbox())?;
        Ok(sandbox)
    }

    /// One from nothing until `count` members run, and from the request until
    /// all is removed: its shim has left.
    pub fn sandbox_of(&mut self, description: &str, count: usize) -> Result<[Duration; 2]> {
        let mut sandbox = self.sandboxs_shim()?;
        let begin = Instant::now();
        self.fill(&mut sandbox, description, count)?;
        let created = begin.elapsed();
        let begin = Instant::now();
        self.runtime.block_on(sandbox.up.shim.remove_sandbox(true))?;
        sandbox.up.wait_until_gone();
        Ok([created, begin.elapsed()])
    }

    /// One with `count` members that stay.
    pub fn hold_sandbox(&mut self, description: &str, count: usize) -> Result<Sandbox> {
        let mut sandbox = self.sandboxs_shim()?;
        self.fill(&mut sandbox, description, count)?;
        Ok(sandbox)
    }

    /// Creates it and launches its members.
    fn fill(&self, sandbox: &mut Sandbox, description: &str, count: usize) -> Result<()> {
        self.runtime.block_on(sandbox.up.shim.create_sandbox())?;
        for _ in 0..count {
            let member = sandbox.join(self)?;
            self.runtime.block_on(member.shim.launch(request(description)))?;
        }
        Ok(())
    }

    /// A member, from its folder until its exit is reported, until all is done
    /// that its end asks for.
    pub fn member(&mut self, sandbox: &mut Sandbox, description: &str) -> Result<[Duration; 2]> {
        let begin = Instant::now();
        let Joining { folder, lock, shim } = sandbox.join(self)?;
        let report: ExitReport = self.runtime.block_on(async {
            shim.launch(request(description)).await?;
            waited(&shim).await
        })?;
        let exited = begin.elapsed();
        drop(lock);
        let lock = folder.lock()?;
        let removed = begin.elapsed();
        folder.remove(lock)?;
        expect_success(report.exit_code)?;
        Ok([exited, removed])
    }

    /// A task in no sandbox, from its folder and the start of its shim on.
    pub fn launch_from_nothing(&mut self, description: &str) -> Result<[Duration; 2]> {
        let begin = Instant::now();
        let up = self.start()?;
        let started = begin.elapsed();
        Ok(self.launch_in(&up, description)?.map(|launched| started + launched))
    }

    /// Another memory limit than before.
    pub fn change(&mut self, sandbox: &mut Sandbox) -> Result<Duration> {
        sandbox.more = !sandbox.more;
        let update = format!(r#"{{"memory": {{"limit": "{}"}}}}"#, if sandbox.more { "320M" } else { "256M" });
        let begin = Instant::now();
        self.runtime.block_on(sandbox.up.shim.update_sandbox(update))?;
        Ok(begin.elapsed())
    }

    fn sandboxs_shim(&mut self) -> Result<Sandbox> {
        let id = self.next_id()?;
        let description = bowline_spec::parse_sandbox(DESCRIPTION, Format::Toml)?;
        let record = SandboxRecord::new(&id, description, CgroupDriver::Cgroupfs, &self.state.mark())?;
        let (folder, lock) = self.state.create_sandbox(&id, &record)?;
        Ok(Sandbox { up: self.spawn(&id, folder, lock)?, id, members: 0, more: false })
    }
}

impl Sandbox {
    /// The pid of the sandbox's shim.
    pub fn pid(&self) -> u32 {
        self.up.pid()
    }

    fn join(&mut self, shims: &Shims) -> Result<Joining> {
        self.members += 1;
        let id: TaskId = format!("{}-{}", self.id, self.members).parse()?;
        let (folder, lock) = shims.state.create_member(&id, &self.id)?;
        Ok(Joining { shim: self.up.shim.member(&id, folder.clone()), folder, lock })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // As of a task: from outside. What is left of its own goes with `up`.
        let _ = self.up.child.kill();
        let _ = self.up.child.wait();
        let Some(state) = self.up.folder.path().parent().map(StateDir::new) else { return };
        let _ = undo_sandbox(&state, &self.id, &self.up.systemd);
        for member in state.members(&self.id).into_iter().flatten() {
            let folder = state.folder(&member);
            let _ = folder.lock().and_then(|lock| folder.remove(lock));
        }
    }
}
