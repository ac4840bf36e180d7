//! The labels by which a task of Nomad's is known: its driver sets them, and whoever lists tasks reads them.

/// The name of the job.
pub const JOB: &str = "job";
/// The name of the task group.
pub const GROUP: &str = "group";
/// The task's name in its group.
pub const TASK: &str = "task";
/// The id of the allocation.
pub const ALLOCATION: &str = "allocation";
/// Nomad's namespace, which the job is in.
pub const NAMESPACE: &str = "namespace";
/// Nomad's own id of the task. Only tasks of Nomad's have this label.
pub const ID: &str = "nomad.id";
