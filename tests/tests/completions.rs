//! `bowline completions`: scripts that shells take, and that complete.

use std::ffi::OsString;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, binary};

/// What bash completes the last of `words` to.
fn completed(host: &Host, words: &str) -> Ran {
    let script = format!(
        "source <(bowline completions bash)\n\
         COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         _clap_complete_bowline bowline \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
         echo \"${{COMPREPLY[@]}}\""
    );
    let mut command = host.command("bash");
    command.args(["--norc", "-c", &script]).env("PATH", path());
    host.execute(command)
}

/// A PATH in which the binaries under test come first.
fn path() -> OsString {
    let bowline = binary("bowline");
    let folder = bowline.parent().expect("it is in a folder");
    let usual = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths([folder.to_owned()].into_iter().chain(std::env::split_paths(&usual))).expect("no colons")
}

#[test]
fn bash_completes_a_command() {
    let host = Host::new();
    completed(&host, "bowline inspe").assert_says("inspect");
}

#[test]
fn bash_completes_a_flag_of_the_command() {
    let host = Host::new();
    completed(&host, "bowline update --cpu-s").assert_says("--cpu-shares");
    completed(&host, "bowline rm --cpu-s").assert_says("");
}

#[test]
fn bash_completes_the_words_that_a_flag_takes() {
    let host = Host::new();
    for (line, word) in [
        ("run --network br", "bridge"),
        ("run --log ra", "raw"),
        ("run --health-on-failure st", "stop"),
        ("start --cgroup-driver sy", "systemd"),
        ("sandbox create --network pri", "private"),
        ("sandbox create --qos gu", "guaranteed"),
        ("kill --signal TER", "TERM"),
        ("stop --signal QU", "QUIT"),
        ("ps --filter status=ru", "status=running"),
        ("ps --filter exi", "exited="),
        ("run --cap-add SYS_AD", "SYS_ADMIN"),
        ("run --cap-drop CHOWN,SYS_AD", "CHOWN,SYS_ADMIN"),
        ("run --ipc ho", "host"),
        ("run --user roo", "root"),
        ("exec --user roo", "root"),
        ("run --group-add roo", "root"),
        ("run --set memory.lim", "memory.limit="),
        ("start --set stop.gr", "stop.grace="),
        ("run --set labe", "labels."),
        ("sandbox create --set share_p", "share_pid="),
        ("run --volume /proc/meminf", "/proc/meminfo"),
        ("run --device /dev/nul", "/dev/null"),
        ("run --env-file /proc/meminf", "/proc/meminfo"),
        ("run --security-opt seccomp=n", "seccomp=native"),
    ] {
        completed(&host, &format!("bowline {line}")).assert_says(word);
    }
}

#[test]
fn hidden_commands_are_not_completed() {
    let host = Host::new();
    completed(&host, "bowline ma").assert_says("");
}

#[test]
fn bash_completes_the_ids_of_tasks_and_of_sandboxes() {
    let host = Host::new();
    let (task, other) = (host.task("exec sleep 1000").start(), host.task("true").start());
    let sandbox = host.sandbox().create();
    let prefix = host.prefix();
    let both = format!("{} {}", task.id(), other.id());
    for command in ["stop", "exec", "logs --tail 3", "explain", "rm -f", "events"] {
        completed(&host, &format!("bowline {command} {prefix}")).assert_says(&both);
    }
    completed(&host, &format!("bowline wait nobody {prefix}")).assert_says(&both);
    completed(&host, &format!("bowline start --name {prefix}")).assert_says("");
    completed(&host, &format!("bowline sandbox inspect {prefix}")).assert_says(sandbox.id());
    completed(&host, &format!("bowline run --sandbox {prefix}")).assert_says(sandbox.id());
    completed(&host, &format!("bowline --state /no/such/folder stop {prefix}")).assert_says("");
    task.end();
}

#[test]
fn every_shell_asks_for_the_same_candidates() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    for shell in ["bash", "zsh", "fish"] {
        let mut command = host.command(binary("bowline"));
        command.env("_BOWLINE_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "2");
        command.args(["--", "bowline", "stop", host.prefix()]);
        let ran = host.execute(command);
        assert!(ran.assert_code(0).out().contains(task.id()), "{ran}");
    }
    task.end();
}

#[test]
fn every_shell_that_is_here_takes_its_script() {
    let host = Host::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = host.bowline(["completions", shell]).assert_code(0).out();
        assert!(script.contains("_BOWLINE_COMPLETE") && script.contains(shell), "{shell}: {script}");
        let installed = ["/bin", "/usr/bin"].iter().any(|folder| Path::new(folder).join(shell).exists());
        if installed {
            let mut command = host.command(shell);
            command.arg("-n").arg(host.file(shell, &script));
            host.execute(command).assert_says("");
        }
    }
}

#[test]
fn another_shell_is_bad_usage() {
    let host = Host::new();
    host.bowline(["completions", "tcsh"]).assert_refused(2, &["tcsh"]);
}
