//! A user other than root executes no program that is closed to it, and finds programs by PATH as a shell does.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use bowline_tests::Host;
use bowline_tests::harness::containerd::Stdio;
use bowline_tests::harness::{Root, copy_program};
use serde_json::json;

const NEW_PRIVILEGES: &str = "--security-opt=no-new-privileges=false";

/// A root with a program at `/closed/id` and one at `/sbin/id`, which only root may reach and execute, beside that in
/// `/bin`.
fn root_of(host: &Host) -> Root {
    let root = host.busybox_root();
    let busybox = root.path().join("bin/busybox");
    for (folder, folder_mode, mode) in [("closed", 0o700, 0o755), ("sbin", 0o755, 0o700)] {
        root.folder(folder);
        let program = root.path().join(folder).join("id");
        copy_program(&busybox, &program);
        fs::set_permissions(program, Permissions::from_mode(mode)).expect("ours");
        fs::set_permissions(root.path().join(folder), Permissions::from_mode(folder_mode)).expect("ours");
    }
    root
}

#[test]
fn run_refuses_one() {
    let host = Host::new();
    let root = root_of(&host);
    for flags in [["--init", "--cap-drop=KILL"], ["--init=false", "--cap-drop=KILL"], ["--init", NEW_PRIVILEGES]] {
        for program in ["/sbin/id", "/closed/id"] {
            let task = || flags.iter().fold(host.task_of([program]).rootfs(root.path()), |task, flag| task.flag(*flag));
            task().flag("--user=app").assert_refused(126, &[program, "permission denied"]);
            task().run().assert_code(0);
        }
    }
}

#[test]
fn exec_refuses_one_whoever_the_task_is() {
    let host = Host::new();
    let root = root_of(&host);
    for user in ["root", "app"] {
        let task = host.task("exec sleep 1000").rootfs(root.path()).flag(format!("--user={user}")).start();
        for program in ["/sbin/id", "/closed/id"] {
            task.bowline("exec", ["--user=app", "--", program]).assert_refused(126, &[program, "permission denied"]);
            task.bowline("exec", ["--user=root", "--", program]).assert_code(0);
        }
        let own = task.bowline("exec", ["--", "/sbin/id"]);
        own.assert_code(if user == "root" { 0 } else { 126 });
        task.end();
    }
}

#[test]
fn who_is_given_the_right_executes_it() {
    let host = Host::new();
    let root = root_of(&host);
    let of = |command| host.task_of(command).rootfs(root.path()).flag("--user=app").flag("--cap-add=DAC_OVERRIDE");
    of(["/sbin/id", "-u"]).run().assert_says("1234");
    let task = of(["sleep", "1000"]).start();
    task.bowline("exec", ["--", "/closed/id", "-u"]).assert_says("1234");
    task.end();
}

#[test]
fn path_passes_over_one_as_a_shell_does() {
    let host = Host::new();
    let root = root_of(&host);
    let path = |folders: &str| format!("--env=PATH={folders}");
    let of = |folders| host.task_of(["id", "-u"]).rootfs(root.path()).flag(path(folders)).flag("--user=app");
    of("/sbin:/closed:/bin").run().assert_says("1234");
    of("/sbin:/closed").assert_refused(126, &["/sbin/id", "permission denied"]);
    let task = host.task("exec sleep 1000").rootfs(root.path()).start();
    task.bowline("exec", ["--user=app", &path("/closed:/sbin:/bin"), "--", "id", "-u"]).assert_says("1234");
    task.end();
}

/// Its capabilities are what its configuration says, as with runc.
#[test]
fn a_bundle_whose_user_has_effective_capabilities_executes_it() {
    let host = Host::new();
    let containerd = host.containerd();
    let all = ["CAP_DAC_OVERRIDE"];
    for (effective, runs) in [(&all[..], true), (&[], false)] {
        let bundle = containerd.bundle().args(&["/bin/true"]).edit(|config| {
            config["process"]["user"] = json!({ "uid": 1234, "gid": 1234 });
            config["process"]["capabilities"] = json!({ "bounding": all, "permitted": all, "effective": effective });
        });
        let program = bundle.rootfs().join("bin/true");
        fs::remove_file(&program).expect("a link");
        copy_program(&bundle.rootfs().join("bin/busybox"), &program);
        fs::set_permissions(&program, Permissions::from_mode(0o700)).expect("ours");
        let shim = containerd.start(&bundle);
        let started = shim.create(&bundle, &Stdio::null()).and_then(|_| shim.start(&bundle.id, "").map(drop));
        assert_eq!(started.is_ok(), runs, "{started:?}");
        if runs {
            assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
        }
        shim.end(&bundle.id);
    }
}
