//! A container of a pod: created, started, asked, stopped and removed as the kubelet does it.

use std::fs;
use std::path::{Path, PathBuf};

use protobuf::EnumOrUnknown;

use super::pod::{Pod, pid_of};
use super::proto::*;
use super::{Failure, image};
use crate::harness::eventually;

/// A container that is to be started.
pub struct Build<'p, 'c, 'h> {
    pod: &'p Pod<'c, 'h>,
    config: ContainerConfig,
    security: LinuxContainerSecurityContext,
    resources: LinuxContainerResources,
}

/// A container that was started.
pub struct Container<'p, 'c, 'h> {
    pod: &'p Pod<'c, 'h>,
    pub id: String,
    name: String,
}

/// What a command in a container has come to.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Answer {
    fn of(answer: ExecSyncResponse) -> Answer {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Answer { code: answer.exit_code, stdout: text(answer.stdout), stderr: text(answer.stderr) }
    }

    /// Its stdout, without the last newline; it has succeeded.
    #[track_caller]
    pub fn out(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout.trim_end_matches('\n')
    }
}

impl<'p, 'c, 'h> Build<'p, 'c, 'h> {
    pub(super) fn new(pod: &'p Pod<'c, 'h>, name: &str, script: &str) -> Build<'p, 'c, 'h> {
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.to_owned(), ..Default::default() }).into(),
            image: Some(ImageSpec { image: image::SHELL.to_owned(), ..Default::default() }).into(),
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            log_path: format!("{name}.log"),
            ..Default::default()
        };
        // What the kubelet says by default.
        let security = LinuxContainerSecurityContext {
            namespace_options: pod.config.linux.security_context.namespace_options.clone(),
            seccomp: Some(SecurityProfile::default()).into(),
            ..Default::default()
        };
        Build { pod, config, security, resources: LinuxContainerResources::default() }
    }

    pub fn runs(mut self, command: &[&str]) -> Self {
        self.config.command = command.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Changes what is asked for it.
    pub fn edit(mut self, change: impl FnOnce(&mut ContainerConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// Changes who it is, and what it may do.
    pub fn secure(mut self, change: impl FnOnce(&mut LinuxContainerSecurityContext)) -> Self {
        change(&mut self.security);
        self
    }

    /// It has a folder or a file of the host's at `path`.
    pub fn mount(self, source: &Path, path: &str, change: impl FnOnce(&mut Mount)) -> Self {
        let mut mount =
            Mount { host_path: source.display().to_string(), container_path: path.to_owned(), ..Default::default() };
        change(&mut mount);
        self.edit(|config| config.mounts.push(mount))
    }

    /// It has so much memory.
    pub fn memory(mut self, bytes: i64) -> Self {
        self.resources.memory_limit_in_bytes = bytes;
        self
    }

    /// It sees the processes of another, and no more.
    pub fn with_pids_of(mut self, other: &Container<'_, '_, '_>) -> Self {
        let namespaces = self.security.namespace_options.mut_or_insert_default();
        namespaces.pid = NamespaceMode::TARGET.into();
        namespaces.target_id = other.id.clone();
        self
    }

    fn request(self) -> CreateContainerRequest {
        let linux = LinuxContainerConfig {
            resources: Some(self.resources).into(),
            security_context: Some(self.security).into(),
            ..Default::default()
        };
        CreateContainerRequest {
            pod_sandbox_id: self.pod.id.clone(),
            config: Some(ContainerConfig { linux: Some(linux).into(), ..self.config }).into(),
            sandbox_config: Some(self.pod.config.clone()).into(),
            ..Default::default()
        }
    }

    /// Creates it, not to be started yet.
    #[track_caller]
    pub fn create(self) -> Container<'p, 'c, 'h> {
        let pod = self.pod;
        let name = self.config.metadata.name.clone();
        let id: Id = pod.cri.must("CreateContainer", &self.request());
        Container::known(pod, id.id, name)
    }

    #[track_caller]
    pub fn start(self) -> Container<'p, 'c, 'h> {
        let container = self.create();
        container.start().unwrap_or_else(|failure| panic!("start: {failure:?}"));
        container
    }
}

impl<'c, 'h> Pod<'c, 'h> {
    /// Starts containers that run `script`, all at once.
    #[track_caller]
    pub fn start_at_once(&self, names: &[&str], script: &str) -> Vec<Container<'_, 'c, 'h>> {
        let requests: Vec<_> = names.iter().map(|name| self.container(name, script).request()).collect();
        let created = self.cri.at_once::<Id>("CreateContainer", &requests);
        let known = created.into_iter().zip(names).map(|(created, name)| {
            Container::known(
                self,
                created.unwrap_or_else(|failure| panic!("create: {failure:?}")).id,
                (*name).to_owned(),
            )
        });
        let containers: Vec<_> = known.collect();
        let requests: Vec<_> = containers.iter().map(Container::of).collect();
        for started in self.cri.at_once::<Nothing>("StartContainer", &requests) {
            started.unwrap_or_else(|failure| panic!("start: {failure:?}"));
        }
        containers
    }
}

