//! The shim's own process: what it runs, hands on, keeps in reserve and gives back.

pub(crate) mod fd_passing;
pub(crate) mod host_lock;
pub(crate) mod inheritance;
pub mod page_release;
pub(crate) mod program;
pub(crate) mod sealed;
pub mod spare_fd;
pub(crate) mod worker;
