//! Devices by the files of their vendors (CDI): what a task gets with one, which file counts, and what is refused.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bowline_tests::Host;
use bowline_tests::harness::{Build, Task, disk, eventually, name_of, patience, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::doctor::fact;

/// A folder of files, of the host's.
fn folder(host: &Host, name: &str) -> PathBuf {
    let folder = host.work().join(name);
    fs::create_dir(&folder).expect("a new folder");
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("ours");
    folder
}

/// A folder with one file, of these devices.
fn folder_of(host: &Host, kind: &str, devices: &Value) -> PathBuf {
    let folder = folder(host, "cdi");
    write(&folder.join("vendor.json"), kind, devices);
    folder
}

/// Writes a file of these devices, each with its edits.
fn write(path: &Path, kind: &str, devices: &Value) {
    let device = |(name, edits): (&String, &Value)| json!({"name": name, "containerEdits": edits});
    let devices: Vec<Value> = devices.as_object().expect("names with edits").iter().map(device).collect();
    let file = json!({"cdiVersion": "0.7.0", "kind": kind, "devices": devices});
    fs::write(path, file.to_string()).expect("the test's own");
}

/// A task with these flags, by the files in `folder`.
fn with<'h>(host: &'h Host, folder: &Path, script: &str, flags: &[&str]) -> Build<'h> {
    let build = host.task(script).flag(format!("--cdi-spec-dir={}", folder.display()));
    flags.iter().fold(build, |build, flag| build.flag(*flag))
}

/// A script of a shell, as a hook.
fn hook(name: &str, script: &str) -> Value {
    json!({"hookName": name, "path": "/bin/sh", "args": ["sh", "-c", script]})
}

/// A device with a variable, and a hook that adds a line to the file `ended` once the task is removed.
fn device_with_hook(host: &Host) -> Value {
    let ended = host.work().join("ended");
    let script = format!("grep -o '\"id\":\"[^\"]*' >>{}", ended.display());
    json!({"env": ["THING=one"], "hooks": [hook("poststop", &script)]})
}

/// The ids of tasks for which that hook has run.
fn ended(host: &Host) -> String {
    fs::read_to_string(host.work().join("ended")).unwrap_or_default().replace("\"id\":\"", "")
}

/// Starts a task with that device and removes the file: from now on the record alone has what it said.
fn with_hook(host: &Host) -> Task<'_> {
    let folder = folder_of(host, "vendor.com/thing", &json!({"a": device_with_hook(host)}));
    let task = with(host, &folder, "exec sleep 1000", &["--device=vendor.com/thing=a"]).start();
    fs::remove_dir_all(&folder).expect("the test's own");
    task
}

/// Whether execs have the device's variable, and its hook runs once as the task is removed.
fn assert_kept(host: &Host, task: &Task<'_>) {
    task.exec("echo $THING").assert_says("one");
    assert_eq!(ended(host), "");
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_eq!(ended(host), format!("{}\n", task.id()));
}

#[test]
fn a_task_gets_all_that_the_file_says() {
    let Some((major, minor)) = disk() else { return skip("this host has no disk") };
    let host = Host::new();
    let root = host.busybox_root();
    let (cdi, work) = (folder(&host, "cdi"), host.work().display().to_string());
    fs::write(host.work().join("library"), "of the host\n").expect("the test's own");
    let node = host.work().join("disk-node");
    let number = rustix::fs::makedev(major, minor);
    rustix::fs::mknodat(rustix::fs::CWD, &node, rustix::fs::FileType::BlockDevice, 0o600.into(), number)
        .expect("root may");
    // As nvidia-ctk writes it.
    let yaml = format!(
        "---\ncdiVersion: 0.6.0\nkind: vendor.com/thing\nannotations:\n  a: b\ncontainerEdits:\n  env:\n  - ALL=all\n  - OWN=theirs\n  \
         hooks:\n  - hookName: createRuntime\n    path: /bin/sh\n    args: [sh, -c, 'echo once >>{work}/told']\n  mounts:\n  \
         - hostPath: {work}/library\n    containerPath: /usr/lib/library\n    options: [ro, nosuid, nodev, bind]\n\
         devices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/thing0\n      hostPath: {work}/disk-node\n      \
         permissions: r\n- name: \"1\"\n  containerEdits:\n    env: [ONE=one]\n    deviceNodes:\n    - path: /dev/thing1\n      \
         type: c\n      major: 1\n      minor: 3\n      fileMode: 0600\n      uid: 7\n"
    );
    fs::write(cdi.join("vendor.yaml"), yaml).expect("the test's own");
    let script = "echo $ALL $ONE $OWN; cat /usr/lib/library; grep -c ' /usr/lib/library .*ro,nosuid,nodev' /proc/mounts; \
                  head -c 1 /dev/thing0 >/dev/null && echo read; true >>/dev/thing0; stat -c '%u %a' /dev/thing0 /dev/thing1; \
                  head -c 1 /dev/thing1";
    let flags = [
        "--device=vendor.com/thing=0",
        "--device=vendor.com/thing=1",
        "--device=vendor.com/thing=0",
        "--env=OWN=mine",
        "--user=5",
    ];
    let ran = with(&host, &cdi, script, &flags).rootfs(root.path()).run();
    assert_eq!(ran.out(), "all one theirs\nof the host\n1\nread\n5 666\n7 600", "{ran}");
    for refused in ["/dev/thing0: Operation not permitted", "/dev/thing1: Permission denied"] {
        assert!(ran.err().contains(refused), "{refused}: {ran}");
    }
    assert_eq!(fs::read_to_string(host.work().join("told")).expect("the hook has run"), "once\n");
}

