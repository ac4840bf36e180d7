//! The generated messages and services.
#![allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::pedantic, clippy::unwrap_used)]

include!(concat!(env!("OUT_DIR"), "/all.rs"));

pub use hashicorp::nomad::plugins::base::proto as base;
pub use hashicorp::nomad::plugins::drivers::proto as driver;
pub use hashicorp::nomad::plugins::shared::{hclspec, structs};
