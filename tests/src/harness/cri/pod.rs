//! A pod: its cgroup, which the kubelet makes and so does the test, and its sandbox.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use protobuf::EnumOrUnknown;
use serde_json::Value;

use super::container::Build;
use super::proto::*;
use super::{Cri, Failure};
use crate::harness::kernel::{hierarchies, hierarchy};
use crate::harness::{eventually, only_v2};

/// A pod that is to be run.
pub struct PodBuild<'c, 'h> {
    cri: &'c Cri<'h>,
    linux: LinuxPodSandboxConfig,
    memory: Option<u64>,
}

pub struct Pod<'c, 'h> {
    pub(super) cri: &'c Cri<'h>,
    pub id: String,
    pub(super) config: PodSandboxConfig,
    cgroup: Cgroup,
}

impl<'c, 'h> PodBuild<'c, 'h> {
    pub(super) fn new(cri: &'c Cri<'h>) -> PodBuild<'c, 'h> {
        // What the kubelet says by default.
        let namespaces = NamespaceOption { pid: NamespaceMode::CONTAINER.into(), ..Default::default() };
        let security = LinuxSandboxSecurityContext {
            namespace_options: Some(namespaces).into(),
            seccomp: Some(SecurityProfile::default()).into(),
            ..Default::default()
        };
        let linux = LinuxPodSandboxConfig { security_context: Some(security).into(), ..Default::default() };
        PodBuild { cri, linux, memory: None }
    }

    fn security(&mut self) -> &mut LinuxSandboxSecurityContext {
        self.linux.security_context.mut_or_insert_default()
    }

    fn namespaces(&mut self) -> &mut NamespaceOption {
        self.security().namespace_options.mut_or_insert_default()
    }

    /// The network of the host.
    pub fn on_the_hosts_network(mut self) -> Self {
        self.namespaces().network = NamespaceMode::NODE.into();
        self
    }

    /// Whose pids its containers see.
    pub fn pids(mut self, mode: NamespaceMode) -> Self {
        self.namespaces().pid = mode.into();
        self
    }

    /// Its containers may be privileged.
    pub fn privileged(mut self) -> Self {
        self.security().privileged = true;
        self
    }

    /// A sysctl of its namespaces.
    pub fn sysctl(mut self, name: &str, value: &str) -> Self {
        self.linux.sysctls.insert(name.to_owned(), value.to_owned());
        self
    }

    /// All of it together has so much memory.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    #[track_caller]
    pub fn run(mut self) -> Pod<'c, 'h> {
        let name = self.cri.host.new_id();
        // As the kubelet names it.
        let cgroup = if self.cri.systemd {
            Cgroup::slice(&format!("{}-pod{}", self.cri.host.prefix(), name.replace('-', "_")), self.memory)
        } else {
            Cgroup::folder(&format!("{}/pod{name}", self.cri.host.prefix()), self.memory)
        };
        let on_the_hosts = self.namespaces().network == EnumOrUnknown::from(NamespaceMode::NODE);
        let metadata = PodSandboxMetadata {
            name: name.clone(),
            uid: name.clone(),
            namespace: "tests".into(),
            ..Default::default()
        };
        self.linux.cgroup_parent = format!("/{}", cgroup.path);
        let config = PodSandboxConfig {
            metadata: Some(metadata).into(),
            // One of its own it has with a network of its own.
            hostname: if on_the_hosts { String::new() } else { name.clone() },
            log_directory: self.cri.host.work().join("logs").join(&name).display().to_string(),
            linux: Some(self.linux).into(),
            ..Default::default()
        };
        let request = RunPodSandboxRequest { config: Some(config.clone()).into(), ..Default::default() };
        let id: Id = self.cri.must("RunPodSandbox", &request);
        self.cri.host.must_go_by_name(&id.id);
        if let Ok(address) = fs::read_to_string(self.cri.bundle(&id.id).join("address")) {
            self.cri.host.must_go(address.trim().trim_start_matches("unix://"));
        }
        Pod { cri: self.cri, id: id.id, config, cgroup }
    }
}

