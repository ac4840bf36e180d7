//! With systemd as the manager: in the virtual machine.

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Build, Task, assert_shows, binary, eventually, lacks_systemd, show, systemctl};

use super::SAY;

/// A unit that systemd-run makes, until this is dropped.
struct Unit {
    name: String,
}

impl Unit {
    fn new(host: &Host) -> Unit {
        Unit { name: format!("unit-{}", host.new_id()) }
    }

    /// systemd-run with these flags, of `bowline VERB` for a task.
    fn command(&self, host: &Host, flags: &[&str], build: &Build<'_>, verb: &str) -> Command {
        let bowline = build.command(verb);
        let mut command = host.command("systemd-run");
        command.args(["--quiet", "--setenv=BOWLINE_STATE", "--setenv=BOWLINE_TEST", "--unit", &self.name]).args(flags);
        command.arg("--").arg(binary("bowline")).args(bowline.get_args().map(escaped));
        command
    }

    fn service(&self) -> String {
        format!("{}.service", self.name)
    }
}

/// As systemd takes an argument for what it is.
fn escaped(argument: &OsStr) -> String {
    argument.to_str().expect("text").replace('$', "$$").replace('%', "%%")
}

impl Drop for Unit {
    fn drop(&mut self) {
        for (verb, kind) in [("stop", "socket"), ("stop", "service"), ("reset-failed", "service")] {
            let _ = Command::new("systemctl").args([verb, "--quiet", &format!("{}.{kind}", self.name)]).output();
        }
    }
}

fn is_ready_once(task: &Task<'_>, condition: &str) -> String {
    format!("{SAY} until [ -e /tmp/{condition} ]; do sleep 0.05; done; say 'READY=1\nSTATUS={} is up'; ", task.id())
}

#[test]
fn a_unit_is_up_once_its_task_says_so() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let (unit, task) = (Unit::new(&host), host.adopt(host.new_id()));
    let script = is_ready_once(&task, "go") + "exec sleep 1000";
    let build = host.task(&script).named(task.id()).flag("--rm");
    let flags = ["--service-type=notify", "--property=SuccessExitStatus=143"];
    let mut starting = host.spawn_command(unit.command(&host, &flags, &build, "run"));
    task.wait_until_running();
    assert_shows(&unit.service(), &["ActiveState=activating"]);
    assert!(starting.is_running());
    task.exec("touch /tmp/go").assert_code(0);
    starting.finish().assert_code(0);
    assert_shows(&unit.service(), &["ActiveState=active", &format!("StatusText={} is up", task.id())]);
    let main = show(&unit.service(), "MainPID");
    let main = fs::read_to_string(format!("/proc/{}/comm", main.trim_start_matches("MainPID="))).expect("it runs");
    assert_eq!(main, "bowline\n", "`run` stays the main process");
    systemctl(&["stop", &unit.service()]);
    assert_shows(&unit.service(), &["ActiveState=inactive"]);
    assert!(!task.file("").exists());
    host.assert_nothing_left();
}

#[test]
fn a_unit_whose_task_is_silent_is_stopped_by_its_watchdog() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let unit = Unit::new(&host);
    let build = host.task(&format!("{SAY} say READY=1; exec sleep 1000")).flag("--rm");
    let flags = ["--service-type=notify", "--property=WatchdogSec=3s", "--property=WatchdogSignal=SIGTERM"];
    host.execute(unit.command(&host, &flags, &build, "run")).assert_code(0);
    eventually("the watchdog ends it", || (show(&unit.service(), "Result") == "Result=watchdog").then_some(()));
    eventually("it is removed", || (!host.state().join(build.id()).exists()).then_some(()));
    host.assert_nothing_left();
}

#[test]
fn a_socket_of_systemd_s_starts_the_task_that_answers() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let (unit, path) = (Unit::new(&host), host.work().join("socket"));
    let answer = "exec perl -MIO::Socket -e 'open $l, q(+<&=), 3; accept($c, $l) or die $!; \
                  print $c qq($ENV{LISTEN_FDNAMES} ), $ENV{LISTEN_PID} == $$ ? 1 : 0, qq(\\n)'";
    let build = host.task(answer).flag("--rm");
    let listen = format!("--socket-property=ListenStream={}", path.display());
    let flags = [listen.as_str(), "--socket-property=FileDescriptorName=web", "--service-type=exec"];
    host.execute(unit.command(&host, &flags, &build, "run")).assert_code(0);
    assert_shows(&unit.service(), &["ActiveState=inactive"]);
    let mut said = String::new();
    UnixStream::connect(&path).expect("systemd listens").read_to_string(&mut said).expect("an answer");
    assert_eq!(said, "web 1\n");
    eventually("it has ended", || (show(&unit.service(), "ActiveState") == "ActiveState=inactive").then_some(()));
    drop(unit);
    host.assert_nothing_left();
}

