//! The bench measures everybody, in every row, and leaves nothing behind. How
//! long anything took is not asserted.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use bowline_tests::Host;
use bowline_tests::harness::{beside_tests, binary, patience};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The bench, small, with this host's marker in all that it makes.
fn bench(host: &Host, args: &[&str]) -> Command {
    let mut command = host.command(beside_tests("bowline-bench"));
    let shim = binary("bowline-shim");
    command.env("BOWLINE_BIN_DIR", shim.parent().expect("a binary is in a folder"));
    command.args(["--small", "--name", host.prefix(), "--json"]).arg(host.work().join("bench.json"));
    command.arg("--chart").arg(host.work().join("bench.svg")).args(args);
    command
}

#[track_caller]
fn assert_positive(row: &Value, pointer: &str) {
    let number = row.pointer(pointer).and_then(Value::as_f64);
    assert!(number.is_some_and(|n| n.is_finite() && n > 0.0), "{pointer} is {number:?} in {row:#}");
}

#[test]
fn a_small_bench_fills_every_row() {
    let all = ["launch", "commands", "exec", "calls", "together", "memory"];
    fills(&all, 19, 6);
}

#[test]
fn a_small_bench_of_the_command_line_fills_every_row() {
    fills(&["command-line"], 5, 0);
}

#[test]
fn a_small_bench_of_sandboxes_fills_every_row() {
    fills(&["sandbox"], 7, 0);
}

#[test]
fn a_small_bench_through_containerd_fills_every_row() {
    fills(&["containerd"], 15, 6);
}

#[test]
fn a_small_bench_through_nomads_driver_fills_every_row() {
    fills(&["nomad"], 9, 12);
}

#[test]
fn a_small_bench_of_what_grows_fills_every_row() {
    fills(&["growth"], 14, 2);
}

#[test]
fn a_small_bench_of_probes_fills_every_row() {
    fills(&["probes"], 0, 5);
}

#[test]
fn a_small_bench_of_many_tasks_has_a_table_and_a_chart() {
    let host = Host::new();
    let args = ["--rounds", "1", "--only", "density"];
    host.spawn_command(bench(&host, &args)).finish_within(4 * patience()).assert_code(0);
    let text = fs::read_to_string(host.work().join("bench.json")).expect("it was written");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let steps = json["density"].as_array().expect("steps");
    assert_eq!(steps.len(), 3, "{json:#}");
    for step in steps {
        // What the machine has left says nothing where others use it too.
        for (number, measure) in step["values"].as_array().expect("measures").iter().enumerate() {
            let value = measure["value"].as_f64().expect("a number");
            assert!(value > 0.0 || number == 2 && value >= 0.0, "{step:#}");
            // The floor has no shim to ask, and no sandboxes.
            let has_floor = [0, 2].contains(&number) && !step["name"].to_string().contains("sandboxes");
            assert_eq!(measure["floor"].is_number(), has_floor, "{step:#}");
        }
    }
    let chart = fs::read_to_string(host.work().join("density.svg")).expect("it was drawn");
    assert_eq!(chart.matches("<rect class=\"ours\"").count(), 3 * 6, "{chart}");
}

