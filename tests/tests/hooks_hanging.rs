//! Hooks that hang: whoever ends their task does not wait for them.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::{Build, Task, eventually, name_of, patience, process_exists};
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

/// A task from a bundle that `bowline spec` makes, with these hooks.
fn with_hooks(host: &Host, hooks: Value) -> Build<'_> {
    let file = host.file("task.toml", "command = '/bin/sh'\nargs = ['-c', 'echo ready; exec sleep 1000']\n");
    let printed = host.bowline(["spec", file.to_str().expect("ASCII")]).assert_code(0).out();
    let mut config: Value = serde_json::from_str(&printed).expect("JSON");
    config["hooks"] = hooks;
    let folder: PathBuf = host.work().join(host.new_id());
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
    fs::remove_file(host.work().join("pid")).expect("it has noted it");
}

/// Ends a task by `verb` while a hook of its launch hangs.
fn end(task: &Task<'_>, verb: &str) {
    let begun = Instant::now();
    let ran = match verb {
        "stop" => task.bowline("stop", ["--grace=1s"]),
        _ => task.bowline("rm", ["-f"]),
    };
    assert!(begun.elapsed() < soon(), "{verb}: {:?}\n{ran}", begun.elapsed());
    match verb {
        "rm" => drop(ran.assert_code(0)),
        _ => assert!(!ran.err().contains("died"), "{ran}"),
    }
}

#[test]
fn a_hook_of_the_launch_is_killed_with_it() {
    let host = Host::new();
    for point in ["prestart", "createRuntime", "createContainer", "poststart"] {
        for verb in ["stop", "rm"] {
            // What it has started is in a session of its own: no process of it is left in the end.
            let built = with_hooks(&host, json!({ point: hook(&host, "setsid sleep 1000 & sleep 1000; :") }));
            let (task, start) = built.spawn_start();
            let hook = pid_of_hook(&host);
            end(&task, verb);
            let started = start.finish_within(soon());
            assert_ne!(started.code, Some(0), "{point} {verb}\n{started}");
            // In the container it has another number.
            if point == "createContainer" {
                fs::remove_file(host.work().join("pid")).expect("it has noted it");
            } else {
                assert_gone(&host, hook);
            }
            if task.file("task.json").exists() {
                task.bowline("rm", ["-f"]).assert_code(0);
            }
        }
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_task_that_is_killed_in_its_launch_was_never_started() {
    let host = Host::new();
    for point in ["createRuntime", "createContainer"] {
        let (task, start) = with_hooks(&host, json!({ point: hook(&host, "sleep 1000; :") })).spawn_start();
        pid_of_hook(&host);
        task.bowline("kill", []).assert_code(0);
        start.finish_within(soon()).assert_refused(125, &["was killed before it was started"]);
        fs::remove_file(host.work().join("pid")).expect("it has noted it");
        assert!(!task.file("").exists(), "{point}");
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
