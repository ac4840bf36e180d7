//! Hooks that hang: whoever ends their task does not wait for them.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{Build, Process, Task, eventually, name_of, patience, process_exists};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Much less than the timeouts of the hooks below, which are 300 s.
fn soon() -> Duration {
    patience() / 2
}

/// A shell script as a hook. It notes its pid in `pid`.
fn hook(host: &Host, script: &str) -> Value {
    let pid = host.work().join("pid");
    json!([{ "path": "/bin/sh", "args": ["sh", "-c", format!("echo $$ >{}; {script}", pid.display())] }])
}

/// A task from a bundle that `bowline spec` makes, with these hooks. Inside too, what they note is seen outside.
fn with_hooks(host: &Host, hooks: Value) -> Build<'_> {
    let work = host.work();
    let toml = format!(
        "command = '/bin/sh'\nargs = ['-c', 'echo ready; exec sleep 1000']
        mounts = [{{source = '{0}', destination = '{0}'}}]",
        work.display()
    );
    let file = host.file("task.toml", &toml);
    let printed = host.bowline(["spec", file.to_str().expect("ASCII")]).assert_code(0).out();
    let mut config: Value = serde_json::from_str(&printed).expect("JSON");
    config["hooks"] = hooks;
    let folder: PathBuf = work.join(host.new_id());
    fs::create_dir(&folder).expect("a new folder");
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
    host.task_of([]).flag(format!("--bundle={}", folder.display()))
}

/// The pid of the hook that runs.
fn pid_of_hook(host: &Host) -> i32 {
    let pid = host.work().join("pid");
    eventually("the hook runs", || fs::read_to_string(&pid).ok()?.trim().parse().ok())
}

fn assert_gone(host: &Host, hook: i32) {
    eventually("the hook is gone", || (!process_exists(hook) || name_of(hook).is_empty()).then_some(()));
    forget_hook(host);
}

/// Ends a task by `verb` while a hook of its launch hangs.
fn end(task: &Task<'_>, verb: &str) {
    let begun = Instant::now();
    let ran = match verb {
        "stop" => task.bowline("stop", ["--grace=1s"]),
        "kill" => task.bowline("kill", []),
        _ => task.bowline("rm", ["-f"]),
    };
    assert!(begun.elapsed() < soon(), "{verb}: {:?}\n{ran}", begun.elapsed());
    match verb {
        "stop" => assert!(!ran.err().contains("died"), "{ran}"),
        _ => drop(ran.assert_code(0)),
    }
}

fn forget_hook(host: &Host) {
    fs::remove_file(host.work().join("pid")).expect("it has noted it");
}

/// The points of a launch before its command is executed.
const BEFORE: [&str; 4] = ["prestart", "createRuntime", "createContainer", "startContainer"];

/// What ends a launch while a hook hangs; how `run` exits then, and what it says.
const ENDS: [(&str, i32, &str); 6] = [
    ("stop", 125, "was stopped while it was being launched"),
    ("kill", 125, "was killed before it was started"),
    ("rm", 125, "was stopped while it was being launched"),
    ("INT", 130, "the launch of task"),
    ("TERM", 143, "the launch of task"),
    ("shim", 125, "died before it had started the task"),
];

/// Ends a launch as one of [`ENDS`], or a running task.
fn end_launch(task: &Task<'_>, client: &Process, how: &str) {
    match how {
        "INT" => client.signal(Signal::INT),
        "TERM" => client.signal(Signal::TERM),
        "shim" => task.kill_shim(task.shim_pid_on_disk()),
        verb => end(task, verb),
    }
}

