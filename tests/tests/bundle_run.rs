//! `run --bundle DIR`: an OCI bundle, such as `bowline spec` prints, as a task like any other.

use std::fs;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::{
    Build, assert_cgroup_is_below, assert_forgotten, binary, eventually, lacks_systemd, only_v2, process_exists,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The bundle that `bowline spec` makes of `toml`, changed.
fn bundle(host: &Host, toml: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let file = host.file("task.toml", toml);
    let printed = host.bowline(["spec", file.to_str().expect("ASCII")]).assert_code(0).out();
    let mut config: Value = serde_json::from_str(&printed).expect("JSON");
    change(&mut config);
    let folder = host.work().join(host.new_id());
    fs::create_dir(&folder).expect("a new folder");
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
    folder
}

fn shell(script: &str) -> String {
    format!("command = '/bin/sh'\nargs = ['-c', '{script}']\n")
}

/// The bundle in `folder`, and nothing else.
fn of<'h>(host: &'h Host, folder: &Path) -> Build<'h> {
    host.task_of([]).flag(format!("--bundle={}", folder.display()))
}

#[test]
fn what_spec_has_printed_is_run() {
    let host = Host::new();
    let toml = shell("echo $A; id -u; ulimit -n; exit 3") + "env.A = 'x'\nuser = '1234'\nrlimits.nofile = 99";
    let ran = of(&host, &bundle(&host, &toml, |_| {})).run();
    assert_eq!(ran.assert_code(3).out(), "x\n1234\n99");
}

/// As the runtime specification asks. One that a description names is refused:
/// `bad_input::description::a_capability_that_bowline_does_not_have_itself_is_refused`.
#[test]
fn a_capability_that_it_does_without_is_said() {
    let host = Host::new();
    let folder = bundle(&host, &shell("echo out"), |config| {
        for set in ["bounding", "permitted", "effective"] {
            let all = config["process"]["capabilities"][set].as_array_mut().expect("a list");
            all.extend([json!("CAP_SYS_TIME"), json!("CAP_NOPE")]);
        }
    });
    let run = |args: &[&str]| {
        let mut command = host.command("setpriv");
        command.args(["--bounding-set=-sys_time", "--inh-caps=-sys_time", "--"]).arg(binary("bowline"));
        command.arg("--state").arg(host.state()).args(["run", "--rm", "--name", &host.new_id()]).args(args);
        host.execute(command)
    };
    let ran = run(&[&format!("--bundle={}", folder.display())]);
    assert_eq!(ran.assert_code(0).out(), "out");
    for name in ["CAP_SYS_TIME", "CAP_NOPE"] {
        let said = format!("bowline: process.capabilities: ignoring unknown or unavailable capabilities: [{name}]");
        assert!(ran.err().contains(&said), "{ran}");
    }
    let ran = run(&["--cap-add=ALL", "--", "echo", "out"]);
    assert_eq!(ran.assert_code(0).out(), "out");
    assert!(
        ran.err().starts_with("bowline: capabilities: this host has no ") && ran.err().contains("CAP_SYS_TIME"),
        "{ran}"
    );
}

#[test]
fn with_all_terminals_in_use_an_exec_is_refused_with_the_cause() {
    let host = Host::new();
    let folder = bundle(&host, &shell("exec sleep 1000"), |config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        let pts = mounts.iter_mut().find(|mount| mount["destination"] == "/dev/pts").expect("one");
        let options = pts["options"].as_array_mut().expect("a list");
        options.retain(|option| !option.as_str().is_some_and(|option| option.starts_with("max=")));
        options.push(json!("max=1"));
    });
    let task = of(&host, &folder).start();
    let first = task.in_terminal("exec", ["-it", "--", "/bin/sh", "-c", "echo begun; read line"]);
    first.wait_for("begun");
    let refused = task.in_terminal("exec", ["-it", "--", "true"]).finish();
    refused.assert_refused(125, &["cannot open a terminal", "are in use"]);
    assert!(refused.err().contains("hint: end programs that have one"), "{refused}");
    first.type_keys("\r");
    first.finish().assert_code(0);
    task.end();
}

