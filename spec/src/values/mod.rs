//! Quantities as people write them: sizes, CPUs, durations, sets of ids.
//!
//! Each reads with `FromStr`, prints with `Display`, and what it prints it
//! reads back unchanged; serde uses the same two.

mod ceiling;
mod cpus;
mod duration;
mod id_set;
mod mode;
mod place;
mod size;
mod tmpfs_size;

pub use ceiling::Ceiling;
pub use cpus::Cpus;
pub use duration::Duration;
pub use id_set::IdSet;
pub use mode::Mode;
pub use place::Place;
pub use size::ByteSize;
pub use tmpfs_size::TmpfsSize;
