//! Futures that wait keep nothing: `make test-remade` runs all cases by binaries that have the feature `remade`, which
//! drop such futures at random and make them again. Here is shown that they do, and that others have no such switch.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{binary, eventually, makes_futures_again};

const SWITCH: &str = "BOWLINE_REMADE";

/// How often a process has given up the CPU by itself.
fn waits(pid: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
    count.trim().parse().expect("a number")
}

#[test]
fn an_idle_shim_makes_its_futures_again_where_it_is_to() {
    let host = Host::new();
    let wanted = makes_futures_again();
    let id = host.new_id();
    let mut start = host.command(binary("bowline"));
    start.env(SWITCH, "1").args(["start", "--name", &id, "--", "/bin/sleep", "1000"]);
    host.execute(start).assert_code(0);
    let task = host.adopt(id);
    let shim = task.inspect()["shim_pid"].to_string();
    let environment = fs::read(format!("/proc/{shim}/environ")).expect("it lives");
    assert_eq!(String::from_utf8_lossy(&environment).contains(SWITCH), wanted, "only tests have the switch");
    if wanted {
        let before = waits(&shim);
        eventually("it looks again and again", || (waits(&shim) > before + 20).then_some(()));
    }
    task.end();
}
