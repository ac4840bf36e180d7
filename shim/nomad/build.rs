//! Generates code from the protocols in `proto/`, without protoc.

const FILES: [&str; 4] = ["base.proto", "driver.proto", "health.proto", "plugin.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let protocols = protox::compile(FILES, ["proto"])?;
    // Maps in order: a message is written in one way.
    let build = tonic_prost_build::configure().build_client(false).btree_map(".");
    build.include_file("all.rs").compile_fds(protocols)?;
    Ok(())
}
