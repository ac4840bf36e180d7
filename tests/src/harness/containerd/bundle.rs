//! Bundles as containerd hands them to a shim: `ctr`'s config.json, bent by the test, and busybox.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::Root;

use super::fifo::{Output, make_fifo};

/// What `ctr oci spec` of containerd 1.6 writes, with a command and a PATH.
const CONFIG: &str = include_str!("config.json");

/// A bundle, of which the files are written as soon as it is built.
pub struct Bundle {
    pub id: String,
    pub path: PathBuf,
    /// What config.json says; [`Bundle::edit`] changes it.
    pub config: Value,
}

impl Bundle {
    pub(in crate::harness) fn new(parent: &Path, id: &str, cgroups: &str) -> Bundle {
        let path = parent.join(id);
        fs::create_dir_all(&path).expect("the work folder is writable");
        let config = serde_json::from_str(CONFIG).expect("JSON");
        let bundle = Bundle { id: id.to_owned(), path, config };
        Root::busybox(bundle.rootfs()).folder("run");
        bundle.edit(|config| config["linux"]["cgroupsPath"] = json!(format!("{cgroups}/{id}")))
    }

    /// Where its root filesystem is, or is to be mounted.
    pub fn rootfs(&self) -> PathBuf {
        self.path.join("rootfs")
    }

    pub fn edit(mut self, change: impl FnOnce(&mut Value)) -> Bundle {
        change(&mut self.config);
        let text = serde_json::to_string_pretty(&self.config).expect("JSON");
        self.write(&text)
    }

    /// Writes a config.json of exactly this text.
    pub fn write(self, text: &str) -> Bundle {
        fs::write(self.path.join("config.json"), text).expect("the work folder is writable");
        self
    }

    pub fn args(self, args: &[&str]) -> Bundle {
        self.edit(|config| config["process"]["args"] = json!(args))
    }

    /// Runs this in a shell.
    pub fn script(self, script: &str) -> Bundle {
        self.args(&["/bin/sh", "-c", script])
    }

    pub fn terminal(self) -> Bundle {
        self.edit(|config| config["process"]["terminal"] = json!(true))
    }

    pub fn mount(self, mount: &Value) -> Bundle {
        self.edit(|config| config["mounts"].as_array_mut().expect("a list").push(mount.clone()))
    }

    pub fn annotation(self, name: &str, value: &str) -> Bundle {
        self.edit(|config| config["annotations"][name] = json!(value))
    }

    /// Has no namespace of this kind.
    pub fn without_namespace(self, kind: &str) -> Bundle {
        self.edit(|config| {
            let all = config["linux"]["namespaces"].as_array_mut().expect("a list");
            all.retain(|namespace| namespace["type"] != kind);
        })
    }

    /// Its root filesystem belongs to this user and group of the host, as snapshotters give it to a mapped root.
    pub fn owned_by(self, id: u32) -> Bundle {
        let owned = Command::new("chown").arg("-R").arg(format!("{id}:{id}")).arg(self.rootfs()).status();
        assert!(owned.expect("coreutils").success());
        self
    }

    /// With a user namespace of its own.
    pub fn with_users(self) -> Bundle {
        self.owned_by(100_000).edit(|config| {
            config["linux"]["namespaces"].as_array_mut().expect("a list").push(json!({ "type": "user" }));
            for map in ["uidMappings", "gidMappings"] {
                config["linux"][map] = json!([{ "containerID": 0, "hostID": 100_000, "size": 65536 }]);
            }
        })
    }

    /// May use this much memory, and no swap.
    pub fn memory(self, bytes: u64) -> Bundle {
        self.edit(|config| config["linux"]["resources"]["memory"] = json!({ "limit": bytes, "swap": bytes }))
    }

    /// Its root filesystem is to be mounted: what was there goes to `name` beside it.
    pub fn rootfs_aside(self, name: &str) -> Bundle {
        fs::rename(self.rootfs(), self.path.join(name)).expect("ours");
        fs::create_dir(self.rootfs()).expect("ours");
        self
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path.join(name)).unwrap_or_else(|error| panic!("cannot read {name}: {error}"))
    }

    /// The process of an exec of `args`, as containerd derives it from the container's own.
    pub fn process(&self, args: &[&str]) -> Value {
        let mut process = self.config["process"].clone();
        process["args"] = json!(args);
        process["terminal"] = json!(false);
        process
    }

    /// Makes FIFOs for streams in it, by a name of their own.
    pub fn fifos(&self, name: &str) -> Stdio {
        let path = |stream: &str| self.path.join(format!("{name}-{stream}"));
        for stream in ["stdout", "stderr"] {
            make_fifo(&path(stream));
        }
        Stdio { stdout: text(&path("stdout")), stderr: text(&path("stderr")), ..Stdio::default() }
    }

    /// Like [`Self::fifos`], with a FIFO for stdin too.
    pub fn fifos_with_stdin(&self, name: &str) -> Stdio {
        let stdin = self.path.join(format!("{name}-stdin"));
        make_fifo(&stdin);
        Stdio { stdin: text(&stdin), ..self.fifos(name) }
    }

    /// FIFOs for a terminal, which has no stderr.
    pub fn fifos_of_terminal(&self, name: &str) -> Stdio {
        Stdio { terminal: true, stderr: String::new(), ..self.fifos_with_stdin(name) }
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("ASCII").to_owned()
}

/// Where streams go, as a request says it.
#[derive(Debug, Clone, Default)]
pub struct Stdio {
    /// Empty, a FIFO or a URI.
    pub stdin: String,
    /// Empty, a FIFO or a URI.
    pub stdout: String,
    /// Empty, a FIFO or a URI.
    pub stderr: String,
    /// Whether they are a terminal's.
    pub terminal: bool,
}

impl Stdio {
    pub fn null() -> Stdio {
        Stdio::default()
    }

    /// Its outputs' other ends: stdout, and stderr if there is one.
    pub fn open(&self) -> (Output, Option<Output>) {
        let stderr = (!self.stderr.is_empty()).then(|| Output::open(self.stderr.as_ref()));
        (Output::open(self.stdout.as_ref()), stderr)
    }

    /// Both outputs to this URI.
    pub fn uri(uri: &str) -> Stdio {
        Stdio { stdout: uri.to_owned(), stderr: uri.to_owned(), ..Stdio::default() }
    }
}
