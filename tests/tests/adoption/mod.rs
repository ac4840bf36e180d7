//! A task whose shim died goes on under a new one.

mod refused;
mod remembered;
mod trouble;
mod waiting;

use std::fs;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{
    Installed, Ran, Task, WRITER, assert_forgotten, assert_shows, binary, child_pids, eventually, fds_of, hierarchy,
    lacks, lacks_systemd, name_of, process_exists, set_frozen, status_lines, systemctl, touch,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, capabilities};
use serde_json::{Value, json};

fn signal_shim(task: &Task<'_>, signal: Signal) {
    task.wait_until_recorded();
    kill_process(Pid::from_raw(task.shim_pid_on_disk()).expect("a pid"), signal).expect("it lives");
}

#[test]
fn without_init_the_kernel_may_tell_the_exit_code() {
    let host = Host::new();
    let task = host.task("until [ -e /tmp/end ]; do sleep 0.02; done; exit 9").toml("init = false").start();
    let program = task.pid();
    task.crash_shim();
    let waiter = host.spawn(["wait", "--json", task.id()]);
    eventually("there is a new shim", || (task.takeovers() == 1).then_some(()));
    touch(program, "end");
    let report = waiter.finish().assert_code(0).json();
    let is = |code, died| report["exit_code"] == code && report["shim_died"] == died;
    // Where the kernel does not keep it, the new shim may still be faster than whoever reaps.
    assert!(is(json!(9), false) || lacks("PIDFD_INFO_EXIT") && is(json!(null), true), "{report}");
}

#[test]
fn an_end_without_a_shim_keeps_exit_code_and_output() {
    let host = Host::new();
    let task = host.task(WRITER).flag("--init").start();
    task.wait_for_line("line 1");
    let program = task.program_pid();
    task.kill_shim(task.shim_pid());
    touch(program, "1");
    touch(program, "end");
    eventually("the program has ended", || (!process_exists(program)).then_some(()));
    assert_eq!(task.status(), "dead");
    task.wait().assert_code(7);
    assert!(task.said("stdout").starts_with("line 1\n"), "{}", task.said("stdout"));
    eventually("its shim leaves", || (!process_exists(task.shim_pid_on_disk())).then_some(()));
}

#[test]
fn where_nobody_knows_the_exit_code_the_report_says_so() {
    let host = Host::new();
    let task = host.task("until [ -e /tmp/end ]; do sleep 0.02; done; exit 9").toml("init = false").start();
    let program = task.pid();
    task.kill_shim(task.shim_pid());
    touch(program, "end");
    let entry = format!("/proc/{program}");
    eventually("it was reaped by another process", || (!fs::exists(&entry).expect("readable")).then_some(()));
    let ran = task.bowline("wait", []);
    ran.assert_refused(125, &[task.id(), "not known"]);
    assert_eq!(task.wait()["shim_died"], true);
    task.bowline("rm", []).assert_code(0);
}

#[test]
fn all_that_needs_a_shim_gets_one() {
    let host = Host::new();
    for verb in
        [&["exec", "--", "true"][..], &["stats", "--json"], &["top", "--once"], &["pause"], &["kill", "--signal=0"]]
    {
        let task = host.task("exec sleep 1000").flag("--init").start();
        task.kill_shim(task.shim_pid());
        host.bowline([verb[0], task.id()].iter().chain(&verb[1..])).assert_code(0);
        task.stop(["--grace=50s"]).assert_killed_by("TERM");
    }
}

/// Kills a shim that is frozen: on v1 it lives on until it is thawed, and the kernel connects clients to it meanwhile.
#[test]
fn a_command_that_begins_once_its_shim_is_killed_gets_a_new_one() {
    let host = Host::new();
    for verb in
        [&["exec", "--", "true"][..], &["stats", "--json"], &["update", "--pids", "50"], &["kill", "--signal=0"]]
    {
        let task = host.task("exec sleep 1000").flag("--init").start();
        // Its shim gets there once the task has run for a moment.
        let cgroup = hierarchy("freezer").join("bowline").join(task.on_host()).join("overhead");
        let shim = task.shim_pid();
        let is_there =
            || fs::read_to_string(cgroup.join("cgroup.procs")).is_ok_and(|all| all.contains(&shim.to_string()));
        eventually("the shim is charged there", || is_there().then_some(()));
        set_frozen(&cgroup, true);
        signal_shim(&task, Signal::KILL);
        let command = host.spawn([verb[0], task.id()].iter().chain(&verb[1..]));
        let waits = || {
            let state = status_lines(command.pid(), &["State"]);
            state.contains('S') && fds_of(command.pid()).iter().any(|fd| fd.contains("eventpoll"))
        };
        if process_exists(shim) {
            eventually("the command waits", || waits().then_some(()));
        }
        set_frozen(&cgroup, false);
        command.finish().assert_code(0);
        assert_eq!(task.takeovers(), 1, "{verb:?}");
        task.stop(["--grace=50s"]).assert_killed_by("TERM");
    }
}

