//! What a task of Nomad's sees: folders, the host's files, its user, devices, its network.

use std::fs;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::nomad::{Build, Plugin};
use serde_json::json;

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
fn nomads_folders_are_where_their_variables_say() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let script = "echo $NOMAD_ALLOC_DIR $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR; cat /local/given; echo kept >/local/kept; \
                  echo shared >/alloc/data/shared; echo secret >/secrets/key; cat /secrets/key";
    let build = plugin.task(script).local_file("given", "given\n", 0o644);
    let (local, alloc) =
        (build.folder().join("local/kept"), build.folder().with_file_name("alloc").join("data/shared"));
    assert_eq!(said(&plugin, build), "/alloc /local /secrets\ngiven\nsecret\n");
    assert_eq!(fs::read_to_string(local).expect("written"), "kept\n");
    assert_eq!(fs::read_to_string(alloc).expect("written"), "shared\n");
    plugin.kill();
}

#[test]
fn tasks_of_an_allocation_share_its_folder_and_nothing_else() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let allocation = std::rc::Rc::new(plugin.allocation());
    let shell = |script: &str| json!({"command": "/bin/sh", "args": ["-c", script]});
    let script = "echo hello >/alloc/data/x; echo mine >/local/x; echo mine >/secrets/x";
    said(&plugin, plugin.task_in(allocation.clone(), "one", shell(script)));
    let look = "cat /alloc/data/x; ls /local /secrets | grep x";
    let other = plugin.task_in(allocation, "other", shell(look)).start();
    plugin.wait(&other).assert_code(1);
    assert_eq!(other.out().all(), "hello\n");
    plugin.destroy(&other);
    plugin.kill();
}

#[test]
fn the_hosts_files_are_there_and_cannot_be_written() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_root": true}));
    let script = "for f in /usr/bin /etc /; do touch $f/x 2>/dev/null && echo $f can be written; done; \
                  ls /etc/passwd; ls -d /home /root/.ssh /var/lib/dpkg 2>/dev/null; true";
    assert_eq!(said(&plugin, plugin.task(script).field("user", "root")), "/etc/passwd\n");
    plugin.kill();
}

#[test]
fn a_bare_command_is_found_in_the_tasks_folder_before_path() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let build =
        |command: &str| plugin.task_of(json!({"command": command})).local_file("true", "#!/bin/sh\necho mine\n", 0o755);
    assert_eq!(said(&plugin, build("true")), "mine\n");
    assert_eq!(said(&plugin, build("local/true")), "mine\n");
    assert_eq!(said(&plugin, build("/bin/true")), "");
    assert_eq!(said(&plugin, plugin.task_of(json!({"command": "echo", "args": ["in PATH"]}))), "in PATH\n");
    plugin.kill();
}

#[test]
fn path_is_there_though_the_agent_drops_it() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let script = "case :$PATH: in *:/usr/bin:*) echo found;; esac";
    assert_eq!(said(&plugin, plugin.task(script)), "found\n");
    assert_eq!(said(&plugin, plugin.task("echo $PATH").env("PATH", "/opt/x:/bin")), "/opt/x:/bin\n");
    plugin.kill();
}

#[test]
fn variables_come_from_job_and_devices_and_not_from_the_agent() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let script = "echo $GREETING $GPU; env | grep -E 'BOWLINE|PLUGIN|NOMAD_PLUGIN'; true";
    let build = plugin.task(script).env("GREETING", "hello").field("device_env", json!({"GPU": "0"}));
    assert_eq!(said(&plugin, build), "hello 0\n");
    plugin.kill();
}

#[test]
fn a_task_is_nobody_unless_its_job_names_a_user() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_root": true}));
    let script = "id -un; grep -E '^(Cap(Eff|Prm|Bnd)|NoNewPrivs)' /proc/self/status | cut -f2 | tr '\\n' ' '";
    let (none, default) = ("0000000000000000", "00000000a80405fb");
    for (user, expected) in [
        (None, format!("nobody\n{none} {none} {default} 1 ")),
        (Some("daemon"), format!("daemon\n{none} {none} {default} 1 ")),
        (Some("root"), format!("root\n{default} {default} {default} 1 ")),
    ] {
        let build = plugin.task(script);
        let build = user.into_iter().fold(build, |build, user| build.field("user", user));
        assert_eq!(said(&plugin, build), expected, "{user:?}");
    }
    // The number of a user alone, and that of a group.
    assert_eq!(said(&plugin, plugin.task("id -u; id -g").field("user", "4711:4712")), "4711\n4712\n");
    plugin.kill();
}

