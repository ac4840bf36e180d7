//! A sandbox, as containerd makes it where the sandboxer is "shim": its bundle has no configuration, and its members
//! come over the same connection without a `start` of their own.

use std::fs;
use std::time::Duration;

use containerd_shim_protos::sandbox_api::*;
use protobuf::MessageField;
use protobuf::well_known_types::any::Any;
use serde_json::json;

use super::start::{field, number};
use super::{Bundle, Containerd, Failure, Pending, Shim, Stdio, any};
use crate::harness::namespace_of;

/// What CRI describes a pod by.
pub const POD: &str = "runtime.v1.PodSandboxConfig";

type Answer<R> = Result<R, Failure>;

/// Namespaces of a pod, by the numbers of CRI.
#[derive(Default)]
pub struct Pod<'a> {
    /// 0 its own, 2 the host's.
    pub network: u8,
    /// 0 shared by its members, 1 one each, 2 the host's.
    pub pid: u8,
    /// 0 its own, 2 the host's.
    pub ipc: u8,
    /// The mode of the user namespace that it asks for, if it does, and the map of users and groups: the host's id of
    /// its root, and how many ids there are.
    pub users: Option<(u8, Option<[u32; 2]>)>,
    pub hostname: &'a str,
    pub cgroup: &'a str,
    pub sysctls: &'a [(&'a str, &'a str)],
    pub servers: &'a [&'a str],
}

impl Pod<'_> {
    /// The pod's configuration, encoded as CRI sends it.
    pub fn options(&self) -> Any {
        let modes = [(1, self.network), (2, self.pid), (3, self.ipc)];
        let mut namespaces: Vec<u8> = modes.iter().flat_map(|(kind, mode)| number(*kind, u32::from(*mode))).collect();
        if let Some((mode, map)) = self.users {
            let map = map.map(|[host, length]| [number(1, host), number(3, length)].concat());
            let maps = map.map(|map| [field(2, &map), field(3, map)].concat()).unwrap_or_default();
            namespaces.extend(field(5, [number(1, u32::from(mode)), maps].concat()));
        }
        let mut linux = [field(1, self.cgroup), field(2, field(1, namespaces))].concat();
        for (key, value) in self.sysctls {
            linux.extend(field(3, [field(1, key), field(2, value)].concat()));
        }
        let dns: Vec<u8> = self.servers.iter().flat_map(|server| field(1, server)).collect();
        let dns = if dns.is_empty() { Vec::new() } else { field(4, dns) };
        any(POD, [field(2, self.hostname), dns, field(8, linux)].concat())
    }
}

pub struct Sandbox {
    pub shim: Shim,
    pub bundle: Bundle,
    pub id: String,
    /// Of its pause process, once it was started.
    pub pid: i32,
}

impl Containerd<'_> {
    /// A shim that was started for a sandbox, which is not created yet.
    #[track_caller]
    pub fn new_sandbox(&self) -> Sandbox {
        self.new_sandbox_with(None)
    }

    /// Like [`Containerd::new_sandbox`], with options of its runtime.
    #[track_caller]
    pub fn new_sandbox_with(&self, options: Option<&Any>) -> Sandbox {
        let bundle = self.bundle();
        fs::remove_file(bundle.path.join("config.json")).expect("ours");
        let mut shim = self.start_with(&bundle, options);
        shim.service = "containerd.task.v3.Task";
        Sandbox { id: bundle.id.clone(), shim, bundle, pid: 0 }
    }

    #[track_caller]
    pub fn sandbox(&self, pod: &Pod<'_>) -> Sandbox {
        self.sandbox_by(|request| request.options = MessageField::some(pod.options()))
    }

    /// One that is ready, of this request.
    #[track_caller]
    pub fn sandbox_by(&self, change: impl FnOnce(&mut CreateSandboxRequest)) -> Sandbox {
        let mut sandbox = self.new_sandbox();
        sandbox.create(change).unwrap_or_else(|failure| panic!("create: {failure:?}"));
        sandbox.start().unwrap_or_else(|failure| panic!("start: {failure:?}"));
        sandbox
    }
}

impl Sandbox {
    pub fn send<R: protobuf::Message>(&self, method: &str, message: &impl protobuf::Message) -> Pending<R> {
        self.shim.client.send("containerd.runtime.sandbox.v1.Sandbox", method, message, Duration::ZERO)
    }