/// Runs the bench for `what`, and sees that so many rows and figures are filled.
#[track_caller]
fn fills(what: &[&str], rows_expected: usize, figures_expected: usize) {
    let host = Host::new();
    let mut args = vec!["--rounds", "1"];
    args.extend(what.iter().flat_map(|what| ["--only", what]));
    // It makes some hundred containers, which takes half a minute alone.
    let ran = host.spawn_command(bench(&host, &args)).finish_within(10 * patience());
    ran.assert_code(0);
    let text = fs::read_to_string(host.work().join("bench.json")).expect("it was written");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let charted = what.contains(&"launch");
    assert_eq!(host.work().join("bench.svg").exists(), charted, "a chart is drawn of launches and execs");
    let rows = json["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), rows_expected, "{json:#}");
    for row in rows {
        let name = row["name"].as_str().expect("a name");
        assert!(ran.out().contains(name), "{name} is not in the table");
        let by_us_alone = ["sandbox", "nomad: ", "host view", "to the log"].iter().any(|ours| name.contains(ours));
        let without_peers = by_us_alone || name.contains(" init: ");
        for key in ["median_ms", "p99_ms", "n"] {
            assert_positive(row, &format!("/bowline/{key}"));
            // containerd's floor has no process, and the kernel's has no more than one.
            let without_floor = [", seccomp default, 4 at once", " MB to a ", "processes in the task"];
            if !by_us_alone && !without_floor.iter().any(|part| name.contains(part)) {
                assert_positive(row, &format!("/floor/{key}"));
                // A call does nothing in either.
                if name.starts_with("launch") || name.starts_with("exec") {
                    assert_positive(row, &format!("/duty/{key}"));
                }
            }
        }
        // The reference is installed wherever tests are run; crun need not be.
        if without_peers {
            assert!(row["crun"].is_null() && row["runc"].is_null(), "{row:#}");
            assert_eq!([&row["floor"], &row["duty"]].map(Value::is_null), [by_us_alone; 2], "{row:#}");
        } else if name.starts_with("containerd: ") || !name.contains("exit known") && !name.contains("does nothing") {
            assert_positive(row, "/runc_to_bowline");
        }
    }
    let figures = json["figures"].as_array().expect("figures");
    assert_eq!(figures.len(), figures_expected, "{json:#}");
    for figure in figures {
        let value = figure["value"].as_f64();
        // What a few waiters take is less than what a shim may give back meanwhile.
        let least =
            if figure["name"].as_str().is_some_and(|name| name.contains("wait for a task")) { f64::MIN } else { 0.0 };
        assert!(value.is_some_and(|v| v.is_finite() && v >= least), "{figure:#}");
        let through_containerd = figure["name"].as_str().is_some_and(|name| name.starts_with("containerd: "));
        assert_eq!(figure["runc"].is_number(), through_containerd, "{figure:#}");
    }
}

#[test]
fn an_interrupted_bench_cleans_up() {
    let all = [
        "launch",
        "commands",
        "exec",
        "calls",
        "command-line",
        "together",
        "sandbox",
        "memory",
        "growth",
        "density",
        "containerd",
        "probes",
        "nomad",
    ];
    let account = vec!["--account", "--no-peers", "--rounds", "10000"];
    for args in all.map(|what| vec!["--only", what, "--rounds", "10000"]).into_iter().chain([account]) {
        let host = Host::new();
        let run = host.spawn_command(bench(&host, &args));
        run.read_stderr();
        run.wait_for_err("measuring");
        run.signal(Signal::INT);
        let ran = run.finish();
        ran.assert_code(1);
        assert!(ran.err().contains("interrupted"), "{ran}");
        let tracers = tracers();
        assert!(!tracers.contains(host.prefix()), "a tracer is left: {tracers}");
        host.assert_nothing_left();
    }
}

#[test]
fn the_command_runner_outlives_an_interrupt_to_clean_up() {
    let host = Host::new();
    // It unmounts cgroup v2 where v1 is mounted too.
    let mut unshare = host.command("unshare");
    unshare.args(["--mount", "--"]).arg(beside_tests("bowline-bench")).arg("--run-commands");
    let mut runner = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare is installed");
    let mut input = runner.stdin.take().expect("it is a pipe");
    let mut answers = BufReader::new(runner.stdout.take().expect("it is a pipe")).lines();
    for _ in 0..2 {
        input.write_all(b"[[\"/bin/true\"]]\n").expect("it reads");
        let answer = answers.next().expect("it answers").expect("text");
        assert!(answer.ends_with(",true]"), "{answer}");
        let pid = Pid::from_child(&runner);
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            kill_process(pid, signal).expect("it runs");
        }
    }
    drop(input);
    assert!(runner.wait().expect("it ends").success());
}

/// The instances of the kernel's tracer, by their names.
fn tracers() -> String {
    let script = "mount -t tracefs tracefs /mnt && ls /mnt/instances";
    let listed = Command::new("unshare").args(["--mount", "sh", "-c", script]).output().expect("unshare is installed");
    assert!(listed.status.success(), "cannot mount tracefs: {}", String::from_utf8_lossy(&listed.stderr));
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

#[test]
fn a_busy_machine_is_said_and_marks_all_that_is_measured() {
    let host = Host::new();
    let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
    let what = ["--only", "calls", "--only", "memory", "--only", "density", "--rounds", "1", "--no-peers"];
    let ran = host.spawn_command(bench(&host, &what)).finish_within(4 * patience());
    let account = bench(&host, &["--account", "--rounds", "1", "--no-peers"]);
    let account = host.spawn_command(account).finish_within(4 * patience());
    busy.kill().expect("it runs");
    busy.wait().expect("it was killed");
    ran.assert_code(0);
    assert!(ran.err().contains("something else keeps"), "{ran}");
    for marked in ["| state *", "| idle shim, private, KiB *", "| 1 task *"] {
        assert!(ran.out().contains(marked), "{marked} is not in\n{ran}");
    }
    let text = fs::read_to_string(host.work().join("bench.json")).expect("it was written");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    for part in ["rows", "figures", "density"] {
        let all_marked = json[part].as_array().is_some_and(|all| all.iter().all(|one| one["busy"] == true));
        assert!(all_marked, "{part}: {json:#}");
    }
    account.assert_code(0);
    assert!(account.out().starts_with("Something else kept the machine busy"), "{account}");
}

#[test]
fn the_account_has_a_table_for_each_operation() {
    let host = Host::new();
    let ran = host.spawn_command(bench(&host, &["--account", "--rounds", "2"])).finish_within(4 * patience());
    ran.assert_code(0);
    for part in ["### launch", "### exec", "### stop", "shim: makes cgroups", "program: from execve"] {
        assert!(ran.out().contains(part), "{part} is not in\n{ran}");
    }
    // Columns: the step, then calls, faults, processor and waiting of the floor and of bowline. Every step has been there.
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let is_counted = |cell: &String| cell.parse::<u64>().is_ok_and(|count| count > 0);
    let out = ran.out();
    let steps: Vec<_> = out.lines().filter(|line| line.starts_with("| shim: clones")).map(cells).collect();
    assert_eq!(steps.len(), 2, "{ran}");
    for step in steps {
        assert!(is_counted(&step[2]) && is_counted(&step[6]), "{step:?}");
    }
    let below = |title: &str, count: usize| -> Vec<_> {
        out.lines().skip_while(|line| !line.starts_with(title)).skip(4).take(count).map(cells).collect()
    };
    for (number, step) in below("### a create", 4).iter().enumerate() {
        // Of the floor there is no init.
        assert!(is_counted(&step[6]) && (number == 3 || is_counted(&step[2])), "{step:?}");
    }
    for call in below("### containerd's calls", 9) {
        // The floor: calls, processor, waiting, time. bowline: calls, faults, processor, its children's, waiting, time.
        assert!([2, 5, 6, 11].iter().all(|cell| is_counted(&call[*cell])), "{call:?}");
    }
}

#[test]
fn missing_binaries_are_said() {
    let host = Host::new();
    let mut command = bench(&host, &[]);
    command.env("BOWLINE_BIN_DIR", host.work());
    let ran = host.execute(command);
    ran.assert_code(1);
    assert!(ran.err().starts_with("bowline-bench: cannot find ") && ran.err().contains("make build"), "{ran}");
}
