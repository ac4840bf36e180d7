//! What is written down and read again: records on disk, and what a shim passes to the program that replaces it.

pub mod handover;
pub mod record;
