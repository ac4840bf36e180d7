//! Kubernetes' side of a containerd: a daemon of the test's own with the CRI plugin, asked over its socket as the
//! kubelet asks it. Images are the test's, and so are networks: no registry, no address of the machine's.
//!
//! ```no_run
//! let host = bowline_tests::Host::new();
//! let Some(cri) = host.cri() else { return };
//! let pod = cri.pod().run();
//! let container = pod.container("a", "sleep 1000").start();
//! assert_eq!(container.exec("echo in").out(), "in");
//! pod.remove();
//! cri.end();
//! ```

mod container;
mod grpc;
mod image;
mod network;
mod pod;

pub use container::{Answer, Build, Container};
pub use pod::{Pod, PodBuild};

/// The messages of CRI, generated from `proto/cri.proto`.
#[allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::unwrap_used)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/cri.rs"));
}

use std::cell::{Ref, RefCell};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use protobuf::Message;

use super::containerd::{Failure, is_reference, runtime};
use super::{Daemon, Host, eventually, lacks_systemd, only_v2};
use network::Network;
use proto::*;

const PODS: &str = "runtime.v1.RuntimeService";
const IMAGES: &str = "runtime.v1.ImageService";
/// Where Kubernetes' containers are, among containerd's.
const NAMESPACE: &str = "k8s.io";
/// The table of the plugin's settings.
const PLUGIN: &str = "plugins.\"io.containerd.grpc.v1.cri\"";

pub struct Cri<'h> {
    host: &'h Host,
    daemon: RefCell<Daemon<'h>>,
    network: Network,
    systemd: bool,
}

impl Host {
    /// A containerd with Kubernetes' services, where all that it takes is installed: else the test says so and is over.
    pub fn cri(&self) -> Option<Cri<'_>> {
        self.cri_by(false)
    }

    /// Like [`Self::cri`], with the systemd cgroup driver. Without systemd the test is skipped.
    pub fn cri_with_systemd(&self) -> Option<Cri<'_>> {
        if lacks_systemd() || !only_v2() {
            self.assert_nothing_left();
            return None;
        }
        self.cri_by(true)
    }

    fn cri_by(&self, systemd: bool) -> Option<Cri<'_>> {
        let Some(plugins) = network::plugins() else {
            self.not_here("containernetworking-plugins are not installed (`make test` does)");
            return None;
        };
        let settings = settings(self, plugins, systemd);
        // Before it is looked for.
        let network = Network::new(self);
        let daemon = self.daemon_of(NAMESPACE, Some(&settings))?;
        let cri = Cri { host: self, daemon: RefCell::new(daemon), network, systemd };
        cri.wait_until_ready();
        let file = image::layout(self);
        cri.daemon().ctr(["images".as_ref(), "import".as_ref(), file.as_os_str()]).assert_code(0);
        for image in [image::SHELL, image::PAUSE] {
            eventually(format_args!("{image} is known"), || cri.has_image(image).then_some(()));
        }
        Some(cri)
    }
}

/// What containerd's configuration says of Kubernetes.
fn settings(host: &Host, plugins: &str, systemd: bool) -> String {
    let work = host.work().display().to_string();
    let mut options = format!("SystemdCgroup = {systemd}\n");
    if is_reference() {
        options += &format!("Root = \"{work}/runc\"\n");
    }
    // Not everywhere may root have the kernel spare a process more than itself.
    format!(
        "[{PLUGIN}]\nsandbox_image = \"{image}\"\nnetns_mounts_under_state_dir = true\n\
         restrict_oom_score_adj = true\n{drain}\
         [{PLUGIN}.cni]\nbin_dir = \"{plugins}\"\nconf_dir = \"{work}/cni\"\n\
         [{PLUGIN}.containerd]\ndefault_runtime_name = \"tested\"\n\
         [{PLUGIN}.containerd.runtimes.tested]\nruntime_type = \"{runtime}\"\n\
         [{PLUGIN}.containerd.runtimes.tested.options]\n{options}",
        image = image::PAUSE,
        runtime = runtime(),
        drain = if knows_drain() { format!("{DRAIN} = \"1s\"\n") } else { String::new() },
    )
}

/// How long an answered exec waits for who else holds its output: for ever without it.
const DRAIN: &str = "drain_exec_sync_io_timeout";

/// Whether this containerd is younger than 1.6.22, say, and has such a bound.
pub fn knows_drain() -> bool {
    let shown = Command::new("containerd").args(["config", "default"]).output();
    shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains(DRAIN))
}

