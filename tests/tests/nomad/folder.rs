//! What a job puts into its task's folder, and where: templates, artifacts, volumes, the command.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::nomad::{Build, Plugin};
use bowline_tests::harness::write_program;
use serde_json::json;

/// Writes a file below the task's folder, as a template or an artifact does.
fn put(build: &Build<'_>, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = build.folder().join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("ours");
    write_program(&path, text);
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
    path
}

/// Runs a task to its end; what it said. It has nothing to complain about.
#[track_caller]
fn said(plugin: &Plugin<'_>, build: Build<'_>) -> String {
    let task = build.start();
    let exit = plugin.wait(&task);
    let (out, err) = (task.out().all(), task.err().all());
    assert!(err.is_empty(), "{out}{err}{:?}", exit.0);
    exit.assert_code(0);
    plugin.destroy(&task);
    out
}

#[test]
fn templates_and_artifacts_in_the_folder_appear_in_the_root() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let script = "cat /app/config.yml /etc/bl-app.conf /etc/os-release /opt/bl/data /etc/bl/x /tmp/given /top; \
                  test -s /etc/passwd && echo passwd; touch /etc/x 2>/dev/null || echo read-only";
    let build = plugin.task(script);
    for name in ["app/config.yml", "etc/bl-app.conf", "etc/os-release", "opt/bl/data", "etc/bl/x", "tmp/given", "top"] {
        put(&build, name, &format!("{name}\n"), 0o644);
    }
    let expected = "app/config.yml\netc/bl-app.conf\netc/os-release\nopt/bl/data\netc/bl/x\ntmp/given\ntop\n\
                    passwd\nread-only\n";
    assert_eq!(said(&plugin, build), expected);
    plugin.kill();
}

#[test]
fn a_view_of_a_folder_of_the_host_shows_what_the_folder_shows() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_root": true}));
    let script = "ls /etc | sort; cat /etc/shadow 2>&1; readlink /etc/mtab; ls /etc/ssl /usr/share | sort";
    let plain = said(&plugin, plugin.task(script).field("user", "root").config("cap_drop", json!(["all"])));
    let build = plugin.task(script).field("user", "root");
    put(&build, "etc/bl-app.conf", "", 0o644);
    put(&build, "usr/share/bl-app/x", "", 0o644);
    let viewed = said(&plugin, build).replace("bl-app.conf\n", "").replace("bl-app\n", "");
    assert_eq!(viewed, plain);
    plugin.kill();
}

#[test]
fn a_template_in_a_folder_of_its_own_is_seen_when_it_changes() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let build = plugin.task("cat /app/x; read line </local/go; cat /app/x");
    let (file, go) = (put(&build, "app/x", "old\n", 0o644), build.folder().join("local/go"));
    rustix::fs::mknodat(rustix::fs::CWD, &go, rustix::fs::FileType::Fifo, 0o666.into(), 0).expect("ours");
    let task = build.start();
    task.out().wait_for("old\n");
    // As Nomad writes it.
    fs::write(file.with_extension("new"), "new\n").expect("ours");
    fs::rename(file.with_extension("new"), &file).expect("ours");
    fs::write(&go, "\n").expect("it reads");
    plugin.wait(&task);
    assert_eq!(task.out().all(), "old\nnew\n");
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_symlink_of_an_artifact_leads_nowhere_out_of_the_folder() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let secret = host.file("secret", "of the host\n");
    let build = plugin.task("cat /link /inside; ls /folder /up /private 2>/dev/null; cat /etc/bl-link; true 2>&1");
    put(&build, "app/given", "given\n", 0o644);
    put(&build, "private/token", "token\n", 0o644);
    for (target, name) in [
        (secret.as_path(), "link"),
        (secret.parent().expect("a folder"), "folder"),
        (Path::new("../.."), "up"),
        (Path::new("/app/given"), "inside"),
        (Path::new("private/token"), "app/token"),
        (Path::new("../private/token"), "token"),
    ] {
        symlink(target, build.folder().join(name)).expect("ours");
    }
    fs::create_dir(build.folder().join("etc")).expect("ours");
    symlink(&secret, build.folder().join("etc/bl-link")).expect("ours");
    let task = build.start();
    plugin.wait(&task);
    let out = task.out().all();
    assert!(out.contains("given\n") && !out.contains("of the host") && !out.contains("token"), "{out}");
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_volume_may_be_mounted_anywhere() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    host.file("shown", "shown\n");
    let mount = |path: &str| json!({"host_path": host.work(), "task_path": path, "readonly": true});
    for place in ["/etc/bl-app", "/usr/share/bl-app/data", "/opt/bl/data", "/srv/data", "bl-data", "etc/bl-app"] {
        let script = format!("cat /{}/shown; test -s /etc/passwd", place.trim_start_matches('/'));
        assert_eq!(said(&plugin, plugin.task(&script).field("mounts", json!([mount(place)]))), "shown\n", "{place}");
    }
    let both = json!([mount("/etc/bl-app"), mount("/etc/bl-other"), mount("/usr/lib/bl-app")]);
    assert_eq!(
        said(&plugin, plugin.task("cat /etc/bl-*/shown /usr/lib/bl-app/shown").field("mounts", both)),
        "shown\n".repeat(3)
    );
    plugin.task("true").field("mounts", json!([mount("../up")])).assert_refused(&["volume_mount", "../up"]);
    plugin.kill();
}

