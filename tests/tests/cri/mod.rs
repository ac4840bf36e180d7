//! Pods and containers of a real containerd, through the CRI.

mod containers;
mod pods;
mod recovery;
mod settings;