#[test]
fn its_limits_and_its_filter_are_the_kernel_s() {
    let host = Host::new();
    let toml = shell("grep Seccomp: /proc/self/status; exec sleep 1000") + "memory.limit = '64M'\npids = 7";
    let folder = bundle(&host, &toml, |_| {});
    // As many as one likes from one bundle.
    let tasks = [(); 2].map(|()| of(&host, &folder).start());
    for task in &tasks {
        task.wait_for_line("Seccomp:\t2");
        assert_eq!(task.cgroup_file("pids", "pids.max"), "7");
        let limit = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
        assert!(limit.ends_with(&format!("/{}/{}", task.on_host(), task.id())), "{limit}");
    }
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "nothing is kept in the bundle");
    tasks.iter().for_each(|task| drop(task.end()));
}

#[test]
fn its_limits_can_be_changed_while_it_runs() {
    let host = Host::new();
    let toml = shell("exec sleep 1000") + "memory = {limit = '64M', swap = '16M'}\npids = 7";
    // With an init, which knows how it ends whatever becomes of its shim: older kernels do not.
    let task = of(&host, &bundle(&host, &toml, |_| {})).flag("--init").start();
    task.bowline("update", ["--memory=32M", "--pids=9"]).assert_code(0);
    let most = if only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
    let limits = || (task.cgroup_file("memory", most), task.cgroup_file("pids", "pids.max"));
    let differing = || task.inspect()["differing_limits"].clone();
    assert_eq!((limits(), differing()), (("33554432".to_owned(), "9".to_owned()), Value::Null));
    if only_v2() {
        assert_eq!(task.cgroup_file("memory", "memory.swap.max"), "16777216", "as the bundle says");
    }
    let described = &task.inspect()["task"];
    assert_eq!((&described["memory"]["limit"], &described["pids"]), (&"32M".into(), &9.into()), "{described}");
    task.bowline("update", ["--pids=max"]).assert_code(0);
    assert_eq!((limits(), differing()), (("33554432".to_owned(), "max".to_owned()), Value::Null));
    task.bowline("update", ["--memory=48M", "--swap=0"]).assert_code(0);
    assert_eq!(limits().0, "50331648");
    if only_v2() {
        assert_eq!(task.cgroup_file("memory", "memory.swap.max"), "0");
    }
    assert_eq!(differing(), Value::Null);
    fs::write(task.cgroup("pids").join("pids.max"), "77").expect("root may");
    assert_eq!(differing(), json!([{"file": "pids.max", "asked": "max", "is": "77"}]));
    task.kill_shim(task.shim_pid());
    task.exec("true").assert_code(0);
    assert_eq!(differing()[0]["is"], "77", "a later shim says so too");
    task.bowline("update", ["--pids=5"]).assert_code(0);
    assert_eq!(differing(), Value::Null);
    // A task of an older bowline has no copy.
    fs::remove_file(task.file("config.json")).expect("ours");
    task.bowline("update", ["--pids=6"]).assert_code(0);
    assert_eq!((limits().1.as_str(), differing()), ("6", Value::Null));
    task.end();
}

#[test]
fn its_cgroup_may_be_a_unit() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    for driver in ["systemd", "auto"] {
        let id = host.new_id();
        let folder = bundle(&host, &shell("exec sleep 1000"), |config| {
            config["linux"]["cgroupsPath"] = format!("system.slice:ref:{id}").into();
        });
        // With an init, which knows how it ends whatever becomes of its shim.
        let task = of(&host, &folder).named(&id).flag(format!("--cgroup-driver={driver}")).flag("--init").start();
        let scope = format!("ref-{id}.scope");
        assert_cgroup_is_below(task.pid(), &format!("/system.slice/{scope}"));
        task.kill_shim(task.shim_pid());
        task.exec("true").assert_code(0);
        task.end();
        assert_forgotten(&scope);
    }
}

#[test]
fn an_update_replaces_a_raw_value_of_its_bundle() {
    if !only_v2() {
        return;
    }
    let host = Host::new();
    let folder = bundle(&host, &shell("exec sleep 1000"), |config| {
        let raw = json!({"pids.max": "32", "memory.max": "64M", "memory.min": "1M", "cpu.max": "20000"});
        config["linux"]["resources"] = json!({ "unified": raw });
    });
    let task = of(&host, &folder).start();
    task.bowline("update", ["--pids=41", "--memory=70M", "--cpus=0.5"]).assert_code(0);
    let is = ["pids.max", "memory.max", "memory.min", "cpu.max"].map(|file| task.cgroup_file("", file));
    assert_eq!(is, ["41", "73400320", "1048576", "50000 100000"]);
    assert_eq!(task.inspect()["differing_limits"], Value::Null);
    task.end();
}