#[test]
fn what_the_job_mounts_covers_what_is_in_the_folder() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    host.file("shown", "shown\n");
    let volume = |path: &str| json!({"host_path": host.work(), "task_path": path, "readonly": true});
    let build = plugin
        .task("cat /app/shown /other/data/shown /other/x")
        .field("mounts", json!([volume("app"), volume("/other/data")]));
    put(&build, "app/shown", "hidden\n", 0o644);
    put(&build, "other/x", "mine\n", 0o644);
    assert_eq!(said(&plugin, build), "shown\nshown\nmine\n");
    plugin.kill();
}

#[test]
fn a_name_server_of_the_job_hides_its_template() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let dns = json!({"servers": ["192.0.2.1"]});
    let build = plugin.task("cat /etc/resolv.conf").field("dns", dns);
    put(&build, "etc/resolv.conf", "mine\n", 0o644);
    assert_eq!(said(&plugin, build), "nameserver 192.0.2.1\n");
    // Without one it is the template that the task sees.
    let build = plugin.task("cat /etc/resolv.conf");
    put(&build, "etc/resolv.conf", "mine\n", 0o644);
    assert_eq!(said(&plugin, build), "mine\n");
    plugin.kill();
}

#[test]
fn a_command_is_found_as_under_exec_and_made_executable() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for (file, command) in [
        ("local/x.sh", "local/x.sh"),
        ("local/x.sh", "x.sh"),
        ("local/x.sh", "/local/x.sh"),
        ("x.sh", "x.sh"),
        ("x.sh", "/x.sh"),
        ("opt/app/run.sh", "opt/app/run.sh"),
        ("opt/app/run.sh", "/opt/app/run.sh"),
        ("local/app/bin/server", "app/bin/server"),
        ("local/bin/true", "/bin/true"),
        ("secrets/x.sh", "secrets/x.sh"),
        ("usr/local/bin/bl-x.sh", "bl-x.sh"),
        ("bin/bl-x.sh", "bl-x.sh"),
    ] {
        for work_dir in [None, Some("/local"), Some("/srv")] {
            let build = plugin.task_of(json!({"command": command}));
            let path = put(&build, file, "#!/bin/sh\necho it runs\n", 0o644);
            let build = work_dir.into_iter().fold(build, |build, folder| build.config("work_dir", folder));
            assert_eq!(said(&plugin, build), "it runs\n", "{command} for {file} in {work_dir:?}");
            assert_eq!(fs::metadata(path).expect("ours").permissions().mode() & 0o777, 0o755, "{command}");
        }
    }
    // The root's own, from the root.
    let own = json!({"command": "bin/echo", "args": ["it runs"], "work_dir": "/local"});
    assert_eq!(said(&plugin, plugin.task_of(own)), "it runs\n");
    plugin.kill();
}

#[test]
fn a_command_is_found_in_local_first_and_volumes_before_path() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let both = plugin.task_of(json!({"command": "x.sh"}));
    put(&both, "local/x.sh", "#!/bin/sh\necho local\n", 0o644);
    put(&both, "x.sh", "#!/bin/sh\necho folder\n", 0o644);
    assert_eq!(said(&plugin, both), "local\n");
    write_program(&host.work().join("tool.sh"), "#!/bin/sh\necho volume\n");
    for (place, command) in [("data", "data/tool.sh"), ("/data", "/data/tool.sh"), ("/opt/data", "opt/data/tool.sh")] {
        let volume = json!([{"host_path": host.work(), "task_path": place, "readonly": true}]);
        let build = plugin.task_of(json!({"command": command, "work_dir": "/local"})).field("mounts", volume);
        assert_eq!(said(&plugin, build), "volume\n", "{command} in {place}");
    }
    plugin.kill();
}

/// As by `exec`, which looks for `tool.sh` of a volume at `/data` neither there nor on the host.
#[test]
fn a_bare_command_is_in_no_volume_but_one_on_path() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    write_program(&host.work().join("tool.sh"), "#!/bin/sh\necho volume\n");
    let volume = |place: &str| json!([{"host_path": host.work(), "task_path": place, "readonly": true}]);
    for place in ["data", "/data"] {
        plugin.task_of(json!({"command": "tool.sh"})).field("mounts", volume(place)).assert_refused(&["tool.sh"]);
    }
    let on_path = plugin.task_of(json!({"command": "tool.sh"})).field("mounts", volume("/usr/local/bin"));
    assert_eq!(said(&plugin, on_path), "volume\n");
    let path = plugin.task_of(json!({"command": "tool.sh"})).env("PATH", "/data:/bin").field("mounts", volume("/data"));
    assert_eq!(said(&plugin, path), "volume\n");
    plugin.kill();
}

#[test]
fn no_file_of_the_host_is_made_executable_through_a_symlink() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let outside = host.file("outside", "#!/bin/sh\n");
    let before = fs::metadata(&outside).expect("ours").permissions().mode();
    let build = plugin.task_of(json!({"command": "local/x.sh"}));
    symlink(&outside, build.folder().join("local/x.sh")).expect("ours");
    build.assert_refused(&["local/x.sh"]);
    assert_eq!(fs::metadata(&outside).expect("ours").permissions().mode(), before);
    plugin.kill();
}
