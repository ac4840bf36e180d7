//! Podman with the program under test as its runtime.

use std::fs;
use std::process::{Command, Stdio};

use bowline_tests::Host;
use bowline_tests::harness::oci::Runtime;
use bowline_tests::harness::{Ran, assert_forgotten, eventually, has_systemd};

/// A Podman with folders of its own, and an image of busybox.
struct Podman<'h> {
    host: &'h Host,
    runtime: Runtime<'h>,
    /// What makes its cgroups.
    manager: &'static str,
}

const IMAGE: &str = "localhost/busybox";

impl<'h> Podman<'h> {
    fn new(host: &'h Host) -> Podman<'h> {
        let runtime = host.oci();
        runtime.wrapper();
        runtime.leaves_cgroup("conmon");
        // Limits that every host allows, and locks of its own: those of the machine's Podman are in a shared memory.
        host.file(
            "containers.conf",
            "[containers]\nlog_driver = \"k8s-file\"\n\
             default_ulimits = [\"nofile=1024:1024\", \"nproc=1000:1000\"]\n[engine]\nlock_type = \"file\"\n",
        );
        let podman = Podman { host, runtime, manager: "cgroupfs" };
        let root = host.busybox_root();
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(root.path()).args(["-c", "."]).stdout(Stdio::piped());
        let mut tar = tar.spawn().expect("tar is there");
        let mut import = podman.command(&["import", "-", IMAGE]);
        import.stdin(tar.stdout.take().expect("a pipe"));
        let imported = import.output().expect("podman is installed (`make test` does)");
        assert!(tar.wait().expect("a child").success());
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
        podman
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let at = |name: &str| self.host.work().join(name);
        let mut command = self.host.command("podman");
        for (flag, name) in [("--root", "pr"), ("--runroot", "prr"), ("--tmpdir", "pt"), ("--runtime", "runtime")] {
            command.arg(flag).arg(at(name));
        }
        command.args(["--storage-driver", "vfs", "--cgroup-manager", self.manager, "--events-backend", "file"]);
        command.env("CONTAINERS_CONF", at("containers.conf")).args(arguments);
        command
    }

    fn call(&self, arguments: &[&str]) -> Ran {
        self.host.execute(self.command(arguments))
    }

    /// The arguments of `run`, with these flags, of a command.
    fn arguments<'a>(&self, parent: &'a str, flags: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
        [&["run", "--network", "none", "--cgroup-parent", parent], flags, &[IMAGE], command].concat()
    }

    fn run(&self, flags: &[&str], command: &[&str]) -> Ran {
        let parent = format!("/{}", self.host.prefix());
        self.call(&self.arguments(&parent, flags, command))
    }

    fn sh(&self, flags: &[&str], script: &str) -> Ran {
        self.run(flags, &["/bin/sh", "-c", script])
    }

    /// A container in the background.
    #[track_caller]
    fn detached(&self, flags: &[&str], script: &str) -> String {
        let flags = [&["--detach", "--name", "one"], flags].concat();
        // conmon goes on with the streams.
        let parent = format!("/{}", self.host.prefix());
        let command = self.command(&self.arguments(&parent, &flags, &["/bin/sh", "-c", script]));
        let ran = self.runtime.apart("podman", command);
        ran.assert_code(0);
        ran.out()
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        self.call(&["pod", "rm", "--all", "--force", "--time", "0"]);
        self.call(&["rm", "--all", "--force", "--time", "0"]);
        let at = |name: &str| self.host.work().join(name);
        for name in ["pr", "prr"] {
            let _ = rustix::mount::unmount(at(name), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[test]
fn its_code_is_the_container_s() {
    let host = Host::new();
    let podman = Podman::new(&host);
    let ran = podman.sh(&["--rm"], "echo out; echo err >&2; exit 7");
    assert_eq!(ran.assert_code(7).out(), "out");
    assert_eq!(ran.err(), "err");
}

#[test]
fn its_code_is_125_or_126_where_the_runtime_refuses() {
    let host = Host::new();
    let podman = Podman::new(&host);
    let ran = podman.run(&["--rm", "--cpuset-cpus", "999"], &["true"]);
    // 126 of Podman 5.
    assert!(matches!(ran.code, Some(125 | 126)), "{ran}");
}

#[test]
fn its_code_is_126_for_a_program_that_may_not_be_executed() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.run(&["--rm"], &["/etc/passwd"]).assert_code(126);
}

#[test]
fn its_code_is_127_for_a_program_that_is_not_found() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.run(&["--rm"], &["no-such-program"]).assert_code(127);
}

#[test]
fn its_code_is_127_for_a_path_that_is_not_there() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.run(&["--rm"], &["/bin/no-such-program"]).assert_code(127);
}

#[test]
fn exec_has_the_code_and_the_streams_of_the_process() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&[], "exec sleep 1000");
    let ran = podman.call(&["exec", "one", "/bin/sh", "-c", "echo out; echo err >&2; exit 5"]);
    assert_eq!(ran.assert_code(5).out(), "out");
    assert!(ran.err().starts_with("err"), "{ran}");
}

