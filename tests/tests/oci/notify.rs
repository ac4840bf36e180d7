//! Below a service manager that waits for messages of sd_notify(3): it learns that the container is ready, and of its init.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::containerd::is_reference;
use bowline_tests::harness::eventually;
use bowline_tests::harness::oci::{Container, Runtime};

use super::SLEEPS;

/// A service manager.
struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(host: &Host) -> Manager {
        let path = host.work().join("manager");
        let socket = UnixDatagram::bind(&path).expect("a short path");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        Manager { socket, path: path.to_str().expect("ASCII").to_owned() }
    }

    fn asks(&self, mut command: Command) -> Command {
        command.env("NOTIFY_SOCKET", &self.path);
        command
    }

    /// A container that it has had created.
    fn created<'r>(&self, runtime: &'r Runtime<'_>, script: &str) -> Container<'r> {
        let bundle = runtime.bundle().script(script);
        let create = runtime.command(&["create", "--bundle", bundle.path.to_str().expect("ASCII"), &bundle.id]);
        runtime.apart(&bundle.id, self.asks(create)).assert_code(0);
        runtime.adopt(bundle)
    }

    /// What it is told, up to this.
    #[track_caller]
    fn hears_until(&self, last: &str) -> String {
        let mut heard = String::new();
        while !heard.contains(last) {
            let mut message = [0; 4096];
            let length = self.socket.recv(&mut message).expect("a message");
            heard += &String::from_utf8_lossy(&message[..length]);
        }
        heard
    }
}

/// What a process of the container sends.
fn say(container: &Container<'_>, message: &str) {
    let socket = format!("/proc/{}/root/run/notify/notify.sock", container.pid());
    let own = UnixDatagram::unbound().expect("a socket");
    eventually("it can be sent", || own.send_to(message.as_bytes(), &socket).ok());
}

#[test]
fn a_container_finds_the_socket_by_its_variable() {
    let host = Host::new();
    let (runtime, manager) = (host.oci(), Manager::new(&host));
    let container = manager.created(&runtime, "test -d /run/notify && echo $NOTIFY_SOCKET");
    // Without the manager's variable nobody is waited for.
    container.call("start", &[]).assert_code(0);
    container.wait_for("/run/notify/notify.sock\n");
}

#[test]
fn start_ends_once_the_container_is_ready() {
    let host = Host::new();
    let (runtime, manager) = (host.oci(), Manager::new(&host));
    let container = manager.created(&runtime, SLEEPS);
    let start = host.spawn_command(manager.asks(runtime.command(&["start", &container.id])));
    container.wait_for("ready");
    say(&container, "STATUS=on the way\n");
    say(&container, "READY=1\n");
    let heard = manager.hears_until(&format!("MAINPID={}\n", container.pid()));
    assert!(heard.starts_with("READY=1\n"), "{heard}");
    if !is_reference() {
        // runc has it since 1.2.
        manager.hears_until("BARRIER=1");
    }
    start.finish().assert_code(0);
    assert_eq!(container.status(), "running");
}

#[test]
fn start_ends_with_a_container_that_is_never_ready() {
    let host = Host::new();
    let (runtime, manager) = (host.oci(), Manager::new(&host));
    let container = manager.created(&runtime, "exit 7");
    host.execute(manager.asks(runtime.command(&["start", &container.id]))).assert_code(0);
    container.wait_until("stopped");
}

#[test]
fn run_says_that_the_container_is_ready() {
    let host = Host::new();
    let (runtime, manager) = (host.oci(), Manager::new(&host));
    let bundle = runtime.bundle().script("read line; exit 3");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut run = manager.asks(runtime.run_command(&bundle, &[]));
    run.stdin(reader);
    let mut run = run.spawn().expect("it is executable");
    let container = runtime.adopt(bundle);
    eventually("it runs", || (container.call("state", &[]).code == Some(0)).then_some(()));
    container.wait_until("running");
    say(&container, "READY=1\n");
    let heard = manager.hears_until("READY=1");
    assert!(!heard.contains("MAINPID"), "{heard}");
    drop(writer);
    assert_eq!(run.wait().expect("a child").code(), Some(3));
}

#[test]
fn a_second_start_does_not_take_the_socket() {
    let host = Host::new();
    if host.reference_fails("runc binds it before it looks at the state") {
        return;
    }
    let (runtime, manager) = (host.oci(), Manager::new(&host));
    let container = manager.created(&runtime, SLEEPS);
    let start = host.spawn_command(manager.asks(runtime.command(&["start", &container.id])));
    container.wait_for("ready");
    host.execute(manager.asks(runtime.command(&["start", &container.id]))).assert_code(1);
    say(&container, "READY=1\n");
    manager.hears_until("BARRIER=1");
    start.finish().assert_code(0);
}
