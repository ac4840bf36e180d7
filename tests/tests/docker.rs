//! Docker over a containerd of the test's own: what `docker run --runtime` and its like show of a shim.
//!
//! A dockerd of the test's own needs no network and no image: one is imported. From 23 on Docker can use a shim by its
//! name; where there is none such, a test says so and returns, as what is of one cgroup version does.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{is_reference, runtime};
use bowline_tests::harness::oci::program;
use bowline_tests::harness::{Daemon, Process, Ran, cgroup_of, eventually, hierarchies, process_exists};
use rustix::process::Signal;
use serde_json::json;

/// The first that takes any containerd shim by its name.
const FIRST: u32 = 23;
const IMAGE: &str = "box";
/// The name of a runtime whose command dockerd calls, by containerd's shim for runc.
const BY_PATH: &str = "by-path";

/// A host, where Docker is and is new enough.
fn host() -> Option<Host> {
    let version = Command::new("dockerd").arg("--version").output().ok();
    let text = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    // "Docker version 26.1.5+dfsg1, build a72d7cd"
    let number = text.as_deref().and_then(|text| text.split_whitespace().nth(2)?.split('.').next()?.parse().ok());
    if number.is_some_and(|number: u32| number >= FIRST) {
        return Some(Host::new());
    }
    let found = text.unwrap_or_else(|| "none".to_owned());
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    // Past the runner's capture, as a skip is.
    let _ =
        writeln!(std::io::stderr().lock(), "NOT HERE {name}: needs Docker {FIRST} or later, found {}", found.trim());
    None
}

/// Docker's daemon, with all that it keeps in the test's folder.
struct Docker<'h> {
    host: &'h Host,
    containerd: Daemon<'h>,
    process: Process,
    parent: String,
}

