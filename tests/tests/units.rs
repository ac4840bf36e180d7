//! Who speaks to systemd: `bowline`, which a shim runs for that, and what is told where that cannot be.
//!
//! With a program of the test's own in place of `bowline`, which only claims to have systemd make a unit: on cgroup v1
//! a task then runs all the same, as what systemd has not made there is made by bowline.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio as Stream};

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Code, Containerd, Shim, Stdio};
use bowline_tests::harness::{binary, copy_binary, only_v2};

const SHIM: &str = "containerd-shim-bowline-v1";

/// Does nothing, and writes down what it was asked for.
const OBEDIENT: &str =
    "cat >>$0.asked; echo >>$0.asked; echo $1 $DBUS_SYSTEM_BUS_ADDRESS >>$0.called; echo '{\"Ok\":null}'";

/// An empty folder for programs.
fn folder(host: &Host, name: &str) -> PathBuf {
    let folder = host.work().join(name);
    fs::create_dir(&folder).expect("the work folder is writable");
    folder
}

/// Puts a program that runs `script` at `folder`/bowline. Written by a process of its own: none of ours then has it
/// open as it is executed.
fn put_script(folder: &Path, script: &str) {
    let path = folder.join("bowline");
    let mut writer = Command::new("/bin/sh");
    let mut writer =
        writer.args(["-c", "cat >$0; chmod 755 $0"]).arg(&path).stdin(Stream::piped()).spawn().expect("sh");
    let text = format!("#!/bin/sh\n{script}\n");
    writer.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    assert!(writer.wait().expect("a child").success());
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o755);
}

/// `command`, of the shim's binary in this folder.
fn from(folder: &Path, command: &Command) -> Command {
    let mut other = Command::new(folder.join(SHIM));
    other.args(command.get_args()).current_dir(command.get_current_dir().expect("the bundle"));
    for (name, value) in command.get_envs() {
        other.env(name, value.unwrap_or_default());
    }
    other
}

/// Starts containerd's shim from this folder, with this PATH.
fn start(containerd: &Containerd<'_>, bundle: &Bundle, folder: &Path, path: &Path) -> Shim {
    containerd.read_log(bundle);
    let mut command = from(folder, &containerd.command(bundle, &["start"]));
    command.env("PATH", path).env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere/bus");
    let (succeeded, said) = containerd.answer_of(command, b"");
    let said = String::from_utf8(said).expect("text");
    assert!(succeeded, "{said}");
    containerd.dial(said.strip_prefix("unix://").expect("an address").as_ref())
}

/// A container whose cgroup is a unit.
fn unit(host: &Host, containerd: &Containerd<'_>) -> Bundle {
    let path = format!(":{}:web", host.prefix());
    containerd.bundle().script("sleep 1000").edit(|config| config["linux"]["cgroupsPath"] = path.into())
}

/// What the program in this folder was asked for: the kinds of requests, in their order.
fn asked(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("bowline.asked")).unwrap_or_default();
    let request = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    let kind = |line| request(line).as_object().and_then(|map| map.keys().next().cloned()).expect("a request");
    text.lines().map(kind).collect()
}

/// Create is refused like that, and nothing is left.
#[track_caller]
fn assert_create_refused(host: &Host, folder: &Path, code: Code, parts: &[&str]) {
    let containerd = host.containerd();
    let bundle = unit(host, &containerd);
    let shim = start(&containerd, &bundle, folder, "/usr/bin:/bin".as_ref());
    let failure = shim.create(&bundle, &Stdio::null()).expect_err("nobody makes the unit");
    assert_eq!(failure.code, code, "{failure:?}");
    for part in parts {
        assert!(failure.message.contains(part), "{part:?} is missing: {failure:?}");
    }
    assert_eq!(shim.state(&bundle.id, "").expect_err("there is none").code, Code::NOT_FOUND);
    shim.over();
}

/// A folder with a copy of containerd's shim.
fn with_shim(host: &Host) -> PathBuf {
    let folder = folder(host, "bin");
    copy_binary(SHIM, &folder.join(SHIM));
    folder
}

#[test]
fn only_bowline_itself_can_speak_to_systemd() {
    let speaks = |name: &str| {
        let program = fs::read(binary(name)).expect("a file");
        program.windows(b"org.freedesktop.systemd1".len()).any(|part| part == b"org.freedesktop.systemd1")
    };
    assert_eq!(["bowline", "bowline-shim", SHIM].map(speaks), [true, false, false]);
}

#[test]
fn a_shim_without_bowline_beside_it_says_what_is_missing() {
    let host = Host::new();
    let folder = with_shim(&host);
    let missing = folder.join("bowline");
    let parts = ["cannot find", missing.to_str().expect("ASCII"), "systemd cgroup driver", "side by side"];
    assert_create_refused(&host, &folder, Code::FAILED_PRECONDITION, &parts);
}