impl<'c, 'h> Pod<'c, 'h> {
    /// A container that runs `script`, once it is started.
    pub fn container(&self, name: &str, script: &str) -> Build<'_, 'c, 'h> {
        Build::new(self, name, script)
    }

    fn status(&self) -> Result<PodSandboxStatusResponse, Failure> {
        self.cri.call("PodSandboxStatus", &StatusOf { id: self.id.clone(), verbose: true, ..Default::default() })
    }

    /// Whether it runs, as containerd knows.
    #[track_caller]
    pub fn is_ready(&self) -> bool {
        let status = self.status().unwrap_or_else(|failure| panic!("a pod's status: {failure:?}"));
        status.status.state == EnumOrUnknown::from(PodSandboxState::SANDBOX_READY)
    }

    #[track_caller]
    pub fn ip(&self) -> String {
        self.status().expect("a pod").status.network.ip.clone()
    }

    /// The pid of its first process.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        pid_of(&self.status().expect("a pod").info["info"])
    }

    /// Its name, and that of its host where it has a network of its own.
    pub fn name(&self) -> &str {
        &self.config.metadata.name
    }

    /// The folder of its cgroup in the hierarchy of a controller.
    pub fn cgroup(&self, controller: &str) -> PathBuf {
        self.cgroup.at(hierarchy(controller))
    }

    #[track_caller]
    pub fn stats(&self) -> LinuxPodSandboxStats {
        let answer: PodSandboxStatsResponse =
            self.cri.must("PodSandboxStats", &Of { id: self.id.clone(), ..Default::default() });
        answer.stats.linux.clone().unwrap_or_default()
    }

    /// Stops it, and all that is in it.
    #[track_caller]
    pub fn stop(&self) {
        let of = Of { id: self.id.clone(), ..Default::default() };
        match self.cri.call::<Nothing>("StopPodSandbox", &of) {
            // containerd closes its connection to a shim once it hears of the exit, perhaps before it has looked at the
            // answer to its own kill. The kubelet asks again.
            Err(failure) if failure.message.contains("ttrpc: closed") => {}
            stopped => return drop(stopped.unwrap_or_else(|failure| panic!("StopPodSandbox: {failure:?}"))),
        }
        let _: Nothing = self.cri.must("StopPodSandbox", &of);
    }

    /// Stops and removes it as the kubelet does, with its containers and its cgroup.
    #[track_caller]
    pub fn remove(self) {
        self.stop();
        let _: Nothing = self.cri.must("RemovePodSandbox", &Of { id: self.id.clone(), ..Default::default() });
        self.cgroup.remove();
    }
}

/// The pid that containerd reports for itself.
#[track_caller]
pub(super) fn pid_of(info: &str) -> i32 {
    let info: Value = serde_json::from_str(info).expect("JSON");
    i32::try_from(info["pid"].as_i64().expect("a pid")).expect("a pid")
}

/// The cgroup of a pod.
struct Cgroup {
    /// Its path below the mount of each hierarchy.
    path: String,
    /// The unit that it is, if systemd has made it.
    slice: Option<String>,
}

impl Cgroup {
    /// One in every hierarchy, with these limits.
    fn folder(path: &str, memory: Option<u64>) -> Cgroup {
        let new = Cgroup { path: path.to_owned(), slice: None };
        for (_, mount) in hierarchies() {
            let mut folder = mount;
            for part in path.split('/') {
                hand_down(&folder);
                folder.push(part);
                let _ = fs::create_dir(&folder);
                inherit(&folder);
            }
        }
        if let Some(bytes) = memory {
            let file = if only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
            fs::write(new.at(hierarchy("memory")).join(file), bytes.to_string()).expect("root may");
        }
        new
    }

    fn slice(name: &str, memory: Option<u64>) -> Cgroup {
        let slice = format!("{name}.slice");
        let mut busctl = Command::new("busctl");
        busctl.args(["call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"]);
        busctl.args(["org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))", &slice, "fail"]);
        match memory {
            Some(bytes) => busctl.args(["1", "MemoryMax", "t", &bytes.to_string(), "0"]),
            None => busctl.args(["0", "0"]),
        };
        let done = busctl.output().expect("busctl comes with systemd");
        assert!(done.status.success(), "{busctl:?}: {}", String::from_utf8_lossy(&done.stderr));
        // A dash in a slice's name is a step down.
        let steps = name.match_indices('-').map(|(at, _)| format!("{}.slice/", &name[..at])).collect::<String>();
        let new = Cgroup { path: format!("{steps}{slice}"), slice: Some(slice.clone()) };
        eventually(format_args!("{slice} is made"), || new.at(hierarchy("memory")).exists().then_some(()));
        new
    }

    fn at(&self, mount: PathBuf) -> PathBuf {
        mount.join(&self.path)
    }

    /// Removes it, as nothing is in it any more.
    #[track_caller]
    fn remove(&self) {
        if let Some(slice) = &self.slice {
            return stop(slice);
        }
        for (_, mount) in hierarchies() {
            let folder = self.at(mount);
            eventually(format_args!("{} is empty", folder.display()), || fs::remove_dir(&folder).ok());
        }
    }
}

/// Has systemd stop a slice, in which nothing is any more.
#[track_caller]
pub(super) fn stop(slice: &str) {
    let done = Command::new("systemctl").args(["stop", "--", slice]).status();
    assert!(done.is_ok_and(|done| done.success()), "cannot stop {slice}");
}

/// Lets the cgroups below have what this one has: on v2 that must be said.
fn hand_down(folder: &Path) {
    let controllers = fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default();
    for name in controllers.split_whitespace() {
        // A test here needs no resource that is missing below.
        let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{name}"));
    }
}

/// What a new cgroup of v1 must be told.
fn inherit(folder: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let parent = folder.parent().expect("a hierarchy").join(file);
        if let (Ok(value), true) = (fs::read_to_string(parent), folder.join("cpuset.cpu_exclusive").exists()) {
            fs::write(folder.join(file), value.trim_end()).expect("the parent's own");
        }
    }
}
