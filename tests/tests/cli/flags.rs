//! The flags of `run` and `start` in docker's names: what each does, and that its wrong forms are refused.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Build, only_v2};
use serde_json::{Value, json};

const IDLE: &str = "exec sleep 1000";

/// A task with these flags.
pub(super) fn with<'h>(host: &'h Host, script: &str, flags: &[&str]) -> Build<'h> {
    flags.iter().fold(host.task(script), |build, flag| build.flag(*flag))
}

/// What `script` says with these flags.
#[track_caller]
pub(super) fn assert_says(flags: &[&str], script: &str, out: &str) {
    let host = Host::new();
    with(&host, script, flags).run().assert_says(out);
}

/// What a task with these flags has in its description.
#[track_caller]
fn assert_described(flags: &[&str], field: &str, value: Value) {
    let host = Host::new();
    let task = with(&host, IDLE, flags).start();
    let described = task.inspect()["task"].clone();
    let found = field.split('.').fold(&described, |at, key| &at[key]);
    assert_eq!(*found, value, "{flags:?}: {described:#}");
    task.end();
}

/// A folder with a file `a` in it.
pub(super) fn folder(host: &Host) -> String {
    let folder = host.work().join("data");
    fs::create_dir(&folder).expect("a new folder");
    fs::write(folder.join("a"), "hi\n").expect("written");
    folder.to_str().expect("ASCII").to_owned()
}

/// Each of these forms is bad usage, in one line that names the flag, with a hint.
#[track_caller]
pub(super) fn assert_misused(flag: &str, forms: &[&str]) {
    let host = Host::new();
    for form in forms {
        for verb in ["run", "start"] {
            let ran = host.bowline([verb, "--name", &host.new_id(), &format!("{flag}={form}"), "true"]);
            ran.assert_refused(2, &[flag]);
            assert!(ran.err().contains("\nhint: "), "{ran}");
        }
    }
}

#[test]
fn run_in_the_background_is_start() {
    let host = Host::new();
    for flag in ["-d", "--detach"] {
        let id = host.new_id();
        host.bowline(["run", flag, "--name", &id, "sleep", "1000"]).assert_says(&id);
        let task = host.adopt(&id);
        assert_eq!((task.status().as_str(), &task.inspect()["task"]["log"]["format"]), ("running", &json!("json")));
        task.end();
    }
    let id = host.new_id();
    let printed = host.bowline(["run", "-d", "--json", "--name", &id, "sleep", "1000"]).assert_code(0).json();
    let task = host.adopt(&id);
    assert_eq!(printed["pid"], task.pid());
    task.end();
    let id = host.new_id();
    host.bowline(["start", "-d", "--name", &id, "true"]).assert_says(&id);
    host.adopt(&id).wait();
}

#[test]
fn a_flag_without_a_value_may_say_whether_it_is_on() {
    let host = Host::new();
    let run = |flags: &[&str]| {
        let id = host.new_id();
        let ran = host.bowline([&["run", "--name", &id], flags, &["sh", "-c", "cat; echo --rm=true"]].concat());
        (ran, host.state().join(&id).exists())
    };
    for (flag, stays) in [("--rm=true", false), ("--rm=1", false), ("--rm=false", true), ("--rm=F", true)] {
        let (ran, is_there) = run(&[flag, "--interactive=false", "-t=false"]);
        assert_eq!((ran.assert_says("--rm=true").code, is_there), (Some(0), stays), "{flag}");
    }
    for (flag, part) in [("--rm=maybe", "--rm is true or false, not 'maybe'"), ("--rm=", "not ''"), ("-it=x", "-t is")]
    {
        run(&[flag]).0.assert_refused(2, &[part]);
    }
    run(&["--rm", "--rm=false"]).0.assert_refused(2, &["--rm is given, and taken back"]);
    host.bowline(["rm", "--exited=true", "--label=nobody"]).assert_says("");
    host.bowline(["ps", "--all=true", "-q=true", "--no-trunc=false", "--filter=name=nobody"]).assert_says("");
    host.bowline(["rm", "--exited"]).assert_code(0);
}

