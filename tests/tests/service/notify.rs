//! A task's messages to its manager: see sd_notify(3).

use bowline_tests::Host;
use rustix::process::Signal;

use super::{Manager, SAY};

#[test]
fn a_task_says_that_it_is_ready_from_its_client() {
    let host = Host::new();
    for manager in [Manager::new(), Manager::abstract_one()] {
        let build = host.task(&format!("{SAY} say 'READY=1\nMAINPID=1\nSTATUS=up' STOPPING=1; exit 3"));
        let (_task, client) = manager.runs(&host, &build);
        let pid = client.pid();
        assert_eq!(manager.hears(), ("READY=1\nSTATUS=up".to_owned(), pid));
        assert_eq!(manager.hears(), ("STOPPING=1".to_owned(), pid));
        client.finish().assert_code(3);
        manager.hears_nothing_more();
    }
    host.assert_nothing_left();
}

#[test]
fn every_task_can_whoever_its_user_is() {
    let host = Host::new();
    for flags in [&["--user=1000:1000"][..], &["--untrusted"], &["--read-only", "--cap-drop=ALL"], &["--network=none"]]
    {
        let manager = Manager::new();
        let build = host.task(&format!("{SAY} say READY=1"));
        let build = flags.iter().fold(build, |build, flag| build.flag(*flag));
        let (_task, client) = manager.runs(&host, &build);
        client.finish().assert_says("");
        assert_eq!(manager.hears().0, "READY=1", "{flags:?}");
    }
    host.assert_nothing_left();
}

#[test]
fn a_task_with_a_root_and_without_an_init_can_too() {
    let host = Host::new();
    let root = host.busybox_root();
    let manager = Manager::new();
    let build = host.task("ls -l $NOTIFY_SOCKET; exec sleep 1000").rootfs(root.path()).toml("init = false");
    let (task, client) = manager.runs(&host, &build);
    client.wait_for_out("/dev/notify");
    assert!(client.said().starts_with("srw-rw-rw-"), "{}", client.said());
    assert!(!root.path().join("dev/notify").exists(), "its root is left as it was");
    task.end();
    client.finish();
    host.assert_nothing_left();
}

#[test]
fn a_client_that_was_killed_holds_no_message_up() {
    let host = Host::new();
    let manager = Manager::new();
    let script =
        format!("{SAY} say READY=1; until [ -e /tmp/go ]; do sleep 0.02; done; say READY=1 >/tmp/said; exit 4");
    let (task, client) = manager.runs(&host, &host.task(&script));
    manager.hears();
    client.signal(Signal::KILL);
    client.finish();
    task.exec("touch /tmp/go").assert_code(0);
    task.wait().assert_code(4);
    manager.hears_nothing_more();
}

#[test]
fn an_exec_has_none_of_its_variables() {
    let host = Host::new();
    let manager = Manager::new();
    let (task, client) = manager.runs(&host, &host.task(&format!("{SAY} say READY=1; exec sleep 1000")));
    manager.hears();
    task.exec("echo ${NOTIFY_SOCKET-none}").assert_says("none");
    task.end();
    client.finish();
    host.assert_nothing_left();
}

#[test]
fn a_socket_that_the_description_names_is_the_task_s() {
    let host = Host::new();
    let manager = Manager::new();
    let build = host.task("echo $NOTIFY_SOCKET; [ ! -e /dev/notify ]").flag("--env=NOTIFY_SOCKET=/of/mine");
    let (_task, client) = manager.runs(&host, &build);
    client.finish().assert_says("/of/mine");
    host.assert_nothing_left();
}

#[test]
fn a_client_that_systemd_has_not_started_itself_relays_nothing() {
    let host = Host::new();
    let manager = Manager::new();
    let build = host.task("echo ${NOTIFY_SOCKET-none}").flag("--rm");
    let mut command = manager.asks(build.command("run"));
    command.env("SYSTEMD_EXEC_PID", "1");
    host.execute(command).assert_says("none");
    let ours = ["sh", "-c", "export SYSTEMD_EXEC_PID=$$; exec \"$@\"", "sh"];
    host.execute(manager.asks(host.task("echo $NOTIFY_SOCKET").flag("--rm").under(ours, "run")))
        .assert_says("/dev/notify");
}

#[test]
fn the_watchdog_is_that_of_the_command() {
    let host = Host::new();
    let manager = Manager::new();
    let build = host.task(&format!("{SAY} echo $WATCHDOG_USEC $(($WATCHDOG_PID == $$)); say WATCHDOG=1")).flag("--rm");
    let before = "export WATCHDOG_PID=$$ WATCHDOG_USEC=30000000; exec \"$@\"";
    let client = host.spawn_command(manager.asks(build.under(["sh", "-c", before, "sh"], "run")));
    client.finish().assert_says("30000000 1");
    assert_eq!(manager.hears().0, "WATCHDOG=1");
    // One that is for somebody else is not.
    let mut command = manager.asks(host.task("echo ${WATCHDOG_USEC-none}").flag("--rm").command("run"));
    command.env("WATCHDOG_PID", "1").env("WATCHDOG_USEC", "30000000");
    host.execute(command).assert_says("none");
}

#[test]
fn nothing_is_made_in_a_dev_that_is_not_the_task_s() {
    let host = Host::new();
    let (manager, dev) = (Manager::new(), host.work().join("dev"));
    std::fs::create_dir(&dev).expect("a folder of ours");
    let build = host.task("echo ${NOTIFY_SOCKET-none}").flag(format!("--volume={}:/dev", dev.display()));
    let (_task, client) = manager.runs(&host, &build);
    let ran = client.finish();
    ran.assert_says("none");
    assert_eq!(ran.err(), "bowline: NOTIFY_SOCKET has no effect: the task's /dev is not its own");
    assert_eq!(std::fs::read_dir(&dev).expect("a folder").count(), 0);
    host.assert_nothing_left();
}

#[test]
fn without_a_manager_there_is_nothing() {
    let host = Host::new();
    let task = host.task("[ ! -e /dev/notify ] && echo ${NOTIFY_SOCKET-none}; exec sleep 1000");
    let (task, client) = task.spawn();
    client.wait_for_out("none");
    assert!(!task.file("notify").exists());
    task.end();
    client.finish();
    host.assert_nothing_left();
}

#[test]
fn its_socket_goes_with_the_client() {
    let host = Host::new();
    let manager = Manager::new();
    let (task, client) = manager.runs(&host, &host.task("exit 0"));
    client.finish().assert_code(0);
    assert!(task.file("exit.json").exists() && !task.file("notify").exists());
    let fails = host.task_of(["/no/such"]);
    host.execute(manager.asks(fails.command("run"))).assert_code(127);
    host.assert_nothing_left();
}
