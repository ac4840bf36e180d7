//! The two ways to use bowline from another program: the crate `bowline-client`, which this program links as any
//! other does, and the executor in a process of its own. The shims are the binaries under test.
//!
//! This program has many threads, and starts others from all of them meanwhile.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use bowline_client::blocking::{Client, Task};
use bowline_client::{Error, Event, Exec, ExecEnd, Killed, Kind, Start, Status};
use bowline_tests::Host;
use bowline_tests::harness::{Ran, binary, eventually, process_exists, take_lock};
use protobuf::Message as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use ttrpc::proto::Response;

const PAGE: &str = include_str!("../../docs/library.md");
const CLIENT_EXAMPLE: &str = include_str!("../../shim/client/examples/agent.rs");
const EXECUTOR_EXAMPLE: &str = include_str!("../../executor/examples/agent.rs");

fn client(host: &Host) -> Client {
    Client::new(host.state()).expect("a safe place").with_shim(binary("bowline-shim"))
}

/// A task of the library's that runs `script`.
fn start(host: &Host, script: &str) -> Task {
    client(host).start(described(&host.new_id(), script)).expect("it starts")
}

fn described(id: &str, script: &str) -> Start {
    Start::from_toml(&format!("name = '{id}'\ncommand = 'sh'\nargs = ['-c', '''{script}''']")).expect("a description")
}

#[track_caller]
fn assert_error<T>(result: Result<T, Error>, kind: Kind, parts: &[&str]) {
    let error = result.err().expect("an error");
    let text = format!("{error}; {}", error.hint_text().unwrap_or_default());
    assert!(error.kind() == kind && parts.iter().all(|part| text.contains(part)), "{:?}: {text}", error.kind());
}

fn ids(tasks: &[Task]) -> Vec<String> {
    tasks.iter().map(|task| task.id().to_string()).collect()
}

fn shim_of(host: &Host, task: &Task) -> i32 {
    host.adopt(task.id().as_str()).shim_pid_on_disk()
}

/// Runs an example: beside this program's folder where cargo has built it, beside this program in the virtual machine.
fn example(host: &Host, name: &str, args: &[&str]) -> Ran {
    let program = std::env::current_exe().expect("a test has a path");
    let beside = program.parent().expect("a test is in a folder");
    let places = [beside.join("examples"), beside.join("../examples")].map(|folder| folder.join(name));
    let found = places.iter().find(|path| path.exists());
    let found = found.unwrap_or_else(|| panic!("{name} is not built: `cargo build --workspace --examples`"));
    let mut command = host.command(found);
    let bin = binary("bowline-shim");
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let bin = bin.parent().expect("a folder").to_owned();
    let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&paths))).expect("paths");
    command.arg(host.state()).args(args).env("PATH", path);
    host.execute(command)
}

#[test]
fn the_clients_example_runs_blocking_in_threads_and_async() {
    let host = Host::new();
    for (how, tasks) in [("blocking", 1), ("threads", 4), ("async", 4)] {
        let ran = example(&host, "agent", &[how]);
        ran.assert_code(0);
        assert_eq!(ran.out().lines().count(), tasks, "{how}: {ran}");
        assert!(client(&host).tasks().expect("readable").is_empty(), "{how}");
    }
}

#[test]
fn the_executors_example_has_several_tasks_in_one_process() {
    let host = Host::new();
    let ran = example(&host, "embedded-agent", &[]);
    ran.assert_code(0);
    for part in ["exec said \"inside\\n\"", "67108864", "exited with Some(3)", "done", "ended by Some(\"SIGKILL\")"] {
        assert!(ran.out().contains(part), "{part}: {ran}");
    }
    assert!(client(&host).tasks().expect("readable").is_empty(), "it has removed its folders");
}

#[test]
fn the_page_shows_what_the_examples_run() {
    let blocks: Vec<&str> = PAGE.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 3, "{blocks:?}");
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sources = [CLIENT_EXAMPLE, EXECUTOR_EXAMPLE].map(plain);
    for block in blocks {
        assert!(sources.iter().any(|source| source.contains(&plain(block))), "in no example:\n{block}");
    }
}