#[test]
fn the_working_directory_the_user_and_the_host_name_are_set() {
    assert_says(&["-w", "/usr/bin"], "pwd", "/usr/bin");
    assert_says(&["--workdir=/usr"], "pwd", "/usr");
    assert_says(&["-u", "1234:567"], "id -u; id -g", "1234\n567");
    assert_says(&["--hostname=mine"], "hostname", "mine");
    let host = Host::new();
    with(&host, "true", &["--workdir=relative"]).assert_refused(2, &["workdir"]);
    with(&host, "true", &["--hostname=a b"]).assert_refused(2, &["hostname"]);
    host.assert_nothing_left();
    assert_misused("--user", &["", "a:b:c"]);
}

#[test]
fn variables_come_from_flags_files_and_our_own_environment() {
    let host = Host::new();
    let first = host.file("first.env", "# a comment\n\nA=1\n  B=two words \nC=first\nBOWLINE_TEST\nNOT_SET_HERE\n");
    let second = host.file("second.env", "C=second\nD=\n");
    let files = [&first, &second].map(|file| format!("--env-file={}", file.display()));
    let script = "echo \"$A|$B|$C|${D-unset}|$E|$BOWLINE_TEST|${NOT_SET_HERE-unset}\"";
    let build = with(&host, script, &[&files[0], &files[1], "-e", "E=3", "--env=A=flag"]);
    build.run().assert_says(&format!("flag|two words |second||3|{}|unset", host.prefix()));
    with(&host, "echo \"$BOWLINE_TEST ${NOT_SET_HERE-unset}\"", &["-e", "BOWLINE_TEST", "-e", "NOT_SET_HERE"])
        .run()
        .assert_says(&format!("{} unset", host.prefix()));
    let task = host.task(IDLE).start();
    let (task_file, id) = (files[0].clone(), task.id().to_owned());
    host.bowline([
        "exec",
        &task_file,
        "-e",
        "E=3",
        "-w",
        "/usr",
        "-u",
        "12",
        &id,
        "sh",
        "-c",
        "echo $A $E; pwd; id -u",
    ])
    .assert_says("1 3\n/usr\n12");
    task.end();
    host.assert_nothing_left();
    assert_misused("--env", &["", "=x"]);
}

#[test]
fn an_env_file_with_nonsense_is_bad_usage_that_names_the_line() {
    let host = Host::new();
    for (text, place) in [("A=1\nexport B=2\n", ":2:"), ("=x", ":1:"), ("\nA B\n", ":2:"), ("A=\0", ":1:")] {
        let file = host.file("bad.env", text);
        with(&host, "true", &[&format!("--env-file={}", file.display())]).assert_refused(2, &["bad.env", place]);
    }
    let file = host.file("nul.env", "A=\0");
    with(&host, "true", &[&format!("--env-file={}", file.display())]).assert_refused(2, &["nul.env:1: the value of A"]);
    let file = host.file("marked.env", "\u{feff}A=1\n");
    with(&host, "echo $A", &[&format!("--env-file={}", file.display())]).run().assert_says("1");
    fs::write(host.work().join("second.env"), b"A=1\nB=\xff\n").expect("written");
    let second = format!("--env-file={}", host.work().join("second.env").display());
    with(&host, "true", &[&second]).assert_refused(2, &["second.env:2: is not UTF-8"]);
    fs::write(host.work().join("bad.env"), [0xff, b'=']).expect("written");
    with(&host, "true", &["--env-file=/no/such/file"]).assert_refused(125, &["/no/such/file"]);
    for file in ["/usr", "/dev/zero", host.work().join("bad.env").to_str().expect("ASCII")] {
        let ran = host.bowline(["run", "--name", &host.new_id(), "--env-file", file, "true"]);
        assert!(ran.assert_refused(2, &[file]).err().contains("\nhint: "), "{ran}");
    }
}