#[test]
fn capabilities_change_within_what_the_agent_allows() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_root": true, "allow_caps": ["CHOWN", "KILL", "NET_ADMIN"]}));
    let masks = |add: &[&str], drop: &[&str]| {
        let build = plugin.task("grep CapEff /proc/self/status | cut -f2").field("user", "root");
        said(&plugin, build.config("cap_add", json!(add)).config("cap_drop", json!(drop)))
    };
    // Of the 13 only those that the agent allows.
    assert_eq!(masks(&[], &[]), "0000000000000021\n");
    assert_eq!(masks(&["NET_ADMIN"], &["KILL"]), "0000000000001001\n");
    assert_eq!(masks(&["net_admin"], &["all"]), "0000000000001000\n");
    plugin.task("true").config("cap_add", json!(["SETUID"])).assert_refused(&[
        "config.cap_add",
        "SETUID",
        "allow_caps",
    ]);
    plugin.kill();
}

#[test]
fn what_a_user_keeps_is_what_was_added_or_what_the_job_names() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let kept = |ambient: Option<&[&str]>| {
        let build = plugin.task("grep CapAmb /proc/self/status | cut -f2").field("user", "daemon");
        let build = build.config("cap_add", json!(["CHOWN", "KILL"]));
        said(&plugin, ambient.into_iter().fold(build, |build, names| build.config("cap_ambient", json!(names))))
    };
    assert_eq!(kept(None), "0000000000000021\n");
    assert_eq!(kept(Some(&["KILL"])), "0000000000000020\n");
    assert_eq!(kept(Some(&[])), "0000000000000000\n");
    plugin.kill();
}

#[test]
fn the_job_sets_seccomp_and_no_new_privs_if_the_agent_allows() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_privileged": true, "allow_host_paths": true}));
    let script =
        "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status | cut -f2 | tr '\\n' ' '; mkdir /local/made 2>&1; true";
    let look = || plugin.task(script);
    assert_eq!(said(&plugin, look()), "1 2 ");
    assert_eq!(said(&plugin, look().config("no_new_privs", false)), "0 2 ");
    assert_eq!(said(&plugin, look().config("seccomp", "unconfined")), "1 0 ");
    // EXDEV, which mkdir(2) never has.
    let denied = json!([{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 18}]);
    let profile = host.file("profile", &json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": denied}).to_string());
    let out = said(&plugin, look().config("seccomp", json!(profile)));
    assert!(out.starts_with("1 2 ") && out.contains("cross-device"), "{out}");
    plugin.kill();
}

#[test]
fn a_mount_of_the_job_hears_of_later_ones_where_it_says_so() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_host_paths": true}));
    let shared = host.tmpfs("shared", "size=64k");
    rustix::mount::mount_change(shared.path(), rustix::mount::MountPropagationFlags::SHARED).expect("root may");
    let look = |propagation: Option<&str>| {
        let mut mount = json!({"source": shared.path(), "target": "/srv"});
        if let Some(propagation) = propagation {
            mount["propagation"] = json!(propagation);
        }
        let script = "grep ' /srv ' /proc/self/mountinfo | grep -oE '(master|shared):' || echo private";
        said(&plugin, plugin.task(script).config("mount", json!([mount])))
    };
    assert_eq!(look(None), "private\n");
    assert_eq!(look(Some("rslave")), "master:\n");
    drop(shared);
    plugin.kill();
}

