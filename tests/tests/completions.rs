//! `bowline completions`: scripts that shells take, and that complete.

use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, binary};

/// What bash completes the last of `words` to.
fn completed(host: &Host, words: &str) -> Ran {
    let script = format!(
        "source <(\"$0\" completions bash)\n\
         COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         _bowline bowline \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
         echo \"${{COMPREPLY[@]}}\""
    );
    let mut command = host.command("bash");
    command.args(["--norc", "-c", &script]).arg(binary("bowline"));
    host.execute(command)
}

#[test]
fn bash_completes_a_command() {
    let host = Host::new();
    completed(&host, "bowline inspe").assert_says("inspect");
    host.assert_nothing_left();
}

#[test]
fn bash_completes_a_flag_of_the_command() {
    let host = Host::new();
    completed(&host, "bowline update --cpu-s").assert_says("--cpu-shares");
    completed(&host, "bowline rm --cpu-s").assert_says("");
    host.assert_nothing_left();
}

#[test]
fn hidden_commands_are_not_completed() {
    let host = Host::new();
    completed(&host, "bowline ma").assert_says("");
    host.assert_nothing_left();
}

#[test]
fn every_shell_that_is_here_takes_its_script() {
    let host = Host::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = host.bowline(["completions", shell]).assert_code(0).out();
        assert!(script.contains("update") && script.contains("cpu-shares"), "{shell}: {script}");
        let installed = ["/bin", "/usr/bin"].iter().any(|folder| Path::new(folder).join(shell).exists());
        if installed {
            let mut command = host.command(shell);
            command.arg("-n").arg(host.file(shell, &script));
            host.execute(command).assert_says("");
        }
    }
    host.assert_nothing_left();
}

#[test]
fn another_shell_is_bad_usage() {
    let host = Host::new();
    host.bowline(["completions", "tcsh"]).assert_refused(2, &["tcsh"]);
    host.assert_nothing_left();
}
