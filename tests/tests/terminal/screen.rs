//! What the suite's own terminal shows is what a person would see.

use std::process::Command;

use bowline_tests::Host;

#[test]
fn a_screen_shows_output_takes_keys_and_has_the_exit_code() {
    let host = Host::new();
    let mut shell = Command::new("/bin/sh");
    shell.env("ASKED", "who").args(["-c", "echo \"$ASKED is there?\"; stty size; read -r name; exit \"$name\""]);
    let screen = host.screen_of(shell, 61, 10);
    screen.wait_for("who is there?\n10 61");
    screen.enter("7\n");
    assert_eq!(screen.wait_for_end(), 7);
    assert_eq!(screen.lines(), ["who is there?", "10 61", "7"]);
    screen.close();
}

#[test]
fn a_command_that_still_runs_ends_with_its_screen() {
    let host = Host::new();
    let screen = host.screen(["help"]);
    assert_eq!(screen.wait_for_end(), 0);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "echo ready; exec sleep 1000"]);
    let second = host.screen_of(shell, 80, 24);
    second.wait_for("ready");
    second.close();
    screen.close();
}