#[test]
fn pid_and_ipc_are_private_unless_the_agent_allows_the_hosts() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_privileged": true}));
    let ours = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).expect("ours").display().to_string();
    let script = "readlink /proc/self/ns/pid /proc/self/ns/ipc";
    let private = said(&plugin, plugin.task(script));
    assert!(!private.contains(&ours("pid")) && !private.contains(&ours("ipc")), "{private}");
    let shared = said(&plugin, plugin.task(script).config("pid_mode", "host").config("ipc_mode", "host"));
    assert_eq!(shared, format!("{}\n{}\n", ours("pid"), ours("ipc")));
    plugin.kill();
}

#[test]
fn volumes_of_nomad_are_mounted_as_it_says() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    host.file("shown", "shown\n");
    let source = host.work();
    rustix::fs::chmod(&source, rustix::fs::Mode::from_raw_mode(0o777)).expect("ours");
    let mount = |path: &str, readonly: bool, propagation: &str| json!({"host_path": source, "task_path": path, "readonly": readonly, "propagation_mode": propagation});
    let mounts = json!([mount("/ro", true, "private"), mount("/rw", false, "host-to-task"), mount("/none", false, "")]);
    let script = "cat /ro/shown; touch /ro/x 2>/dev/null || echo read-only; touch /rw/made; ls /none/made";
    let out = said(&plugin, plugin.task(script).field("mounts", mounts));
    assert_eq!(out, "shown\nread-only\n/none/made\n");
    let odd = json!([mount("/odd", false, "sideways")]);
    plugin.task("true").field("mounts", odd).assert_refused(&["volume_mount", "sideways"]);
    plugin.kill();
}

#[test]
fn a_job_may_mount_its_own_folders_and_a_tmpfs() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let mounts = json!([
        {"source": "local", "target": "/srv", "readonly": true},
        {"type": "tmpfs", "target": "/scratch", "size": "1M"},
    ]);
    let script = "cat /srv/given; touch /srv/x 2>/dev/null || echo read-only; stat -f -c %T /scratch; touch /scratch/x";
    let build = plugin.task(script).local_file("given", "given\n", 0o644).config("mount", mounts);
    assert_eq!(said(&plugin, build), "given\nread-only\ntmpfs\n");
    plugin.kill();
}

#[test]
fn a_symlink_out_of_the_tasks_folder_is_not_followed() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let build = plugin.task("ls /mnt").config("mount", json!([{"source": "local/out", "target": "/mnt"}]));
    std::os::unix::fs::symlink("/root", build.folder().join("local/out")).expect("ours");
    build.assert_refused(&["local/out", "/root"]);
    plugin.kill();
}

#[test]
fn devices_are_those_that_the_job_was_given() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_privileged": true, "allow_root": true}));
    let script = "ls /dev | sort | tr '\\n' ' '; head -c 0 /dev/given && echo given; head -c 0 /dev/mine && echo mine";
    let given = json!([{"host_path": "/dev/zero", "task_path": "/dev/given", "cgroup_permissions": "rw"}]);
    let mine = json!([{"host_path": "/dev/full", "container_path": "/dev/mine", "cgroup_permissions": "r"}]);
    let out = said(&plugin, plugin.task(script).field("devices", given).config("devices", mine).field("user", "root"));
    assert!(out.contains(" given ") && out.contains(" mine ") && out.ends_with("given\nmine\n"), "{out}");
    assert!(!out.contains("kmsg"), "{out}");
    plugin.kill();
}

#[test]
fn a_folder_of_the_host_is_the_root_where_the_agent_allows_it() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_host_paths": true, "allow_root": true}));
    let root = host.busybox_root();
    root.file("mark", "here\n", 0o644);
    let config = json!({"command": "/bin/sh", "args": ["-c", "cat /mark; touch /new; id -u"], "image": root.path()});
    assert_eq!(said(&plugin, plugin.task_of(config.clone()).field("user", "0")), "here\n0\n");
    assert!(root.path().join("new").exists());
    let build = plugin.task_of(json!({"command": "/bin/sh", "args": ["-c", "id -u"], "image": root.path()}));
    assert_eq!(said(&plugin, build), "65534\n");
    fs::remove_file(root.path().join("new")).expect("it was made");
    let build = plugin.task_of(config).field("user", "0").config("readonly_rootfs", true).start();
    plugin.wait(&build);
    assert!(!root.path().join("new").exists());
    plugin.destroy(&build);
    plugin.kill();
}

