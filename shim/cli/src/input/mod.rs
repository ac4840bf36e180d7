//! Parses the command line: arguments, task names, times, descriptions.

pub mod args;
pub mod cdi;
pub mod chosen;
pub mod completion;
pub mod description;
pub mod each_task;
pub mod environment;
pub mod examples;
pub mod filter;
pub mod flags;
pub mod foreign;
pub mod hints;
pub mod io;
pub mod limits;
pub mod misuse;
pub mod moment;
pub mod mounts;
pub mod network;
pub mod secrets;
pub mod security;
pub mod service;
pub mod set;
pub mod signal;
pub mod switches;
pub mod task_names;
pub mod unit;