#[test]
fn limits_go_by_docker_s_names_too() {
    let host = Host::new();
    let flags = ["-m", "64M", "--memory-swap=80M", "--cpus=0.5", "--cpuset-cpus=0", "--pids-limit=32"];
    let task = with(&host, IDLE, &flags).start();
    let described = task.inspect()["task"].clone();
    let expected =
        json!({"memory": {"limit": "64M", "swap": "16M"}, "cpu": {"limit": "0.5", "cpuset": "0"}, "pids": 32});
    for field in ["memory", "pids"] {
        assert_eq!(described[field], expected[field], "{described:#}");
    }
    assert_eq!(described["cpu"]["cpuset"], "0", "{described:#}");
    let (file, bytes) = match only_v2() {
        true => ("memory.swap.max", 16 << 20),
        false => ("memory.memsw.limit_in_bytes", 80 << 20),
    };
    assert_eq!(task.cgroup_file("memory", file), bytes.to_string());
    assert_eq!(task.cgroup_file("pids", "pids.max"), "32");
    task.bowline("update", ["-m", "96M", "--pids-limit=64", "--cpuset-cpus=0"]).assert_code(0);
    assert_eq!(task.cgroup_file("pids", "pids.max"), "64");
    task.end();
    host.assert_nothing_left();
    assert_described(&["--pids-limit=-1"], "pids", json!("unlimited"));
    assert_described(&["--memory=64M", "--memory-swap=-1"], "memory.swap", json!("unlimited"));
}

/// Each limit has one flag, for a launch and for a change, and means the same.
#[test]
fn a_launch_and_an_update_take_the_same_limits() {
    let host = Host::new();
    let fields: &[(&str, &str, Value)] = &[
        ("--memory=64M", "memory.limit", json!("64M")),
        ("--memory-swap=80M", "memory.swap", json!("16M")),
        ("--memory-low=16M", "memory.low", json!("16M")),
        ("--cpus=0.5", "cpu.limit", json!(0.5)),
        ("--cpu-shares=512", "cpu.shares", json!(512)),
        ("--cpuset-cpus=0", "cpu.cpuset", json!("0")),
        ("--cpuset-mems=0", "cpu.mems", json!("0")),
        ("--pids-limit=32", "pids", json!(32)),
    ];
    let v2: &[(&str, &str, Value)] = &[
        ("--memory-high=48M", "memory.high", json!("48M")),
        ("--unified=memory.oom.group=1", "unified", json!({"memory.oom.group": "1"})),
    ];
    let all = || fields.iter().chain(v2.iter().filter(|_| only_v2()));
    let flags: Vec<&str> = all().map(|(flag, ..)| *flag).collect();
    let changed = host.task(IDLE).start();
    host.bowline([&["update", changed.id()], &flags[..]].concat()).assert_code(0);
    for task in [with(&host, IDLE, &flags).start(), changed] {
        let described = task.inspect()["task"].clone();
        for (flag, field, value) in all() {
            let found = field.split('.').fold(&described, |at, key| &at[key]);
            assert_eq!(found, value, "{flag}: {described:#}");
        }
        task.bowline("update", ["--memory=max", "--cpus=max"]).assert_code(0);
        task.bowline("update", ["--memory-swap=64M"]).assert_refused(2, &["--memory-swap", "no limit of memory"]);
        task.end();
    }
    let task =
        host.task(IDLE).toml("memory = {limit = '64M', swap = 0}\npids = 7").flag("-m=max").flag("--pids=-1").start();
    let described = task.inspect()["task"].clone();
    assert_eq!(
        (&described["memory"]["limit"], &described["pids"]),
        (&Value::Null, &json!("unlimited")),
        "{described:#}"
    );
    for (flag, why) in [
        ("--ulimit=nofile=5", "each process has this from its start"),
        ("--oom-score-adj=5", "each process has this from its start"),
        ("--shm-size=5M", "keeps what it was launched with"),
        ("--cap-add=ALL", "keeps what it was launched with"),
    ] {
        let ran = task.bowline("update", [flag]);
        let name = flag.split('=').next().expect("a name");
        assert!(ran.assert_refused(2, &[name]).err().contains(why), "{ran}");
    }
    host.bowline(["run", "--swap=1M", "--memory-swap=2M", "true"]).assert_refused(2, &["--swap", "--memory-swap"]);
    task.end();
}