/// As NVIDIA's hooks do, which make links and the linker's cache there.
#[test]
fn a_hook_finds_the_root_by_the_state_that_it_reads() {
    let host = Host::new();
    let root = host.busybox_root();
    let script = "bundle=$(grep -o '\"bundle\":\"[^\"]*' | cut -d'\"' -f4); \
                  root=$(grep -o '\"root\":{[^}]*' $bundle/config.json | grep -o '\"path\":\"[^\"]*' | cut -d'\"' -f4); \
                  echo linked >$root/tmp/link";
    let device = json!({"hooks": [hook("createContainer", script)]});
    let folder = folder_of(&host, "vendor.com/thing", &json!({"a": device}));
    let flags = ["--device=vendor.com/thing=a", "--secret=/dev/null:none", "--env=SEEN=1"];
    with(&host, &folder, "cat /tmp/link", &flags).rootfs(root.path()).run().assert_says("linked");
    // The host view has no owner's `/usr`, and none that a hook writes to.
    let device = json!({"hooks": [hook("createContainer", &script.replace("/tmp/link", "/usr/link"))]});
    write(&folder.join("vendor.json"), "vendor.com/thing", &json!({"a": device}));
    let parts = ["createContainer hook #0 (/bin/sh) failed", "Read-only file system", "--rootfs DIR"];
    refused(&host, &folder, "--device=vendor.com/thing=a", &parts);
}

#[test]
fn a_new_shim_needs_no_file() {
    let host = Host::new();
    let task = with_hook(&host);
    task.crash_shim();
    host.bowline(["adopt", task.id()]).assert_says(task.id());
    assert_kept(&host, &task);
}

#[test]
fn an_upgraded_shim_needs_no_file() {
    let host = Host::new();
    let task = with_hook(&host);
    task.bowline("upgrade", []).assert_says(task.id());
    task.bowline("update", ["--memory=64M"]).assert_code(0);
    assert_kept(&host, &task);
}

#[test]
fn its_hooks_run_though_the_shim_has_died() {
    let host = Host::new();
    let task = with_hook(&host);
    task.crash_shim();
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_eq!(ended(&host), format!("{}\n", task.id()));
}

#[test]
fn a_member_of_a_sandbox_has_devices_too() {
    let host = Host::new();
    let folder = folder_of(&host, "vendor.com/thing", &json!({"a": device_with_hook(&host)}));
    let (first, member) = (host.new_id(), host.new_id());
    let toml = format!(
        "[[members]]\nname = '{first}'\ncommand = 'sleep'\nargs = ['1000']\ncdi_devices = ['vendor.com/thing=a']\n"
    );
    let sandbox = host.sandbox().flag(format!("--cdi-spec-dir={}", folder.display())).toml(&toml).create();
    host.adopt(&first).exec("echo $THING").assert_says("one");
    let flags = ["--device=vendor.com/thing=a"];
    let build = with(&host, &folder, "echo $THING", &flags).named(&member).in_sandbox(&sandbox).flag("--rm");
    build.run().assert_says("one");
    assert_eq!(ended(&host), format!("{member}\n"));
    sandbox.rm(["-f"]);
    assert_eq!(ended(&host), format!("{member}\n{first}\n"));
}

