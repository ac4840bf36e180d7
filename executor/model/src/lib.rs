//! What is known of tasks and sandboxes, as plain data, and how it is kept: the state folder and its records, exit
//! reports, events, figures, findings. Whoever asks shims or looks at what they keep links this; shims do too.
//!
//! Must not: launch, supervise or end anything.

pub use bowline_error::{Doing, Error, Kind, Result, bounded_message, bounded_name};

pub mod clock;
pub mod events;
pub mod folder;
pub mod health;
pub mod host_name;
pub mod json;
pub mod liveness;
pub mod log_line;
pub mod pid_file;
pub mod record;
pub mod report;
pub mod reserve;
pub mod sandbox;
pub mod shutdown;
pub mod stats;
pub mod status;
pub mod trust;
pub mod watch;