#[test]
fn wrong_limits_are_bad_usage() {
    assert_misused("--memory-swap", &["", "x", "-2", "64Q"]);
    assert_misused("--cpuset-cpus", &["", "x", "1-0", "-1"]);
    assert_misused("--pids", &["", "0", "-2", "x"]);
    assert_misused("--ulimit", &["", "nofile", "nofile=", "nofile=x", "files=1", "nofile=1:2:3"]);
    let host = Host::new();
    for flags in [&["--memory-swap=64M"][..], &["--memory=64M", "--memory-swap=32M"]] {
        with(&host, "true", flags).assert_refused(2, &["--memory-swap"]);
    }
    with(&host, "true", &["--ulimit=nofile=2:1"]).assert_refused(2, &["rlimits.nofile"]);
    with(&host, "true", &["--cpuset-cpus=9999"]).assert_refused(125, &["cpu.cpuset"]);
}

#[test]
fn a_negative_number_is_a_value_and_no_flag() {
    let host = Host::new();
    for command in [&["run"][..], &["sandbox", "create"]] {
        for (flag, reason) in [("--memory", "is not a size"), ("-m", "is not a size"), ("--cpus", "a number of CPUs")] {
            host.bowline([command, &[flag, "-2"]].concat()).assert_refused(2, &["'-2' for '", reason]);
        }
    }
    for flag in ["--stop-timeout", "--timeout", "--log-size", "--log-files", "--health-retries"] {
        host.bowline(["run", flag, "-1", "true"]).assert_refused(2, &["'-1' for '", flag]);
    }
    let sandbox = host.sandbox().flag("--pids-limit=-1").create();
    assert_eq!(sandbox.inspect()["sandbox"]["pids"], "unlimited");
    sandbox.rm([]);
    host.bowline(["sandbox", "create", "--pids", "-2"]).assert_refused(2, &["-2", "--pids"]);
}

#[test]
fn resource_limits_are_those_of_the_process() {
    assert_says(
        &["--ulimit=nofile=123:456", "--ulimit", "core=0:-1"],
        "ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Hc",
        "123\n456\n0\nunlimited",
    );
}

#[test]
fn a_network_of_its_own_has_a_loopback_interface_alone() {
    for flag in ["--network=private", "--network=none", "--net=none"] {
        assert_says(&[flag], "ls /sys/class/net", "lo");
    }
    let host = Host::new();
    let ours = fs::read_link("/proc/self/ns/net").expect("a namespace");
    with(&host, "readlink /proc/self/ns/net", &["--network=host"]).run().assert_says(&ours.to_string_lossy());
    with(&host, "true", &["--network=host", "--sandbox=x"]).assert_refused(2, &["--network", "--sandbox"]);
    with(&host, "true", &["--network=/no/such/netns"]).assert_refused(125, &["/no/such/netns"]);
    host.assert_nothing_left();
    assert_misused("--network", &["", "x", "container:x"]);
}

#[test]
fn tasks_are_found_by_their_labels() {
    let host = Host::new();
    let web = with(&host, IDLE, &["-l", "tier=web", "--label=x=a=b", "--label", "bare"]).start();
    let db = with(&host, IDLE, &["--label=tier=db"]).start();
    let listed = |filter: &str| host.bowline(["ps", "-q", "--filter", filter]).assert_code(0).out();
    assert_eq!((listed("label=tier=web").as_str(), listed("label=tier=db").as_str()), (web.id(), db.id()));
    assert_eq!((listed("label=x=a=b").as_str(), listed("label=bare").as_str()), (web.id(), web.id()));
    assert_eq!(web.inspect()["task"]["labels"], json!({"tier": "web", "x": "a=b", "bare": ""}));
    web.end();
    db.end();
    host.assert_nothing_left();
    assert_misused("--label", &["", "=x"]);
}

