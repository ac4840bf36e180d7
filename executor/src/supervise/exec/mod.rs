//! Additional processes of tasks, from request to outcome.

mod cloning;
pub(crate) mod groups;
pub(crate) mod hanging_up;
pub(crate) mod killing;
pub(crate) mod process;
pub(crate) mod running;
pub(crate) mod slots;