#[test]
fn exec_has_the_code_127_for_a_program_that_is_not_found() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&[], "exec sleep 1000");
    podman.call(&["exec", "one", "no-such-program"]).assert_code(127);
}

#[test]
fn exec_has_the_user_and_the_folder_that_are_asked_for() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&[], "exec sleep 1000");
    let ran = podman.call(&[
        "exec",
        "--user",
        "1234:2345",
        "--workdir",
        "/tmp",
        "--env",
        "A=x",
        "one",
        "/bin/sh",
        "-c",
        "id -u; id -g; pwd; echo $A",
    ]);
    ran.assert_says("1234\n2345\n/tmp\nx");
}

#[test]
fn logs_has_what_a_container_has_said() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&[], "echo one; echo two");
    podman.call(&["wait", "one"]).assert_says("0");
    podman.call(&["logs", "one"]).assert_says("one\ntwo");
}

#[test]
fn wait_has_the_code_of_a_container_that_was_stopped() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&[], "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done");
    eventually("it is ready", || podman.call(&["logs", "one"]).out().contains("ready").then_some(()));
    podman.call(&["stop", "one"]).assert_code(0);
    podman.call(&["wait", "one"]).assert_says("9");
}

#[test]
fn a_stopped_container_starts_again() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&[], "exit 3");
    podman.call(&["wait", "one"]).assert_says("3");
    podman.call(&["start", "one"]).assert_code(0);
    podman.call(&["wait", "one"]).assert_says("3");
}

#[test]
fn kill_ends_a_container() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&[], "exec sleep 1000");
    podman.call(&["kill", "one"]).assert_code(0);
    podman.call(&["wait", "one"]).assert_says("137");
}

#[test]
fn pause_and_unpause_change_the_status() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&[], "exec sleep 1000");
    let status = || podman.call(&["inspect", "--format", "{{.State.Status}}", "one"]);
    podman.call(&["pause", "one"]).assert_code(0);
    status().assert_says("paused");
    podman.call(&["unpause", "one"]).assert_code(0);
    status().assert_says("running");
}

#[test]
fn a_health_check_has_the_code_of_its_command() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&["--health-cmd", "test -e /tmp/well", "--health-interval", "disable"], "exec sleep 1000");
    podman.call(&["healthcheck", "run", "one"]).assert_code(1);
    podman.call(&["exec", "one", "touch", "/tmp/well"]).assert_code(0);
    podman.call(&["healthcheck", "run", "one"]).assert_code(0);
}

#[test]
fn stdin_is_passed_on() {
    let host = Host::new();
    let podman = Podman::new(&host);
    let text = host.file("text", "from the caller\n");
    let parent = format!("/{}", host.prefix());
    let run = podman.command(&podman.arguments(&parent, &["--rm", "-i"], &["cat"]));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let process = host.spawn_command_with(run, fs::File::open(text).expect("ours").into(), writer.into());
    process.finish().assert_code(0);
    assert_eq!(std::io::read_to_string(reader).expect("a pipe"), "from the caller\n");
}

#[test]
fn a_terminal_is_passed_on() {
    let host = Host::new();
    let podman = Podman::new(&host);
    let parent = format!("/{}", host.prefix());
    let script = "test -t 1 && echo ready; read line; echo \"<$line>\"; exit 3";
    let run = podman.command(&podman.arguments(&parent, &["--rm", "-it"], &["/bin/sh", "-c", script]));
    let terminal = host.command_in_terminal(&run);
    terminal.wait_for("ready");
    terminal.type_keys("knot\r");
    terminal.wait_for("<knot>");
    terminal.finish().assert_code(3);
}

#[test]
fn a_user_namespace_with_given_maps_is_made() {
    let host = Host::new();
    let podman = Podman::new(&host);
    let flags = ["--rm", "--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"];
    let ran = podman.sh(&flags, "awk '{ print $1, $2, $3 }' /proc/self/uid_map; id -u");
    ran.assert_says("0 100000 65536\n0");
}

#[test]
fn limits_are_set() {
    let host = Host::new();
    let podman = Podman::new(&host);
    let flags = ["--rm", "--ulimit", "nofile=99:99", "--ulimit", "nproc=999:999"];
    podman.sh(&flags, "ulimit -n; ulimit -u").assert_says("99\n999");
}

#[test]
fn further_groups_are_set() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.sh(&["--rm", "--user", "1234:2345", "--group-add", "4000"], "id -G").assert_says("2345 4000");
}

