//! Parses the command line: arguments, task names, times, descriptions.

pub mod args;
pub mod completion;
pub mod description;
pub mod examples;
pub mod filter;
pub mod io;
pub mod misuse;
pub mod moment;
pub mod named;
pub mod several;
pub mod signal;
