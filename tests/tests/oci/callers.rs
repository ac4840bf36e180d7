//! Callers of a runtime, for real: conmon, and containerd's shim for runc with the program in the place of runc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, is_reference};
use bowline_tests::harness::oci::{Container, Runtime};
use bowline_tests::harness::{Daemon, eventually};

use super::SLEEPS;

/// conmon with one container, as Podman runs it.
struct Conmon<'r> {
    container: Container<'r>,
    exits: PathBuf,
    log: PathBuf,
}

/// Has conmon create the container of a bundle.
#[track_caller]
fn conmon<'r>(host: &Host, runtime: &'r Runtime<'_>, bundle: Bundle, flags: &[&str]) -> Conmon<'r> {
    let folder = host.work().join("conmon");
    for name in ["exits", "persist", "sockets"] {
        fs::create_dir_all(folder.join(name)).expect("the work folder is writable");
    }
    let at = |name: &str| folder.join(name).to_str().expect("ASCII").to_owned();
    let mut conmon = host.command("conmon");
    conmon.args(["--api-version", "1", "-c", &bundle.id, "-u", &bundle.id, "-n", &bundle.id]);
    conmon.arg("-r").arg(runtime.wrapper()).arg("-b").arg(&bundle.path);
    conmon.args(["-p", &at("pid"), "--exit-dir", &at("exits"), "--persist-dir", &at("persist")]);
    conmon.args(["--socket-dir-path", &at("sockets"), "-l", &format!("k8s-file:{}", at("log"))]).args(flags);
    let sync = folder.join("sync");
    let mut shell = host.command("sh");
    shell.args(["-c", &format!("_OCI_SYNCPIPE=3 exec \"$@\" 3>{}", sync.display()), "sh"]);
    shell.arg(conmon.get_program()).args(conmon.get_args());
    runtime.apart("conmon", shell).assert_code(0);
    let created = eventually("conmon says what came of it", || {
        let text = fs::read_to_string(&sync).unwrap_or_default();
        text.contains('}').then_some(text)
    });
    let pid = fs::read_to_string(at("pid")).unwrap_or_default();
    assert!(created.contains(&format!("\"data\": {pid}")) && !pid.is_empty(), "{created}");
    let exits = folder.join("exits").join(&bundle.id);
    Conmon { container: runtime.adopt(bundle), exits, log: folder.join("log") }
}

impl Conmon<'_> {
    #[track_caller]
    fn code(&self) -> String {
        eventually("the exit file", || fs::read_to_string(&self.exits).ok().filter(|text| !text.is_empty()))
    }
}

#[test]
fn conmon_gets_the_code_of_init() {
    let host = Host::new();
    let runtime = host.oci();
    let conmon = conmon(&host, &runtime, runtime.bundle().script("exit 7"), &[]);
    conmon.container.call("start", &[]).assert_code(0);
    assert_eq!(conmon.code(), "7");
}

#[test]
fn conmon_gets_the_signal_that_ended_init() {
    let host = Host::new();
    let runtime = host.oci();
    let conmon = conmon(&host, &runtime, runtime.bundle().script(SLEEPS), &[]);
    conmon.container.call("start", &[]).assert_code(0);
    conmon.container.kill("KILL").assert_code(0);
    assert_eq!(conmon.code(), "137");
}

#[test]
fn conmon_logs_both_streams() {
    let host = Host::new();
    let runtime = host.oci();
    let conmon = conmon(&host, &runtime, runtime.bundle().script("echo to out; echo to err >&2"), &[]);
    conmon.container.call("start", &[]).assert_code(0);
    conmon.code();
    let log = fs::read_to_string(&conmon.log).expect("it was written");
    assert!(log.contains(" stdout F to out\n") && log.contains(" stderr F to err\n"), "{log}");
}

#[test]
fn conmon_relays_a_terminal() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().terminal().script("test -t 1 && echo a terminal");
    let conmon = conmon(&host, &runtime, bundle, &["-t"]);
    conmon.container.call("start", &[]).assert_code(0);
    assert_eq!(conmon.code(), "0");
    let log = fs::read_to_string(&conmon.log).expect("it was written");
    assert!(log.contains("a terminal"), "{log}");
}

