//! What containerd calls this shim.

/// The name of the runtime that this is the shim of.
pub const RUNTIME: &str = "io.containerd.bowline.v1";
/// The name of the binary, which containerd derives from that of the runtime.
pub const BINARY: &str = "containerd-shim-bowline-v1";
