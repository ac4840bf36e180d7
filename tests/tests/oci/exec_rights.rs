//! What a process of `exec` may do: users, groups, capabilities, and no less protection than the container's own.

use bowline_tests::Host;
use serde_json::json;

use super::SLEEPS;

const OF_CHOWN: &str = "0000000000000001";

/// A line of its own status.
fn status(name: &str) -> String {
    format!("sed -n 's/^{name}:.//p' /proc/self/status")
}

#[test]
fn user_is_its_user_and_group() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.sh(&["--user", "1000:2000"], "id -u; id -g").assert_says("1000\n2000");
}

#[test]
fn a_user_alone_has_the_group_of_root() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    container.sh(&["--user", "1000"], "id -u; id -g").assert_says("1000\n0");
}

#[test]
fn additional_gids_are_its_groups() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let flags = ["--user", "1000:2000", "--additional-gids", "3000", "--additional-gids", "4000"];
    container.sh(&flags, "id -G").assert_says("2000 3000 4000");
}

#[test]
fn cap_adds_a_capability() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS).edit(|config| {
        for set in ["bounding", "effective", "permitted"] {
            config["process"]["capabilities"][set] = json!(["CAP_CHOWN"]);
        }
    });
    let container = runtime.started(bundle);
    container.sh(&[], &status("CapEff")).assert_says(OF_CHOWN);
    container.sh(&["--cap", "CAP_KILL"], &status("CapEff")).assert_says("0000000000000021");
}

#[test]
fn cap_is_ambient_where_the_container_may_inherit_it() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS).edit(|config| {
        for set in ["bounding", "effective", "permitted", "inheritable"] {
            config["process"]["capabilities"][set] = json!(["CAP_CHOWN"]);
        }
    });
    let container = runtime.started(bundle);
    let flags = ["--cap", "CAP_CHOWN", "--cap", "CAP_KILL"];
    container.sh(&flags, &status("CapAmb")).assert_says(OF_CHOWN);
}

#[test]
fn a_process_without_capabilities_has_those_of_the_container() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS).edit(|config| {
        for set in ["bounding", "effective", "permitted"] {
            config["process"]["capabilities"][set] = json!(["CAP_CHOWN"]);
        }
    });
    let container = runtime.started(bundle);
    let file = container.process_file(&["/bin/sh", "-c", &status("CapBnd")], |process| {
        process.as_object_mut().expect("an object").remove("capabilities");
    });
    container.exec(&["--process", &file], &[]).assert_says(OF_CHOWN);
}

#[test]
fn a_process_that_does_not_say_may_gain_no_privileges() {
    let host = Host::new();
    if host.reference_fails("runc takes what is not said for false") {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let file = container.process_file(&["/bin/sh", "-c", &status("NoNewPrivs")], |process| {
        process.as_object_mut().expect("an object").remove("noNewPrivileges");
    });
    container.exec(&["--process", &file], &[]).assert_says("1");
}

#[test]
fn a_process_that_asks_for_less_protection_is_refused() {
    let host = Host::new();
    if host.reference_fails("runc gives it what it asks for") {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let file = container.process_file(&["true"], |process| process["noNewPrivileges"] = json!(false));
    let ran = container.exec(&["--process", &file], &[]);
    ran.assert_code(255);
    assert!(ran.err().contains("noNewPrivileges"), "{ran}");
}

#[test]
fn no_new_privs_holds_where_the_container_has_none() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS).edit(|config| config["process"]["noNewPrivileges"] = json!(false));
    let container = runtime.started(bundle);
    container.sh(&[], &status("NoNewPrivs")).assert_says("0");
    container.sh(&["--no-new-privs"], &status("NoNewPrivs")).assert_says("1");
}

#[test]
fn the_filter_of_the_container_holds_for_it() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS).edit(|config| {
        config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }],
        });
    });
    let container = runtime.started(bundle);
    let ran = container.exec(&[], &["mkdir", "/tmp/folder"]);
    ran.assert_code(1);
    assert!(ran.err().contains("Operation not permitted"), "{ran}");
}

#[test]
fn the_limits_of_the_container_hold_for_it() {
    let host = Host::new();
    if host.reference_fails("Go 1.19 raises the soft limit to the hard one") {
        return;
    }
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS).edit(|config| {
        config["process"]["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "hard": 99, "soft": 77 }]);
    });
    let container = runtime.started(bundle);
    container.sh(&[], "ulimit -n; ulimit -Hn").assert_says("77\n99");
}

/// Nobody holds what a container was launched in, and the error names no shim.
#[test]
fn a_container_whose_init_has_left_it_is_not_entered() {
    let host = Host::new();
    if host.reference_fails("runc enters whatever init is in") {
        return;
    }
    let runtime = host.oci();
    let script = "exec unshare -U -r -m sh -c 'echo ready; exec sleep 1000'";
    let bundle = runtime.bundle().script(script).edit(|config| {
        config["linux"].as_object_mut().expect("an object").remove("seccomp");
    });
    let container = runtime.started(bundle);
    container.wait_for("ready");
    let ran = container.sh(&[], "true");
    assert!(ran.code.is_some_and(|code| code != 0), "{ran}");
    assert!(ran.err().contains("has left what it was launched in"), "{ran}");
    assert!(!ran.err().contains("shim") && !ran.err().contains("init = true"), "{ran}");
}