#[test]
fn a_hook_that_hangs_holds_up_no_sandbox() {
    let host = Host::new();
    let (sandbox, pid) = (host.sandbox().create(), host.work().join("pid"));
    let hangs = hook("poststop", &format!("echo $$ >{}; exec sleep 1000", pid.display()));
    let folder = folder_of(&host, "vendor.com/thing", &json!({"a": {"hooks": [hangs]}}));
    let begun = Instant::now();
    let flags = ["--device=vendor.com/thing=a", "--rm", "--stop-timeout=100ms"];
    with(&host, &folder, "echo done", &flags).in_sandbox(&sandbox).run().assert_says("done");
    sandbox.rm(["-f"]);
    assert!(begun.elapsed() < patience() / 2, "{:?}", begun.elapsed());
    let pid: i32 = fs::read_to_string(&pid).expect("it runs").trim().parse().expect("a number");
    assert_eq!(name_of(pid), "sleep", "it goes on without the task");
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it runs");
    eventually("it is gone", || name_of(pid).is_empty().then_some(()));
}

#[test]
fn a_hook_that_fails_is_told_with_its_file() {
    let host = Host::new();
    let folder = folder(&host, "cdi");
    let (file, other) = (folder.join("vendor.json"), folder.join("other.json"));
    let works = json!({"a": {"hooks": [hook("createRuntime", "true"), hook("poststart", "true")]}});
    write(&other, "other.com/thing", &works);
    let device = ["--device=other.com/thing=a", "--device=vendor.com/thing=a"];
    for point in ["prestart", "createRuntime", "createContainer", "startContainer", "poststart"] {
        let number = usize::from(["createRuntime", "poststart"].contains(&point));
        write(&file, "vendor.com/thing", &json!({"a": {"hooks": [hook(point, "echo no >&2; exit 4")]}}));
        let told = format!("{}: {point} hook #{number} (/bin/sh) failed: exit code 4: no", file.display());
        let ran = with(&host, &folder, "exec sleep 1000", &device).flag("--rm").run();
        assert_eq!(ran.assert_refused(125, &[&told]).err().matches(file.to_str().expect("ASCII")).count(), 1, "{ran}");
    }
    // One that fails once the shim has died, as the task is removed.
    write(&file, "vendor.com/thing", &json!({"a": {"hooks": [hook("poststop", "exit 4")]}}));
    let task = with(&host, &folder, "exec sleep 1000", &device).start();
    task.kill_shim(task.shim_pid());
    let removed = task.bowline("rm", ["-f"]);
    assert!(removed.err().contains(&format!("{}: poststop hook #0", file.display())), "{removed}");
    // A file does not say what we record.
    let says = json!({"hookName": "poststop", "path": "/bin/sh", "file": "/x"});
    write(&file, "vendor.com/thing", &json!({"a": {"hooks": [says]}}));
    refused(&host, &folder, device[1], &["unknown field `file`"]);
}

#[test]
fn a_number_in_yaml_is_a_text_where_one_must_be() {
    let host = Host::new();
    let folder = folder(&host, "cdi");
    let file = folder.join("vendor.yaml");
    let device = |name: &str| format!("--device=vendor.com/thing={name}");
    let text = |devices: &str| format!("cdiVersion: 0.7.0\nkind: vendor.com/thing\ndevices:\n{devices}\n");
    let one = "- name: 0\n  annotations: {1: true}\n  containerEdits: {env: [A=1]}\n\
               - name: 10\n  containerEdits: {env: [A=2]}";
    fs::write(&file, text(one)).expect("the test's own");
    for (name, value) in [("0", "1"), ("10", "2")] {
        with(&host, &folder, "echo $A", &[&device(name)]).run().assert_says(value);
    }
    // JSON too, which CDI's own library reads as YAML.
    let json = r#"{"cdiVersion": "0.7.0", "kind": "vendor.com/thing", "devices":
                   [{"name": 7, "containerEdits": {"env": ["A=3"]}}]}"#;
    fs::write(folder.join("more.json"), json).expect("the test's own");
    with(&host, &folder, "echo $A", &[&device("7")]).run().assert_says("3");
    for (wrong, why) in [
        ("- name: [0]\n  containerEdits: {env: [A=1]}", "devices[0].name: invalid type: sequence"),
        ("- name: a\n  containerEdits: {env: A=1}", "devices[0].containerEdits.env: invalid type: string"),
        ("- name: a\n  containerEdits: {deviceNodes: [{path: /dev/null, uid: x}]}", "deviceNodes[0].uid: invalid type"),
    ] {
        fs::write(&file, text(wrong)).expect("the test's own");
        refused(&host, &folder, &device("a"), &[why]);
    }
}

