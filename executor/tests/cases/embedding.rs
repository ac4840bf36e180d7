//! A program of somebody else's that embeds the executor, as the documentation has
//! it: what it leaves behind, and that housekeeping knows it for an owner.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bowline_executor::housekeeping::Cgroups;
use bowline_executor::{Config, Launch, ShimCgroup, StateDir, serve};
use rustix::process::{Pid, Signal, kill_process};

use crate::{is_reference, no_systemd};

pub(crate) const ALL: &[(&str, fn())] = &[
    ("the_documented_example_leaves_no_cgroup", example),
    ("what_was_launched_ends_with_a_program_that_returns", early),
    ("housekeeping_of_another_state_folder_leaves_it_alone", housekeeping),
];

/// Which of the programs this is, and its state folder.
pub(crate) const PROGRAM: &str = "BOWLINE_EMBEDDING";
const STATE: &str = "BOWLINE_EMBEDDING_STATE";

/// The example of the crate's documentation, and one that does not wait.
pub(crate) fn program(which: &str) -> ExitCode {
    let state = StateDir::new(std::env::var_os(STATE).expect("a folder"));
    let id: bowline_spec::id::TaskId = name().parse().expect("an id");
    let (folder, lock) = state.create(&id).expect("a folder");
    let command = if which == "example" { "/bin/true" } else { "/bin/sleep" };
    let toml = format!("command = \"{command}\"\nargs = [\"1000\"]\nstop.grace = \"10ms\"");
    let task = bowline_spec::parse(&toml, bowline_spec::Format::Toml).expect("a description");
    let waits = which != "early";
    let config = Config::new(folder, state, ShimCgroup::Overhead, no_systemd());
    let served = serve(config, |executor| async move {
        executor.launch(Launch::new(id.clone(), task)).await?;
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

/// The task's name: that of the process which began it all.
fn name() -> String {
    std::env::var("BOWLINE_EMBEDDING_NAME").unwrap_or_else(|_| format!("embedded-{}", std::process::id()))
}

fn start(which: &str, state: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env(PROGRAM, which).env(STATE, state).env("BOWLINE_EMBEDDING_NAME", name());
    command.stdout(Stdio::null()).spawn().expect("it runs")
}

/// Its cgroups, wherever they may be.
fn cgroups() -> Vec<PathBuf> {
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let all = hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]).map(|path| path.join("bowline").join(name()));
    all.filter(|path| path.exists()).collect()
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

fn housekeeping() {
    if is_reference() {
        return;
    }
    let (state, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let mut program = start("waits", state.path());
    let late = Instant::now() + Duration::from_secs(30);
    let runs = || {
        let lists = cgroups().into_iter().map(|path| path.join(name()).join("cgroup.procs"));
        lists.filter_map(|list| fs::read_to_string(list).ok()).any(|list| !list.is_empty())
    };
    while !runs() {
        assert!(Instant::now() < late, "the task runs");
        std::thread::sleep(Duration::from_millis(5));
    }
    let host = Cgroups::of_host(no_systemd()).expect("there are cgroups");
    let left = host.left_behind(&StateDir::new(other.path()), None).expect("readable");
    let its: Vec<_> = left.into_iter().filter(|left| left.id == name()).collect();
    kill_process(Pid::from_child(&program), Signal::TERM).expect("it lives");
    let ended = program.wait().expect("ours");
    assert!(its.is_empty() && ended.success(), "{its:?}, {ended:?}");
    assert_eq!(cgroups(), Vec::<PathBuf>::new());
}