#[test]
fn a_bundle_with_a_root_folder_is_run_in_it() {
    let host = Host::new();
    let root = host.busybox_root();
    fs::write(root.path().join("mine"), "mine\n").expect("written");
    let folder = bundle(&host, &shell("cat /mine"), |config| {
        config["root"] = json!({ "path": root.path(), "readonly": true });
        let mounts = config["mounts"].as_array_mut().expect("mounts");
        mounts.retain(|mount| mount["type"] != "bind" && mount["type"] != "tmpfs");
    });
    of(&host, &folder).run().assert_says("mine");
    // By a path that begins in the working directory, and in the bundle.
    std::os::unix::fs::symlink(root.path(), folder.join("root")).expect("a link");
    let mut command = host.command(bowline_tests::harness::binary("bowline"));
    command.args(["run", "--rm", "--name", &host.new_id(), "--bundle", "."]).current_dir(&folder);
    host.execute(command).assert_says("mine");
}

#[test]
fn a_root_may_be_named_by_a_symlink() {
    let host = Host::new();
    let root = host.busybox_root();
    fs::write(root.path().join("mine"), "mine\n").expect("written");
    let folder = bundle(&host, &shell("cat /mine; ls /"), |config| {
        config["root"] = json!({ "path": "link", "readonly": true });
        config["mounts"].as_array_mut().expect("mounts").retain(|mount| mount["type"] != "bind");
    });
    std::os::unix::fs::symlink(root.path(), folder.join("link")).expect("a link");
    let said = of(&host, &folder).run().assert_code(0).out();
    assert!(said.starts_with("mine\n"), "{said}");
}

#[test]
fn command_and_entrypoint_replace_the_bundle_s_arguments() {
    let host = Host::new();
    let folder = bundle(&host, "command = '/bin/echo'\nargs = ['bundle', 's']", |_| {});
    let flag = format!("--bundle={}", folder.display());
    of(&host, &folder).run().assert_says("bundle s");
    host.task("echo typed").flag(&flag).run().assert_says("typed");
    host.task_of(["%s-%s", "a", "b"]).flag(&flag).flag("--entrypoint=printf").run().assert_says("a-b");
    of(&host, &folder).flag("--entrypoint=/bin/true").run().assert_says("");
    host.task("true").flag("--entrypoint=ls").assert_refused(2, &["--bundle"]);
    let empty = host.bowline(["run", &flag, "--entrypoint="]);
    empty.assert_refused(2, &["--entrypoint"]);
}

#[test]
fn variables_folder_labels_and_secrets_are_added() {
    let host = Host::new();
    let folder =
        bundle(&host, &(shell("echo $A $B; pwd; cat /run/secrets/*; touch /x; ls /x") + "env.A = 'old'"), |_| {});
    let file = host.file("key", "secret\n");
    let flags = ["--env=A=new", "--env=B=too", "--workdir=/usr", "--ephemeral=8M"].map(str::to_owned);
    let flags = flags.into_iter().chain([format!("--secret={}", file.display())]);
    let built = flags.fold(of(&host, &folder), |build, flag| build.flag(flag));
    built.run().assert_says("new too\n/usr\nsecret\n/x");
}

#[test]
fn it_is_watched_stopped_and_logged_like_any_task() {
    let host = Host::new();
    let script = "trap \"exit 4\" USR1; echo ready; while :; do sleep 0.1; done";
    let folder = bundle(&host, &shell(script), |_| {});
    let task = of(&host, &folder).flag("--stop-signal=USR1").flag("--label=tier=web").start();
    task.wait_for_line("ready");
    assert_eq!(host.bowline(["ps", "-q", "--filter", "label=tier=web"]).assert_code(0).out(), task.id());
    let row = &host.bowline(["ps", "--json"]).assert_code(0).json();
    assert!(row.to_string().contains("/bin/sh -c"), "{row}");
    task.exec("echo inside").assert_says("inside");
    task.bowline("update", ["--memory=64M"]).assert_code(0);
    task.stop([]).assert_code(4);
    let late = of(&host, &bundle(&host, &shell("exec sleep 1000"), |_| {}));
    late.flag("--rm").flag("--timeout=200ms").flag("--stop-timeout=0").run().assert_code(124);
}