#[test]
fn a_user_has_all_of_its_groups_and_a_check_too() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_host_paths": true}));
    let root = host.busybox_root();
    root.file("etc/passwd", "root:x:0:0::/:/bin/sh\nweb:x:1000:1001::/:/bin/sh\n", 0o644);
    root.file("etc/group", "root:x:0:\nweb:x:1001:\nvideo:x:44:web\nothers:x:55:root\naudio:x:63:root,web\n", 0o644);
    let config = json!({"command": "/bin/sh", "args": ["-c", "id -G; exec sleep 1000"], "image": root.path()});
    let task = plugin.task_of(config).field("user", "web").start();
    task.out().wait_for("1001 44 63\n");
    let (said, exit) = plugin.exec(&task, "id -u; id -G", "10s").expect("it runs");
    exit.assert_code(0);
    assert_eq!(said, "1000\n1001 44 63\n");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn names_are_resolved_as_the_job_says() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let dns = json!({"servers": ["192.0.2.1", "192.0.2.2"], "searches": ["example.org"], "options": ["ndots:2"]});
    let out = said(&plugin, plugin.task("cat /etc/resolv.conf").field("dns", dns));
    assert_eq!(out, "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch example.org\noptions ndots:2\n");
    // Without, they are resolved as on the host.
    let hosts = fs::read_to_string("/etc/resolv.conf").expect("there is one");
    assert_eq!(said(&plugin, plugin.task("cat /etc/resolv.conf")), hosts);
    plugin.kill();
}

/// A network namespace as Nomad makes one for a group, until it is dropped.
struct Network(String);

impl Network {
    fn make(host: &Host) -> Network {
        let ip = Command::new("ip").args(["netns", "add", host.prefix()]).status().expect("iproute2");
        assert!(ip.success());
        Network(host.prefix().to_owned())
    }

    fn path(&self) -> std::path::PathBuf {
        Path::new("/run/netns").join(&self.0)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn a_group_shares_the_network_that_nomad_made() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let network = Network::make(&host);
    let spec = json!({
        "mode": "GROUP",
        "path": network.path(),
        "hostsConfig": {"hostname": "web-1", "address": "172.26.64.7"},
    });
    let ours = fs::metadata(network.path()).expect("it was made");
    let script = "stat -L -c %i /proc/self/ns/net; hostname; grep web-1 /etc/hosts; grep -c localhost /etc/hosts";
    let out = said(&plugin, plugin.task(script).field("network_isolation_spec", spec.clone()));
    let inode = std::os::unix::fs::MetadataExt::ino(&ours);
    assert!(out.starts_with(&format!("{inode}\nweb-1\n172.26.64.7\tweb-1\n")), "{out}");
    // A low port in the task's own network needs no rights on the host's network.
    let other = plugin.task("exec sleep 1000").field("network_isolation_spec", spec).start();
    plugin.destroy_by_force(&other);
    // Nomad's own: nobody else removes it.
    assert!(network.path().exists());
    drop(network);
    plugin.kill();
}

#[test]
fn without_a_group_the_network_is_the_hosts() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let ours = fs::read_link("/proc/self/ns/net").expect("ours").display().to_string();
    let look = || plugin.task("readlink /proc/self/ns/net");
    assert_eq!(said(&plugin, look()).trim(), ours);
    assert_eq!(said(&plugin, look().field("network_isolation_spec", json!({"mode": "HOST"}))).trim(), ours);
    plugin.kill();
}

#[test]
fn kernel_settings_and_the_host_name_are_the_tasks() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let build = plugin.task("cat /proc/sys/kernel/shm_rmid_forced; hostname; pwd");
    let build = build.config("sysctl", json!([{"kernel.shm_rmid_forced": "1"}])).config("hostname", "box");
    assert_eq!(said(&plugin, build.config("work_dir", "/local")), "1\nbox\n/local\n");
    plugin.kill();
}
