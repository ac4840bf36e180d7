//! Images that the tests make: busybox, as a layout of the OCI's in a tar file. No registry is asked.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::harness::Host;

/// An image with a shell; without a command it ends at once.
pub(super) const SHELL: &str = "localhost/shell:1";
/// The first process of every pod: waits for ever, and for whoever is left to it.
pub(super) const PAUSE: &str = "localhost/pause:1";

const PAUSES: [&str; 3] = ["/bin/sh", "-c", "trap 'exit 0' INT TERM; while :; do sleep 1000 & wait; done"];

/// A tar file with both.
pub(super) fn layout(host: &Host) -> PathBuf {
    let folder = host.work().join("images");
    fs::create_dir_all(folder.join("blobs/sha256")).expect("the work folder is writable");
    let layer = folder.join("layer");
    let root = host.busybox_root();
    root.folder("run");
    pack(host, root.path(), &layer);
    let bytes = fs::read(&layer).expect("it was written");
    fs::remove_file(layer).expect("it was written");
    let layer = blob(&folder, "application/vnd.oci.image.layer.v1.tar", &bytes);
    let images = [(SHELL, &["/bin/true"][..]), (PAUSE, &PAUSES)].map(|(name, command)| {
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": { "Cmd": command, "Env": ["PATH=/bin"] },
            // Not compressed: its digest is that of the blob.
            "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
        });
        let config = blob(&folder, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({ "schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer] });
        let mut manifest = blob(&folder, kind, manifest.to_string().as_bytes());
        manifest["annotations"] = json!({ "io.containerd.image.name": name });
        manifest
    });
    let index = json!({ "schemaVersion": 2, "manifests": images });
    fs::write(folder.join("index.json"), index.to_string()).expect("the work folder is writable");
    fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).expect("the work folder is writable");
    let file = host.work().join("images.tar");
    pack(host, &folder, &file);
    file
}

/// Puts down a blob: its descriptor.
fn blob(folder: &Path, kind: &str, bytes: &[u8]) -> Value {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(folder.join("blobs/sha256").join(&digest), bytes).expect("the work folder is writable");
    json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len() })
}

/// All that is in a folder, as a tar file.
fn pack(host: &Host, folder: &Path, file: &Path) {
    let mut command = host.command("tar");
    command.arg("--create").arg("--file").arg(file).arg("--directory").arg(folder).arg(".");
    host.execute(command).assert_code(0);
}