#[test]
fn its_hooks_find_the_bundle() {
    let host = Host::new();
    let seen = host.work().join("seen");
    let folder = bundle(&host, "command = 'true'", |config| {
        let script = format!("cat >{}", seen.display());
        config["hooks"] = json!({ "createRuntime": [{ "path": "/bin/sh", "args": ["sh", "-c", script] }] });
    });
    of(&host, &folder).run().assert_code(0);
    let state: Value = serde_json::from_slice(&fs::read(&seen).expect("the hook ran")).expect("JSON");
    assert_eq!(state["bundle"], folder.to_str().expect("ASCII"));
}

#[test]
fn a_hook_whose_time_is_over_is_no_timeout_of_the_task() {
    let host = Host::new();
    for point in ["createRuntime", "startContainer"] {
        let folder = bundle(&host, "command = 'true'", |config| {
            let hook = json!({ "path": "/bin/sh", "args": ["sh", "-c", "sleep 1000"], "timeout": 1 });
            config["hooks"] = json!({ point: [hook] });
        });
        of(&host, &folder).run().assert_refused(125, &[point, "did not end within 1s"]);
    }
}

/// A bundle whose poststop hooks note each of their runs in `stopped`, which has the state that they read.
fn noting(host: &Host, script: &str, stopped: &Path, change: impl FnOnce(&mut Value)) -> PathBuf {
    bundle(host, &shell(script), |config| {
        let script = format!("cat >>{0}; echo >>{0}", stopped.display());
        config["hooks"] = json!({ "poststop": [{ "path": "/bin/sh", "args": ["sh", "-c", script] }] });
        change(config);
    })
}

