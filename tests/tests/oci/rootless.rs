//! The command without root: as root of a user namespace that somebody else has made, where no cgroup was delegated.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::is_reference;
use bowline_tests::harness::oci::program;
use bowline_tests::harness::{Ran, binary, only_v2};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Who has ranges in /etc/subuid (`scripts/need test` makes that user).
const USER: &str = "bowline-tests";

/// A user, with a folder of its own that it can reach.
struct User<'h> {
    host: &'h Host,
    home: TempDir,
    ids: (u32, u32),
}

impl<'h> User<'h> {
    /// `None` where cgroups are delegated by systemd alone, which knows no such user.
    fn new(host: &'h Host) -> Option<User<'h>> {
        if only_v2() {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").expect("readable");
        let line =
            passwd.lines().find(|line| line.starts_with(&format!("{USER}:"))).expect("`make test` makes the user");
        let mut numbers = line.split(':').skip(2).map(|id| id.parse().expect("a number"));
        let ids = (numbers.next().expect("a uid"), numbers.next().expect("a gid"));
        let home = tempfile::Builder::new().prefix(host.prefix()).tempdir_in("/tmp").expect("a folder");
        let user = User { host, home, ids };
        for folder in ["", "run", "bin", "bundle", "bundle/rootfs", "bundle/rootfs/bin"] {
            fs::create_dir_all(user.at(folder)).expect("ours");
        }
        fs::copy(program(), user.program()).expect("it is there");
        fs::copy(host.busybox_root().path().join("bin/busybox"), user.at("bundle/rootfs/bin/busybox"))
            .expect("it is there");
        std::os::unix::fs::symlink("busybox", user.at("bundle/rootfs/bin/sh")).expect("ours");
        for path in ["", "run", "bin", "bundle", "bundle/rootfs", "bundle/rootfs/bin", "bundle/rootfs/bin/busybox"] {
            chown(user.at(path), Some(ids.0), Some(ids.1)).expect("ours");
        }
        fs::set_permissions(user.at("run"), Permissions::from_mode(0o700)).expect("ours");
        fs::set_permissions(user.at(""), Permissions::from_mode(0o755)).expect("ours");
        Some(user)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn program(&self) -> PathBuf {
        self.at("bin/oci")
    }

    /// Writes the configuration of a bundle that runs `script`.
    fn configure(&self, script: &str, edit: impl FnOnce(&mut Value)) {
        let mut spec = Command::new(self.program());
        spec.arg("spec").current_dir(self.at("bundle"));
        let _ = fs::remove_file(self.at("bundle/config.json"));
        assert!(spec.status().expect("it runs").success());
        let text = fs::read_to_string(self.at("bundle/config.json")).expect("it was written");
        let mut config: Value = serde_json::from_str(&text).expect("JSON");
        config["process"]["terminal"] = false.into();
        config["process"]["args"] = json!(["/bin/sh", "-c", script]);
        config["ociVersion"] = "1.0.2".into();
        edit(&mut config);
        fs::write(self.at("bundle/config.json"), config.to_string()).expect("ours");
    }

    /// Runs a shell script as the user; `$OCI` is the command.
    fn sh(&self, script: &str) -> Ran {
        let (uid, gid) = self.ids;
        let mut command = self.host.command("setpriv");
        command.args([&format!("--reuid={uid}"), &format!("--regid={gid}"), "--clear-groups", "sh", "-c", script]);
        let run = self.at("run");
        command.current_dir(self.at("bundle")).env("HOME", self.home.path()).env("USER", USER).env("LOGNAME", USER);
        command.env("OCI", self.program()).env("XDG_RUNTIME_DIR", run);
        self.host.execute(command)
    }

    /// The same as root of a new user namespace.
    fn as_root_of_its_own(&self, script: &str) -> Ran {
        let script = script.replace('\'', "'\\''");
        self.sh(&format!("exec unshare --user --map-root-user --map-auto --mount sh -c '{script}'"))
    }

    fn containers(&self) -> Vec<String> {
        let name = if is_reference() { "runc" } else { "bowline-oci" };
        let found = fs::read_dir(self.at("run").join(name)).into_iter().flatten().flatten();
        found
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with('.'))
            .collect()
    }
}

#[test]
fn a_container_lives_and_ends_without_a_cgroup() {
    let host = Host::new();
    let Some(user) = User::new(&host) else { return };
    user.configure("echo up; exec busybox sleep 1000", |_| {});
    let ran = user.as_root_of_its_own(
        "$OCI create one </dev/null >out 2>&1 && $OCI state one | grep -q '\"created\"' && ls $XDG_RUNTIME_DIR/*oci*/one/* >/dev/null 2>&1
         $OCI start one && $OCI state one | grep -q '\"running\"' && $OCI exec one /bin/busybox id -u
         $OCI exec one /bin/busybox sh -c 'echo x >/dev/null; exit 7'; echo $?
         $OCI pause one 2>/dev/null || echo runs on
         $OCI kill one KILL; while $OCI state one | grep -q '\"running\"'; do sleep 0.05; done
         $OCI delete one; cat out",
    );
    assert_eq!(ran.assert_code(0).out(), "0\n7\nruns on\nup");
    assert!(user.containers().is_empty(), "{:?}", user.containers());
}

#[test]
fn delete_by_force_ends_what_runs_without_a_cgroup() {
    let host = Host::new();
    let Some(user) = User::new(&host) else { return };
    user.configure("exec busybox sleep 1000", |_| {});
    let script =
        "$OCI run --detach one </dev/null >out 2>&1; $OCI delete --force one; $OCI state one 2>/dev/null; echo $?";
    assert_eq!(user.as_root_of_its_own(script).assert_code(0).out(), "1");
    assert!(user.containers().is_empty());
}

#[test]
fn what_has_no_effect_without_a_cgroup_is_refused_by_name() {
    let host = Host::new();
    let Some(user) = User::new(&host).filter(|_| !is_reference()) else { return };
    for (resources, named) in [
        (json!({ "memory": { "limit": 64 << 20 } }), "memory.max"),
        (json!({ "pids": { "limit": 7 } }), "pids.max"),
        (json!({ "cpu": { "quota": 1000, "period": 2000 } }), "cpu.max"),
        (json!({ "unified": { "memory.high": "1" } }), "memory.high"),
    ] {
        user.configure("true", |config| config["linux"]["resources"] = resources);
        let ran = user.as_root_of_its_own("exec $OCI run one");
        ran.assert_code(1);
        assert!(ran.err().contains(named) && ran.err().contains("no cgroups here"), "{ran}");
    }
    assert!(user.containers().is_empty());
}

/// A task of `bowline` itself, with a shim, which may die.
#[test]
fn a_task_has_a_shim_there() {
    let host = Host::new();
    let Some(user) = User::new(&host).filter(|_| !is_reference()) else { return };
    for name in ["bowline", "bowline-shim", "bowline-init"] {
        fs::copy(binary(name), user.at("bin").join(name)).expect("it is there");
    }
    let bowline =
        format!("export PATH={}:$PATH BOWLINE_STATE={}", user.at("bin").display(), user.at("run/tasks").display());
    let ran = user.as_root_of_its_own(&format!(
        "{bowline}; bowline doctor | grep -A1 'cgroups: none'
         bowline run --rm --rootfs rootfs true 2>&1 | grep -o 'pids.max.*here'
         bowline start --name one --pids -1 --init --rootfs rootfs -- sh -c 'while [ ! -e /end ]; do sleep 0.05; done; exit 4'
         bowline exec one busybox id -u; kill -9 $(bowline inspect --format '{{{{.shim_pid}}}}' one)
         touch rootfs/end; bowline wait one; bowline rm one; ls $BOWLINE_STATE"
    ));
    let out = ran.assert_code(0).out();
    let parts = ["none that was left", "pids = \"unlimited\"", "tasks have no cgroups here", "one\n0\n4"];
    assert!(parts.iter().all(|part| out.contains(part)) && out.ends_with("\n4"), "{ran}");
}

#[test]
fn the_hosts_devices_are_bound_and_no_others() {
    let host = Host::new();
    let Some(user) = User::new(&host) else { return };
    let device = |path: &str| json!([{ "path": path, "type": "c", "major": 1, "minor": 3 }]);
    user.configure("echo x >/dev/null && busybox head -c 1 /dev/zero | busybox wc -c", |config| {
        config["linux"]["devices"] = device("/dev/null");
    });
    assert_eq!(user.as_root_of_its_own("exec $OCI run one").assert_code(0).out(), "1");
    user.configure("true", |config| config["linux"]["devices"] = device("/dev/bowline-has-none"));
    let ran = user.as_root_of_its_own("exec $OCI run one");
    ran.assert_code(1);
    assert!(ran.err().contains("/dev/bowline-has-none"), "{ran}");
    assert!(user.containers().is_empty());
}

#[test]
fn a_folder_that_others_could_have_made_is_no_place_for_the_state() {
    let host = Host::new();
    let Some(user) = User::new(&host).filter(|_| !is_reference()) else { return };
    user.configure("true", |_| {});
    let shared = user.at("shared");
    fs::create_dir(&shared).expect("ours");
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).expect("ours");
    // The user's namespace does not know its owner, as it knows no owner of the host's files.
    let planted = shared.join("planted");
    fs::create_dir(&planted).expect("ours");
    let below = planted.join("below");
    fs::create_dir(&below).expect("ours");
    chown(&below, Some(user.ids.0), Some(user.ids.1)).expect("ours");
    chown(&planted, Some(1), Some(1)).expect("ours");
    for place in [&planted, &below] {
        let ran = user.as_root_of_its_own(&format!("exec $OCI --root {} run one", place.display()));
        ran.assert_code(1);
        assert!(ran.err().contains("not safe") && ran.err().contains("planted"), "{ran}");
    }
    let own = shared.join("own");
    user.as_root_of_its_own(&format!("mkdir -m 700 {0} && exec $OCI --root {0} run one", own.display())).assert_code(0);
}

/// Podman without root, which calls the command as root of its user's namespace.
#[test]
fn podman_of_a_user_calls_it() {
    let host = Host::new();
    let Some(user) = User::new(&host) else { return };
    let settings = "[containers]\nlog_driver = \"k8s-file\"\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1000:1000\"]\n\
                    [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nlock_type = \"file\"\n";
    fs::write(user.at("containers.conf"), settings).expect("ours");
    fs::write(user.at("Containerfile"), "FROM localhost/busybox\nRUN [\"/bin/sh\", \"-c\", \"echo built >/built\"]\n")
        .expect("ours");
    let podman = |line: &str| {
        let home = user.home.path().display();
        user.sh(&format!(
            "export CONTAINERS_CONF={home}/containers.conf
             podman() {{ command podman --root {home}/pr --runroot {home}/prr --tmpdir {home}/pt --storage-driver vfs --runtime $OCI \"$@\"; }}
             {line}"
        ))
    };
    podman("tar -C rootfs -c . | podman import - localhost/busybox").assert_code(0);
    let run = "podman run --rm --network none";
    let says = |line: &str, said: &str| assert_eq!(podman(line).assert_code(0).out(), said, "{line}");
    podman(&format!("{run} localhost/busybox sh -c 'exit 3'")).assert_code(3);
    podman(&format!("{run} localhost/busybox /nosuch")).assert_code(127);
    says(&format!("{run} --userns keep-id localhost/busybox busybox id -u"), &user.ids.0.to_string());
    says(&format!("{run} --user 33 --cap-drop all localhost/busybox busybox id -u"), "33");
    says(&format!("{run} --pid host --hostname there --tmpfs /t localhost/busybox busybox hostname"), "there");
    says(
        &format!("{run} --device /dev/null:/dev/other localhost/busybox sh -c 'echo x >/dev/other; echo done'"),
        "done",
    );
    let background = "podman run --detach --name one --network none --health-cmd true localhost/busybox \
                      sh -c 'echo said; trap \"exit 5\" TERM; while :; do busybox sleep 0.1; done' >/dev/null 2>&1";
    podman(background).assert_code(0);
    says(
        "podman exec one busybox id -u && podman logs one && podman healthcheck run one && echo healthy",
        "0\nsaid\nhealthy",
    );
    podman("podman exec one sh -c 'exit 7'").assert_code(7);
    says("podman stop --time 30 one >/dev/null 2>&1; podman wait one", "5");
    podman("podman rm --force one").assert_code(0);
    let image = Path::new("..").join("Containerfile");
    podman(&format!("podman build --network none --isolation oci --tag built --file {} rootfs", image.display()))
        .assert_code(0);
    says(&format!("{run} built busybox cat /built"), "built");
    assert!(user.containers().is_empty(), "{:?}", user.containers());
    // It ends the process that keeps the namespace.
    podman("podman system migrate").assert_code(0);
    // Files of other ids of the user's.
    user.as_root_of_its_own("cd .. && rm -rf pr prr pt").assert_code(0);
}