impl<'h> Docker<'h> {
    /// Starts one whose cgroups are made by `driver`, below `parent`, and gives it an image.
    fn start(host: &'h Host, driver: &str, parent: &str) -> Docker<'h> {
        let containerd = host.daemon().expect("Docker needs containerd");
        let work = host.work();
        let at = |name: &str| work.join(name).display().to_string();
        let by_path = json!({ "runtimes": { BY_PATH: { "path": program() } } }).to_string();
        let config = host.file("daemon.json", &by_path).display().to_string();
        let mut command = host.command("dockerd");
        command.args(["--config-file", &config, "--data-root", &at("docker"), "--exec-root", &at("docker-run")]);
        command.args([
            "--pidfile",
            &at("docker.pid"),
            "--host",
            &format!("unix://{}", at("d.sock")),
            "--group",
            "root",
        ]);
        command.args(["--containerd", &at("c.sock"), "--containerd-namespace", host.prefix()]);
        command.args(["--containerd-plugins-namespace", &format!("{}-plugins", host.prefix())]);
        command.args(["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]);
        command.args(["--bridge=none", "--userland-proxy=false", "--storage-driver", "vfs", "--shutdown-timeout", "5"]);
        command.args(["--exec-opt", &format!("native.cgroupdriver={driver}"), "--cgroup-parent", parent]);
        let process = host.spawn_command(command);
        process.read_stdout();
        process.read_stderr();
        process.wait_for_err("API listen on");
        let docker = Docker { host, containerd, process, parent: parent.to_owned() };
        let (tar, archive) = (host.command("tar"), at("box.tar"));
        host.execute(with(tar, &["-C", &docker.containerd.root.path().display().to_string(), "-cf", &archive, "."]))
            .assert_code(0);
        docker.docker(&["import", &archive, IMAGE]).assert_code(0);
        docker
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.host.command("docker");
        command.env("DOCKER_HOST", format!("unix://{}", self.host.work().join("d.sock").display()));
        command.env("DOCKER_CONFIG", self.host.work().join("docker-client"));
        with(command, args)
    }

    fn docker(&self, args: &[&str]) -> Ran {
        self.host.execute(self.command(args))
    }

    fn run_args<'a>(flags: &[&'a str], args: &[&'a str]) -> Vec<&'a str> {
        Docker::run_args_of(runtime(), flags, args)
    }

    fn run_args_of<'a>(runtime: &'a str, flags: &[&'a str], args: &[&'a str]) -> Vec<&'a str> {
        [&["run", "--network", "none", "--runtime", runtime], flags, &[IMAGE], args].concat()
    }

    /// `docker run --rm` with the runtime under test.
    fn run(&self, args: &[&str]) -> Ran {
        self.docker(&Docker::run_args(&["--rm"], args))
    }

    /// Runs `script` in the background: the first process's pid.
    fn run_detached(&self, flags: &[&str], name: &str, script: &str) -> i32 {
        let flags = [&["--detach", "--name", name], flags].concat();
        self.docker(&Docker::run_args(&flags, &["/bin/sh", "-c", script])).assert_code(0);
        self.docker(&["inspect", "--format", "{{.State.Pid}}", name]).out().parse().expect("a pid")
    }

    /// Ends both daemons, after which nothing is left.
    fn end(self) {
        assert_eq!(self.docker(&["ps", "--all", "--quiet"]).out(), "");
        self.process.signal(Signal::TERM);
        self.process.finish();
        self.containerd.end();
    }
}

fn with(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}

/// A file of the cgroup of a process, with its folder.
fn cgroup_file(pid: i32, v1: (&str, &str), v2: &str) -> (PathBuf, String) {
    let cgroups = cgroup_of(pid);
    let find = |name: &str| cgroups.iter().find(|(names, _)| names.split(',').any(|n| n == name)).map(|(_, path)| path);
    let mount = |name: &str| {
        let all = hierarchies();
        all.into_iter().find(|(names, _)| names.split(',').any(|n| n == name)).expect("a hierarchy").1
    };
    let (controller, path, file) = match find(v1.0) {
        Some(path) => (v1.0, path, v1.1),
        None => ("", find("").expect("cgroup v2"), v2),
    };
    let folder = mount(controller).join(path.trim_start_matches('/'));
    let text = fs::read_to_string(folder.join(file)).expect("the kernel's file");
    (folder, text.trim().to_owned())
}

fn gone(path: &Path) {
    eventually("the cgroup is gone", || (!path.exists()).then_some(()));
}

#[test]
fn docker_run_passes_output_and_exit_codes_through() {
    let Some(host) = host() else { return };
    let docker = Docker::start(&host, "cgroupfs", &format!("/{}", host.prefix()));
    let ran = docker.run(&["/bin/sh", "-c", "echo hello; echo trouble >&2; exit 3"]);
    assert_eq!((ran.code, ran.out().as_str(), ran.err().as_str()), (Some(3), "hello", "trouble"), "{ran}");
    docker.run(&["nowhere"]).assert_code(127);
    docker.run(&["/bin/nowhere"]).assert_code(127);
    docker.run(&["/etc/passwd"]).assert_code(126);
    docker.end();
}

#[test]
fn docker_limits_measures_and_stops_a_task() {
    let Some(host) = host() else { return };
    let docker = Docker::start(&host, "cgroupfs", &format!("/{}", host.prefix()));
    let id = host.new_id();
    let script = "trap 'exit 9' TERM; while :; do sleep 0.1; done";
    let pid = docker.run_detached(&["--memory", "64m"], &id, script);
    let (cgroup, limit) = cgroup_file(pid, ("memory", "memory.limit_in_bytes"), "memory.max");
    assert_eq!(limit, (64 << 20).to_string());
    assert!(cgroup.display().to_string().contains(&docker.parent), "{}", cgroup.display());

    let ran = docker.docker(&["stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", &id]);
    let (used, rest) = ran.out().split_once(" / ").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("figures");
    assert!(!used.starts_with("0B") && rest.starts_with("64MiB ") && !rest.ends_with(" 0"), "{ran}");

    if !is_reference() {
        let metrics = host.metrics_with(&host.work().join("state"));
        let task = docker.docker(&["inspect", "--format", "{{.Id}}", &id]).out();
        let limit = metrics.of_containerds("memory_limit_bytes", &task, ("", host.prefix()), "");
        assert_eq!(limit, f64::from(64 << 20));
    }

    docker.docker(&["stop", "--time", "60", &id]).assert_code(0);
    docker.docker(&["inspect", "--format", "{{.State.ExitCode}}", &id]).assert_says("9");
    assert!(!process_exists(pid));
    docker.docker(&["rm", &id]).assert_code(0);
    gone(&cgroup);
    docker.end();
}

#[test]
fn docker_exec_passes_output_and_exit_codes_through() {
    let Some(host) = host() else { return };
    let docker = Docker::start(&host, "cgroupfs", &format!("/{}", host.prefix()));
    let id = host.new_id();
    docker.run_detached(&[], &id, "exec sleep 1000");
    let ran = docker.docker(&["exec", &id, "/bin/sh", "-c", "echo inside; exit 5"]);
    assert_eq!((ran.code, ran.out().as_str()), (Some(5), "inside"), "{ran}");
    // Docker 26 says 126 of every exec that cannot be started, whatever the runtime says.
    for (command, why) in [("nowhere", "executable file not found"), ("/etc/passwd", "permission denied")] {
        let ran = docker.docker(&["exec", &id, command]);
        let said = format!("{}{}", ran.out(), ran.err());
        assert!(matches!(ran.code, Some(126 | 127)) && said.contains(why), "{ran}");
    }
    docker.docker(&["rm", "--force", &id]).assert_code(0);
    docker.end();
}

#[test]
fn docker_run_at_a_terminal() {
    let Some(host) = host() else { return };
    let docker = Docker::start(&host, "cgroupfs", &format!("/{}", host.prefix()));
    let args = Docker::run_args(&["--rm", "-it"], &["/bin/sh", "-c", "test -t 0 && echo it is one; read x; exit 4"]);
    let pty = host.command_in_terminal(&docker.command(&args));
    pty.wait_for("it is one");
    pty.type_keys("\n");
    pty.finish().assert_code(4);
    docker.end();
}

#[test]
fn docker_calls_a_runtime_by_its_path() {
    let Some(host) = host() else { return };
    let docker = Docker::start(&host, "cgroupfs", &format!("/{}", host.prefix()));
    let run = |flags: &[&str], args: &[&str]| docker.docker(&Docker::run_args_of(BY_PATH, flags, args));
    let ran = run(&["--rm"], &["/bin/sh", "-c", "echo hello; echo trouble >&2; exit 3"]);
    assert_eq!((ran.code, ran.out().as_str(), ran.err().as_str()), (Some(3), "hello", "trouble"), "{ran}");
    run(&["--rm"], &["nowhere"]).assert_code(127);
    run(&["--rm"], &["/etc/passwd"]).assert_code(126);
    let id = host.new_id();
    let script = "trap 'exit 9' TERM; while :; do sleep 0.1; done";
    run(&["--detach", "--name", &id, "--memory", "64m"], &["/bin/sh", "-c", script]).assert_code(0);
    let pid = docker.docker(&["inspect", "--format", "{{.State.Pid}}", &id]).out().parse().expect("a pid");
    let (cgroup, limit) = cgroup_file(pid, ("memory", "memory.limit_in_bytes"), "memory.max");
    assert_eq!(limit, (64 << 20).to_string());
    let ran = docker.docker(&["exec", &id, "/bin/sh", "-c", "echo inside; exit 5"]);
    assert_eq!((ran.code, ran.out().as_str()), (Some(5), "inside"), "{ran}");
    assert!(docker.docker(&["top", &id]).assert_code(0).out().contains(&pid.to_string()));
    docker.docker(&["pause", &id]).assert_code(0);
    docker.docker(&["unpause", &id]).assert_code(0);
    docker.docker(&["stop", "--time", "60", &id]).assert_code(0);
    docker.docker(&["inspect", "--format", "{{.State.ExitCode}}", &id]).assert_says("9");
    docker.docker(&["rm", &id]).assert_code(0);
    gone(&cgroup);
    docker.end();
}

#[test]
fn docker_has_its_cgroups_made_by_systemd() {
    let Some(host) = host() else { return };
    if !Path::new("/run/systemd/system").exists() {
        return;
    }
    let docker = Docker::start(&host, "systemd", "system.slice");
    let id = host.new_id();
    let pid = docker.run_detached(&["--memory", "64m"], &id, "exec sleep 1000");
    let (cgroup, limit) = cgroup_file(pid, ("memory", "memory.limit_in_bytes"), "memory.max");
    assert_eq!(limit, (64 << 20).to_string());
    let whole = docker.docker(&["inspect", "--format", "{{.Id}}", &id]).out();
    assert!(cgroup.ends_with(format!("system.slice/docker-{whole}.scope")), "{}", cgroup.display());
    docker.docker(&["rm", "--force", &id]).assert_code(0);
    gone(&cgroup);
    docker.end();
}