impl<'h> Cri<'h> {
    fn daemon(&self) -> Ref<'_, Daemon<'h>> {
        self.daemon.borrow()
    }

    /// Calls a method of the service for pods and containers.
    #[track_caller]
    pub fn call<A: Message>(&self, method: &str, request: &impl Message) -> Result<A, Failure> {
        grpc::call(&self.host.work().join("c.sock"), &format!("{PODS}/{method}"), request)
    }

    /// Like [`Self::call`], for a call that must succeed.
    #[track_caller]
    fn must<A: Message>(&self, method: &str, request: &impl Message) -> A {
        self.call(method, request).unwrap_or_else(|failure| panic!("{method}: {failure:?}"))
    }

    /// Makes several calls at the same time.
    #[track_caller]
    fn at_once<A: Message>(&self, method: &str, requests: &[impl Message]) -> Vec<Result<A, Failure>> {
        let (socket, method) = (&self.host.work().join("c.sock"), &format!("{PODS}/{method}"));
        std::thread::scope(|scope| {
            let ask = |request| scope.spawn(move || grpc::call(socket, method, request));
            let asked: Vec<_> = requests.iter().map(ask).collect();
            asked.into_iter().map(|thread| thread.join().expect("an answer")).collect()
        })
    }

    fn has_image(&self, name: &str) -> bool {
        let image = ImageSpec { image: name.to_owned(), ..Default::default() };
        let request = ImageStatusRequest { image: Some(image).into(), ..Default::default() };
        let method = format!("{IMAGES}/ImageStatus");
        let answer: Result<ImageStatusResponse, _> = grpc::call(&self.host.work().join("c.sock"), &method, &request);
        answer.is_ok_and(|answer| answer.image.is_some())
    }

    /// Until pods can be run, and have a network.
    fn wait_until_ready(&self) {
        eventually("Kubernetes' services are ready", || {
            let answer: StatusResponse = self.call("Status", &Nothing::default()).ok()?;
            let conditions = &answer.status.conditions;
            (!conditions.is_empty() && conditions.iter().all(|condition| condition.status)).then_some(())
        });
    }

    /// A pod that is to be run: on the test's network, its containers with pids of their own.
    pub fn pod(&self) -> PodBuild<'_, 'h> {
        PodBuild::new(self)
    }

    /// The ids of all pods that containerd knows of.
    #[track_caller]
    pub fn pods(&self) -> Vec<String> {
        let answer: ListPodSandboxResponse = self.must("ListPodSandbox", &Nothing::default());
        answer.items.into_iter().map(|pod| pod.id).collect()
    }

    /// The ids of all containers that containerd knows of.
    #[track_caller]
    pub fn containers(&self) -> Vec<String> {
        let answer: ListContainersResponse = self.must("ListContainers", &Nothing::default());
        answer.containers.into_iter().map(|container| container.id).collect()
    }

    /// The pids of all shims of this containerd.
    pub fn shims(&self) -> Vec<i32> {
        let ours = self.host.work().join("c.sock").display().to_string();
        let entries = fs::read_dir("/proc").expect("there is one").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_shim = |pid: &i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            words.split('\0').next().is_some_and(|word| word.contains("containerd-shim-")) && words.contains(&ours)
        };
        let all: Vec<i32> = pids.filter(is_shim).collect();
        // A fork that does something for its shim is none.
        all.iter().copied().filter(|pid| parent_of(*pid).is_none_or(|parent| !all.contains(&parent))).collect()
    }

    /// Kills containerd, as nobody should.
    pub fn kill(&self) {
        self.daemon.borrow_mut().kill();
    }

    /// Starts it again, with all that the last one has left.
    pub fn come_back(&self) {
        self.daemon.borrow_mut().come_back();
        self.wait_until_ready();
    }

    /// The folder of a container's or a pod's bundle.
    fn bundle(&self, id: &str) -> PathBuf {
        self.host.work().join("state/io.containerd.runtime.v2.task").join(NAMESPACE).join(id)
    }

    /// Ends it, when no pod is left, after which nothing is.
    #[track_caller]
    pub fn end(self) {
        assert_eq!((self.pods(), self.containers()), (Vec::new(), Vec::new()), "left in containerd");
        self.network.end();
        if self.systemd {
            // That of the pods' slices.
            pod::stop(&format!("{}.slice", self.host.prefix()));
        }
        self.daemon.into_inner().end();
    }
}

/// The parent of a process; none if there is no such process.
pub fn parent_of(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}
