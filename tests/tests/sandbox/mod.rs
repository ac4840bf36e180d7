//! Sandboxes, and the tasks that are their members.

mod adoption;
mod budget_writes;
mod budgets;
mod life;
mod limits;
mod network;
mod shared;
mod systemd;
