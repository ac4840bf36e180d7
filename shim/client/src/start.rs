//! What a program asks for when it starts a task.

use bowline_executor::{CgroupDriver, ShimCgroup};
use bowline_model::{Error, Result};
use bowline_protocol::wire::proto::bowline::LaunchRequest;
use bowline_spec::id::TaskId;
use bowline_spec::{Format, LogFormat, Task as Description};

use crate::callers;
use crate::launching_shim::made_up;

/// A task to start: its description, and what is not part of that.
///
/// ```
/// # fn main() -> bowline_client::Result<()> {
/// let start = bowline_client::Start::from_toml("name = 'web'\ncommand = '/bin/sleep'\nargs = ['1000']")?;
/// # let _ = start.durable();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Start {
    description: Description,
    durable: bool,
    driver: CgroupDriver,
    slice: Option<String>,
    slice_optional: bool,
    ends_with_caller: bool,
    removed_at_end: bool,
    pub(crate) sandbox: Option<TaskId>,
    pub(crate) shim_cgroup: ShimCgroup,
}

impl Start {
    /// Starts what `description` says. Without a `name` the task gets an id like `task-0123456789ab`. Without a
    /// `log.format` its output is logged as JSON lines in its folder, as `bowline start` does.
    pub fn new(description: Description) -> Start {
        Start {
            description,
            durable: false,
            driver: CgroupDriver::default(),
            slice: None,
            slice_optional: false,
            ends_with_caller: false,
            removed_at_end: false,
            sandbox: None,
            shim_cgroup: ShimCgroup::default(),
        }
    }

    /// Starts what this TOML says, in the form of `docs/reference.md`.
    ///
    /// # Errors
    /// `BadSpec` with the field, the line and the column.
    pub fn from_toml(text: &str) -> Result<Start> {
        Ok(Start::new(bowline_spec::parse(text, Format::Toml)?))
    }

    /// Like [`Start::from_toml`], for the same fields as JSON.
    ///
    /// # Errors
    /// `BadSpec` with the field, the line and the column.
    pub fn from_json(text: &str) -> Result<Start> {
        Ok(Start::new(bowline_spec::parse(text, Format::Json)?))
    }

    /// Syncs the exit report to disk before the exit is reported, so that the report survives a power loss.
    #[must_use]
    pub fn durable(self) -> Start {
        Start { durable: true, ..self }
    }

    /// Who makes the task's cgroup; by default cgroupfs, or systemd where the description's `cgroup` asks for a unit.
    #[must_use]
    pub fn cgroup_driver(self, driver: CgroupDriver) -> Start {
        Start { driver, ..self }
    }

    /// The slice of systemd that the task's scope is in, such as `batch.slice`.
    #[must_use]
    pub fn slice(self, slice: impl Into<String>) -> Start {
        Start { slice: Some(slice.into()), slice_optional: false, ..self }
    }

    /// Like [`Start::slice`]; where systemd refuses, the task runs outside of it, and the exit report's `enforcement`
    /// says why.
    #[must_use]
    pub fn slice_or_outside(self, slice: impl Into<String>) -> Start {
        Start { slice: Some(slice.into()), slice_optional: true, ..self }
    }

    /// Stops the task, with its grace, once this process has ended, however it has: also by SIGKILL, and also if a new shim has
    /// taken the task over. A process that is stopped, or executes another program, has not ended. The exit report says
    /// [`StoppedBy::Caller`](crate::StoppedBy::Caller).
    ///
    /// ```
    /// # fn main() -> bowline_client::Result<()> {
    /// let start = bowline_client::Start::from_toml("command = '/bin/sleep'\nargs = ['1000']")?.ends_with_caller();
    /// # drop(start);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ends_with_caller(self) -> Start {
        Start { ends_with_caller: true, ..self }
    }

    /// Has the shim remove the task once it has ended, as `run --rm` does, also where this process has ended by then. Who
    /// waits for the end meanwhile gets the exit report; later a wait is `NotFound`, and says how the task ended.
    #[must_use]
    pub fn removed_at_end(self) -> Start {
        Start { removed_at_end: true, ..self }
    }

    /// Makes the task a member of the sandbox `id`, which exists.
    #[must_use]
    pub fn in_sandbox(self, id: TaskId) -> Start {
        Start { sandbox: Some(id), ..self }
    }

    /// The cgroup that the shim's own use is charged to; a sandbox's shim has one already.
    #[must_use]
    pub fn shim_cgroup(self, shim_cgroup: ShimCgroup) -> Start {
        Start { shim_cgroup, ..self }
    }

    /// The id of the task, and the request to its shim.
    pub(crate) fn request(self) -> Result<(TaskId, LaunchRequest)> {
        let Start { mut description, durable, driver, slice, slice_optional, ends_with_caller, removed_at_end, .. } =
            self;
        description.validate().map_err(Error::from)?;
        let id = description.name.clone().map_or_else(|| made_up("task"), Ok)?;
        description.log.format.get_or_insert(LogFormat::Json);
        let task = bowline_spec::written(&description).map_err(Error::from)?;
        let (cgroup_driver, slice) = (driver.to_string(), slice.unwrap_or_default());
        let ends_with = ends_with_caller.then(callers::own).transpose()?.into_iter().collect();
        let request = LaunchRequest {
            task,
            durable,
            cgroup_driver,
            slice,
            slice_optional,
            ends_with,
            remove: removed_at_end,
            ..LaunchRequest::default()
        };
        Ok((id, request))
    }
}