#[test]
fn spec_and_inspect_show_what_was_asked_for() {
    let host = Host::new();
    let folder = folder_of(&host, "vendor.com/thing", &json!({"a": device_with_hook(&host)}));
    let toml = "command = 'sleep'\nargs = ['1000']\ncdi_devices = ['vendor.com/thing=a']\n";
    let (file, dir) = (host.file("task.toml", toml), format!("--cdi-spec-dir={}", folder.display()));
    let config = host.bowline(["spec", &dir, file.to_str().expect("ASCII")]).assert_code(0).json();
    assert!(config["process"]["env"].as_array().expect("a list").contains(&json!("THING=one")), "{config:#}");
    assert_eq!(config["hooks"]["poststop"][0]["path"], "/bin/sh", "{config:#}");
    let task = host.described(toml).flag(dir).start();
    let described = task.inspect()["task"].clone();
    assert_eq!(described["cdi_devices"], json!(["vendor.com/thing=a"]));
    assert_eq!(described["cdi_edits"]["env"], json!(["THING=one"]));
    // What a description says of it does not count: the file does.
    let mut again = described;
    again["cdi_edits"]["env"] = json!(["THING=two"]);
    again.as_object_mut().expect("an object").remove("name");
    (again["command"], again["args"]) = (json!("sh"), json!(["-c", "echo $THING"]));
    let file = host.file("again.json", &again.to_string());
    let dir = format!("--cdi-spec-dir={}", folder.display());
    host.task_of([]).flag(format!("--file={}", file.display())).flag(dir).run().assert_says("one");
    task.end();
}

#[test]
fn a_later_folder_goes_before_an_earlier_one() {
    let host = Host::new();
    let (etc, run) = (folder(&host, "etc"), folder(&host, "run"));
    let env = |value: &str| json!({"env": [format!("THING={value}")]});
    write(&etc.join("a.json"), "vendor.com/thing", &json!({"a": env("etc"), "b": env("etc")}));
    write(&etc.join("b.json"), "vendor.com/thing", &json!({"a": env("etc too")}));
    write(&run.join("a.json"), "vendor.com/thing", &json!({"a": env("run")}));
    let task = |name: &str, folders: &str| {
        let device = format!("--device=vendor.com/thing={name}");
        let mut command = host.task("echo $THING").flag("--rm").flag(device).command("run");
        command.env("BOWLINE_CDI_SPEC_DIRS", folders);
        host.execute(command)
    };
    let both = format!("{}:{}", etc.display(), run.display());
    task("a", &both).assert_says("run");
    task("b", &both).assert_says("etc");
    let (first, second) = (etc.join("a.json").display().to_string(), etc.join("b.json").display().to_string());
    task("a", etc.to_str().expect("ASCII")).assert_refused(125, &[&first, &second, "both describe vendor.com/thing=a"]);
}

#[test]
fn gpus_are_those_of_nvidia_s_file() {
    let host = Host::new();
    let env = |name: &str| json!({"env": [format!("GPU_{name}=1")]});
    let folder = folder_of(&host, "nvidia.com/gpu", &json!({"0": env("0"), "1": env("1"), "all": env("all")}));
    for (flag, found) in [
        ("--gpus=all", "GPU_all"),
        ("--gpus=1", "GPU_0"),
        ("--gpus=2", "GPU_0 GPU_1"),
        ("--gpus=device=0,1", "GPU_0 GPU_1"),
        ("--gpus=\"device=1\"", "GPU_1"),
        ("--device=nvidia.com/gpu=all", "GPU_all"),
    ] {
        let ran = with(&host, &folder, "echo $(env | grep ^GPU_ | cut -d= -f1 | sort)", &[flag]).run();
        ran.assert_says(found);
    }
    let known = ["nvidia.com/gpu=2", "of nvidia.com/gpu there are 0, 1, all"];
    with(&host, &folder, "true", &["--gpus=3"]).run().assert_refused(125, &known);
    for (flag, why) in [("--gpus=none", "no number of GPUs"), ("--gpus=all,capabilities=video", "capabilities")] {
        with(&host, &folder, "true", &[flag]).run().assert_refused(2, &["--gpus", why]);
    }
}