#[test]
fn nothing_is_left_of_a_container_with_rm() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.sh(&["--rm"], "exit 0").assert_code(0);
    podman.runtime.call(&["list", "-q"]).assert_says("");
    podman.call(&["ps", "--all", "--quiet"]).assert_says("");
}

#[test]
fn a_memory_limit_is_that_of_the_cgroup() {
    let host = Host::new();
    let podman = Podman::new(&host);
    podman.detached(&["--memory", "64m"], "exec sleep 1000");
    let ran = podman.call(&["inspect", "--format", "{{.State.Pid}}", "one"]);
    let pid: i32 = ran.assert_code(0).out().parse().expect("a pid");
    let file = if bowline_tests::harness::only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    let groups = bowline_tests::harness::cgroup_of(pid);
    let path = groups.get("memory").or_else(|| groups.get("")).expect("a cgroup");
    let folder = bowline_tests::harness::hierarchy("memory").join(path.trim_start_matches('/'));
    assert_eq!(fs::read_to_string(folder.join(file)).expect("it is there").trim_end(), (64 << 20).to_string());
}

#[test]
fn containers_of_a_pod_share_its_namespaces() {
    let host = Host::new();
    let podman = Podman::new(&host);
    let parent = format!("/{}", host.prefix());
    let infra = ["--infra-image", IMAGE, "--infra-command", "/bin/sleep 1000", "--network", "none"];
    let create = ["pod", "create", "--name", "pod", "--share", "pid,ipc,uts", "--cgroup-parent", &parent];
    let pod = podman.call(&[&create[..], &infra].concat()).assert_code(0).out();
    // In the hierarchies that it does not know.
    podman.runtime.leaves_cgroup(&pod);
    let flags = ["run", "--detach", "--network", "none", "--pod", "pod", "--name", "one"];
    let run = podman.command(&[&flags[..], &[IMAGE, "sleep", "2000"]].concat());
    podman.runtime.apart("podman", run).assert_code(0);
    podman.call(&["exec", "one", "/bin/sh", "-c", "tr '\\0' ' ' </proc/1/cmdline"]).assert_says("/bin/sleep 1000 ");
    // The first process of the pod does not end by TERM.
    podman.call(&["pod", "stop", "--time", "0", "pod"]).assert_code(0);
    podman.call(&["wait", "one"]).assert_says("137");
    podman.call(&["pod", "rm", "--force", "pod"]).assert_code(0);
    podman.runtime.call(&["list", "-q"]).assert_says("");
}

#[test]
fn the_caller_s_groups_are_kept_on_request() {
    let host = Host::new();
    if host.reference_fails("the annotation is crun's") {
        return;
    }
    let podman = Podman::new(&host);
    let parent = format!("/{}", host.prefix());
    let flags = ["--rm", "--user", "1000:2000", "--group-add", "keep-groups"];
    let run = podman.command(&podman.arguments(&parent, &flags, &["id", "-G"]));
    let mut command = host.command("setpriv");
    command.args(["--groups", "4444"]).arg(run.get_program()).args(run.get_args());
    command.env("CONTAINERS_CONF", host.work().join("containers.conf"));
    host.execute(command).assert_says("2000 4444");
}

#[test]
fn build_runs_its_commands() {
    let host = Host::new();
    let podman = Podman::new(&host);
    host.file("Containerfile", &format!("FROM {IMAGE}\nRUN echo built >/file\n"));
    let folder = host.work().display().to_string();
    let build = ["build", "--isolation", "oci", "--network", "none", "--tag", "localhost/built", &folder];
    podman.call(&build).assert_code(0);
    let parent = format!("/{}", host.prefix());
    podman
        .call(&["run", "--rm", "--network", "none", "--cgroup-parent", &parent, "localhost/built", "cat", "/file"])
        .assert_says("built");
}

#[test]
fn systemd_makes_its_cgroups() {
    let host = Host::new();
    if !has_systemd() {
        return;
    }
    let mut podman = Podman::new(&host);
    podman.manager = "systemd";
    let flags = ["run", "--detach", "--name", "one", "--network", "none", "--memory", "64m"];
    // A property of the scope, by an annotation.
    let timeout = ["--stop-timeout", "7"];
    let run = podman.command(&[&flags[..], &timeout, &[IMAGE, "sleep", "1000"]].concat());
    let ran = podman.runtime.apart("podman", run);
    let id = ran.assert_code(0).out();
    let scope = format!("libpod-{id}.scope");
    let shown =
        host.execute(with(host.command("systemctl"), &["show", "--property", "TimeoutStopUSec", "--value", &scope]));
    shown.assert_says("7s");
    podman.call(&["exec", "one", "true"]).assert_code(0);
    podman.call(&["rm", "--force", "--time", "0", "one"]).assert_code(0);
    assert_forgotten(&scope);
}

fn with(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}
