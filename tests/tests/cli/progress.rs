//! What a person is told while something takes long, and a script is not.

use bowline_tests::Host;

const DEAF: &str = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
const POLITE: &str = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done";

#[test]
fn a_stop_that_takes_long_says_so_until_it_is_done() {
    let host = Host::new();
    let task = host.task(DEAF).start();
    task.wait_for_line("ready");
    let screen = host.screen(["stop", task.id(), "--grace=50s"]);
    screen.wait_for(&format!("stopping {}: 1 s of 50 s grace", task.id()));
    screen.wait_for(": 2 s of");
    task.bowline("kill", []).assert_code(0);
    assert_eq!(screen.wait_for_end(), 0);
    assert_eq!(screen.text(), "");
    screen.close();
}

#[test]
fn the_grace_of_the_description_is_told_too() {
    let host = Host::new();
    let task = host.task(DEAF).toml("command = 'sh'\nstop.grace = '70s'").start();
    task.wait_for_line("ready");
    let screen = host.screen(["stop", task.id()]);
    screen.wait_for(" of 70 s grace");
    task.bowline("kill", []).assert_code(0);
    assert_eq!(screen.wait_for_end(), 0);
    screen.close();
}

#[test]
fn of_several_those_are_told_that_are_not_done() {
    let host = Host::new();
    let (one, two, quick) = (host.task(DEAF).start(), host.task(DEAF).start(), host.task(POLITE).start());
    quick.wait_for_line("ready");
    one.wait_for_line("ready");
    two.wait_for_line("ready");
    let screen = host.screen(["stop", one.id(), two.id(), quick.id(), "nobody", "--grace=50s"]);
    quick.wait();
    screen.wait_for(&format!("stopping {}, {}: ", one.id(), two.id()));
    host.bowline(["kill", one.id(), two.id()]).assert_code(0);
    assert_eq!(screen.wait_for_end(), 125);
    assert_eq!(screen.lines()[0], "bowline: there is no task named nobody");
    screen.close();
}

#[test]
fn a_script_is_told_nothing() {
    let host = Host::new();
    let task = host.task(DEAF).start();
    task.wait_for_line("ready");
    let stop = task.bowline("stop", ["--grace=1500ms"]);
    assert_eq!((stop.assert_code(0).out(), stop.err()), (String::new(), String::new()));
}