#[test]
fn init_of_a_started_task_is_the_main_process_of_a_unit() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let unit = Unit::new(&host);
    let build = host.task("exec sleep 1000");
    host.execute(unit.command(&host, &["--service-type=notify"], &build, "start")).assert_code(0);
    let task = host.adopt(build.id());
    assert_shows(&unit.service(), &["ActiveState=active", &format!("MainPID={}", task.pid())]);
    systemctl(&["stop", &unit.service()]);
    task.wait();
    host.assert_nothing_left();
}

#[test]
fn a_shim_whose_pid_is_in_a_file_is_the_main_process_of_a_unit() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let file = host.work().join("pid");
    let (flag, property) = (format!("--pid-file={}", file.display()), format!("--property=PIDFile={}", file.display()));
    for ends_itself in [false, true] {
        let unit = Unit::new(&host);
        let polite = "trap 'exit 6' TERM; echo ready; while :; do sleep 0.05; done";
        let build = host.task(polite).flag(&flag);
        host.execute(unit.command(&host, &["--service-type=forking", &property], &build, "start")).assert_code(0);
        let task = host.adopt(build.id());
        assert_shows(&unit.service(), &["ActiveState=active", &format!("MainPID={}", task.shim_pid())]);
        task.wait_for_line("ready");
        match ends_itself {
            true => drop(task.stop([])),
            false => systemctl(&["stop", &unit.service()]),
        }
        task.wait().assert_code(6);
        let ended = || (show(&unit.service(), "ActiveState") == "ActiveState=inactive").then_some(());
        eventually("the unit has ended", ended);
    }
    host.assert_nothing_left();
}

/// Under each of these settings a task runs, or the error names the setting.
#[test]
fn settings_of_a_unit_are_named_where_no_task_runs_under_them() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let state = format!("ReadWritePaths={} /var/lib", host.state().parent().expect("a folder").display());
    let needed = format!("the unit's `ProtectSystem=strict` needs `{state}`");
    let refused: [(&[&str], &str); 7] = [
        (&["PrivateDevices=yes"], "remove `PrivateDevices=` from the unit: no task can run with it"),
        (&["ProtectControlGroups=yes"], "remove `ProtectControlGroups=` from the unit: no task can run with it"),
        (&["RestrictNamespaces=yes"], "remove `RestrictNamespaces=` from the unit: no task can run with it"),
        (&["RestrictNamespaces=~user"], "remove `RestrictNamespaces=` from the unit: no task can run with it"),
        (&["PrivateUsers=yes"], "remove `PrivateUsers=` from the unit: no task can run with it"),
        (&["CapabilityBoundingSet=CAP_KILL"], "remove `CapabilityBoundingSet=` from the unit: no task can run with it"),
        (&["ProtectSystem=strict"], &needed),
    ];
    let run = |properties: &[&str], verb: &str| {
        let properties: Vec<String> = properties.iter().map(|property| format!("--property={property}")).collect();
        let mut flags: Vec<&str> = properties.iter().map(String::as_str).collect();
        flags.extend(["--wait", "--pipe", "--collect"]);
        let build = host.task("echo it runs").flag("--rm");
        host.execute(Unit::new(&host).command(&host, &flags, &build, verb))
    };
    for (properties, hint) in refused {
        let ran = run(properties, "run");
        ran.assert_code(125);
        // Behind the error's own hint, if it has one.
        let named = ran.err().lines().last().is_some_and(|line| line.starts_with("hint: ") && line.ends_with(hint));
        assert!(named, "{properties:?}: {ran}");
    }
    let runs: [&[&str]; 6] = [
        &["ProtectSystem=strict", &state],
        &["NoNewPrivileges=yes", "ProtectKernelTunables=yes", "ProtectKernelModules=yes", "ProtectKernelLogs=yes"],
        &["ProtectHome=yes", "ProtectProc=invisible", "ProtectHostname=yes", "ProtectClock=yes"],
        &["PrivateNetwork=yes", "RestrictAddressFamilies=AF_UNIX AF_NETLINK"],
        &[
            "MemoryDenyWriteExecute=yes",
            "RestrictSUIDSGID=yes",
            "LockPersonality=yes",
            "SystemCallArchitectures=native",
        ],
        &["Delegate=yes", "UMask=0777", "KeyringMode=private", "DevicePolicy=closed"],
    ];
    for properties in runs {
        run(properties, "run").assert_says("it runs");
    }
    host.assert_nothing_left();
}
