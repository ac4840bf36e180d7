//! Compiles the C files of `floor/` into one program, which the bench carries along: one file to copy to
//! another machine; generates the messages of containerd and of Nomad's driver, without protoc.

use std::fs;
use std::path::Path;
use std::process::Command;

use ttrpc_codegen::{Codegen, ProtobufCustomize};

/// The parts of the floor.
const FLOOR: [&str; 7] = ["floor", "cgroups", "root", "duty", "faults", "shim", "common"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=floor");
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed={NOMAD}");
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let folder = std::env::var("OUT_DIR")?;
    let out = Path::new(&folder).join("floor");
    // Static: nothing is loaded or relocated in what is measured.
    let flags = ["-O2", "-static", "-Wall", "-Wextra", "-o"];
    let sources = FLOOR.map(|name| format!("floor/{name}.c"));
    let status = Command::new(&compiler).args(flags).arg(&out).args(sources).status();
    let status = status.map_err(|error| format!("cannot run the C compiler {compiler}: {error}"))?;
    if !status.success() {
        return Err(format!("cannot compile the floor: {compiler} {status}").into());
    }
    generate(&folder, "proto", &["containerd"])?;
    generate(&folder, NOMAD, &["base", "driver", "hclspec", "structs"])
}

/// Where the messages of Nomad's driver are.
const NOMAD: &str = "../shim/nomad/proto";

/// Generates the messages of these files, each to a file of its own.
fn generate(out: &str, from: &str, names: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    Codegen::new()
        .out_dir(out)
        .inputs(names.iter().map(|name| format!("{from}/{name}.proto")))
        .include(from)
        .rust_protobuf()
        .rust_protobuf_customize(ProtobufCustomize::default().gen_mod_rs(false))
        .run()?;
    for name in names {
        // `include!` takes no inner attributes; the including module has them.
        let messages = Path::new(out).join(format!("{name}.rs"));
        let text = fs::read_to_string(&messages)?;
        let lines = text.lines().filter(|line| !line.starts_with("#![") && !line.starts_with("//!"));
        fs::write(&messages, lines.collect::<Vec<_>>().join("\n"))?;
    }
    Ok(())
}
