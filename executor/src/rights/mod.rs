//! What a process may do, and which files are trusted.

pub(crate) mod claimed_uid;
pub(crate) mod lsm;
pub(crate) mod notify;
pub(crate) mod seccomp;
