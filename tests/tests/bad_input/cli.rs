//! Command lines that cannot be meant: exit code 2, one message, nothing done.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use bowline_tests::Host;
use bowline_tests::harness::binary;

#[test]
fn an_unknown_flag_or_command_is_bad_usage() {
    let host = Host::new();
    for args in [
        &["run", "--no-such-flag", "--", "true"][..],
        &["no-such-command"],
        &["exec"],
        &["inspect"],
        &["wait", "--jsn", "x"],
    ] {
        host.bowline(args).assert_refused(2, &[]);
    }
}

#[test]
fn a_malformed_value_is_bad_usage_and_names_the_flag() {
    for (flag, value) in [
        ("--memory", "64Q"),
        ("--log-files", "x"),
        ("--memory", ""),
        ("--memory", "-2"),
        ("--cpus", "0"),
        ("--cpus", "-2"),
        ("--cpus", "x"),
        ("--cpus", "nan"),
        ("--pids", "0"),
        ("--pids", "-2"),
        ("--pids", "x"),
        ("--env", "=x"),
        ("--user", ""),
        ("--user", "a:b:c"),
    ] {
        let host = Host::new();
        host.task("true").flag(format!("{flag}={value}")).assert_refused(2, &[flag]);
        host.assert_nothing_left();
    }
}

#[test]
fn memory_below_what_can_start_is_refused() {
    let host = Host::new();
    let ran = host.bowline(["run", "--name", &host.new_id(), "--memory=1M", "--", "true"]);
    assert!(ran.code == Some(2) || ran.code == Some(125), "{ran}");
    assert!(ran.err().starts_with("bowline: ") && ran.err().contains("memory"), "{ran}");
}

#[test]
fn a_malformed_id_is_bad_usage() {
    let long = "a".repeat(64);
    for id in ["", "-a", ".a", "a/b", "../x", "/x", "a b", "ä", &long] {
        let host = Host::new();
        host.bowline(["run", &format!("--name={id}"), "--", "true"]).assert_refused(2, &["id"]);
        if !id.is_empty() && !id.starts_with('-') {
            host.bowline(["inspect", id]).assert_refused(2, &["id"]);
            host.bowline(["rm", "-f", id]).assert_refused(2, &["id"]);
        }
        host.assert_nothing_left();
    }
}

#[test]
fn the_longest_id_works() {
    let host = Host::new();
    let id = format!("{}{}", host.prefix(), "x".repeat(63 - host.prefix().len()));
    host.task("echo long").named(id).run().assert_says("long");
}

#[test]
fn a_taken_id_is_refused_and_the_other_task_goes_on() {
    let host = Host::new();
    let first = host.task("exec sleep 1000").start();
    host.task("true").named(first.id()).assert_refused_as_taken();
    let ran = host.bowline(["start", "--name", first.id(), "true"]);
    assert!(ran.err().contains("--replace") && ran.err().contains("-f"), "{ran}");
    assert_eq!(first.status(), "running");
    first.end();
    host.task("true").named(first.id()).assert_refused_as_taken();
}

#[test]
fn of_two_launches_with_one_id_at_a_time_one_wins() {
    let host = Host::new();
    let id = host.new_id();
    let both: Vec<_> = (0..2).map(|_| host.spawn(["start", "--name", &id, "--", "sleep", "1000"])).collect();
    let ran: Vec<_> = both.into_iter().map(|process| process.finish()).collect();
    let won = ran.iter().filter(|ran| ran.code == Some(0)).count();
    assert_eq!(won, 1, "{} and {}", ran[0], ran[1]);
    let lost = ran.iter().find(|ran| ran.code != Some(0)).expect("the other");
    lost.assert_refused(125, &[&id]);
    host.adopt(&id).end();
}

#[test]
fn an_id_that_nobody_has_is_an_error_of_every_command() {
    let host = Host::new();
    for verb in ["inspect", "stats", "wait", "stop", "kill", "pause", "resume", "rm"] {
        host.bowline([verb, "nobody"]).assert_refused(125, &["nobody"]);
    }
}

#[test]
fn nothing_to_run_is_bad_usage() {
    let host = Host::new();
    for args in [&["run"][..], &["run", "--"], &["start"]] {
        let ran = host.bowline(args);
        ran.assert_refused(2, &["command"]);
        assert!(ran.err().ends_with(&format!("\nhint: see `bowline {} --help`", args[0])), "{ran}");
    }
    let task = host.task("exec sleep 1000").start();
    task.bowline("exec", []).assert_refused(2, &[]);
    task.bowline("exec", ["--"]).assert_refused(2, &[]);
    task.end();
}