#[test]
fn an_exec_has_the_protection_that_it_had_before() {
    let host = Host::new();
    let look = "grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp|Cpus_allowed):' /proc/self/status; \
                cat /proc/self/cgroup /proc/self/limits; ls /proc/self/fd | wc -l; env";
    for flags in [&["--init"][..], &["--init", "--untrusted"], &["--init", "--user=1000:1000"]] {
        let task = flags.iter().fold(host.task("exec sleep 1000"), |task, flag| task.flag(*flag)).start();
        let before = task.exec(look).out();
        task.kill_shim(task.shim_pid());
        assert_eq!(task.exec(look).out(), before);
        task.end();
    }
}

/// Runs `bowline` with this limit of open files, which without CAP_SYS_RESOURCE nobody raises.
fn with_files(host: &Host, most: u32, args: &[&str]) -> Ran {
    let mut command = host.command("/bin/sh");
    command.args(["-c", "ulimit -n \"$0\"; exec \"$@\"", &most.to_string()]).arg(binary("bowline")).args(args);
    host.execute(command)
}

#[test]
fn execs_keep_their_rlimits_no_matter_who_adopts_the_task() {
    let host = Host::new();
    let id = host.new_id();
    with_files(&host, 2000, &["start", "--name", &id, "--init", "--", "sleep", "1000"]).assert_says(&id);
    let task = host.adopt(&id);
    let limits = || task.exec("cat /proc/self/limits").assert_code(0).out();
    let before = limits();
    task.kill_shim(task.shim_pid());
    task.bowline("adopt", []).assert_says(&id);
    assert_eq!(limits(), before);
    task.bowline("upgrade", []).assert_says(&id);
    assert_eq!(limits(), before);
    task.kill_shim(task.shim_pid());
    with_files(&host, 256, &["adopt", &id]).assert_says(&id);
    let rights = capabilities(None).expect("its own").effective;
    match rights.contains(CapabilitySet::SYS_RESOURCE) {
        true => assert_eq!(limits(), before),
        false => assert!(task.log("shim.log").contains("lower limits than before"), "{}", task.log("shim.log")),
    }
    task.end();
}

#[test]
fn a_stop_keeps_its_deadline_and_its_reason() {
    let host = Host::new();
    let task = host.task("trap '' TERM; echo ready; while :; do sleep 0.05; done").flag("--init").start();
    task.wait_for_line("ready");
    let stop = host.spawn(["stop", "--grace=2s", task.id()]);
    eventually("it is being stopped", || (task.status() == "stopping").then_some(()));
    task.crash_shim();
    stop.finish().assert_code(0);
    let report = task.wait();
    report.assert_killed_by("KILL");
    assert_eq!(
        (&report["stopped_by"], &report["signal_sent_by_shim"]),
        (&json!("request"), &json!(true)),
        "{report:?}"
    );
}

#[test]
fn a_stop_that_its_shim_did_not_hear_is_asked_of_the_next() {
    let host = Host::new();
    // Of one that it starts itself, and of one that somebody else has started before it looks again.
    for by_others in [false, true] {
        let task = host.task("trap 'exit 6' TERM; echo ready; while :; do sleep 0.05; done").start();
        task.wait_for_line("ready");
        signal_shim(&task, Signal::STOP);
        let stop = host.spawn(["stop", "--grace=50s", task.id()]);
        eventually("it has asked", || (task.socket_ends() >= 2).then_some(()));
        task.crash_shim();
        if by_others {
            // `stop` may have been quicker: then it has nothing to say.
            host.bowline(["adopt", task.id()]).assert_code(0);
        }
        stop.finish().assert_code(0);
        task.wait().assert_code(6);
    }
}

#[test]
fn a_reader_that_goes_with_the_shim_takes_nothing_else_along() {
    let host = Host::new();
    let (task, run) = host.task(WRITER).spawn();
    run.wait_for_out("line 1");
    let program = task.program_pid();
    signal_shim(&task, Signal::STOP);
    run.signal(Signal::KILL);
    run.finish();
    for entry in fs::read_dir(task.file("")).expect("its folder").flatten() {
        if entry.file_name().to_string_lossy().starts_with("attach-") {
            fs::remove_dir_all(entry.path()).expect("what `gc` would remove");
        }
    }
    task.crash_shim();
    task.bowline("adopt", []).assert_says(task.id());
    touch(program, "1");
    touch(program, "end");
    task.wait().assert_code(7);
}