#[test]
fn capabilities_are_added_and_dropped() {
    let of = |flags: &[&str], bit: u32, is: bool| {
        let host = Host::new();
        let mask = with(&host, "grep CapEff /proc/self/status | cut -f 2", flags).run().assert_code(0).out();
        let mask = u64::from_str_radix(&mask, 16).expect("a mask");
        assert_eq!(mask & 1 << bit != 0, is, "{flags:?}: {mask:x}");
        host.assert_nothing_left();
    };
    // CAP_CHOWN and CAP_NET_RAW.
    of(&[], 0, true);
    of(&["--cap-drop=CHOWN"], 0, false);
    of(&["--cap-drop=all", "--cap-add=cap_chown"], 0, true);
    of(&["--cap-drop=ALL", "--cap-add=ALL"], 13, true);
    of(&[], 13, false);
    of(&["--cap-add", "NET_RAW"], 13, true);
    assert_misused("--cap-add", &["", "FLY"]);
    assert_misused("--cap-drop", &["", "FLY"]);
}

#[test]
fn security_options_are_those_of_the_description() {
    let status = "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | cut -f 2 | tr '\\n' ' '";
    assert_says(&[], status, "1 2 ");
    assert_says(&["--security-opt=seccomp=unconfined"], status, "1 0 ");
    assert_says(&["--security-opt", "no-new-privileges=false"], status, "0 2 ");
    assert_described(&["--security-opt=apparmor=unconfined"], "apparmor", json!("unconfined"));
    let host = Host::new();
    host.file("profile.json", r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#);
    let mut command = host.command(bowline_tests::harness::binary("bowline"));
    command.args(["run", "--rm", "--name", &host.new_id(), "--security-opt", "seccomp=profile.json", "echo", "hi"]);
    command.current_dir(host.work());
    host.execute(command).assert_says("hi");
    with(&host, "true", &["--security-opt=seccomp=/no/such.json"]).assert_refused(125, &["/no/such.json"]);
    host.assert_nothing_left();
    assert_misused("--security-opt", &["", "seccomp", "seccomp=", "label=disable", "no-new-privileges=maybe"]);
}

#[test]
fn signal_and_grace_of_a_stop_can_be_flags() {
    let host = Host::new();
    let script = "trap 'exit 4' USR1; echo ready; while :; do sleep 0.1; done";
    let task = with(&host, script, &["--stop-signal=USR1", "--stop-timeout=50"]).start();
    task.wait_for_line("ready");
    assert_eq!(task.inspect()["task"]["stop"], json!({"signal": "SIGUSR1", "grace": "50s"}));
    task.stop([]).assert_code(4);
    let deaf = host.task("trap '' TERM; echo ready; while :; do sleep 0.1; done").start();
    deaf.wait_for_line("ready");
    deaf.stop(["-t", "0"]).assert_killed_by("KILL");
    host.assert_nothing_left();
    assert_misused("--stop-signal", &["", "SIGFOO", "0", "65"]);
    assert_misused("--stop-timeout", &["", "-1", "x"]);
}

#[test]
fn health_checks_can_be_flags() {
    let host = Host::new();
    let flags = [
        "--health-cmd=test -e /tmp/ready",
        "--health-interval=100ms",
        "--health-timeout=5s",
        "--health-retries=2",
        "--health-start-period=1s",
        "--health-start-interval=100ms",
        "--health-on-failure=stop",
    ];
    let task = with(&host, "touch /tmp/ready; exec sleep 1000", &flags).start();
    bowline_tests::harness::eventually("it is healthy", || {
        (task.inspect()["health"]["status"] == "healthy").then_some(())
    });
    task.exec("rm /tmp/ready").assert_code(0);
    assert_eq!(task.wait()["stopped_by"], "health");
    let checked = || host.task(IDLE).toml("healthcheck.exec = ['true']\nhealthcheck.retries = 7");
    let none = checked().flag("--no-healthcheck").start();
    assert_eq!(none.inspect()["task"]["healthcheck"], Value::Null);
    none.end();
    let other = checked().flag("--health-cmd=false").flag("--health-timeout=1s").start();
    let expected = json!({"exec": ["/bin/sh", "-c", "false"], "timeout": "1s", "retries": 7});
    assert_eq!(other.inspect()["task"]["healthcheck"], expected);
    other.end();
    with(&host, "true", &["--health-retries=2"]).assert_refused(2, &["--health-"]);
    with(&host, "true", &["--health-cmd="]).assert_refused(2, &["--health-cmd"]);
    with(&host, "true", &["--health-cmd=true", "--health-retries=0"]).assert_refused(2, &["healthcheck.retries"]);
    with(&host, "true", &["--health-cmd=true", "--no-healthcheck"]).assert_refused(2, &["--no-healthcheck"]);
    host.assert_nothing_left();
    for flag in ["--health-interval", "--health-timeout", "--health-start-period", "--health-start-interval"] {
        assert_misused(flag, &["", "x", "-1s"]);
    }
    assert_misused("--health-retries", &["", "-1", "x"]);
    assert_misused("--health-on-failure", &["", "restart"]);
}

#[test]
fn a_sandbox_is_replaced_and_any_of_its_fields_is_set() {
    let host = Host::new();
    let first = host.sandbox().create();
    let member = first.task(IDLE).start();
    let again = ["sandbox", "create", "--replace", "--set", "memory.limit=64M", "--set=share_pid=true", "--name"];
    host.bowline([&again[..], &[first.id()]].concat()).assert_says(first.id());
    let described = first.inspect()["sandbox"].clone();
    assert_eq!((&described["memory"]["limit"], &described["share_pid"]), (&json!("64M"), &json!(true)), "{described}");
    assert_eq!(host.bowline(["ps", "-q"]).assert_code(0).out(), "", "{} is gone", member.id());
    host.bowline(["sandbox", "create", "--replace"]).assert_refused(2, &["--replace"]);
    for (setting, field) in [("memory.limt=1G", "memory.limt"), ("pids=x", "pids")] {
        let ran = host.bowline(["sandbox", "create", "--set", setting]);
        ran.assert_refused(2, &["--set", field]);
        assert!(ran.err().contains("\nhint: docs/sandbox-reference.md and `bowline schema --sandbox`"), "{ran}");
    }
    host.bowline(["sandbox", "create", "--set", "x"]).assert_refused(2, &["--set"]);
    first.rm([]);
}

#[test]
fn replace_removes_the_task_of_that_name_first() {
    let host = Host::new();
    let first = host.task(IDLE).start();
    let pid = first.pid();
    host.task("true").named(first.id()).assert_refused_as_taken();
    let second = host.task(IDLE).named(first.id()).flag("--replace").start();
    assert_ne!(second.pid(), pid);
    second.end();
    host.task("exit 3").named(first.id()).flag("--replace").run().assert_code(3);
    host.task("exit 4").flag("--replace").run().assert_code(4);
    host.bowline(["run", "--replace", "true"]).assert_refused(2, &["--replace"]);
}

#[test]
fn any_field_of_the_description_can_be_set() {
    let host = Host::new();
    let file = "env = { A = 'file' }\nmemory.limit = '32M'\npids = 9\nlabels = { x = 'y' }";
    let flags = [
        "--memory=48M",
        "--set=memory.limit=64M",
        "--set=env.A=set",
        "--set=env.\"B.C\"=1",
        "--set=pids=null",
        "--set=rlimits.nofile=64:128",
        "--set=capabilities.drop=[\"KILL\"]",
        "--set=mounts[0].type=tmpfs",
        "--set=mounts[0].destination=/srv",
        "--set=namespaces.network=private",
    ];
    let build = host.task("ulimit -n; ls /sys/class/net; echo $A; stat -f -c %T /srv; sleep 1000").toml(file);
    let task = flags.iter().fold(build, |build, flag| build.flag(*flag)).start();
    for line in ["64", "lo", "set", "tmpfs"] {
        task.wait_for_line(line);
    }
    let described = task.inspect()["task"].clone();
    assert_eq!((&described["memory"]["limit"], &described["pids"]), (&json!("64M"), &Value::Null), "{described:#}");
    assert_eq!(described["env"], json!({"A": "set", "B.C": "1"}), "{described:#}");
    task.end();
    with(&host, "true", &["--set=memory.limt=64M"]).assert_refused(2, &["--set", "memory.limt", "unknown field"]);
    with(&host, "true", &["--set=memory.limit=64Q"]).assert_refused(2, &["--set", "memory.limit", "64Q"]);
    with(&host, "true", &["--set=args[5]=x"]).assert_refused(2, &["--set", "args[5]"]);
    with(&host, "true", &["--set=workdir=x"]).assert_refused(2, &["workdir"]);
    host.assert_nothing_left();
    assert_misused("--set", &["", "memory", "=x", ".a=1", "a[x]=1", "\"a=1"]);
}

#[test]
fn sandboxes_take_docker_s_names_too() {
    let host = Host::new();
    let sandbox =
        host.sandbox().flag("-m=64M").flag("--pids-limit=64").flag("--cpuset-cpus=0").flag("--network=private");
    let sandbox = sandbox.create();
    let described = sandbox.inspect();
    let text = described.to_string();
    assert!(text.contains("64M") && text.contains("\"none\""), "{described:#}");
}

#[test]
fn groups_settings_and_shared_memory_are_as_with_docker() {
    assert_says(&["--user=1234:2345", "--group-add=4000", "--group-add=4001"], "id -G", "2345 4000 4001");
    assert_says(&["--sysctl=kernel.msgmax=4096"], "cat /proc/sys/kernel/msgmax", "4096");
    assert_says(&["--oom-score-adj=500"], "cat /proc/self/oom_score_adj", "500");
    assert_says(&["--shm-size=1M"], "stat -fc %b /dev/shm; stat -c %a /dev/shm", "256\n1777");
    assert_described(&["--group-add=audio"], "groups", json!(["audio"]));
    assert_misused("--sysctl", &["kernel.msgmax", "=1"]);
    assert_misused("--oom-score-adj", &["high", "2000"]);
    assert_misused("--shm-size", &["", "lots", "-1"]);
}

#[test]
fn ipc_and_pid_of_the_host_are_shared_if_asked_for() {
    let own = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace").display().to_string();
    for kind in ["ipc", "pid"] {
        let ask = format!("readlink /proc/self/ns/{kind}");
        assert_says(&[&format!("--{kind}=host")], &ask, &own(kind));
        let host = Host::new();
        let ran = with(&host, &ask, &[&format!("--{kind}=private")]).run();
        assert_ne!(ran.assert_code(0).out(), own(kind));
        assert_misused(&format!("--{kind}"), &["container:web", "none", ""]);
    }
}

#[test]
fn a_volume_has_flags_and_capabilities_come_in_lists() {
    let host = Host::new();
    let data = folder(&host);
    let options = |options: &str| {
        let script = "grep ' /srv/data ' /proc/self/mountinfo | cut -d' ' -f6";
        with(&host, script, &[&format!("--volume={data}:/srv/data:{options}")]).run().assert_code(0).out()
    };
    let flags = options("ro,noexec,nosuid,nodev");
    assert!(["ro", "noexec", "nosuid", "nodev"].iter().all(|flag| flags.split(',').any(|has| has == *flag)), "{flags}");
    // Without SELinux a label is nothing to do, as with docker.
    assert!(options("z").contains("rw") && options("Z,noexec").contains("noexec"));
    assert_described(&["--cap-add=NET_ADMIN,SYS_TIME"], "capabilities.add", json!(["NET_ADMIN", "SYS_TIME"]));
    assert_described(&["--cap-drop=CHOWN,KILL"], "capabilities.drop", json!(["CHOWN", "KILL"]));
}
