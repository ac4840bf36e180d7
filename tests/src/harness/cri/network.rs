//! A network for pods: a bridge without an address of the host's, addresses out of a range that every test may have,
//! made by Debian's plugins.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::harness::{Host, eventually};

/// The plugins that are taken; containerd asks for the last.
const TAKEN: [&str; 3] = ["bridge", "host-local", "loopback"];
/// Where they are: Debian's own, upstream's, Fedora's.
const FOLDERS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// The folder with all of them.
pub(super) fn plugins() -> Option<&'static str> {
    FOLDERS.into_iter().find(|folder| TAKEN.iter().all(|name| Path::new(folder).join(name).exists()))
}

/// See the module; dropped, the bridge goes.
pub(super) struct Network {
    bridge: String,
    addresses: PathBuf,
}

impl Network {
    /// Puts down how pods are connected. The first of them makes the bridge.
    pub(super) fn new(host: &Host) -> Network {
        let (bridge, addresses) = (host.prefix().to_owned(), host.work().join("addresses"));
        let ipam = json!({
            "type": "host-local", "dataDir": addresses, "ranges": [[{ "subnet": "10.213.7.0/24" }]],
        });
        let plugins = json!([{ "type": "bridge", "bridge": bridge, "ipam": ipam }]);
        let list = json!({ "cniVersion": "0.4.0", "name": host.prefix(), "plugins": plugins });
        fs::create_dir(host.work().join("cni")).expect("the work folder is writable");
        host.file("cni/10-pods.conflist", &list.to_string());
        Network { bridge, addresses }
    }

    /// No pod is connected any more, or has an address; the bridge goes.
    #[track_caller]
    pub(super) fn end(self) {
        let names = |folder: &Path| -> Vec<String> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let ports = Path::new("/sys/class/net").join(&self.bridge).join("brif");
        eventually("no pod has a port", || names(&ports).is_empty().then_some(()));
        let mut addresses = names(&self.addresses.join(&self.bridge));
        addresses.retain(|name| name.starts_with("10."));
        assert!(addresses.is_empty(), "addresses of pods that have gone: {addresses:?}");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // There is none where no pod had a network.
        let _ = Command::new("ip").args(["link", "delete", &self.bridge]).output();
    }
}