#[track_caller]
fn refused(host: &Host, folder: &Path, flag: &str, parts: &[&str]) {
    let ran = with(host, folder, "true", &[flag]).run();
    ran.assert_refused(125, &[]);
    // The hint counts too.
    parts.iter().for_each(|part| assert!(ran.err().contains(part), "{part}\n{ran}"));
}

#[test]
fn a_device_that_no_file_has_is_refused_with_those_there_are() {
    let host = Host::new();
    let empty = folder(&host, "empty");
    let place = empty.display().to_string();
    let generate = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml";
    refused(&host, &empty, "--gpus=all", &["nvidia.com/gpu=all", "there are none in", &place, generate]);
    let missing = empty.join("missing");
    refused(&host, &missing, "--device=vendor.com/thing=a", &["there are none in", "--cdi-spec-dir"]);
    let many: serde_json::Map<String, Value> = (0..99).map(|n| (format!("d{n}"), json!({"env": ["A=1"]}))).collect();
    let folder = folder_of(&host, "vendor.com/thing", &many.into());
    refused(&host, &folder, "--device=vendor.com/thing=x", &["of vendor.com/thing there are d0, d1,", "and 83 more"]);
    refused(&host, &folder, "--device=other.com/thing=x", &["there are vendor.com/thing=d0,", "and 83 more"]);
    refused(&host, &folder, "--gpus=all", &["there are vendor.com/thing=d0,", generate]);
}

#[test]
fn a_file_that_another_user_can_change_is_left_out() {
    let host = Host::new();
    let folder = folder_of(&host, "vendor.com/thing", &json!({"a": {"env": ["A=1"]}}));
    let file = folder.join("vendor.json");
    let device = "--device=vendor.com/thing=a";
    let is_left_out = |path: &Path, why: &str| {
        refused(&host, &folder, device, &["left out", path.to_str().expect("ASCII"), why]);
    };
    chown(&file, Some(1234), None).expect("root may");
    is_left_out(&file, "belongs to user 1234");
    chown(&file, Some(0), None).expect("root may");
    fs::set_permissions(&file, Permissions::from_mode(0o664)).expect("ours");
    is_left_out(&file, "can be written by others (mode 0664)");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("ours");
    fs::set_permissions(&folder, Permissions::from_mode(0o1777)).expect("ours");
    is_left_out(&folder, "can be written by others (mode 1777)");
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("ours");
    // A link of root's leads to a file of root's, and to nobody else's.
    let (store, link) = (host.work().join("store.json"), folder.join("link.json"));
    fs::rename(&file, &store).expect("ours");
    std::os::unix::fs::symlink(&store, &link).expect("ours");
    with(&host, &folder, "echo $A", &[device]).run().assert_says("1");
    chown(&store, Some(1234), None).expect("root may");
    is_left_out(&link, "belongs to user 1234");
}

#[test]
fn a_file_that_is_wrong_is_left_out_and_named() {
    let host = Host::new();
    let folder = folder_of(&host, "vendor.com/thing", &json!({"a": {"env": ["A=1"]}}));
    let bad = folder.join("bad.yaml");
    let path = bad.display().to_string();
    for (text, why) in [
        (
            "cdiVersion: 9.0.0\nkind: v.com/c\ndevices: [{name: x, containerEdits: {env: [A=1]}}]",
            "cdiVersion \"9.0.0\"",
        ),
        ("cdiVersion: 0.3.0\nkind: v.com/c\ndevices: [{name: '0', containerEdits: {env: [A=1]}}]", "came with 0.5.0"),
        ("cdiVersion: 1.0.0\nkind: v.com/c\ndevices: [{name: x, edits: {}}]", "unknown field `edits`"),
        ("a: &b 1", "anchors"),
        ("a: [", "line 2"),
        ("", "empty"),
    ] {
        fs::write(&bad, text).expect("the test's own");
        refused(&host, &folder, "--device=v.com/c=x", &["a device v.com/c=x", &path, why]);
    }
    let twice = r#"{"cdiVersion": "1.0.0", "kind": "v.com/c", "kind": "v.com/d"}"#;
    fs::write(folder.join("twice.json"), twice).expect("the test's own");
    File::create(folder.join("large.json")).and_then(|file| file.set_len(5 << 20)).expect("the test's own");
    let parts = ["twice.json: duplicate field `kind`", "large.json: has more than 4194304 bytes"];
    refused(&host, &folder, "--device=v.com/c=x", &parts);
    // Those of other files are there; a line says that some are not.
    let ran = with(&host, &folder, "echo $A", &["--device=vendor.com/thing=a"]).run();
    assert_eq!((ran.assert_code(0).out(), ran.err().contains(&path)), ("1".to_owned(), true), "{ran}");
}

