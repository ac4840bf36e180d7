//! Compiles `floor.c`, which the bench carries along: one file to copy to
//! another machine.

use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=floor.c");
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let out = Path::new(&std::env::var("OUT_DIR")?).join("floor");
    // Static: nothing is loaded or relocated in what is measured.
    let flags = ["-O2", "-static", "-Wall", "-Wextra", "floor.c", "-o"];
    let status = Command::new(&compiler).args(flags).arg(&out).status();
    let status = status.map_err(|error| format!("cannot run the C compiler {compiler}: {error}"))?;
    if !status.success() {
        return Err(format!("cannot compile floor.c: {compiler} {status}").into());
    }
    Ok(())
}
