//! Plugins that are missing, fail, hang, or say what they should not: told
//! clearly, undone, and never in a sandbox's way. With stand-ins.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use bowline_tests::Host;
use bowline_tests::harness::{eventually, process_exists};
use serde_json::Value;

/// A plugin that does what `script` says, and notes each call; the description of
/// a sandbox that has it.
fn stand_in(host: &Host, script: &str) -> String {
    let dir = host.work().display().to_string();
    let text = format!("#!/bin/sh\necho $CNI_COMMAND >>{dir}/calls\n{script}\n");
    // By another process: had this one it open, a fork of another test could keep it so.
    let write = format!("mkdir -p {dir}/bin; cat >{dir}/bin/stand-in; chmod +x {dir}/bin/stand-in");
    let mut shell = Command::new("sh").args(["-c", &write]).stdin(Stdio::piped()).spawn().expect("a shell");
    shell.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
    assert!(shell.wait().expect("it ends").success());
    let list = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "stand-in"}]}"#;
    let list = host.file("net.conflist", list);
    format!(
        "network.plugin_folders = ['{dir}/bin']\nnetwork.plugin_timeout = '2s'\n[[network.interfaces]]\n\
         association = 'list'\nlist = '{}'",
        list.display()
    )
}

fn calls(host: &Host) -> String {
    fs::read_to_string(host.work().join("calls")).unwrap_or_default().replace('\n', " ")
}

#[test]
fn a_plugin_that_fails_is_told_and_undone() {
    let add = |script: &str| format!("[ $CNI_COMMAND = ADD ] || exit 0\n{script}");
    for (script, code, parts) in [
        (
            r#"echo '{"cniVersion":"1.0.0","code":11,"msg":"no such bridge","details":"br7"}'; exit 1"#,
            125,
            "plugin stand-in failed at ADD: code 11: no such bridge: br7",
        ),
        ("echo hello", 125, r#"plugin stand-in failed at ADD: it said "hello" in place of an answer"#),
        ("head -c 3000000 /dev/zero", 125, "plugin stand-in failed at ADD: it said more than 1048576 bytes"),
        ("echo oops >&2; exit 3", 125, r#"plugin stand-in failed at ADD: exit code 3, and it said "oops""#),
        ("kill -9 $$", 125, "plugin stand-in failed at ADD: killed by signal 9"),
        ("sleep 1000 & wait", 124, "plugin stand-in failed at ADD: it did not end within 2s and was killed"),
    ] {
        let host = Host::new();
        let sandbox = host.sandbox().toml(&stand_in(&host, &add(script)));
        sandbox.assert_refused(code, &["cannot add eth0 to network net", parts]);
        assert_eq!(calls(&host), "ADD DEL ", "{script}");
        host.assert_nothing_left();
    }
}

#[test]
fn plugins_of_two_sandboxes_take_turns() {
    let host = Host::new();
    let busy = host.work().join("busy");
    let add = r#"echo '{"cniVersion":"1.0.0"}'"#;
    let script = format!("mkdir {0} || exit 7\nsleep 0.1\nrmdir {0}\n[ $CNI_COMMAND != ADD ] || {add}", busy.display());
    let toml = stand_in(&host, &script).replace("'2s'", "'1m'");
    let sandboxes: Vec<_> = (0..4).map(|_| host.sandbox().toml(&toml)).collect();
    let ids: Vec<String> = sandboxes.iter().map(|sandbox| sandbox.id().to_owned()).collect();
    let created: Vec<_> = sandboxes.into_iter().map(|sandbox| sandbox.spawn()).collect();
    for create in created {
        create.finish().assert_code(0);
    }
    let remove = |id: &String| {
        let mut bowline = host.command(bowline_tests::harness::binary("bowline"));
        bowline.args(["sandbox", "rm", "-f", id]);
        host.spawn_command(bowline)
    };
    let removed: Vec<_> = ids.iter().map(remove).collect();
    for rm in removed {
        rm.finish().assert_code(0);
    }
}

#[test]
fn a_plugin_that_is_missing_is_told_before_anything_is_run() {
    let host = Host::new();
    let toml = stand_in(&host, "exit 1");
    fs::remove_file(host.work().join("bin/stand-in")).expect("it was there");
    let bin = host.work().join("bin").display().to_string();
    host.sandbox().toml(&toml).assert_refused(125, &["cannot find the network plugin stand-in in", &bin]);
    fs::remove_file(host.work().join("net.conflist")).expect("it was there");
    host.sandbox().toml(&toml).assert_refused(125, &["cannot read network list", "net.conflist"]);
    fs::write(host.work().join("net.conflist"), "{").expect("written");
    host.sandbox().toml(&toml).assert_refused(125, &["cannot read network list", "net.conflist"]);
}

#[test]
fn what_a_plugin_cannot_undo_is_kept_for_another_try() {
    let host = Host::new();
    let answer = "[ $CNI_COMMAND != ADD ] || echo '{}'";
    let stuck =
        format!("{answer}\n[ $CNI_COMMAND != DEL ] || {{ echo '{{\"code\":11,\"msg\":\"not now\"}}'; exit 1; }}");
    for crash in [false, true] {
        let sandbox = host.sandbox().toml(&stand_in(&host, &stuck)).create();
        let member = sandbox.task("exec sleep 1000").start();
        let pid = member.pid();
        if crash {
            sandbox.kill_shim();
        }
        let refused = sandbox.bowline("rm", ["-f"]);
        refused.assert_refused(125, &["cannot remove eth0 from network net", "code 11: not now"]);
        assert!(!process_exists(pid), "the members are gone all the same");
        if !crash {
            // Its namespaces are gone: whoever came now would get other ones.
            sandbox.task("exit 0").assert_refused(125, &[sandbox.id(), "has failed midway"]);
        }
        stand_in(&host, answer);
        sandbox.rm(["-f"]);
    }
    assert_eq!(calls(&host), "ADD DEL DEL ADD DEL DEL ");
}

#[test]
fn a_shim_that_is_killed_while_a_plugin_runs_takes_it_along() {
    let host = Host::new();
    let pids = host.work().join("pids");
    let script = format!(
        "[ $CNI_COMMAND = ADD ] || exit 0\nsleep 1000 &\necho $$ $! >{0}.new && mv {0}.new {0}\nwait",
        pids.display()
    );
    let toml = stand_in(&host, &script).replace("'2s'", "'10m'");
    let build = host.sandbox().toml(&toml);
    let id = build.id().to_owned();
    let create = build.spawn();
    let pids = eventually("the plugin runs", || fs::read_to_string(&pids).ok());
    let pids: Vec<i32> = pids.split_whitespace().map(|pid| pid.parse().expect("a number")).collect();
    assert!(pids.iter().all(|pid| process_exists(*pid)));
    let record = fs::read_to_string(host.state().join(&id).join("sandbox.json")).expect("its record");
    let record: Value = serde_json::from_str(&record).expect("JSON");
    let shim = record["shim_pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).expect("a pid");
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).expect("it lives");
    eventually("they are gone", || (!pids.iter().any(|pid| process_exists(*pid))).then_some(()));
    create.finish().assert_code(125);
    host.bowline(["sandbox", "rm", "-f", &id]).assert_code(0);
    assert_eq!(calls(&host), "ADD DEL ");
}
