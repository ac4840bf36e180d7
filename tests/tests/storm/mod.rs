//! Races, run again and again: see `harness::storm`.

mod bystanders;
mod interrupt;
mod logs;
mod mounts;
mod pause;
mod replace;
mod starting;
mod wait;
