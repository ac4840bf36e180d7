//! Mixed load for a while: what a task's shim and the machine have at the end is
//! what they had at the start. Most of a minute; `make soak FOR=10m` for longer.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{Task, children_of, eventually, fds_of, is_slow, status_lines};

/// How long, by `BOWLINE_SOAK`, such as `90s`, `10m` or `1h`.
fn asked() -> Duration {
    let asked = std::env::var("BOWLINE_SOAK").unwrap_or_else(|_| if is_slow() { "20s" } else { "40s" }.to_owned());
    let (number, unit) = asked.split_at(asked.len().saturating_sub(1));
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => panic!("BOWLINE_SOAK={asked}: write such as 90s, 10m or 1h"),
    };
    Duration::from_secs(number.parse::<u64>().expect("a number before the unit") * seconds)
}

/// By how much a shim's own memory may differ, in KiB: what lives on is not at the same places.
const GROWTH: u64 = 64;

/// What is counted before and after.
#[derive(Debug, PartialEq, Eq)]
struct Census {
    descriptors: usize,
    cgroups: usize,
    mounts: usize,
    zombies: usize,
}

impl Census {
    fn of(host: &Host, shim: i32) -> Census {
        let found = host.all_of_it();
        let of = |kind: &str| found.iter().filter(|line| line.starts_with(kind)).count();
        Census {
            descriptors: fds_of(shim).len(),
            cgroups: of("cgroup "),
            mounts: of("mount "),
            zombies: children_of(shim).into_iter().filter(|state| *state == 'Z').count(),
        }
    }
}

/// What nobody else has a page of, in KiB.
fn memory(shim: i32) -> u64 {
    let line = status_lines(shim, &["RssAnon:"]);
    let number = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok());
    number.unwrap_or_else(|| panic!("no number in {line:?}"))
}

/// What goes on at once in a round: each kind of request, and whole lives beside them.
fn round(host: &Host, task: &Task<'_>) {
    let id = host.new_id();
    let named = format!("--name={id}");
    let run = |args: &[&str]| host.spawn(["run", "--rm", "--name", &host.new_id()].iter().chain(args));
    let running = [
        (task.spawn_exec([], "exit 4"), Some(4)),
        (task.spawn_exec(["--timeout=50ms"], "setsid sleep 1000 & exec sleep 1000"), Some(124)),
        (task.spawn_exec([], "head -c 200000 /dev/zero"), Some(0)),
        (host.spawn(["stats", "--json", task.id()]), Some(0)),
        (run(&["--", "/bin/sh", "-c", "echo out; exit 3"]), Some(3)),
        (run(&["--memory=32M", "--untrusted", "--", "/bin/true"]), Some(0)),
        (run(&["--", "/no/such/program"]), Some(127)),
    ];
    host.bowline(["start", &named, "--", "/bin/sh", "-c", "sleep 1000 & exec sleep 1000"]).assert_code(0);
    host.bowline(["update", "--pids=50", &id]).assert_code(0);
    host.bowline(["stop", "--grace=0", &id]).assert_code(0);
    host.bowline(["rm", &id]).assert_code(0);
    let sandbox = host.sandbox().create();
    sandbox.task("exit 5").run().assert_code(5);
    sandbox.rm(["-f"]);
    for (process, code) in running {
        let ran = process.finish();
        assert_eq!(ran.code, code, "{ran}");
    }
}

#[test]
fn mixed_load_leaves_nothing_and_grows_nothing() {
    let host = Host::new();
    // An init that waits for what others have left to it: else each exec that meets its deadline leaves a zombie there.
    let task = host.task("while :; do sleep 1000000 & wait; done").start();
    let shim = task.shim_pid();
    // What everyone makes once.
    for _ in 0..3 {
        round(&host, &task);
    }
    let before = eventually("all is put away", || {
        let census = Census::of(&host, shim);
        (task.socket_ends() == 1 && census == Census::of(&host, shim)).then_some(census)
    });
    let memory_before = memory(shim);
    let health = "[healthcheck]\nexec = ['/bin/true']\ninterval = '100ms'";
    let checked = host.described(&format!("command = 'sleep'\nargs = ['1000000']\n{health}")).start();
    let (begun, mut rounds) = (Instant::now(), 0);
    while begun.elapsed() < asked() {
        round(&host, &task);
        rounds += 1;
    }
    assert_eq!(checked.inspect()["health"]["failing_streak"], 0);
    checked.end();
    host.bowline(["rm", checked.id()]).assert_code(0);
    let (after, memory_after) = (Census::of(&host, shim), memory(shim));
    let mut table = format!("{rounds} rounds in {} s", begun.elapsed().as_secs());
    for (what, before, after) in [
        ("memory of the shim, KiB", memory_before as usize, memory_after as usize),
        ("descriptors of the shim", before.descriptors, after.descriptors),
        ("cgroups", before.cgroups, after.cgroups),
        ("mounts", before.mounts, after.mounts),
        ("zombies", before.zombies, after.zombies),
    ] {
        let _ = write!(table, "\n{what:>24}: {before:>5} at the start, {after:>5} at the end");
    }
    #[allow(clippy::print_stdout, reason = "the table, for --nocapture")]
    {
        println!("{table}");
    }
    // What was asked last may not have been put away yet.
    eventually("all is as it was", || (Census::of(&host, shim) == before).then_some(()));
    assert!(memory_after <= memory_before + GROWTH, "{table}");
    assert!(rounds > 0, "{table}");
    task.end();
}