#[test]
fn without_init_output_ends_with_shim_and_terminal_hangs_up() {
    let host = Host::new();
    let writes = "trap '' PIPE; until [ -e /tmp/end ]; do sleep 0.02; done; echo more 2>/dev/null || exit 9";
    let task = host.task(writes).toml("init = false").start();
    let program = task.pid();
    task.kill_shim(task.shim_pid());
    task.bowline("adopt", []).assert_says(task.id());
    touch(program, "end");
    let report = task.wait();
    assert!(report["exit_code"] == 9 || lacks("PIDFD_INFO_EXIT"), "its write has failed: {report:?}");

    let task = host.task("trap 'exit 8' HUP; while :; do sleep 0.05; done").flag("--tty").flag("--interactive").start();
    task.wait_until_running();
    task.crash_shim();
    task.wait().assert_code(8);
}

#[test]
fn a_limit_of_its_time_counts_from_its_start() {
    let host = Host::new();
    let task =
        host.task("trap 'exit 6' TERM; while :; do sleep 0.05; done").flag("--init").flag("--timeout=3s").start();
    task.kill_shim(task.shim_pid());
    task.bowline("adopt", []).assert_says(task.id());
    let report = task.wait();
    assert_eq!(report.assert_code(6)["stopped_by"], "timeout", "{report:?}");
}

#[test]
fn an_exec_keeps_its_deadline_and_what_it_left_has_none() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--init").start();
    let left = task.exec_with(["--timeout=3s"], "setsid sleep 1001 >/dev/null 2>&1 & echo $!");
    left.assert_code(0);
    let exec = task.spawn_exec(["--timeout=3s"], "setsid sleep 1002 & exec sleep 1003");
    let sleeps = |seconds: &str| {
        let line = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        task.processes().iter().filter(|pid| line(pid).contains(seconds)).count()
    };
    eventually("both run", || (sleeps("1002") + sleeps("1003") == 2).then_some(()));
    task.crash_shim();
    exec.finish().assert_code(125);
    task.bowline("adopt", []).assert_says(task.id());
    eventually("the deadline came", || (sleeps("1002") + sleeps("1003") == 0).then_some(()));
    assert_eq!(sleeps("1001"), 1, "that exec had ended in time");
    // Another exec with a deadline has a cgroup of its own again.
    task.exec_with(["--timeout=50s"], "exit 3").assert_code(3);
    task.end();
}

#[test]
fn a_paused_task_is_still_paused() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--init").start();
    task.bowline("pause", []).assert_code(0);
    task.kill_shim(task.shim_pid());
    task.bowline("adopt", []).assert_says(task.id());
    assert_eq!(task.status(), "paused");
    task.bowline("resume", []).assert_code(0);
    assert_eq!(task.status(), "running");
    task.stop(["--grace=50s"]).assert_killed_by("TERM");
}

/// A task that sleeps, with health checks that run this script.
fn checked<'h>(host: &'h Host, script: &str, more: &str) -> Task<'h> {
    let toml = format!(
        "command = 'sleep'\nargs = ['1000']\ninit = true\n\
         [healthcheck]\nexec = ['sh', '-c', '{script}']\n{more}"
    );
    host.described(&toml).start()
}

#[test]
fn health_is_remembered_and_checked_on() {
    let host = Host::new();
    // Each file makes one check fail.
    let script =
        "until mv /tmp/fail /tmp/failed; do [ ! -e /tmp/fine ] || exit 0; sleep 0.02; done 2>/dev/null; exit 3";
    let task = checked(&host, script, "interval = '10ms'\ntimeout = '1h'\nretries = 3");
    let program = task.program_pid();
    let health = || task.inspect()["health"].clone();
    for streak in 1..=2 {
        touch(program, "fail");
        eventually("one more has failed", || (health()["failing_streak"] == streak).then_some(()));
    }
    let before = health();
    task.kill_shim(task.shim_pid());
    task.bowline("adopt", []).assert_says(task.id());
    assert_eq!(health(), before, "its streak and its checks");
    // The check of the dead shim may take one, and counts no more.
    eventually("it is unhealthy", || {
        touch(program, "fail");
        (health()["status"] == "unhealthy").then_some(())
    });
    assert!(health()["log"].as_array().is_some_and(|log| log.len() >= 3), "{}", health());
    task.kill_shim(task.shim_pid());
    task.bowline("adopt", []).assert_says(task.id());
    assert_eq!(health()["status"], "unhealthy");
    touch(program, "fine");
    eventually("it is healthy", || (health()["status"] == "healthy").then_some(()));
    task.end();
}

