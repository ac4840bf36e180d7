//! Commands about all, while others start, end and remove tasks: what is gone by the time that its turn comes is no error.

use bowline_tests::Host;
use bowline_tests::harness::{Process, binary, eventually, storm};

/// Starts, ends and removes tasks without end, four at a time: half in the foreground, half in the background.
fn churn(host: &Host) -> Process {
    let (bowline, name) = (binary("bowline"), host.prefix());
    let bowline = bowline.display();
    let script = format!(
        "n=0
        while :; do
            n=$((n + 1))
            {bowline} run --rm --name={name}-a -- sleep 0.02 &
            {bowline} run --rm --name={name}-b -- true &
            {bowline} start --name={name}-c-$n -- sleep 0.05 &
            {bowline} start --name={name}-d-$n -- true &
            wait
            {bowline} rm -f {name}-c-$n {name}-d-$n
        done >/dev/null 2>&1"
    );
    let mut shell = host.command("sh");
    shell.args(["-c", &script]);
    host.spawn_command(shell)
}

/// What the churn may have left running ends by itself.
fn end(host: &Host, churn: Process) {
    churn.signal(rustix::process::Signal::KILL);
    churn.finish();
    eventually("all have ended", || {
        let listed = host.bowline(["ps", "--json"]).assert_code(0).json();
        let ended = |task: &serde_json::Value| matches!(task["status"].as_str(), Some("exited" | "dead"));
        listed.as_array().expect("a list").iter().all(ended).then_some(())
    });
    let left = host.bowline(["ps", "--quiet"]).out();
    for id in left.lines() {
        host.bowline(["rm", "-f", id]).assert_code(0);
    }
}

#[test]
fn what_ended_meanwhile_is_no_error_of_a_command_about_all() {
    let host = Host::new();
    let steady = host.task("exec sleep 1000").start();
    let churning = churn(&host);
    let commands: [&[&str]; 8] = [
        &["upgrade", "--all"],
        &["rm", "--exited"],
        &["adopt", "--all"],
        &["ps"],
        &["stats", "--json"],
        &["top", "--once"],
        &["gc", "--dry-run"],
        &["upgrade", "--all", "--dry-run"],
    ];
    storm(3, |round| {
        for command in commands {
            let ran = host.bowline(command);
            // Of other tests, gc may say something.
            let says_nothing = ran.err().is_empty() || command[0] == "gc";
            assert!(ran.code == Some(0) && says_nothing, "round {round}\n{ran}");
        }
    });
    steady.end();
    end(&host, churning);
}

#[test]
fn sandboxes_that_were_removed_meanwhile_are_no_error_of_ls() {
    let host = Host::new();
    let (bowline, name) = (binary("bowline"), host.prefix());
    let bowline = bowline.display();
    let script = format!(
        "while [ -e {0} ]; do
            {bowline} sandbox create --name={name}-s
            {bowline} start --sandbox={name}-s --name={name}-m -- sleep 1000
            {bowline} sandbox rm -f {name}-s
        done >/dev/null 2>&1",
        host.file("go", "").display()
    );
    let mut shell = host.command("sh");
    shell.args(["-c", &script]);
    let churning = host.spawn_command(shell);
    storm(20, |round| {
        for command in [&["sandbox", "ls"][..], &["ps"], &["upgrade", "--all"]] {
            let ran = host.bowline(command);
            assert!(ran.code == Some(0) && ran.err().is_empty(), "round {round}\n{ran}");
        }
    });
    std::fs::remove_file(host.work().join("go")).expect("ours");
    churning.finish();
}
