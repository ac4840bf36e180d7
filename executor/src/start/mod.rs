//! Starting processes: a task's init, its execs, and what runs beside them.

pub(crate) mod checkpoint;
pub(crate) mod child;
pub(crate) mod cloning;
pub(crate) mod entrance;
pub(crate) mod exec_launch;
pub(crate) mod hooks;
pub(crate) mod init_program;
pub(crate) mod launch;
pub(crate) mod pause_process;
