//! The shim that containerd starts for the runtime `io.containerd.bowline.v1`.

use std::process::ExitCode;

fn main() -> ExitCode {
    bowline_containerd::main()
}
