//! A program of somebody else's that embeds the executor, as the documentation has
//! it: what it leaves behind, and that housekeeping knows it for an owner.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use bowline_executor::internal::housekeeping::Cgroups;
use bowline_executor::{Config, Executor, Kind, Launch, Leave, Result, ShimCgroup, StateDir, serve};
use bowline_model::folder::Owner;
use rustix::process::{Pid, Signal, kill_process};

use crate::{is_reference, no_systemd};

pub(crate) const ALL: &[(&str, fn())] = &[
    ("the_documented_example_leaves_no_cgroup", example),
    ("what_was_launched_ends_with_a_program_that_returns", early),
    ("one_executor_has_several_tasks_each_with_its_folder", several),
    ("housekeeping_of_another_state_folder_leaves_it_alone", housekeeping),
];

/// Which of the programs this is, and its state folder.
pub(crate) const PROGRAM: &str = "BOWLINE_EMBEDDING";
const STATE: &str = "BOWLINE_EMBEDDING_STATE";
/// What the program prints once its task runs.
const LAUNCHED: &str = "launched";

/// The example of the crate's documentation, and one that does not wait.
pub(crate) fn program(which: &str) -> ExitCode {
    let state = StateDir::new(std::env::var_os(STATE).expect("a folder"));
    let id: bowline_spec::id::TaskId = name().parse().expect("an id");
    let (folder, lock) = state.create(&id).expect("a folder");
    let command = if which == "example" { "/bin/true" } else { "/bin/sleep" };
    let toml = format!("command = \"{command}\"\nargs = [\"1000\"]\nstop.grace = \"10ms\"");
    let task = bowline_spec::parse(&toml, bowline_spec::Format::Toml).expect("a description");
    if which == "several" {
        let config =
            Config { leave: Leave::WhenTold, ..Config::new(folder, state.clone(), ShimCgroup::Overhead, no_systemd()) };
        serve(config, |executor| tasks(executor, state)).expect("it served");
        return ExitCode::SUCCESS;
    }
    let waits = which != "early";
    let config = Config::new(folder, state, ShimCgroup::Overhead, no_systemd());
    let served = serve(config, |executor| async move {
        executor.launch(Launch::new(id.clone(), task)).await?;
        println!("{LAUNCHED}");
        if waits {
            let report = executor.wait(&id).await?;
            println!("exited with {:?}", report.exit_code);
        }
        Ok(())
    });
    drop(lock);
    served.expect("it served");
    ExitCode::SUCCESS
}

/// Several tasks, of which some cannot be launched.
async fn tasks(executor: Executor, state: StateDir) -> Result<()> {
    let id = |which: u32| format!("{}-{which}", name()).parse::<bowline_spec::id::TaskId>().expect("an id");
    let launch = |which: u32, command: &str| {
        let toml = format!("command = '{command}'\nargs = ['1000']\nstop.grace = '10ms'");
        Launch::new(id(which), bowline_spec::parse(&toml, bowline_spec::Format::Toml).expect("a description"))
    };
    executor.launch(launch(1, "/bin/sleep")).await?;
    executor.launch(launch(2, "/bin/sleep")).await?;
    let taken = executor.launch(launch(2, "/bin/true")).await.expect_err("it has a task of this name");
    assert_eq!(taken.kind(), Kind::AlreadyExists);
    let missing = executor.launch(launch(3, "/no/such/program")).await.expect_err("there is none");
    assert_eq!(missing.kind(), Kind::CommandNotFound);
    assert!(!state.folder(&id(3)).exists()?, "nothing of it is left");

    // Another program's task has this name.
    let (others, lock) = state.create(&id(4))?;
    let taken = executor.launch(launch(4, "/bin/true")).await.expect_err("it is taken");
    assert!(taken.kind() == Kind::AlreadyExists && others.exists()?, "{taken}");
    others.remove(lock)?;

    for which in [1, 2] {
        let folder = state.folder(&id(which));
        assert!(folder.record()?.is_some_and(|record| record.pid.is_some()), "each has its own record");
        executor.shutdown(&id(which), None, None).await?;
        let report = executor.wait(&id(which)).await?;
        assert_eq!(folder.exit()?.as_ref(), Some(&report));
    }
    executor.remove(&id(1)).await?;
    assert!(!state.folder(&id(1)).exists()?, "the executor has made it");
    // Another program may remove it first, once the executor holds it no longer.
    let folder = state.folder(&id(2));
    let lock = loop {
        match folder.owner()? {
            Owner::Nobody(lock) => break lock,
            Owner::Shim => tokio::task::yield_now().await,
        }
    };
    folder.remove(lock)?;
    executor.remove(&id(2)).await?;
    executor.launch(launch(1, "/bin/true")).await?;
    executor.leave();
    Ok(())
}

/// The task's name: that of the process which began it all.
fn name() -> String {
    std::env::var("BOWLINE_EMBEDDING_NAME").unwrap_or_else(|_| format!("embedded-{}", std::process::id()))
}

fn start(which: &str, state: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(PROGRAM, which).env(STATE, state).env("BOWLINE_EMBEDDING_NAME", name());
    command.stdout(Stdio::piped()).spawn().expect("it runs")
}

/// Its cgroups, wherever they may be.
fn cgroups() -> Vec<PathBuf> {
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let parents = hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]).map(|path| path.join("bowline"));
    let all = parents.flat_map(|parent| fs::read_dir(parent).into_iter().flatten().flatten());
    let of_it = |own: &str| own.strip_prefix(&name()).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    all.filter(|entry| entry.file_name().to_str().is_some_and(of_it)).map(|entry| entry.path()).collect()
}

fn example() {
    if is_reference() {
        return;
    }
    let state = tempfile::tempdir().expect("a folder");
    let ended = start("example", state.path()).wait().expect("ours");
    assert!(ended.success(), "{ended:?}");
    assert_eq!(cgroups(), Vec::<PathBuf>::new());
}

fn early() {
    if is_reference() {
        return;
    }
    let state = tempfile::tempdir().expect("a folder");
    let ended = start("early", state.path()).wait().expect("ours");
    assert!(ended.success(), "{ended:?}");
    assert_eq!(cgroups(), Vec::<PathBuf>::new());
    assert!(state.path().join(name()).join("exit.json").exists(), "its end is recorded");
}

fn several() {
    if is_reference() {
        return;
    }
    let state = tempfile::tempdir().expect("a folder");
    let ended = start("several", state.path()).wait().expect("ours");
    assert!(ended.success(), "{ended:?}");
    assert_eq!(cgroups(), Vec::<PathBuf>::new());
    assert!(state.path().join(format!("{}-1", name())).join("exit.json").exists(), "its end is recorded");
}

fn housekeeping() {
    if is_reference() {
        return;
    }
    let (state, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let mut program = start("waits", state.path());
    let mut says = BufReader::new(program.stdout.take().expect("a pipe")).lines();
    assert_eq!(says.next().expect("a line").expect("readable"), LAUNCHED);
    let host = Cgroups::of_host(no_systemd()).expect("there are cgroups");
    let left = host.left_behind(&StateDir::new(other.path()), None).expect("readable");
    let its: Vec<_> = left.into_iter().filter(|left| left.id == name()).collect();
    kill_process(Pid::from_child(&program), Signal::TERM).expect("it lives");
    let ended = program.wait().expect("ours");
    assert!(its.is_empty() && ended.success(), "{its:?}, {ended:?}");
    assert_eq!(cgroups(), Vec::<PathBuf>::new());
}