#[test]
fn a_hook_of_the_launch_is_killed_with_it() {
    let host = Host::new();
    for point in [&BEFORE[..], &["poststart"]].concat() {
        for verb in ["stop", "kill", "rm"] {
            // What it has started is in a session of its own: no process of it is left in the end.
            let built = with_hooks(&host, json!({ point: hook(&host, "setsid sleep 1000 & sleep 1000; :") }));
            let (task, start) = built.spawn_start();
            let hook = pid_of_hook(&host);
            end(&task, verb);
            start.finish_within(soon()).assert_refused(125, &[]);
            // In the container it has another number.
            match point {
                "createContainer" | "startContainer" => forget_hook(&host),
                _ => assert_gone(&host, hook),
            }
            assert!(!task.file("").exists(), "{point} {verb}");
        }
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_task_that_is_ended_in_its_launch_was_never_started() {
    let host = Host::new();
    let init = [("startContainer", "--init")];
    for (point, flag) in BEFORE.map(|point| (point, "--init=false")).into_iter().chain(init) {
        for (how, code, says) in ENDS {
            let hooks = json!({ point: hook(&host, "setsid sleep 1000 & sleep 1000; :") });
            let report = host.work().join("report.json");
            let (task, run) =
                with_hooks(&host, hooks).flag(flag).flag(format!("--report={}", report.display())).spawn();
            pid_of_hook(&host);
            end_launch(&task, &run, how);
            run.finish_within(soon()).assert_refused(code, &[says]);
            let told: Value = serde_json::from_slice(&fs::read(&report).expect("a file")).expect("JSON");
            assert!(told["error"].as_str().is_some_and(|error| !error.is_empty()), "{point} {flag} {how}: {told}");
            forget_hook(&host);
            assert!(!task.file("").exists(), "{point} {flag} {how}");
        }
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_poststart_hook_is_killed_with_the_command_that_runs() {
    let host = Host::new();
    for (how, code, _) in ENDS {
        let hooks = json!({ "poststart": hook(&host, "sleep 1000; :") });
        let (task, run) = with_hooks(&host, hooks).flag("--set=stop.grace=300ms").spawn();
        let hook = pid_of_hook(&host);
        match how {
            // `run` has a new one started at once.
            "shim" => task.crash_shim(),
            _ => end_launch(&task, &run, how),
        }
        assert_gone(&host, hook);
        if how == "shim" {
            task.wait_until_running();
            run.wait_for_out("ready");
            task.end();
            run.finish_within(soon()).assert_code(137);
            task.bowline("rm", []).assert_code(0);
            continue;
        }
        assert_eq!(run.finish_within(soon()).assert_code(code).out(), "ready", "{how}");
        assert!(!task.file("").exists(), "{how}");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_launch_goes_on_whose_client_is_killed_in_a_hook() {
    let host = Host::new();
    let go = host.work().join("go");
    for point in [&BEFORE[..], &["poststart"]].concat() {
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
        let (task, start) = with_hooks(&host, json!({ point: hook(&host, &script) })).spawn_start();
        pid_of_hook(&host);
        start.signal(Signal::KILL);
        start.finish();
        assert_eq!(task.status(), if point == "poststart" { "running" } else { "created" }, "{point}");
        fs::write(&go, "").expect("ours");
        task.wait_until_running();
        task.bowline("rm", ["-f"]).assert_code(0);
        forget_hook(&host);
        fs::remove_file(&go).expect("ours");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_launch_without_client_and_shim_was_never_started() {
    let host = Host::new();
    for point in BEFORE {
        let (task, start) = with_hooks(&host, json!({ point: hook(&host, "sleep 1000; :") })).spawn_start();
        pid_of_hook(&host);
        start.signal(Signal::KILL);
        start.finish();
        task.kill_shim(task.shim_pid_on_disk());
        let never = "died before it had started";
        for verb in ["wait", "stop", "adopt"] {
            task.bowline(verb, []).assert_refused(125, &[never]);
        }
        task.exec("true").assert_refused(125, &[never]);
        let explained = task.bowline("explain", []);
        assert!(explained.assert_code(0).out().contains(never), "{explained}");
        assert_eq!(host.bowline(["adopt", "--all"]).assert_code(0).out(), "");
        assert_eq!(task.status(), "dead", "{point}");
        if point == BEFORE[0] {
            host.bowline(["rm", "--exited"]).assert_says(task.id());
        } else {
            let gc = host.bowline(["gc", task.id()]);
            assert!(gc.assert_code(0).out().contains("its launch was cut short; nothing of it ran"), "{gc}");
            assert!(!task.file("").exists());
        }
        forget_hook(&host);
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_poststop_hook_after_a_failed_launch_is_not_waited_for() {
    let host = Host::new();
    let (go, done) = (host.work().join("go"), host.work().join("done"));
    for verb in ["stop", "rm"] {
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done; touch {}", go.display(), done.display());
        let fails = json!([{ "path": "/bin/sh", "args": ["sh", "-c", "exit 3"] }]);
        let built = with_hooks(&host, json!({ "createRuntime": fails, "poststop": hook(&host, &script) }));
        let (task, start) = built.spawn_start();
        let hook = pid_of_hook(&host);
        end(&task, verb);
        start.finish_within(soon()).assert_refused(125, &["createRuntime", "3"]);
        assert!(process_exists(hook) && !task.file("lock").exists(), "{verb}: only the hook is left");
        host.task("true").named(task.id()).start().wait().assert_code(0);
        fs::write(&go, "").expect("ours");
        eventually("it is finished", || done.exists().then_some(()));
        assert_gone(&host, hook);
        assert!(task.file("task.json").exists(), "the later task is another one");
        host.bowline(["rm", task.id()]).assert_code(0);
        fs::remove_file(&go).and_then(|()| fs::remove_file(&done)).expect("ours");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn rm_waits_for_a_poststop_hook_as_long_as_for_the_task() {
    let host = Host::new();
    let (go, done) = (host.work().join("go"), host.work().join("done"));
    for way in ["rm", "rm of one that has ended", "shim killed"] {
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done; touch {}", go.display(), done.display());
        let task =
            with_hooks(&host, json!({ "poststop": hook(&host, &script) })).flag("--set=stop.grace=300ms").start();
        task.wait_for_line("ready");
        match way {
            "rm" => {}
            "shim killed" => task.kill_shim(task.shim_pid()),
            _ => drop(task.end()),
        }
        let begun = Instant::now();
        let ran = task.bowline("rm", ["-f"]);
        assert!(begun.elapsed() < soon(), "{way}: {:?}", begun.elapsed());
        assert!(ran.assert_code(0).err().contains("poststop hooks"), "{way}\n{ran}");
        let hook = pid_of_hook(&host);
        assert!(process_exists(hook) && !task.file("lock").exists(), "{way}: only the hook is left");
        fs::write(&go, "").expect("ours");
        eventually("it is finished", || done.exists().then_some(()));
        assert_gone(&host, hook);
        fs::remove_file(&go).and_then(|()| fs::remove_file(&done)).expect("ours");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_poststop_hook_that_was_begun_is_not_run_again() {
    let host = Host::new();
    let (go, done) = (host.work().join("go"), host.work().join("done"));
    for how in ["client", "shim", "both", "INT", "TERM"] {
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done; echo x >>{}", go.display(), done.display());
        let built = with_hooks(&host, json!({ "poststop": hook(&host, &script) }));
        let (task, run) = built.flag("--set=stop.grace=300ms").flag("--rm").spawn();
        run.wait_for_out("ready");
        let shim = task.shim_pid();
        task.bowline("kill", []).assert_code(0);
        let hook = pid_of_hook(&host);
        match how {
            "INT" => run.signal(Signal::INT),
            "TERM" => run.signal(Signal::TERM),
            _ => {
                if how != "shim" {
                    run.signal(Signal::KILL);
                }
                if how != "client" {
                    task.kill_shim(shim);
                }
            }
        }
        run.finish_within(soon());
        fs::write(&go, "").expect("ours");
        assert_gone(&host, hook);
        task.bowline("rm", ["-f"]).assert_code(0);
        assert_eq!(fs::read_to_string(&done).expect("it has run"), "x\n", "{how}");
        fs::remove_file(&go).and_then(|()| fs::remove_file(&done)).expect("ours");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_poststop_hook_that_nobody_waits_for_has_its_timeout() {
    let host = Host::new();
    let mut hooks = hook(&host, "sleep 1000; :");
    hooks[0]["timeout"] = json!(1);
    let task = with_hooks(&host, json!({ "poststop": hooks })).flag("--set=stop.grace=0s").start();
    task.wait_for_line("ready");
    task.bowline("rm", ["-f"]).assert_code(0);
    let hook = pid_of_hook(&host);
    assert_gone(&host, hook);
    host.assert_nothing_left_without_rm();
}
