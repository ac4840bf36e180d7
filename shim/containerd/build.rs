//! Generates code from the protocols in `proto/`, without protoc.

use std::fs;
use std::path::Path;

use ttrpc_codegen::{Codegen, Customize, ProtobufCustomize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = std::env::var("OUT_DIR")?;
    Codegen::new()
        .out_dir(&out)
        .inputs(["proto/runtimeoptions.proto", "proto/runctypes.proto", "proto/podsandbox.proto"])
        .include("proto")
        .rust_protobuf()
        .customize(Customize { async_all: true, ..Default::default() })
        .rust_protobuf_customize(ProtobufCustomize::default().gen_mod_rs(false))
        .run()?;
    // `include!` does not accept inner attributes; the including module has them.
    for name in ["runtimeoptions.rs", "runctypes.rs", "podsandbox.rs"] {
        let path = Path::new(&out).join(name);
        let text = fs::read_to_string(&path)?;
        let lines = text.lines().filter(|line| !line.starts_with("#![") && !line.starts_with("//!"));
        fs::write(&path, lines.collect::<Vec<_>>().join("\n"))?;
    }
    Ok(())
}
