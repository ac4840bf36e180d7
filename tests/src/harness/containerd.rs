//! containerd, as far as a shim sees it: it makes bundles, runs the shim's binary, takes events, calls the task
//! service, and has the other ends of FIFOs. There is no daemon.
//!
//! ```no_run
//! let host = bowline_tests::Host::new();
//! let containerd = host.containerd();
//! let bundle = containerd.bundle().script("exit 7");
//! let shim = containerd.start(&bundle);
//! shim.run(&bundle, &bowline_tests::harness::containerd::Stdio::null());
//! assert_eq!(shim.status_at_end(&bundle.id, ""), 7);
//! shim.end(&bundle.id);
//! host.assert_nothing_left();
//! ```
//!
//! `UNDER_TEST=reference` runs containerd's own shim for runc instead: a case holds there first.

mod bundle;
mod events;
mod fifo;
mod old_shim;
mod running;
mod sandbox;
mod shim;
pub mod start;
mod wire;

pub use bundle::{Bundle, Stdio};
pub use containerd_shim_protos::api;
pub use containerd_shim_protos::sandbox_api;
pub use events::{Event, Events};
pub use fifo::{Input, Output, make_fifo};
pub use old_shim::OldShim;
pub use protobuf;
pub use running::Running;
pub use sandbox::{POD, Pod, Sandbox};
pub use shim::{Shim, any};
pub use ttrpc::proto::Code;
pub use wire::{Client, Failure, Pending};

use std::cell::Cell;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio as Stream};
use std::rc::Rc;

use protobuf::Message as _;
use protobuf::well_known_types::any::Any;

use super::{Host, binary, hierarchies};

/// Whether containerd's own shim is tested.
pub fn is_reference() -> bool {
    std::env::var("UNDER_TEST").as_deref() == Ok("reference")
}

/// The runtime under test, by its name in containerd.
pub fn runtime() -> &'static str {
    if is_reference() { "io.containerd.runc.v2" } else { "io.containerd.bowline.v1" }
}

pub fn shim_binary() -> PathBuf {
    if !is_reference() {
        return binary("containerd-shim-bowline-v1");
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|folder| folder.join("containerd-shim-runc-v2")).find(|p| p.exists());
    found.expect("containerd is installed (`make test` does)")
}

pub struct Containerd<'h> {
    host: &'h Host,
    /// Where shims send their events.
    pub events: Rc<Events>,
    /// Whether nothing of it is there, as its host has checked what was left.
    gone: Rc<Cell<bool>>,
    address: PathBuf,
    namespace: String,
}

