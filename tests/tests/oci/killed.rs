//! SIGKILL of a command at its system calls: nothing is left that `delete --force` does not remove. One call in eleven, and each
//! in `make faults`.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::Ran;
use bowline_tests::harness::containerd::Bundle;
use bowline_tests::harness::oci::{Container, Runtime};

use super::SLEEPS;
use crate::faults::{numbered, stride};

/// The first calls are those of the loader.
const LOADING: usize = 20;

/// A runtime whose calls can be killed.
fn runtime(host: &Host) -> Option<Runtime<'_>> {
    (!host.reference_fails("its threads make their calls in no order")).then(|| host.oci())
}

/// Makes a call below strace.
fn traced(host: &Host, runtime: &Runtime<'_>, flags: &[&str], arguments: &[&str]) -> Ran {
    let call = runtime.command(arguments);
    let mut command = host.command("strace");
    command.args(["-qq"]).args(flags).arg(call.get_program()).args(call.get_args());
    runtime.apart("traced", command)
}

/// Makes the call of `arguments` about a container that `prepare` has made, each time to another system call of it, and has
/// `check` look at what is left.
fn killed<C>(
    host: &Host,
    runtime: &Runtime<'_>,
    prepare: impl Fn() -> C,
    arguments: impl Fn(&C) -> Vec<String>,
    check: impl Fn(C, &str),
) {
    let log = host.work().join("calls");
    let call = |of: &C, flags: &[&str]| {
        let arguments = arguments(of);
        traced(host, runtime, flags, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let whole = prepare();
    call(&whole, &["-o", log.to_str().expect("ASCII")]).assert_code(0);
    let calls = fs::read_to_string(&log).expect("strace writes it");
    let calls = numbered(calls.lines());
    assert!(calls.len() > LOADING, "{calls:?}");
    check(whole, "not at all");
    for (name, number, _) in calls.iter().skip(LOADING).step_by(stride()) {
        let of = prepare();
        let inject = format!("inject={name}:signal=SIGKILL:when={number}");
        call(&of, &["-o", "/dev/null", "-e", &format!("trace={name}"), "-e", &inject]);
        check(of, &format!("at {name} {number}"));
    }
}

/// Nothing of the bundle's container is there once it is deleted by force.
fn assert_deleted(host: &Host, runtime: &Runtime<'_>, bundle: &Bundle, killed: &str) {
    let ran = runtime.call(&["delete", "--force", &bundle.id]);
    assert!(ran.code == Some(0), "killed {killed}: {ran}");
    runtime.assert_gone(bundle);
    let left = host.all_of_it();
    let left: Vec<_> = left.iter().filter(|thing| thing.contains(&bundle.id)).collect();
    assert!(left.is_empty(), "killed {killed}: {left:?}");
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

#[test]
fn a_create_leaves_nothing_that_delete_does_not() {
    let host = Host::new();
    let Some(runtime) = runtime(&host) else { return };
    let create = |bundle: &Bundle| owned(&["create", "--bundle", bundle.path.to_str().expect("ASCII"), &bundle.id]);
    let prepare = || runtime.bundle().script(SLEEPS);
    killed(&host, &runtime, prepare, create, |bundle, at| assert_deleted(&host, &runtime, &bundle, at));
}

#[test]
fn a_start_leaves_nothing_that_delete_does_not() {
    let host = Host::new();
    let Some(runtime) = runtime(&host) else { return };
    let prepare = || runtime.created(runtime.bundle().script(SLEEPS));
    let start = |container: &Container<'_>| owned(&["start", &container.id]);
    killed(&host, &runtime, prepare, start, |container, at| {
        let status = container.status();
        assert!(["created", "running", "stopped"].contains(&&*status), "killed {at}: {status}");
        assert_deleted(&host, &runtime, &container.bundle, at);
    });
}

#[test]
fn an_exec_leaves_nothing_that_delete_does_not() {
    let host = Host::new();
    let Some(runtime) = runtime(&host) else { return };
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let file = host.work().join("pid");
    let file = file.to_str().expect("ASCII");
    let exec = |id: &String| owned(&["exec", "--detach", "--pid-file", file, id, "sleep", "1000"]);
    killed(
        &host,
        &runtime,
        || container.id.clone(),
        exec,
        |_, at| {
            assert_eq!(container.status(), "running", "killed {at}");
            container.exec(&[], &["true"]).assert_code(0);
        },
    );
    assert_deleted(&host, &runtime, &container.bundle, "at each");
}

#[test]
fn a_delete_leaves_nothing_that_another_does_not() {
    let host = Host::new();
    let Some(runtime) = runtime(&host) else { return };
    let prepare = || runtime.created(runtime.bundle().script(SLEEPS));
    let delete = |container: &Container<'_>| owned(&["delete", &container.id]);
    killed(&host, &runtime, prepare, delete, |container, at| assert_deleted(&host, &runtime, &container.bundle, at));
}
