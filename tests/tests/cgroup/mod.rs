//! Cgroups by their names, and what others do to them.

mod commands;
mod meddled;
mod names;
mod systemd;
