//! `exec`: its code, its flags, and in which states.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{cgroup_of, eventually, hierarchy, namespace_of, only_v2, process_exists};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::json;

use super::SLEEPS;

#[test]
fn its_code_is_that_of_the_process() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.sh(&[], "exit 7").assert_code(7);
}

#[test]
fn its_code_is_128_and_the_signal_that_ended_the_process() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.sh(&[], "kill -KILL $$").assert_code(137);
}

#[test]
fn its_own_errors_have_the_code_255() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.call(&["exec", "nobody", "true"]);
    ran.assert_code(255);
    assert!(ran.err().contains("does not exist"), "{ran}");
}

#[test]
fn a_program_that_is_not_found_has_the_code_255() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let ran = container.exec(&[], &["no-such-program"]);
    ran.assert_code(255);
    assert!(ran.err().contains("no-such-program") && ran.err().contains("executable file not found in"), "{ran}");
}

#[test]
fn a_program_that_may_not_be_executed_has_the_code_255() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let ran = container.exec(&[], &["/etc/passwd"]);
    ran.assert_code(255);
    assert!(ran.err().contains("/etc/passwd") && ran.err().contains("permission denied"), "{ran}");
}

#[test]
fn the_program_that_joins_cannot_be_overwritten() {
    let host = Host::new();
    if host.reference_fails("runc 1.1 runs from a copy in memory") {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let exec = runtime.spawn(&["exec", &container.id, "/bin/sh", "-c", "echo begun; exec sleep 1000"]);
    exec.wait_for_out("begun");
    let opened = fs::OpenOptions::new().append(true).open(format!("/proc/{}/exe", exec.pid()));
    let refused = opened.expect_err("nobody may write to it").raw_os_error().expect("by the kernel");
    // Not ETXTBSY alone: it must hold once the program has ended too.
    assert!([Errno::ROFS, Errno::PERM].contains(&Errno::from_raw_os_error(refused)), "{refused}");
    exec.signal(Signal::TERM);
    exec.finish();
}

#[test]
fn its_streams_are_the_callers() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let ran = container.sh(&[], "echo out; echo err >&2");
    ran.assert_says("out");
    assert_eq!(ran.err(), "err");
}

#[test]
fn it_is_in_the_namespaces_of_the_container() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    for kind in ["pid", "mnt", "net", "ipc", "uts"] {
        let link = format!("/proc/self/ns/{kind}");
        container.exec(&[], &["readlink", &link]).assert_says(&namespace_of(container.pid(), kind));
    }
}

#[test]
fn it_is_in_the_cgroup_of_the_container() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    runtime.call_apart("exec", &["exec", "--detach", &container.id, "sleep", "1001"]).assert_code(0);
    eventually("both are in it", || (runtime.cgroup(&container.bundle).pids().len() == 2).then_some(()));
}

#[test]
fn flags_after_the_id_are_the_commands() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.exec(&[], &["echo", "--cwd", "-t"]).assert_says("--cwd -t");
}

#[test]
fn the_process_comes_from_a_file() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let file = container.process_file(&["/bin/sh", "-c", "echo $A in $PWD; exit 5"], |process| {
        process["cwd"] = json!("/tmp");
        process["env"].as_array_mut().expect("a list").push(json!("A=a"));
    });
    let ran = container.exec(&["--process", &file], &[]);
    assert_eq!(ran.assert_code(5).out(), "a in /tmp");
}

#[test]
fn a_file_without_json_is_refused_by_its_name() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let file = host.file("process.json", "{");
    let ran = container.exec(&["--process", file.to_str().expect("ASCII")], &[]);
    ran.assert_code(255);
    if !bowline_tests::harness::containerd::is_reference() {
        assert!(ran.err().contains("process.json"), "{ran}");
    }
}

#[test]
fn cwd_is_the_working_folder() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.exec(&["--cwd", "/tmp"], &["pwd"]).assert_says("/tmp");
}

#[test]
fn env_adds_variables() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.sh(&["--env", "A=1", "--env", "B=2"], "echo $A$B").assert_says("12");
}