#[test]
fn malformed_times_are_bad_usage_and_the_task_is_unharmed() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    for grace in ["", "x", "-1s", "1 s", "1y"] {
        task.bowline("stop", [&format!("--grace={grace}")]).assert_refused(2, &["--grace"]);
        task.bowline("exec", [&format!("--timeout={grace}"), "--", "true"]).assert_refused(2, &["--timeout"]);
    }
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn a_state_folder_too_long_for_sockets_is_refused_and_not_made() {
    let host = Host::new();
    let state = host.work().join("x".repeat(100));
    let path = state.to_string_lossy().into_owned();
    host.bowline(["--state", &path, "run", "--name", &host.new_id(), "--", "true"]).assert_refused(2, &[&path]);
    assert!(!state.exists());
}

#[test]
fn the_description_that_it_would_launch_can_be_printed() {
    let host = Host::new();
    let file = host.file("task.toml", "command = 'echo'\nargs = ['hello']\nmemory.limit = '64M'\npids = 9");
    let spec = host.bowline(["spec".as_ref(), file.as_os_str()]).assert_code(0).json();
    assert_eq!(spec["process"]["args"], serde_json::json!(["echo", "hello"]));
    assert_eq!(spec["linux"]["resources"]["memory"]["limit"], 64 << 20);
    assert_eq!(spec["linux"]["resources"]["pids"]["limit"], 9);
}

#[test]
fn a_wrong_description_is_not_printed() {
    let host = Host::new();
    let file = host.file("task.toml", "command = 'echo'\nmemory.limit = '64Q'");
    host.bowline(["spec".as_ref(), file.as_os_str()]).assert_refused(125, &["memory.limit"]);
    host.bowline(["spec", "/no/such/file"]).assert_refused(125, &["/no/such/file"]);
}