/// `ctr run` with containerd's shim for runc, and the program under test in the place of runc.
fn ctr_run(host: &Host, daemon: &Daemon<'_>, flags: &[&str], id: &str, script: &str) -> Command {
    let cgroup = format!("/{}/{id}", host.prefix());
    let program = bowline_tests::harness::oci::program();
    let mut command = daemon.command(["run", "--runtime", "io.containerd.runc.v2", "--rootfs", "--cgroup", &cgroup]);
    command.args(["--runc-binary", program.to_str().expect("ASCII")]).args(flags).arg(daemon.root.path());
    command.args([id, "/bin/sh", "-c", script]);
    command
}

/// A container of a containerd in the background.
#[track_caller]
fn ctr_started(host: &Host, daemon: &Daemon<'_>, id: &str) {
    host.execute(ctr_run(host, daemon, &["--detach", "--null-io"], id, "exec sleep 1000")).assert_code(0);
    eventually("it runs", || (daemon.status(id)? == "RUNNING").then_some(()));
}

#[test]
fn containerd_s_shim_runs_a_container() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    let ran = host.execute(ctr_run(&host, &daemon, &["--rm"], "one", "echo out; echo err >&2; exit 7"));
    assert_eq!(ran.assert_code(7).out(), "out");
    assert!(ran.err().contains("err"), "{ran}");
    daemon.end();
}

#[test]
fn containerd_s_shim_has_the_program_called() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    ctr_started(&host, &daemon, "one");
    let folder = Path::new("/run/containerd/runc").join(host.prefix()).join("one");
    let is_ours = !folder.join("state.json").exists();
    assert!(folder.exists() && is_ours != is_reference(), "{}", folder.display());
    daemon.remove("one");
    daemon.end();
}

#[test]
fn containerd_s_shim_runs_an_exec() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    ctr_started(&host, &daemon, "one");
    let ran = daemon.ctr(["task", "exec", "--exec-id", "e", "one", "/bin/sh", "-c", "echo in it; exit 5"]);
    assert_eq!(ran.assert_code(5).out(), "in it");
    daemon.remove("one");
    daemon.end();
}

#[test]
fn containerd_s_shim_pauses_and_resumes() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    ctr_started(&host, &daemon, "one");
    daemon.ctr(["task", "pause", "one"]).assert_code(0);
    eventually("it is paused", || (daemon.status("one")? == "PAUSED").then_some(()));
    daemon.ctr(["task", "resume", "one"]).assert_code(0);
    eventually("it runs", || (daemon.status("one")? == "RUNNING").then_some(()));
    daemon.remove("one");
    daemon.end();
}

#[test]
fn containerd_s_shim_lists_processes() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    ctr_started(&host, &daemon, "one");
    let ran = daemon.ctr(["task", "ps", "one"]);
    assert!(ran.assert_code(0).out().contains(&daemon.task_pid("one").to_string()), "{ran}");
    daemon.remove("one");
    daemon.end();
}

#[test]
fn containerd_s_shim_relays_a_terminal() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    let run = ctr_run(&host, &daemon, &["--rm", "--tty"], "one", "echo ready; read line; echo \"<$line>\"; exit 3");
    let terminal = host.command_in_terminal(&run);
    terminal.wait_for("ready");
    terminal.type_keys("knot\r");
    terminal.wait_for("<knot>");
    terminal.finish().assert_code(3);
    daemon.end();
}

#[test]
fn containerd_names_a_program_that_is_not_found() {
    let host = Host::new();
    let Some(daemon) = host.daemon() else { return };
    let cgroup = format!("/{}/one", host.prefix());
    let program = bowline_tests::harness::oci::program();
    let mut run =
        daemon.command(["run", "--rm", "--runtime", "io.containerd.runc.v2", "--rootfs", "--cgroup", &cgroup]);
    run.args(["--runc-binary", program.to_str().expect("ASCII")]).arg(daemon.root.path()).args(["one", "nope"]);
    let ran = host.execute(run);
    assert!(ran.code != Some(0), "{ran}");
    assert!(ran.err().contains("nope") && ran.err().contains("executable file not found"), "{ran}");
    daemon.ctr(["container", "rm", "one"]);
    daemon.end();
}