    pub fn create(&self, change: impl FnOnce(&mut CreateSandboxRequest)) -> Answer<CreateSandboxResponse> {
        let bundle_path = self.bundle.path.to_str().expect("ASCII").to_owned();
        let mut request = CreateSandboxRequest { sandbox_id: self.id.clone(), bundle_path, ..Default::default() };
        change(&mut request);
        self.send("CreateSandbox", &request).wait()
    }

    pub fn start(&mut self) -> Answer<StartSandboxResponse> {
        let request = StartSandboxRequest { sandbox_id: self.id.clone(), ..Default::default() };
        let started: StartSandboxResponse = self.send("StartSandbox", &request).wait()?;
        self.pid = started.pid.cast_signed();
        Ok(started)
    }

    /// How it is, with all that can be told.
    pub fn status(&self) -> Answer<SandboxStatusResponse> {
        let request = SandboxStatusRequest { sandbox_id: self.id.clone(), verbose: true, ..Default::default() };
        self.send("SandboxStatus", &request).wait()
    }

    /// `SANDBOX_READY` or `SANDBOX_NOTREADY`.
    #[track_caller]
    pub fn state(&self) -> String {
        self.status().unwrap_or_else(|failure| panic!("status: {failure:?}")).state
    }

    /// Stops it; its members have so many seconds.
    pub fn stop(&self, seconds: u32) -> Answer<StopSandboxResponse> {
        let request = StopSandboxRequest { sandbox_id: self.id.clone(), timeout_secs: seconds, ..Default::default() };
        self.send("StopSandbox", &request).wait()
    }

    /// Asks for its end, without waiting.
    pub fn wait_later(&self) -> Pending<WaitSandboxResponse> {
        self.send("WaitSandbox", &WaitSandboxRequest { sandbox_id: self.id.clone(), ..Default::default() })
    }

    pub fn ping(&self) -> Answer<PingResponse> {
        self.send("PingSandbox", &PingRequest { sandbox_id: self.id.clone(), ..Default::default() }).wait()
    }

    /// What is used in its cgroup.
    pub fn metrics(&self) -> Answer<SandboxMetricsResponse> {
        let request = SandboxMetricsRequest { sandbox_id: self.id.clone(), ..Default::default() };
        self.send("SandboxMetrics", &request).wait()
    }

    /// Shuts it down, with its shim.
    pub fn shutdown(&self) -> Answer<ShutdownSandboxResponse> {
        self.send("ShutdownSandbox", &ShutdownSandboxRequest { sandbox_id: self.id.clone(), ..Default::default() })
            .wait()
    }

    /// Changes a bundle as CRI makes a member's: it joins the namespaces of the pause process.
    pub fn member(&self, bundle: Bundle, kinds: &[&str]) -> Bundle {
        let (pid, all) = (self.pid, kinds);
        bundle.edit(|config| {
            let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
            for namespace in namespaces {
                let kind = namespace["type"].as_str().expect("text").to_owned();
                if all.contains(&&*kind) {
                    let file = if kind == "network" { "net" } else { &kind };
                    namespace["path"] = json!(format!("/proc/{pid}/ns/{file}"));
                }
            }
        })
    }

    /// Runs a member; its init's pid.
    #[track_caller]
    pub fn run(&self, bundle: &Bundle) -> i32 {
        self.shim.run(bundle, &Stdio::null())
    }

    /// The namespace of the pause process.
    #[track_caller]
    pub fn namespace(&self, kind: &str) -> String {
        namespace_of(self.pid, kind)
    }

    /// The pause process has ended, and its shim and the shim's socket gone.
    #[track_caller]
    pub fn assert_gone(&self, shim: i32) {
        use crate::harness::{eventually, process_exists};
        eventually("the shim ends", || (!process_exists(shim)).then_some(()));
        eventually("the pause process ends", || (self.pid == 0 || !process_exists(self.pid)).then_some(()));
        eventually("the socket goes", || (!self.shim.socket.exists()).then_some(()));
    }

    /// Shuts it down; its shim goes.
    #[track_caller]
    pub fn end(self) {
        let shim = self.shim.pid();
        self.shutdown().unwrap_or_else(|failure| panic!("shutdown: {failure:?}"));
        self.assert_gone(shim);
    }
}