impl<'p, 'c, 'h> Container<'p, 'c, 'h> {
    fn known(pod: &'p Pod<'c, 'h>, id: String, name: String) -> Container<'p, 'c, 'h> {
        pod.cri.host.must_go_by_name(&id);
        Container { pod, id, name }
    }

    #[track_caller]
    pub fn start(&self) -> Result<(), Failure> {
        self.pod.cri.call::<Nothing>("StartContainer", &self.of()).map(|_| ())
    }

    fn of(&self) -> Of {
        Of { id: self.id.clone(), ..Default::default() }
    }

    #[track_caller]
    pub fn status(&self) -> ContainerStatus {
        self.told().status.unwrap_or_default()
    }

    #[track_caller]
    fn told(&self) -> ContainerStatusResponse {
        let request = StatusOf { id: self.id.clone(), verbose: true, ..Default::default() };
        self.pod.cri.must("ContainerStatus", &request)
    }

    /// The pids in its cgroup.
    #[track_caller]
    pub fn pids(&self) -> Vec<i32> {
        self.cgroup_file("pids", "cgroup.procs").lines().map(|line| line.parse().expect("a pid")).collect()
    }

    /// Whether it runs, as containerd knows.
    #[track_caller]
    pub fn is_running(&self) -> bool {
        self.status().state == EnumOrUnknown::from(ContainerState::CONTAINER_RUNNING)
    }

    /// The pid of its init.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        pid_of(&self.told().info["info"])
    }

    /// Its exit code and why it ended, once it has.
    #[track_caller]
    pub fn end(&self) -> (i32, String) {
        let status = eventually("the container's end", || {
            let status = self.status();
            (status.state == EnumOrUnknown::from(ContainerState::CONTAINER_EXITED)).then_some(status)
        });
        assert!(status.finished_at > 0, "{status}");
        (status.exit_code, status.reason)
    }

    /// Runs `script` in it, to its end.
    #[track_caller]
    pub fn exec(&self, script: &str) -> Answer {
        self.try_exec(&["/bin/sh", "-c", script], 0).unwrap_or_else(|failure| panic!("exec: {failure:?}"))
    }

    /// Runs a command in it, for so many seconds at most; 0 is for ever.
    #[track_caller]
    pub fn try_exec(&self, command: &[&str], seconds: i64) -> Result<Answer, Failure> {
        self.pod.cri.call("ExecSync", &self.execution(command, seconds)).map(Answer::of)
    }

    /// Runs these scripts in it, all at once.
    #[track_caller]
    pub fn exec_at_once(&self, scripts: &[String]) -> Vec<Answer> {
        let requests: Vec<_> = scripts.iter().map(|script| self.execution(&["/bin/sh", "-c", script], 0)).collect();
        let answers = self.pod.cri.at_once("ExecSync", &requests).into_iter();
        answers.map(|answer| Answer::of(answer.unwrap_or_else(|failure| panic!("exec: {failure:?}")))).collect()
    }

    fn execution(&self, command: &[&str], seconds: i64) -> ExecSyncRequest {
        let cmd = command.iter().map(|word| (*word).to_owned()).collect();
        ExecSyncRequest { container_id: self.id.clone(), cmd, timeout: seconds, ..Default::default() }
    }

    /// Stops it: by SIGTERM, and after so many seconds by SIGKILL.
    #[track_caller]
    pub fn stop(&self, seconds: i64) {
        let request = StopContainerRequest { container_id: self.id.clone(), timeout: seconds, ..Default::default() };
        let _: Nothing = self.pod.cri.must("StopContainer", &request);
    }

    #[track_caller]
    pub fn update(&self, resources: LinuxContainerResources) {
        let linux = Some(resources).into();
        let request = UpdateContainerResourcesRequest { container_id: self.id.clone(), linux, ..Default::default() };
        let _: Nothing = self.pod.cri.must("UpdateContainerResources", &request);
    }

    #[track_caller]
    pub fn stats(&self) -> ContainerStats {
        let answer: ContainerStatsResponse = self.pod.cri.must("ContainerStats", &self.of());
        answer.stats.unwrap_or_default()
    }

    /// The lines of its log, by stream, each as `stdout F text`.
    pub fn log(&self) -> Vec<String> {
        let path = PathBuf::from(&self.pod.config.log_directory).join(format!("{}.log", self.name));
        let text = fs::read_to_string(path).unwrap_or_default();
        // The time comes first.
        text.lines().filter_map(|line| line.split_once(' ').map(|(_, rest)| rest.to_owned())).collect()
    }

    /// What a file of its cgroup says.
    #[track_caller]
    pub fn cgroup_file(&self, controller: &str, file: &str) -> String {
        let parent = self.pod.cgroup(controller);
        let name = if self.pod.cri.systemd { format!("cri-containerd-{}.scope", self.id) } else { self.id.clone() };
        let path = parent.join(name).join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        text.trim_end().to_owned()
    }

    #[track_caller]
    pub fn remove(self) {
        let _: Nothing = self.pod.cri.must("RemoveContainer", &self.of());
    }
}