/// What the hooks have noted.
fn noted(stopped: &Path) -> Vec<Value> {
    let text = fs::read_to_string(stopped).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn its_poststop_hooks_run_once_as_it_is_removed() {
    let host = Host::new();
    for way in ["run --rm", "rm", "rm -f", "stop", "shim killed", "gc", "--replace", "bundle gone"] {
        let stopped = host.work().join(format!("stopped {way}").replace(' ', "-"));
        let folder = noting(&host, "exec sleep 1000", &stopped, |_| {});
        let task = match way {
            "run --rm" => {
                let id = host.new_id();
                of(&host, &folder).named(&id).flag("--rm").flag("--entrypoint=/bin/true").run().assert_code(0);
                let [state] = &noted(&stopped)[..] else { panic!("{way}: {:?}", noted(&stopped)) };
                assert_eq!((&state["status"], &state["id"]), (&json!("stopped"), &json!(id)), "{state}");
                assert_eq!(state["bundle"], folder.to_str().expect("ASCII"), "{state}");
                continue;
            }
            _ => of(&host, &folder).flag("--label=tier=web").start(),
        };
        match way {
            "rm -f" => {}
            "shim killed" => task.kill_shim(task.shim_pid()),
            "gc" => {
                // A task that lives is left to a new shim.
                let pid = task.pid();
                task.kill_shim(task.shim_pid());
                kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it lives");
                eventually("it has ended", || (!process_exists(pid)).then_some(()));
                host.bowline(["gc", task.id()]).assert_code(0);
                assert_eq!(noted(&stopped).len(), 1, "{way}");
            }
            "--replace" => {
                of(&host, &bundle(&host, "command = 'true'", |_| {})).named(task.id()).flag("--replace").start().wait();
                assert_eq!(noted(&stopped).len(), 1, "{way}");
            }
            _ => {
                task.end();
                assert_eq!(noted(&stopped).len(), 0, "{way}: it is there until it is removed");
            }
        }
        if way == "bundle gone" {
            fs::remove_dir_all(&folder).expect("ours");
        }
        let flags = if ["rm -f", "shim killed", "gc"].contains(&way) { &["-f"][..] } else { &[] };
        host.bowline([&["rm"], flags, &[task.id()]].concat()).assert_code(0);
        let [state] = &noted(&stopped)[..] else { panic!("{way}: {:?}", noted(&stopped)) };
        assert_eq!((&state["status"], &state["id"]), (&json!("stopped"), &json!(task.id())), "{way}: {state}");
        assert_eq!(state["annotations"]["tier"], "web", "{way}: {state}");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn its_poststop_hooks_run_once_where_its_launch_fails() {
    let host = Host::new();
    for point in ["createRuntime", "startContainer", "poststart"] {
        for verb in ["run", "start"] {
            let stopped = host.work().join(format!("stopped-{point}-{verb}"));
            let folder = noting(&host, "exec sleep 1000", &stopped, |config| {
                config["hooks"][point] = json!([{ "path": "/bin/sh", "args": ["sh", "-c", "exit 3"] }]);
            });
            let built = of(&host, &folder);
            let ran = if verb == "run" { built.run() } else { built.try_start() };
            ran.assert_refused(125, &[point, "3"]);
            assert_eq!(noted(&stopped).len(), 1, "{point} {verb}");
        }
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn its_poststop_hooks_run_as_its_shim_removes_it() {
    let host = Host::new();
    let stopped = host.work().join("stopped");
    let folder = noting(&host, "exit 3", &stopped, |_| {});
    let task = of(&host, &folder).flag("--rm").start();
    eventually("it is removed", || (!task.file("").exists()).then_some(()));
    let [state] = &noted(&stopped)[..] else { panic!("{:?}", noted(&stopped)) };
    assert_eq!((&state["status"], &state["id"]), (&json!("stopped"), &json!(task.id())), "{state}");
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_launch_that_fails_is_removed_if_its_client_was_killed() {
    let host = Host::new();
    let (begun, go) = (host.work().join("begun"), host.work().join("go"));
    let folder = noting(&host, "exec sleep 1000", &host.work().join("stopped"), |config| {
        let script = format!("touch {}; until [ -e {} ]; do sleep 0.02; done; exit 3", begun.display(), go.display());
        config["hooks"]["createRuntime"] = json!([{ "path": "/bin/sh", "args": ["sh", "-c", script] }]);
    });
    for verb in ["run", "start"] {
        let build = of(&host, &folder).flag("--rm");
        let (task, client) = if verb == "run" { build.spawn() } else { build.spawn_start() };
        eventually("the hook runs", || begun.exists().then_some(()));
        client.signal(Signal::KILL);
        client.finish();
        fs::write(&go, "").expect("ours");
        eventually("it is removed", || (!task.file("").exists()).then_some(()));
        for file in [&begun, &go] {
            fs::remove_file(file).expect("ours");
        }
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_launch_whose_client_is_killed_is_undone_with_die_with_parent() {
    let host = Host::new();
    let begun = host.work().join("begun");
    let folder = noting(&host, "exec sleep 1000", &host.work().join("stopped"), |config| {
        let script = format!("touch {}; exec sleep 1000", begun.display());
        config["hooks"]["createRuntime"] = json!([{ "path": "/bin/sh", "args": ["sh", "-c", script] }]);
    });
    let (task, client) = of(&host, &folder).flag("--rm").flag("--die-with-parent").spawn();
    eventually("the hook runs", || begun.exists().then_some(()));
    client.signal(Signal::KILL);
    client.finish();
    eventually("it is removed", || (!task.file("").exists()).then_some(()));
    host.assert_nothing_left_without_rm();
}

#[test]
fn poststart_hooks_that_a_shims_death_cuts_short_are_logged() {
    let host = Host::new();
    let begun = host.work().join("begun");
    let folder = noting(&host, "exec sleep 1000", &host.work().join("stopped"), |config| {
        let script = format!("touch {}; exec sleep 1000", begun.display());
        config["hooks"]["poststart"] = json!([{ "path": "/bin/sh", "args": ["sh", "-c", script] }]);
    });
    let (task, start) = of(&host, &folder).spawn_start();
    eventually("the hook runs", || begun.exists().then_some(()));
    kill_process(Pid::from_raw(task.shim_pid()).expect("a pid"), Signal::KILL).expect("the shim lives");
    // Whoever started it has a new shim take it over.
    start.finish();
    let log = || fs::read_to_string(task.file("shim.log")).unwrap_or_default();
    eventually("it is logged", || log().contains("its poststart hooks ended with its shim").then_some(()));
    task.end();
}

#[test]
fn a_failing_poststop_hook_is_reported_and_blocks_no_removal() {
    let host = Host::new();
    let stopped = host.work().join("stopped");
    let folder = noting(&host, "true", &stopped, |config| {
        let hooks = config["hooks"]["poststop"].as_array_mut().expect("hooks");
        hooks.insert(0, json!({ "path": "/bin/sh", "args": ["sh", "-c", "exec sleep 1000"], "timeout": 1 }));
    });
    let ran = of(&host, &folder).flag("--rm").run();
    let said = ran.assert_code(0).err();
    assert!(said.contains("poststop hook #0 (/bin/sh)") && said.contains("1s"), "{said}");
    let task = of(&host, &folder).start();
    task.wait();
    let ran = task.bowline("rm", []);
    assert!(ran.assert_code(0).err().contains("poststop hook #0 (/bin/sh)"), "{ran}");
    assert_eq!(noted(&stopped).len(), 2);
    host.assert_nothing_left_without_rm();
}

#[test]
fn what_is_no_bundle_or_says_it_twice_is_refused() {
    let host = Host::new();
    let refused = |folder: &Path, flags: &[&str], code: i32, parts: &[&str]| {
        flags.iter().fold(of(&host, folder), |build, flag| build.flag(*flag)).assert_refused(code, parts);
    };
    refused(Path::new("/no/such/bundle"), &[], 125, &["/no/such/bundle"]);
    let said = of(&host, Path::new("/no/such/bundle")).run().err();
    assert!(said.ends_with("hint: a bundle is a folder with config.json; `bowline spec FILE` prints one"), "{said}");
    let empty = host.work().join("empty");
    fs::create_dir(&empty).expect("a new folder");
    refused(&empty, &[], 125, &["config.json"]);
    fs::write(empty.join("config.json"), "{").expect("written");
    refused(&empty, &[], 125, &["config.json"]);
    let folder = bundle(&host, "command = 'true'", |_| {});
    for (flag, field) in [
        ("--memory=64M", "memory"),
        ("--user=1", "user"),
        ("--rootfs=/usr", "rootfs"),
        ("--network=none", "namespaces"),
        ("--read-only", "readonly_rootfs"),
        ("--untrusted", "profile"),
        ("--tmpfs=/x", "mounts"),
    ] {
        refused(&folder, &[flag], 2, &[field, "config.json"]);
    }
    refused(&folder, &["--sandbox=x"], 2, &["--bundle", "--sandbox"]);
    let terminal = bundle(&host, "command = 'true'\nterminal = true", |_| {});
    refused(&terminal, &[], 125, &["process.terminal"]);
    let no_root = bundle(&host, "command = 'true'", |config| config["root"] = json!({ "path": "missing" }));
    of(&host, &no_root).run().assert_code(0);
    let no_root = bundle(&host, "command = 'true'", |config| {
        config["root"] = json!({ "path": "missing" });
        config["mounts"] = json!([]);
    });
    refused(&no_root, &[], 125, &["rootfs", "missing"]);
}

#[test]
fn a_task_whose_bundle_has_gone_gets_a_new_shim() {
    let host = Host::new();
    let folder = bundle(&host, &(shell("exec sleep 1000") + "env.A = 'x'"), |_| {});
    let task = of(&host, &folder).start();
    fs::write(folder.join("config.json"), "{}").expect("ours");
    task.crash_shim();
    assert_eq!(task.bowline("exec", ["--", "sh", "-c", "echo $A"]).assert_code(0).out(), "x");
    fs::remove_dir_all(&folder).expect("ours");
    task.crash_shim();
    assert_eq!(task.bowline("exec", ["--", "sh", "-c", "echo $A"]).assert_code(0).out(), "x");
    // What it was made from is known by the copy alone.
    task.crash_shim();
    let (copy, aside) = (task.file("config.json"), host.work().join("config.json"));
    fs::copy(&copy, &aside).expect("ours");
    fs::remove_file(&copy).expect("ours");
    task.bowline("adopt", []).assert_refused(125, &["take over", "`config.json`"]);
    fs::copy(&aside, &copy).expect("ours");
    task.end();
}
