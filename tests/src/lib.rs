//! Black-box tests of bowline: through its binaries, with the kernel as witness.
//!
//! The tests are in `tests/`, named after what they ask about; what they share
//! is the [`harness`].

pub mod harness;

pub use harness::Host;
