//! Hooks: what runs when, in which namespaces, and what a failure does.

use serde_json::json;

use crate::{Test, is_reference, lacks_mount_fds};

pub const ALL: &[(&str, fn())] = &[
    ("hooks_run_in_their_order_where_they_belong", in_order),
    ("a_network_is_there_before_the_program_runs", network),
    ("a_hook_that_fails_undoes_the_launch", failing),
    ("what_hooks_have_set_up_is_undone_when_the_shim_has_died", orphaned),
    ("a_hook_of_the_image_has_no_more_rights_than_the_program", confined),
];

fn hook(script: &str) -> serde_json::Value {
    json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/bin:/usr/bin:/sbin:/usr/sbin"]})
}

fn in_order() {
    if lacks_mount_fds() {
        // The root is not at its path while it is being made.
        return;
    }
    let test = Test::new("echo program >>/mnt/told");
    let at = test.root("mnt/told").display().to_string();
    // What the state tells, and whether the root is the container's.
    let tell = |name: &str, to: &str| {
        hook(&format!(
            "state=$(cat); echo {name} $(echo $state | grep -o '\"status\":\"[a-z]*' | grep -o '[a-z]*$') $([ -e /bin/busybox ] && [ ! -e /usr/bin/env ] && echo inside) >>{to}"
        ))
    };
    let test = test.set(
        "/hooks",
        json!({
            "prestart": [tell("prestart", &at)],
            "createRuntime": [tell("createRuntime", &at)],
            "createContainer": [tell("createContainer", &at)],
            "startContainer": [tell("startContainer", "/mnt/told")],
            "poststart": [tell("poststart", &at)],
            "poststop": [tell("poststop", &at)],
        }),
    );
    test.run().said();
    let told = std::fs::read_to_string(test.root("mnt/told")).expect("told");
    let lines: Vec<&str> = told.lines().map(str::trim).filter(|line| !line.starts_with("program")).collect();
    let mut words: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    if is_reference() {
        // It runs these two beside each other.
        words[3..5].sort_unstable_by(|a, b| b.cmp(a));
    }
    assert_eq!(words, ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]);
    if !is_reference() {
        assert_eq!(
            lines,
            [
                "prestart creating",
                "createRuntime creating",
                "createContainer creating",
                "startContainer created inside",
                "poststart running",
                "poststop stopped",
            ]
        );
    }
}

fn network() {
    let test = Test::new("cat /proc/sys/net/ipv4/ip_unprivileged_port_start");
    let script = "pid=$(grep -o '\"pid\":[0-9]*' | grep -o '[0-9]*'); \
        nsenter -t $pid -n sh -c 'echo 777 >/proc/sys/net/ipv4/ip_unprivileged_port_start'";
    let test = test.set("/hooks", json!({"createRuntime": [hook(script)]}));
    assert_eq!(test.run().said(), "777");
    assert_eq!(Test::new("cat /proc/sys/net/ipv4/ip_unprivileged_port_start").run().said(), "1024");
}

fn failing() {
    for point in ["prestart", "createRuntime", "createContainer", "startContainer"] {
        if is_reference() && point == "startContainer" {
            // It says so to nobody.
            continue;
        }
        let test = Test::new("touch /mnt/ran");
        let stopped = test.path("stopped").display().to_string();
        let failing = hook("echo no such bridge >&2; exit 3");
        let test = test.set("/hooks", json!({point: [failing], "poststop": [hook(&format!("touch {stopped}"))]}));
        let ended = test.run();
        assert!(ended.error().contains("no such bridge"), "{point}: {ended:?}");
        assert!(!test.root("mnt/ran").exists(), "{point}");
        assert!(test.path("stopped").exists(), "{point}: its network is taken down again");
    }
    if is_reference() {
        // It runs poststart hooks before the program.
        return;
    }
    let test = Test::new("busybox sleep 1000").set("/hooks", json!({"poststart": [hook("exit 3")]}));
    assert!(test.run().error().contains("poststart hook #0"));
    Test::new("true").set("/hooks", json!({"poststop": [hook("exit 3")]})).run().said();
}

fn orphaned() {
    if is_reference() {
        return;
    }
    let test = Test::new("touch /mnt/up; busybox sleep 1000");
    let stopped = test.path("stopped");
    let test = test.set("/hooks", json!({"poststop": [hook(&format!("cat >{}", stopped.display()))]}));
    test.run_and_lose_its_shim(&test.root("mnt/up"));
    let state = std::fs::read_to_string(stopped).expect("it was run");
    assert!(state.contains("\"status\":\"stopped\""), "{state}");
}

fn confined() {
    let test = Test::new("cat /mnt/told").set("/process/user", json!({"uid": 1000, "gid": 1000}));
    let test = test.set("/hooks", json!({"startContainer": [
        {"path": "/bin/sh", "args": ["sh", "-c", "id -u >/mnt/told; grep CapEff /proc/self/status >>/mnt/told"], "env": ["PATH=/bin"]},
    ]}));
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
    std::fs::set_permissions(test.root("mnt"), open).expect("ours");
    let ended = test.run();
    let mut lines = ended.said().lines();
    assert_eq!(lines.next(), Some("1000"));
    assert_eq!(lines.next(), Some("CapEff:\t0000000000000000"));
}