#[test]
fn its_start_period_counts_from_its_start() {
    const PERIOD: Duration = Duration::from_secs(4);
    let host = Host::new();
    let more = "interval = '100ms'\nstart_interval = '100ms'\nstart_period = '4s'\nretries = 1";
    let task = checked(&host, "echo >>/tmp/checks; exit 3", more);
    eventually("half of it is over", || {
        let checks = task.exec("cat /tmp/checks 2>/dev/null || true").stdout.len();
        (checks > 20).then_some(())
    });
    task.kill_shim(task.shim_pid());
    let begun = Instant::now();
    task.bowline("adopt", []).assert_says(task.id());
    eventually("it is unhealthy", || (task.inspect()["health"]["status"] == "unhealthy").then_some(()));
    assert!(begun.elapsed() < PERIOD, "after {:?} more", begun.elapsed());
    task.end();
}

#[test]
fn limits_change_and_kills_are_counted_once() {
    let host = Host::new();
    let hog = "(tail /dev/zero); echo survived; exec sleep 1000";
    let task = host.task(hog).flag("--init").flag("--memory=32M").start();
    task.wait_for_line("survived");
    let ooms = || {
        let events = host.bowline(["events", "--json", task.id()]).assert_code(0).out();
        events.lines().filter(|line| line.contains("\"oom\"")).count()
    };
    eventually("the kill is told", || (ooms() == 1).then_some(()));
    task.kill_shim(task.shim_pid());
    task.bowline("update", ["--memory=64M"]).assert_code(0);
    assert_eq!(task.stats()["memory"]["limit_bytes"], 64 << 20);
    let report = task.end();
    assert_eq!((report.number("oom_kills"), ooms()), (1, 1), "{report:?}");
    let all = host.bowline(["events", "--json", task.id()]).assert_code(0).out();
    let numbers: Vec<u64> = all
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["seq"].as_u64().expect("one"))
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<u64>>(), "{all}");
}

#[test]
fn all_are_taken_over_at_once() {
    let host = Host::new();
    let tasks: Vec<_> = (0..3).map(|_| host.task("exec sleep 1000").flag("--init").start()).collect();
    tasks[..2].iter().for_each(|task| task.kill_shim(task.shim_pid()));
    let mut taken: Vec<String> =
        host.bowline(["adopt", "--all"]).assert_code(0).out().lines().map(str::to_owned).collect();
    taken.sort();
    let mut dead: Vec<&str> = tasks[..2].iter().map(Task::id).collect();
    dead.sort_unstable();
    assert_eq!(taken, dead);
    host.bowline(["adopt", "--all"]).assert_says("");
    for task in &tasks {
        task.bowline("adopt", []).assert_says("");
        task.end();
        task.bowline("adopt", []).assert_says("");
    }
}

const SERVICE: &str = include_str!("../../../systemd/bowline-adopt.service");
const TIMER: &str = include_str!("../../../systemd/bowline-adopt.timer");

/// Returns at once on a host without systemd.
#[test]
fn the_installed_units_adopt_tasks_whose_shim_died() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let bowline = binary("bowline");
    let bindir = bowline.parent().and_then(std::path::Path::to_str).expect("ASCII");
    let names = ["service", "timer"].map(|kind| format!("{}-adopt.{kind}", host.prefix()));
    let mut service = Installed::new(names[0].clone(), &SERVICE.replace("@bindir@", bindir));
    let state = format!("[Service]\nEnvironment=BOWLINE_STATE={}\n", host.state().display());
    service.drop_in("state.conf", &state);
    let task = host.task(WRITER).flag("--init").start();
    task.wait_for_line("line 1");
    let program = task.program_pid();
    task.kill_shim(task.shim_pid());
    systemctl(&["start", "--", &service.name]);
    assert_shows(&service.name, &["ActiveState=inactive", "Result=success"]);
    assert_eq!(task.takeovers(), 1, "{}", service.said());
    // The service has ended, and its shim has not.
    touch(program, "1");
    task.wait_for_line("line 2");
    task.exec("exit 3").assert_code(3);
    task.kill_shim(task.shim_pid());
    let timer = Installed::new(names[1].clone(), TIMER);
    systemctl(&["start", "--", &timer.name]);
    eventually("the timer has it taken over", || (task.takeovers() == 2).then_some(()));
    touch(program, "end");
    task.wait().assert_code(7);
    drop((timer, service));
    names.iter().for_each(|name| assert_forgotten(name));
}