#[test]
fn the_schema_is_json_and_knows_every_field() {
    let host = Host::new();
    let schema = host.bowline(["schema"]).assert_code(0).json();
    let fields = schema["properties"].as_object().expect("an object");
    for field in ["command", "args", "env", "rootfs", "mounts", "namespaces", "memory", "cpu", "pids", "stop", "output"]
    {
        assert!(fields.contains_key(field), "{field}");
    }
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn doctor_tells_what_this_host_has() {
    let host = Host::new();
    let ran = host.bowline(["doctor"]);
    ran.assert_code(0);
    assert!(ran.out().contains("memory") && ran.out().contains("cgroup"), "{ran}");
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let host = Host::new();
    let mut shell = host.command("/bin/sh");
    shell.args(["-c", "\"$0\" schema | true; \"$0\" --help | true; \"$0\" ps --json | true"]).arg(binary("bowline"));
    let ran = host.execute(shell);
    assert!(!ran.err().contains("panic"), "{ran}");
}

#[test]
fn what_a_task_cannot_do_now_is_refused_with_the_likely_mend() {
    let host = Host::new();
    let (ended, running, paused) =
        (host.task("true").start(), host.task("exec sleep 1000").start(), host.task("exec sleep 1000").start());
    ended.wait();
    paused.bowline("pause", []).assert_code(0);
    let refused = [
        ended.bowline("kill", []),
        ended.bowline("pause", []),
        ended.bowline("stats", []),
        ended.bowline("update", ["--pids=9"]),
        ended.exec("true"),
        running.bowline("resume", []),
        running.bowline("rm", []),
        paused.bowline("pause", []),
        paused.exec("true"),
        host.bowline(["inspect", "nobody"]),
    ];
    for ran in refused {
        ran.assert_refused(125, &[]);
        assert!(ran.err().contains("\nhint: "), "{ran}");
    }
    running.end();
    paused.end();
}

#[test]
fn a_wrong_value_is_told_what_is_wanted() {
    let host = Host::new();
    for (args, parts) in [
        (&["run", "--memory=", "true"][..], &["\"\" is not a size; write it as 64M"][..]),
        (&["run", "--memory-swap=x", "true"], &["\"x\" is not a size", "; -1 or max is no limit"]),
        (&["run", "--pids=x", "true"], &["\"x\" is not a limit", "; -1 or max is no limit"]),
        (&["run", "--health-retries=x", "true"], &["\"x\" is not a number from 0 on"]),
        (&["run", "--health-on-failure=restart", "true"], &["[possible values: none, stop]"]),
        (&["sandbox", "create", "--qos=foo"], &["[possible values: guaranteed, burstable, best-effort]"]),
        (&["logs", "--tail=x", "web"], &["\"x\" is not a number of lines; write 10, or all"]),
        (&["exec", "--timeout=0", "web", "true"], &["--timeout", "leaves no time"]),
    ] {
        host.bowline(args).assert_refused(2, parts);
    }
    host.bowline(["run", "--env-file=/no\nsuch", "true"]).assert_refused(125, &["cannot read /no\\nsuch"]);
}

#[test]
fn an_error_of_a_field_names_the_flag_that_set_it() {
    let host = Host::new();
    // What the line itself shows is a wrong command line; what the host lacks is not.
    for (code, flag, parts) in [
        (2, "--tmpfs=/proc/x", &["mounts[0].destination"][..]),
        (2, "--ulimit=nofile=2:1", &["rlimits.nofile"]),
        (2, "--memory=1K", &["memory.limit"]),
        (2, "--hostname=a b", &["hostname"]),
        (2, "--dns-search=a b", &["names.search[0]"]),
        (2, "--workdir=relative", &["workdir"]),
        (2, "--log-size=1", &["log.max_size"]),
        (125, "--cpuset-cpus=9999", &["cpu.cpuset"]),
        (125, "--user=no-such-user", &["user"]),
        (125, "--device=/dev/no-such-device", &["devices"]),
        (125, "--rootfs=/no/such/root", &["rootfs"]),
        (125, "--network=/no/such/netns", &["namespaces.network"]),
    ] {
        let ran = host.bowline(["run", "--name", &host.new_id(), flag, "true"]);
        ran.assert_refused(code, parts);
        let name = flag.split('=').next().unwrap_or_default();
        assert!(ran.err().ends_with(&format!("\nhint: this comes from {name}; see `bowline run --help`")), "{ran}");
    }
    let set = host.bowline(["run", "--set=pids=0", "true"]);
    assert!(set.assert_refused(2, &["pids"]).err().contains("\nhint: this comes from --set"), "{set}");
    let task = host.task("exec sleep 1000").start();
    let ran = task.bowline("exec", ["--user=no-such-user", "true"]);
    ran.assert_refused(125, &[]);
    assert!(ran.err().contains("\nhint: this comes from "), "{ran}");
    task.bowline("exec", ["--workdir=relative", "true"]).assert_refused(2, &["--workdir", "not an absolute path"]);
    task.end();
}

#[test]
fn of_a_description_and_flags_whoever_is_wrong_is_named() {
    let host = Host::new();
    let file = host.file("task.toml", "command = 'true'\npids = 0\nmounts = [{source = '/etc', destination = '/mnt'}]");
    let file = file.to_str().expect("ASCII");
    let ran = host.bowline(["run", "-f", file]);
    assert!(ran.assert_refused(125, &[file, "pids", "line 2"]).err().contains("\nhint: `bowline schema`"), "{ran}");
    for (flag, parts) in [
        ("--hostname=a b", &["hostname"][..]),
        ("--tmpfs=/proc/x", &["mounts[1].destination"]),
        ("--set=stop.signal=NONE", &["stop.signal"]),
    ] {
        let ran = host.bowline(["run", "-f", file, "--pids=9", flag]);
        assert!(!ran.assert_refused(2, parts).err().contains(file), "{ran}");
        let name = flag.split('=').next().unwrap_or_default();
        assert!(
            ran.err().contains("--set: ") || ran.err().contains(&format!("\nhint: this comes from {name}")),
            "{ran}"
        );
    }
    let incomplete = host.file("limits.toml", "pids = 0");
    let ran = host.bowline(["run", "-f", incomplete.to_str().expect("ASCII"), "--hostname=box", "true"]);
    ran.assert_refused(125, &["limits.toml", "pids", "line 1"]);
    let sandbox = host.bowline(["sandbox", "create", "--hostname=a b"]);
    sandbox.assert_refused(2, &["hostname"]);
    let sandbox = host.file("sandbox.toml", "hostname = 'a b'");
    host.bowline(["sandbox", "create", "-f", sandbox.to_str().expect("ASCII")]).assert_refused(125, &["hostname"]);
}

#[test]
fn an_update_that_suits_no_task_is_a_wrong_command_line() {
    let host = Host::new();
    let (task, sandbox) = (host.task("exec sleep 1000").start(), host.sandbox().create());
    task.bowline("update", ["--cpu-shares=1"]).assert_refused(2, &["cpu.shares"]);
    for (flag, field) in [("--hugepages=x=1M", "hugepages.x"), ("--memory=1K", "memory")] {
        task.bowline("update", [flag]).assert_refused(2, &[field]);
        host.bowline(["sandbox", "update", sandbox.id(), flag]).assert_refused(2, &[field]);
    }
    // What this host lacks.
    task.bowline("update", ["--cpuset-cpus=9999"]).assert_refused(125, &["cpu.cpuset"]);
    task.end();
    sandbox.rm([]);
}

#[test]
fn a_file_that_is_not_there_is_no_wrong_command_line() {
    let host = Host::new();
    for args in [
        &["run", "--env-file=/no/such", "true"][..],
        &["run", "--secret=/no/such", "true"],
        &["run", "-v=/no/such:/mnt", "true"],
        &["run", "-f=/no/such"],
        &["run", "--bundle=/no/such"],
        &["run", "--security-opt=seccomp=/no/such", "true"],
        &["spec", "/no/such"],
        &["gc", "--alive=/no/such"],
        &["stats", "--plot=/tmp/x.svg", "--from=/no/such"],
    ] {
        host.bowline(args).assert_refused(125, &["/no/such"]);
    }
}

#[test]
fn words_after_h_are_refused_as_nothing_runs() {
    let host = Host::new();
    for args in [&["exec", "-h", "box", "ls"][..], &["exec", "-h", "-it", "box", "ls"], &["ps", "-h", "box"]] {
        let ran = host.bowline(args);
        ran.assert_refused(2, &["-h", "box follows it"]);
        assert!(
            ran.err().contains(&format!("\nhint: leave -h out, or what follows: `bowline {} -h`", args[0])),
            "{ran}"
        );
    }
    host.bowline(["exec", "-h"]).assert_code(0);
}

#[test]
fn no_hint_changes_what_is_not_the_tasks() {
    let host = Host::new();
    let shared = host.work().join("shared");
    fs::create_dir(&shared).and_then(|()| fs::set_permissions(&shared, Permissions::from_mode(0o1777))).expect("ours");
    let state = ["--state", shared.to_str().expect("UTF-8"), "run", "true"];
    let unsafe_state = host.bowline(state);
    unsafe_state.assert_refused(125, &["is not safe", "mode 1777"]);
    let nothing = host.bowline(["run", "-v", "/var/run/no.sock:/run/no.sock", "true"]);
    nothing.assert_refused(125, &["/var/run/no.sock"]);
    let archive = host.file("a; rm -r x", "");
    let archive = host.task("true").rootfs(&archive).try_start();
    let socket = host.work().join("daemon.sock");
    let _daemon = UnixListener::bind(&socket).expect("ours");
    let socket = socket.to_str().expect("UTF-8");
    let programs = [socket, "x (rm)\n", "~/x 'rm'"].map(|program| {
        let ran = host.bowline(["run", "--name", &host.new_id(), program]);
        ran.assert_refused(127, &["cannot run"]);
        ran
    });
    for ran in [unsafe_state, nothing, archive].iter().chain(&programs) {
        let said = ran.err();
        let hint = said.split_once("\nhint: ").map_or("", |(_, hint)| hint);
        assert!(!["chmod", "chown", "mkdir", "rm", "-v"].iter().any(|word| hint.contains(word)), "{ran}");
    }
    let named = host.bowline(["run", "-h", "box", "true"]);
    assert!(named.assert_refused(2, &["-h", "box"]).err().contains("\nhint: --hostname box "), "{named}");
}

#[test]
fn a_missing_command_gets_a_hint_at_image_line_or_script() {
    let host = Host::new();
    let script = host.file("script.sh", "#!/bin/sh\n");
    for (words, hint) in [
        (&["no-such-image", "echo", "hi"][..], "bowline has no images: "),
        (&["ubuntu:22.04", "bash"], "bowline has no images: "),
        (&["echo hi"], "without the quotes: bowline run echo hi"),
        (&["./script.sh"], "the task does not see this folder: -v \"$PWD:/work:ro\" -w /work"),
    ] {
        let mut run = host.command(binary("bowline"));
        run.args(["run", "--name", &host.new_id()]).args(words).current_dir(script.parent().expect("a folder"));
        let ran = host.execute(run);
        ran.assert_refused(127, &["cannot run"]);
        assert!(ran.err().contains(&format!("\nhint: {hint}")), "{ran}");
    }
}

#[test]
fn a_slip_on_the_command_line_is_told_what_was_probably_meant() {
    let host = Host::new();
    for (args, hint) in [
        (&["wait", "--jsn", "x"][..], "perhaps --json is meant; see `bowline wait --help`"),
        (&["ps", "--sort=creatd"], "perhaps created is meant; see `bowline ps --help`"),
        (&["inspct", "x"], "perhaps inspect is meant; see `bowline --help`"),
        (&["exec"], "see `bowline exec --help`"),
        (&["sandbox", "create", "--bad"], "see `bowline sandbox create --help`"),
        (&["unpause", "x"], "`bowline resume` lets a paused task continue"),
        (&["run", "-c", "512", "true"], "`--cpu-shares`"),
        (
            &["network", "ls"],
            "`--network` of `bowline run` or `bowline sandbox create` gives a network: see docs/network.md",
        ),
        (&["run", "--unshare-all", "true"], "`--network none`; all other namespaces but the user's are the task's own"),
    ] {
        let ran = host.bowline(args);
        ran.assert_refused(2, &[]);
        assert!(ran.err().ends_with(&format!("\nhint: {hint}")), "{ran}");
    }
}

#[test]
fn a_folder_whose_name_is_not_utf8_is_refused_by_name() {
    let host = Host::new();
    let odd = host.work().join(OsStr::from_bytes(b"d\xff"));
    fs::create_dir(&odd).expect("the work folder is writable");
    let before = fs::read_dir(host.state()).map_or(0, Iterator::count);
    let refused = |code: i32, args: &[&str], parts: &[&str], flag: &str| {
        let mut command = host.command(binary("bowline"));
        command.args(args).current_dir(&odd);
        let ran = host.execute(command);
        let hint = ran.assert_refused(code, parts).err().lines().nth(1).unwrap_or_default().to_owned();
        assert!(hint.contains(flag), "{ran}");
    };
    let id = host.new_id();
    refused(125, &["run", "--rm", "-v", ".:/mnt", "true"], &["mounts[0].source", "not UTF-8"], "--volume");
    refused(125, &["start", "--name", &id, "-v", ".:/mnt", "true"], &["mounts[0].source", "not UTF-8"], "--volume");
    let bind = "type=bind,source=.,target=/mnt";
    refused(125, &["run", "--rm", "--mount", bind, "true"], &["mounts[0].source", "not UTF-8"], "--mount");
    refused(125, &["run", "--rm", "--rootfs", ".", "true"], &["rootfs", "not UTF-8"], "--rootfs");
    let after = fs::read_dir(host.state()).map_or(0, Iterator::count);
    assert_eq!(after, before, "no shim was started");
    let task = host.task("exec sleep 1000").start();
    let again = ["start", "--replace", "--name", task.id(), "-v", ".:/mnt", "true"];
    refused(125, &again, &["mounts[0].source", "not UTF-8"], "--volume");
    assert_eq!(task.status(), "running", "nothing is removed for what cannot be started");
    let mut exec = host.command(binary("bowline"));
    exec.args(["exec", task.id(), "-w"]).arg(OsStr::from_bytes(b"/d\xff")).arg("true");
    host.execute(exec).assert_refused(2, &["not UTF-8"]);
    for verb in [&["run", "--rm", "-e", "ODD", "true"][..], &["exec", "-e", "ODD", task.id(), "true"]] {
        let mut command = host.command(binary("bowline"));
        command.args(verb).env("ODD", OsStr::from_bytes(b"\xff"));
        host.execute(command).assert_refused(2, &["ODD", "not UTF-8"]);
    }
    task.end();
    for verb in [&["run", "--rm", "true"][..], &["ps"], &["sandbox", "create"]] {
        refused(2, &[&["--state", "."], verb].concat(), &["state folder", "not UTF-8"], "--state");
    }
    assert_eq!(fs::read_dir(&odd).map_or(1, Iterator::count), 0, "nothing is made there");
}
