//! Workloads, images, clients and other users that mean harm.

mod binary;
mod bus;
mod clients;
mod counts;
mod dev;
mod disk;
mod doors;
mod ends;
mod execs;
mod frames;
mod frozen;
mod host_view;
mod image_files;
mod inheritance;
mod kernel;
mod leaving;
mod logs;
mod metrics;
pub mod mounts;
mod names;
mod namespaces;
mod notify;
mod null;
mod seize;
mod silent_shim;
mod state;
mod streams;