#[test]
fn a_bowline_without_an_answer_is_an_error_with_what_it_said() {
    for (script, said) in [
        ("echo 'no such: library' >&2; exit 127", "no such: library"),
        ("exit 3", "exit status: 3"),
        ("echo '{\"Ok\":'", "{\\\"Ok\\\":"),
        ("kill -9 $$", "signal: 9"),
    ] {
        let host = Host::new();
        let folder = with_shim(&host);
        put_script(&folder, script);
        assert_create_refused(&host, &folder, Code::INTERNAL, &["bowline", said]);
    }
}

#[test]
fn an_answer_of_bowline_arrives_with_kind_and_hint() {
    let host = Host::new();
    let folder = with_shim(&host);
    put_script(
        &folder,
        r#"echo '{"Err":{"kind":"already_exists","message":"cannot start it: it is there","hint":"stop it"}}'"#,
    );
    assert_create_refused(&host, &folder, Code::ALREADY_EXISTS, &["cannot start it: it is there", "stop it"]);
}

#[test]
fn bowline_is_asked_to_start_change_and_stop_a_unit() {
    if only_v2() {
        return;
    }
    let host = Host::new();
    let containerd = host.containerd();
    // Not beside the shim, but in its PATH.
    let (bin, elsewhere) = (with_shim(&host), folder(&host, "elsewhere"));
    put_script(&elsewhere, &format!("PATH=/usr/bin:/bin; {OBEDIENT}"));
    let bundle = unit(&host, &containerd);
    let shim = start(&containerd, &bundle, &bin, &elsewhere);
    shim.run(&bundle, &Stdio::null());
    assert_eq!(asked(&elsewhere), ["start"]);
    shim.update(&bundle.id, &serde_json::json!({"memory": {"limit": 64 << 20}})).expect("changed");
    assert_eq!(asked(&elsewhere), ["start", "change"]);
    shim.end(&bundle.id);
    assert_eq!(asked(&elsewhere), ["start", "change", "stop"]);
    let called = fs::read_to_string(elsewhere.join("bowline.called")).expect("written");
    assert_eq!(called, "units unix:path=/nowhere/bus\n".repeat(3), "it has the address of the bus");
}

#[test]
fn delete_has_bowline_stop_the_unit_of_a_dead_shim() {
    if only_v2() {
        return;
    }
    let host = Host::new();
    let containerd = host.containerd();
    let folder = with_shim(&host);
    put_script(&folder, OBEDIENT);
    let bundle = unit(&host, &containerd);
    let shim = start(&containerd, &bundle, &folder, "/usr/bin:/bin".as_ref());
    shim.run(&bundle, &Stdio::null());
    shim.kill_shim();
    let delete = ["-bundle", bundle.path.to_str().expect("ASCII"), "delete"];
    let (succeeded, said) = containerd.answer_of(from(&folder, &containerd.command(&bundle, &delete)), b"");
    assert!(succeeded, "{}", String::from_utf8_lossy(&said));
    assert_eq!(asked(&folder), ["start", "stop"]);
    // containerd goes by the connection; the socket's file is its to remove.
    let _ = fs::remove_file(&shim.socket);
}

#[test]
fn a_shim_runs_the_bowline_that_an_upgrade_put_there() {
    let host = Host::new();
    let folder = folder(&host, "bin");
    for name in ["bowline", "bowline-shim", "bowline-init"] {
        copy_binary(name, &folder.join(name));
    }
    // It runs, and its file is gone by the time it starts a shim.
    let removed = |after: &str| {
        let mut command = host.command("/bin/sh");
        let script = format!("exec 5<$0; rm $0; {after} exec /proc/self/fd/5 \"$@\"");
        command.arg("-c").arg(script).arg(folder.join("bowline"));
        command.args(["start", "--cgroup-driver=systemd", "--name", &host.new_id(), "--", "/bin/true"]);
        host.execute(command)
    };
    let missing = folder.join("bowline");
    removed("").assert_refused(125, &["cannot find", missing.to_str().expect("ASCII"), "systemd cgroup driver"]);
    host.assert_nothing_left();
    copy_binary("bowline", &missing);
    removed("printf '#!/bin/sh\\necho new\\n' >$0; chmod 755 $0;").assert_refused(125, &["\"new\""]);
}

#[test]
fn bowline_answers_whatever_it_is_asked() {
    let host = Host::new();
    let missing = host.work().join("bus");
    let ask = |request: &str| {
        let mut command = host.command("/bin/sh");
        command.env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", missing.display()));
        command.args(["-c", "printf %s \"$1\" | \"$0\" units"]).arg(binary("bowline")).arg(request);
        let ran = host.execute(command);
        ran.assert_code(0);
        ran.json()["Err"].clone()
    };
    for nonsense in ["", "{", "[]", r#"{"restart":{}}"#, r#"{"stop":{"unit":"a.scope"}}"#] {
        assert_eq!(ask(nonsense)["kind"], "usage", "{nonsense}");
    }
    let refused = ask(r#"{"stop":{"unit":{"name":"a.scope","slice":"b.slice"}}}"#);
    assert_eq!(refused["kind"], "unsupported", "{refused}");
    let message = refused["message"].as_str().expect("text");
    assert!(message.contains("cannot stop a.scope") && message.contains("/bus"), "{refused}");
    assert!(refused["hint"].is_string(), "{refused}");
}
