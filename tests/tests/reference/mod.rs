//! What the reference systems do, and bowline too.

mod azure;
mod ecs;
mod kata;
mod kubelet;
mod nomad;
