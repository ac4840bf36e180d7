//! What is refused, and that its error names what is wrong.

mod cli;
mod description;
mod image;
mod limits;
mod metrics;
mod network;