#[test]
fn a_task_is_started_looked_into_and_ended() {
    let host = Host::new();
    let task = start(&host, "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done");
    let state = task.state().expect("it answers");
    assert!(state.status == Status::Running && state.report.is_none(), "{state:?}");
    assert!(process_exists(state.pid.expect("it runs")));
    host.adopt(task.id().as_str()).wait_for_line("ready");

    let said = task.exec(Exec::new(["sh", "-c", "echo $X; pwd; id -u >&2"]).env("X", "y").workdir("/tmp").user("1:1"));
    let said = said.expect("it runs");
    assert_eq!((said.end, said.stdout, said.stderr), (ExecEnd::Exited(0), b"y\n/tmp\n".to_vec(), b"1\n".to_vec()));
    let late = task.exec(Exec::new(["sleep", "1000"]).timeout(Duration::from_millis(100))).expect("an outcome");
    assert_eq!(late.end, ExecEnd::TimedOut(Killed::Cgroup));
    let said = task.exec(Exec::new(["sh", "-c", "echo 123456789"]).tail_bytes(3)).expect("it runs");
    assert_eq!(said.stdout, b"89\n");

    assert!(task.stats().expect("it answers").pids.current > Some(0));
    task.pause().expect("it runs");
    assert_eq!(task.state().expect("it answers").status, Status::Paused);
    task.resume().expect("it is paused");
    let report = task.stop_with(None, Some(Duration::from_secs(60))).expect("it ends");
    assert_eq!(report.exit_code, Some(5));
    assert_eq!(task.wait().expect("the same again"), report);
    assert_eq!(task.state().expect("it is known").report.as_deref(), Some(&report));
    assert_eq!(client(&host).task(task.id().as_str()).expect("it is there").wait().expect("also later"), report);
    task.remove(false).expect("it has ended");
}

#[test]
fn events_are_followed_from_another_thread_as_they_happen() {
    let host = Host::new();
    let mut all = client(&host).events().expect("watched before the first task");
    assert!(all.past().expect("readable").is_empty());
    let follower = thread::spawn(move || {
        let mut names = Vec::new();
        while names.last() != Some(&"removed") {
            names.push(all.wait_for_next().expect("readable").event.name());
        }
        names
    });
    let task = start(&host, "exit 7");
    let mut own = task.events().expect("readable");
    let exited = loop {
        let entry = own.next_within(Duration::from_secs(60)).expect("readable").expect("in time");
        assert_eq!(&entry.id, task.id());
        if let Event::Exited { exit_code, .. } = entry.event {
            break exit_code;
        }
    };
    assert_eq!((exited, own.next_within(Duration::from_millis(1)).expect("readable")), (Some(7), None));
    task.remove(false).expect("it has ended");
    assert_eq!(follower.join().expect("it ends"), ["created", "started", "exited", "removed"]);
}

#[test]
fn a_shim_leaves_no_zombie_and_the_command_knows_its_task() {
    let host = Host::new();
    let task = start(&host, "exec sleep 1000");
    let (shim, known) = (shim_of(&host, &task), host.adopt(task.id().as_str()));
    known.exec("echo hello").assert_code(0);
    known.stop(["--grace=0"]).assert_killed_by("KILL");
    eventually("its shim is collected by a later call", || {
        let _ = task.wait();
        (!process_exists(shim)).then_some(())
    });
}

#[test]
fn programs_started_meanwhile_inherit_nothing_from_a_shim() {
    let host = Host::new();
    let client = client(&host);
    let starts: Vec<Start> = (0..10).map(|_| described(&host.new_id(), "exec sleep 1000")).collect();
    let starting = thread::spawn(move || {
        starts.into_iter().map(|start| client.start(start).expect("it starts")).collect::<Vec<Task>>()
    });
    let mut others = Vec::new();
    while !starting.is_finished() {
        others.push(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("coreutils"));
    }
    let tasks = starting.join().expect("they start");
    let state = host.state();
    for other in &mut others {
        let fds = fs::read_dir(format!("/proc/{}/fd", other.id())).expect("it runs").flatten();
        let of_tasks: Vec<PathBuf> =
            fds.filter_map(|fd| fs::read_link(fd.path()).ok()).filter(|to| to.starts_with(&state)).collect();
        other.kill().and_then(|()| other.wait()).expect("ours");
        assert!(of_tasks.is_empty(), "{of_tasks:?}");
    }
    tasks.iter().for_each(|task| drop(task.remove(true).expect("it is killed")));
}