#[test]
fn what_cannot_be_given_is_refused_by_name() {
    let host = Host::new();
    let folder = folder(&host, "cdi");
    let device = "--device=vendor.com/thing=a";
    for (edits, why) in [
        (json!({"intelRdt": {"closID": "x"}}), "intelRdt: "),
        (json!({"deviceNodes": [{"path": "/dev/none-such"}]}), "cannot use /dev/none-such"),
        (json!({"deviceNodes": [{"path": "/dev/null", "type": "b"}]}), "/dev/null has the type c on this host, not b"),
        (json!({"deviceNodes": [{"path": "/proc/x"}]}), "deviceNodes[0].path: "),
        (
            json!({"mounts": [{"hostPath": "/a", "containerPath": "/proc", "options": ["bind"]}]}),
            "mounts[0].containerPath: ",
        ),
        (
            json!({"mounts": [{"hostPath": "/none-such", "containerPath": "/x", "options": ["bind"]}]}),
            "a.json: device a: cannot use /none-such",
        ),
        (json!({"hooks": [{"hookName": "later", "path": "/a"}]}), "hooks[0].hookName: "),
        (json!({"hooks": [{"hookName": "createRuntime", "path": "/none-such"}]}), "createRuntime hook #0 (/none-such)"),
    ] {
        write(&folder.join("a.json"), "vendor.com/thing", &json!({"a": edits}));
        refused(&host, &folder, device, &[why]);
    }
    let closed = json!({"a": {"hooks": [hook("createContainer", "true")]}});
    write(&folder.join("a.json"), "vendor.com/thing", &closed);
    let users = "namespaces.user = 'private'\nuid_mappings = [{container = 0, host = 100000, size = 9}]\n\
                 gid_mappings = [{container = 0, host = 100000, size = 9}]\n";
    let parts = ["cdi_devices: ", "createContainer", "namespaces.user"];
    with(&host, &folder, "true", &[device]).toml(users).run().assert_refused(125, &parts);
    write(&folder.join("a.json"), "vendor.com/thing", &json!({"a": {"env": ["A=1"]}}));
    with(&host, &folder, "true", &[device, "--untrusted"]).run().assert_refused(2, &["cdi_devices: ", "untrusted"]);
    with(&host, &folder, "true", &["--device=vendor.com/thing"]).run().assert_refused(2, &["vendor.com/class=name"]);
    let task = with(&host, &folder, "exec sleep 1000", &[device]).start();
    for verb in ["exec", "update"] {
        let ran = host.bowline([verb, task.id(), device, "true"]);
        ran.assert_refused(2, &["--device"]);
    }
    task.end();
}

#[test]
fn doctor_says_which_devices_there_are_and_where_files_are_sought() {
    let host = Host::new();
    let cdi = folder(&host, "cdi");
    let doctor =
        || fact(&host.bowline(["doctor", "--json", "--cdi-spec-dir", cdi.to_str().expect("ASCII")]), "CDI devices");
    let found = doctor();
    assert_eq!(found["found"], format!("no file in {}", cdi.display()), "{found}");
    write(&cdi.join("a.json"), "vendor.com/thing", &json!({"a": {"env": ["A=1"]}}));
    assert_eq!((&doctor()["state"], &doctor()["found"]), (&json!("has"), &json!("vendor.com/thing=a")));
    fs::write(cdi.join("b.json"), "{").expect("the test's own");
    let found = doctor();
    let is_named = found["found"].as_str().is_some_and(|text| text.contains("b.json"));
    assert!(found["state"] == "lacks" && is_named, "{found}");
}
