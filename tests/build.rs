//! Generates the messages in `proto/`, without protoc.

use std::fs;
use std::path::Path;

use ttrpc_codegen::{Codegen, ProtobufCustomize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let folder = std::env::var("OUT_DIR")?;
    Codegen::new()
        .out_dir(&folder)
        .input("proto/cri.proto")
        .include("proto")
        .rust_protobuf()
        .rust_protobuf_customize(ProtobufCustomize::default().gen_mod_rs(false))
        .run()?;
    // `include!` takes no inner attributes; the including module has them.
    let messages = Path::new(&folder).join("cri.rs");
    let text = fs::read_to_string(&messages)?;
    let lines = text.lines().filter(|line| !line.starts_with("#![") && !line.starts_with("//!"));
    fs::write(&messages, lines.collect::<Vec<_>>().join("\n"))?;
    Ok(())
}
