//! Sockets to listen at, as sd_listen_fds(3) finds them.

use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Build, fds_of};

const TELLS: &str =
    "echo $LISTEN_FDS $LISTEN_FDNAMES $(($LISTEN_PID == $$)); cat <&3; cat <&4; [ -e /proc/self/fd/5 ] || echo no more";

/// `bowline VERB` with `said` of its sockets, which are two files.
fn with_two(host: &Host, build: &Build<'_>, verb: &str, said: &str) -> Command {
    let [three, four] = ["three", "four"].map(|name| host.file(name, &format!("{name}\n")));
    let script = format!("{said} exec \"$@\" 3<{} 4<{} 5</dev/null", three.display(), four.display());
    build.under(["sh", "-c", &script, "sh"], verb)
}

const SAID: &str = "export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=a:b;";

#[test]
fn they_are_those_of_the_command_whose_pid_is_named() {
    let host = Host::new();
    // Below an init, as init itself, as a user.
    for lines in ["", "init = false", "user = '1000:1000'"] {
        let build = host.task(TELLS).flag("--rm").toml(lines);
        let command = with_two(&host, &build, "run", SAID);
        host.execute(command).assert_says("2 a:b 1\nthree\nfour\nno more");
    }
    let build = host.task(TELLS).flag("--rm").flag("--untrusted");
    host.execute(with_two(&host, &build, "run", SAID)).assert_says("2 a:b 1\nthree\nfour\nno more");
}

#[test]
fn a_task_in_the_background_has_them_too() {
    let host = Host::new();
    let build = host.task(&format!("{TELLS}; exec sleep 1000"));
    host.execute(with_two(&host, &build, "start", SAID)).assert_says(build.id());
    let task = host.adopt(build.id());
    task.wait_for_line("no more");
    assert_eq!(task.said("stdout"), "2 a:b 1\nthree\nfour\nno more\n");
    task.exec("echo ${LISTEN_FDS-none} ${LISTEN_PID-none}").assert_says("none none");
    // Neither its init nor its shim has them.
    for pid in [task.pid(), task.shim_pid()] {
        let fds = fds_of(pid);
        assert!(!format!("{fds:?}").contains("three"), "{fds:?}");
    }
    task.end();
    host.assert_nothing_left();
}

#[test]
fn those_of_another_process_are_not_passed_on() {
    let host = Host::new();
    let build = host.task("echo ${LISTEN_FDS-none}; [ -e /proc/self/fd/3 ] || echo closed").flag("--rm");
    let command = with_two(&host, &build, "run", "export LISTEN_PID=1 LISTEN_FDS=2;");
    host.execute(command).assert_says("none\nclosed");
}

#[test]
fn one_that_is_not_open_is_refused() {
    let host = Host::new();
    let build = host.task("true");
    let command = build.under(["sh", "-c", "export LISTEN_PID=$$ LISTEN_FDS=9; exec \"$@\" 3</dev/null", "sh"], "run");
    host.execute(command).assert_refused(2, &["LISTEN_FDS: descriptor 4 is not open"]);
    host.assert_nothing_left();
}

#[test]
fn a_sandbox_s_shim_gets_none() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let build = host.task("true").in_sandbox(&sandbox);
    let refused = host.execute(with_two(&host, &build, "run", SAID));
    refused.assert_refused(125, &["LISTEN_FDS: the shim of sandbox"]);
}

#[test]
fn who_connects_before_the_task_runs_is_answered_by_it() {
    let host = Host::new();
    let path = host.work().join("listens");
    let listener = UnixListener::bind(&path).expect("a folder of ours");
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).expect("it is open");
    let mut early = UnixStream::connect(&path).expect("it listens");
    let answer = "exec perl -MIO::Socket -e 'open $l, q(+<&=), 3; accept($c, $l) or die $!; print $c qq(hello\\n)'";
    let build = host.task(answer).flag("--rm");
    let script = format!("export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<&{}", listener.as_raw_fd());
    // A shell may know descriptors of one digit alone.
    let client = host.spawn_command(build.under(["bash", "-c", &script, "bash"], "run"));
    drop(listener);
    let mut heard = String::new();
    early.read_to_string(&mut heard).expect("an answer");
    assert_eq!(heard, "hello\n");
    client.finish().assert_code(0);
    host.assert_nothing_left();
}