#[test]
fn a_pid_that_is_another_processs_is_left_alone() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--init").start();
    let init = task.pid();
    task.kill_shim(task.shim_pid());
    let mut other = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
    kill_process(Pid::from_raw(init).expect("a pid"), Signal::KILL).expect("it lives");
    eventually("init is gone", || (!process_exists(init)).then_some(()));
    task.change_record(|record| record["pid"] = other.id().into());
    let report = task.wait();
    assert_eq!((&report["exit_code"], &report["shim_died"]), (&json!(null), &json!(true)), "{report:?}");
    let why = format!("{}, is another process's now", other.id());
    assert!(report["init_lost"].as_str().is_some_and(|said| said.contains(&why)), "{report:?}");
    assert!(task.log("shim.log").contains(&why), "{}", task.log("shim.log"));
    task.bowline("wait", []).assert_refused(125, &[task.id(), &why]);
    let told = host.bowline(["events", task.id()]);
    assert!(String::from_utf8_lossy(&told.stdout).contains(&why), "{told:?}");
    assert!(other.try_wait().expect("a child").is_none(), "another process was signalled");
    other.kill().expect("it lives");
    other.wait().expect("a child");
}

#[test]
fn what_cannot_be_taken_over_is_refused_and_untouched() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--init").start();
    let program = task.program_pid();
    task.kill_shim(task.shim_pid());
    let record = task.log("task.json");
    for (field, value, why) in [
        ("/identity/boot", json!("another"), "boot"),
        ("/pid", json!(null), "launch"),
        ("/sandbox", json!("some"), "sandbox"),
    ] {
        task.change_record(|record| match record.pointer_mut(field) {
            Some(old) => *old = value,
            None => record[&field[1..]] = value,
        });
        task.bowline("adopt", []).assert_refused(125, &[task.id(), why]);
        let all = host.bowline(["adopt", "--all"]);
        // A member is taken over with its sandbox.
        if field == "/sandbox" {
            all.assert_says("");
        } else {
            all.assert_refused(125, &[task.id(), why]);
        }
        for verb in ["stats", "pause", "stop", "kill", "wait", "upgrade"] {
            task.bowline(verb, []).assert_refused(125, &[task.id(), "shim"]);
        }
        task.bowline("exec", ["--", "true"]).assert_refused(125, &[task.id(), "shim"]);
        task.bowline("logs", ["-f"]).assert_refused(125, &[task.id(), "shim"]);
        task.bowline("wait", ["--json"]).assert_refused(125, &[task.id(), why]);
        fs::write(task.file("task.json"), &record).expect("writable");
    }
    task.change_record(|record| record["cgroup"] = json!("/bowline"));
    let refused = task.bowline("adopt", []);
    refused.assert_refused(125, &[task.id(), "cgroup"]);
    let hint = format!("`bowline rm -f {}`", task.id());
    assert!(refused.err().contains(&hint) && !refused.err().contains("ERROR"), "no line of a log: {refused}");
    fs::write(task.file("task.json"), &record).expect("writable");
    assert!(process_exists(program));
    task.bowline("adopt", []).assert_says(task.id());
    assert_eq!(task.program_pid(), program);
    task.end();
}

#[test]
fn a_task_that_is_taken_over_keeps_its_user_to_itself() {
    let host = Host::new();
    let tasks: Vec<_> =
        (0..2).map(|_| host.task("exec sleep 1000").flag("--init").flag("--untrusted").start()).collect();
    let user = |task: &Task<'_>| status_lines(task.program_pid(), &["Uid"]);
    let before = user(&tasks[0]);
    tasks[0].kill_shim(tasks[0].shim_pid());
    tasks[0].bowline("adopt", []).assert_says(tasks[0].id());
    assert_eq!(user(&tasks[0]), before);
    assert_ne!(user(&tasks[1]), before);
    assert_eq!(tasks[0].exec("id -u").out(), before.split_whitespace().nth(1).expect("a number"));
    tasks.iter().for_each(|task| drop(task.end()));
}

#[test]
fn a_new_shim_leaves_nothing_of_the_old_ones_open() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--init").start();
    task.kill_shim(task.shim_pid());
    task.bowline("adopt", []).assert_says(task.id());
    let init = task.pid();
    assert_eq!(name_of(init), "bowline-init");
    assert_eq!(child_pids(init).len(), 1);
    assert_eq!(name_of(task.shim_pid()), "bowline-shim");
    task.stop(["--grace=50s"]).assert_killed_by("TERM");
}