#[test]
fn of_threads_that_want_the_same_name_one_gets_it() {
    let host = Host::new();
    for _ in 0..5 {
        let (id, all_are_here) = (host.new_id(), Barrier::new(4));
        let client = client(&host);
        let won: Vec<bool> = thread::scope(|scope| {
            let one = || {
                all_are_here.wait();
                match client.start(described(&id, "exec sleep 1000")) {
                    Ok(_) => true,
                    refused => {
                        assert_error(refused, Kind::AlreadyExists, &[&id]);
                        false
                    }
                }
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
        let task = client.task(&id).expect("it is there");
        assert_eq!(task.state().expect("it answers").status, Status::Running);
        task.remove(true).expect("it is killed");
    }
}

#[test]
fn a_name_that_is_taken_and_an_id_that_is_none_are_refused() {
    let host = Host::new();
    let task = start(&host, "exec sleep 1000");
    let id = task.id().as_str();
    assert_error(client(&host).start(described(id, "true")), Kind::AlreadyExists, &[id, "exists already"]);
    assert_eq!(task.state().expect("the first is left alone").status, Status::Running);
    for bad in ["", "../x", "-x", &"x".repeat(64)] {
        assert_error(client(&host).task(bad), Kind::Usage, &["id"]);
    }
    assert_error(Start::from_toml("name = '../x'\ncommand = 'true'"), Kind::BadSpec, &["name", "line 1"]);
    assert_error(Start::from_toml("command = 7"), Kind::BadSpec, &["command"]);
    assert_error(task.update_toml("memory.limit = 'much'"), Kind::BadSpec, &["memory.limit"]);
    assert_error(client(&host).task("nobody"), Kind::NotFound, &["nobody"]);
    task.remove(true).expect("it is killed");
    assert_error(task.stats(), Kind::NotFound, &[id]);
    assert_error(task.wait(), Kind::NotFound, &[id]);
}

#[test]
fn what_cannot_be_started_says_so_and_leaves_nothing() {
    let host = Host::new();
    let missing = Start::from_toml("command = '/no/such/program'").expect("a description");
    assert_error(client(&host).start(missing), Kind::CommandNotFound, &["/no/such/program"]);
    let elsewhere = Client::new(host.state()).expect("safe").with_shim("/no/such/bowline-shim");
    assert_error(elsewhere.start(described(&host.new_id(), "true")), Kind::Internal, &["/no/such/bowline-shim"]);
    let sandbox = host.new_id().parse().expect("an id");
    let member = described(&host.new_id(), "true").in_sandbox(sandbox);
    assert_error(client(&host).start(member), Kind::NotFound, &["no sandbox"]);
    assert!(client(&host).tasks().expect("readable").is_empty());
}

#[test]
fn a_state_folder_that_is_not_there_or_not_safe_is_named() {
    let host = Host::new();
    let nowhere = host.work().join("nowhere");
    let client = Client::new(&nowhere).expect("it may come");
    let name = nowhere.to_str().expect("ASCII");
    assert_error(client.task("web"), Kind::NotFound, &["state folder", name]);
    assert!(client.tasks().expect("none").is_empty() && !nowhere.exists());

    let open = host.work().join("open");
    fs::create_dir(&open).expect("ours");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("ours");
    assert_error(Client::new(&open), Kind::WrongState, &["not safe", open.to_str().expect("ASCII")]);
}

#[test]
fn a_task_whose_shim_died_gets_a_new_one_unless_it_has_ended() {
    let host = Host::new();
    let (lost, ended) = (start(&host, "exec sleep 1000"), start(&host, "exit 4"));
    let shim = Pid::from_raw(shim_of(&host, &lost)).expect("a pid");
    kill_process(shim, Signal::KILL).expect("it lives");
    eventually("the shim is gone", || (!process_exists(shim.as_raw_nonzero().get())).then_some(()));
    assert_eq!(lost.exec(Exec::new(["/bin/sh", "-c", "exit 3"])).expect("it runs").end, ExecEnd::Exited(3));
    assert_eq!(lost.state().expect("it is known").status, Status::Running);
    let report = lost.stop().expect("it stops");
    assert_eq!((report.signal.as_deref(), report.shim_died), (Some("SIGTERM"), false),);
    lost.remove(false).expect("it has ended");

    assert_eq!(ended.wait().expect("it ends").exit_code, Some(4));
    assert_error(ended.exec(Exec::new(["true"])), Kind::WrongState, &["has exited"]);
    assert_error(ended.stats(), Kind::WrongState, &["has exited"]);
    assert_eq!(ended.stop().expect("it has stopped").exit_code, Some(4));
    ended.remove(false).expect("it has ended");
}

#[test]
fn a_shim_that_does_not_answer_is_unavailable_and_goes_by_force() {
    let host = Host::new();
    let task = start(&host, "exec sleep 1000");
    assert_error(task.remove(false), Kind::WrongState, &["has not ended"]);
    kill_process(Pid::from_raw(shim_of(&host, &task)).expect("a pid"), Signal::STOP).expect("it lives");
    assert_error(task.stats(), Kind::Unavailable, &[task.id().as_str(), "not answering"]);
    assert!(task.remove(true).expect("it is killed").past_shim);
}

#[test]
fn a_task_that_ends_with_its_caller_names_this_process() {
    let host = Host::new();
    let start = described(&host.new_id(), "exec sleep 1000").ends_with_caller();
    let task = client(&host).start(start).expect("it starts");
    let record = host.adopt(task.id().as_str()).log("task.json");
    let named = serde_json::from_str::<Value>(&record).expect("JSON")["ends_with"].clone();
    assert_eq!((named.as_array().map(Vec::len), &named[0][0]), (Some(1), &std::process::id().into()), "{record}");
    task.remove(true).expect("it ends");
}

#[test]
fn a_task_may_be_removed_at_its_end() {
    let host = Host::new();
    let start = described(&host.new_id(), "exec sleep 1000").removed_at_end();
    let task = client(&host).start(start).expect("it starts");
    let report = task.stop().expect("it ends");
    assert_eq!(report.signal.as_deref(), Some("SIGTERM"));
    let folder = host.state().join(task.id().as_str());
    eventually("its shim removes it", || (!folder.exists()).then_some(()));
    assert_error(task.wait(), Kind::NotFound, &["was removed", "143"]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_blocking_call_in_an_event_loop_is_refused() {
    let host = Host::new();
    let task = start(&host, "exec sleep 1000");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { assert_error(task.state(), Kind::Usage, &["event loop"]) });
    task.remove(true).expect("it is killed");
}

/// Answers every call of so many clients as a shim of an older bowline answers for its version.
fn serve_as_older(listener: &UnixListener, clients: usize) {
    let answer = |mut client: UnixStream| -> std::io::Result<()> {
        loop {
            let mut header = [0; 10];
            client.read_exact(&mut header)?;
            let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
            client.read_exact(&mut vec![0; length as usize])?;
            // VersionResponse { version: "0.0.9" }
            let payload = [&[0x0a, 5][..], b"0.0.9"].concat();
            let content = Response { payload, ..Default::default() }.write_to_bytes().expect("a message");
            let length = u32::try_from(content.len()).expect("short").to_be_bytes();
            client.write_all(&[&length[..], &header[4..8], &[2, 0], &content].concat())?;
        }
    };
    listener.incoming().take(clients).flatten().for_each(|client| drop(answer(client)));
}

#[test]
fn a_shim_of_an_older_bowline_is_unsupported_by_name() {
    let host = Host::new();
    let folder = host.state().join("old");
    fs::create_dir_all(&folder).expect("ours");
    let _lock = take_lock(folder.join("lock"));
    let listener = UnixListener::bind(folder.join("shim.sock")).expect("bound");
    let served = thread::spawn(move || serve_as_older(&listener, 2));
    let task = client(&host).task("old").expect("it is there");
    assert_error(task.stats(), Kind::Unsupported, &["old", "0.0.9", "revision 0", "needs 1"]);
    assert_error(task.exec(Exec::new(["true"])), Kind::Unsupported, &["0.0.9"]);
    assert_eq!(ids(&client(&host).tasks().expect("readable")), ["old"]);
    served.join().expect("both have left");
    fs::remove_dir_all(&folder).expect("ours");
}