#[test]
fn detach_returns_while_the_process_runs() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let file = host.work().join("pid");
    let flags = ["--detach", "--pid-file", file.to_str().expect("ASCII")];
    let arguments = [&["exec"], &flags[..], &[&container.id, "sleep", "1001"]].concat();
    runtime.call_apart("exec", &arguments).assert_code(0);
    let pid: i32 = fs::read_to_string(&file).expect("it was written").parse().expect("a pid");
    assert!(process_exists(pid) && pid != container.pid());
    let words = fs::read(format!("/proc/{pid}/cmdline")).expect("it runs");
    assert_eq!(words, b"sleep\x001001\0");
}

#[test]
fn an_attached_exec_writes_a_pid_file_too() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let file = host.work().join("pid");
    container.sh(&["--pid-file", file.to_str().expect("ASCII")], "true").assert_code(0);
    let pid: i32 = fs::read_to_string(&file).expect("it was written").parse().expect("a pid");
    assert!(pid > 1 && pid != container.pid());
}

#[test]
fn it_runs_in_a_created_container() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    container.sh(&[], "echo in it").assert_says("in it");
    assert_eq!(container.status(), "created");
}

#[test]
fn it_is_refused_in_a_stopped_container() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script("exit 0"));
    container.wait_until("stopped");
    let ran = container.sh(&[], "true");
    ran.assert_code(255);
    assert!(ran.err().contains("stopped"), "{ran}");
}

#[test]
fn cgroup_puts_it_into_those_of_some_controllers() {
    let host = Host::new();
    if only_v2() {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let own = cgroup_of(container.pid());
    for controller in ["pids", "freezer", "memory"] {
        let folder = hierarchy(controller).join(own[controller].trim_start_matches('/')).join("below");
        fs::create_dir(folder).expect("root may");
    }
    let flags = ["--cgroup", "pids:below", "--cgroup", "freezer:below"];
    let ran = container.exec(&flags, &["cat", "/proc/self/cgroup"]);
    for line in ran.assert_code(0).out().lines() {
        let is_below = [":pids:", ":freezer:"].iter().any(|name| line.contains(name));
        assert_eq!(line.ends_with("/below"), is_below, "{ran}");
    }
    let ran = container.exec(&["--cgroup", "pids:nowhere"], &["true"]);
    ran.assert_code(255);
    container.exec(&["--cgroup", "devices:below"], &["true"]).assert_code(255);
}

#[test]
fn the_file_of_a_process_may_be_a_pipe_of_the_caller() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let file = container.process_file(&["echo", "hello"], |_| {});
    let exec = runtime.command(&["exec", "--process", "/dev/fd/7", &container.id]);
    let mut command = host.command("bash");
    command.args(["-c", &format!("exec 7< <(cat {file}); exec \"$@\""), "bash"]);
    command.arg(exec.get_program()).args(exec.get_args());
    host.execute(command).assert_says("hello");
}

#[test]
fn it_is_refused_in_a_paused_container() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.call("pause", &[]).assert_code(0);
    let ran = container.sh(&[], "true");
    ran.assert_code(255);
    assert!(ran.err().contains("paused"), "{ran}");
}

#[test]
fn with_ignore_paused_it_goes_on_at_the_resume() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.call("pause", &[]).assert_code(0);
    let mut exec = runtime.spawn(&["exec", "--ignore-paused", &container.id, "echo", "late"]);
    eventually("it waits in the cgroup", || (runtime.cgroup(&container.bundle).pids().len() > 1).then_some(()));
    assert!(exec.is_running() && exec.said().is_empty());
    container.call("resume", &[]).assert_code(0);
    exec.finish().assert_says("late");
}

#[test]
fn no_command_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let ran = container.exec(&[], &[]);
    ran.assert_code(255);
}

#[test]
fn many_at_once_each_have_their_code() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let codes = [3, 4, 5, 6];
    let all = codes.map(|code| runtime.spawn(&["exec", &container.id, "sh", "-c", &format!("exit {code}")]));
    assert_eq!(all.map(|exec| exec.finish().code), codes.map(Some));
}