impl<'h> Containerd<'h> {
    pub(super) fn new(host: &'h Host) -> Containerd<'h> {
        let address = host.work().join("c.sock");
        let events = Rc::new(Events::at(&host.work().join("c.sock.ttrpc")));
        let gone = Rc::new(Cell::new(true));
        let containerd = Containerd { host, events, gone, address, namespace: host.prefix().to_owned() };
        containerd.be_there();
        containerd
    }

    /// Has shims find somebody who takes their events: without, they wait for seconds before they leave.
    fn be_there(&self) {
        if self.gone.replace(false) {
            self.events.come_back();
            let (events, gone) = (self.events.clone(), self.gone.clone());
            self.host.at_end(move || {
                events.stop();
                gone.set(true);
            });
        }
    }

    /// The namespace of all containers here.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The cgroup path below which all containers here are.
    pub fn cgroups(&self) -> String {
        format!("/{}", self.host.prefix())
    }

    /// Removes a pod's cgroup, which was made by us where a kubelet would have.
    pub fn remove_pods_cgroup(&self, path: &str) {
        for (_, mount) in hierarchies() {
            let _ = fs::remove_dir(mount.join(&path[1..]));
            let _ = fs::remove_dir(mount.join(&self.cgroups()[1..]));
        }
    }

    /// A bundle of an id of its own.
    pub fn bundle(&self) -> Bundle {
        self.bundle_of(&self.host.new_id())
    }

    /// A bundle of this id.
    pub fn bundle_of(&self, id: &str) -> Bundle {
        self.be_there();
        Bundle::new(&self.host.work().join("b").join(&self.namespace), id, &self.cgroups())
    }

    /// The shim's command, as containerd runs it: with these arguments before the action.
    pub fn command(&self, bundle: &Bundle, action: &[&str]) -> Command {
        let mut command = self.host.command(shim_binary());
        let address = self.address.to_str().expect("ASCII");
        command
            .args(["-namespace", &self.namespace, "-address", address, "-publish-binary", "/usr/bin/containerd"])
            .args(["-id", &bundle.id])
            .args(action)
            .current_dir(&bundle.path)
            .env("GOMAXPROCS", "2")
            .env("MAX_SHIM_VERSION", "2")
            .env("TTRPC_ADDRESS", format!("{address}.ttrpc"))
            .env("GRPC_ADDRESS", address)
            .env("NAMESPACE", &self.namespace);
        command
    }

    /// Runs a command of the shim with this on stdin: whether it succeeded, and stdout and stderr together, as
    /// containerd reads them.
    pub fn answer_of(&self, mut command: Command, stdin: &[u8]) -> (bool, Vec<u8>) {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        command.stdin(Stream::piped()).stdout(writer.try_clone().expect("an fd")).stderr(writer);
        let mut child = command.spawn().expect("the shim is executable");
        // It has our copies of the pipe's end.
        drop(command);
        // An error means that it does not read what it is given.
        let _ = child.stdin.take().expect("a pipe").write_all(stdin);
        let mut said = Vec::new();
        reader.read_to_end(&mut said).expect("a pipe");
        (child.wait().expect("a child").success(), said)
    }

    /// Reads the log of the shim that will be started for a bundle, as containerd does from before it starts.
    pub fn read_log(&self, bundle: &Bundle) {
        let log = bundle.path.join("log");
        if !log.exists() {
            make_fifo(&log);
        }
        self.host.keep(Output::open(&log));
    }

    /// Starts a shim for a bundle.
    #[track_caller]
    pub fn start(&self, bundle: &Bundle) -> Shim {
        self.start_with(bundle, None)
    }

    /// Like [`Self::start`], with options.
    #[track_caller]
    pub fn start_with(&self, bundle: &Bundle, options: Option<&Any>) -> Shim {
        let address = self.try_start(bundle, options).unwrap_or_else(|said| panic!("start: {said}"));
        Shim::dial(&address, &self.namespace)
    }

    /// Like [`Self::start`]; also what the shim logs.
    #[track_caller]
    pub fn start_heard(&self, bundle: &Bundle) -> (Shim, Output) {
        let path = bundle.path.join("log");
        make_fifo(&path);
        let log = Output::open(&path);
        let address = self.started(bundle, None).unwrap_or_else(|said| panic!("start: {said}"));
        (Shim::dial(&address, &self.namespace), log)
    }

    /// The address of the shim, or what it says instead.
    pub fn try_start(&self, bundle: &Bundle, options: Option<&Any>) -> Result<PathBuf, String> {
        self.read_log(bundle);
        self.started(bundle, options)
    }

    /// Like [`Self::start`], of a containerd that does not have this capability itself.
    #[track_caller]
    pub fn start_without(&self, bundle: &Bundle, capability: &str) -> Shim {
        self.read_log(bundle);
        let start = self.command(bundle, &["start"]);
        let mut command = self.host.command("setpriv");
        command.args(["--bounding-set", "--inh-caps"].map(|flag| format!("{flag}=-{capability}")));
        command.arg(start.get_program()).args(start.get_args()).current_dir(&bundle.path);
        command.envs(start.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let address = self.address_of(command, &[]).unwrap_or_else(|said| panic!("start: {said}"));
        Shim::dial(&address, &self.namespace)
    }

    fn started(&self, bundle: &Bundle, options: Option<&Any>) -> Result<PathBuf, String> {
        let stdin = options.map(|options| options.write_to_bytes().expect("a message")).unwrap_or_default();
        self.address_of(self.command(bundle, &["start"]), &stdin)
    }

    /// Runs this command of a start: the address of the shim, or what it says instead.
    fn address_of(&self, start: Command, stdin: &[u8]) -> Result<PathBuf, String> {
        let (succeeded, said) = self.answer_of(start, stdin);
        let said = String::from_utf8_lossy(&said).into_owned();
        match said.strip_prefix("unix://").filter(|_| succeeded) {
            // An address and not one byte more.
            Some(path) => {
                self.host.must_go(path);
                Ok(PathBuf::from(path))
            }
            None => Err(said),
        }
    }

    /// A further connection to a shim, or the first one of a restarted containerd.
    pub fn dial(&self, socket: &Path) -> Shim {
        Shim::dial(socket, &self.namespace)
    }

    /// Runs `delete`, as containerd does when a shim has died.
    #[track_caller]
    pub fn delete_action(&self, bundle: &Bundle) -> api::DeleteResponse {
        let said = self.try_delete_action(bundle).unwrap_or_else(|said| panic!("delete: {said}"));
        api::DeleteResponse::parse_from_bytes(&said).expect("a DeleteResponse")
    }

    /// Runs `delete`. Returns its stdout, or both streams if it fails.
    pub fn try_delete_action(&self, bundle: &Bundle) -> Result<Vec<u8>, String> {
        let mut command = self.command(bundle, &["-bundle", bundle.path.to_str().expect("ASCII"), "delete"]);
        let output = command.stdin(Stream::null()).output().expect("the shim is executable");
        let said = || String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
        if output.status.success() { Ok(output.stdout.clone()) } else { Err(said()) }
    }
}
