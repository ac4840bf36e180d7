//! What a driver of Nomad's refuses: configurations, jobs, calls. Nothing is left behind, and the plugin lives.

use bowline_tests::Host;
use bowline_tests::harness::nomad::Agent;
use serde_json::{Value, json};

/// With each of these `config` blocks a task is refused for a reason that has all of its parts.
#[track_caller]
fn assert_refused(agent: &Agent<'_>, cases: &[(Value, &[&str])]) {
    let plugin = agent.launch();
    for (config, parts) in cases {
        let mut whole = json!({"command": "/bin/true"});
        for (key, value) in config.as_object().expect("a block") {
            whole[key] = value.clone();
        }
        let refusal = plugin.task_of(whole).assert_refused(parts);
        // Another attempt on this node would be refused as well.
        assert_ne!(refusal.recoverable, Some(true), "{config}: {refusal}");
    }
    plugin.ping();
    plugin.kill();
}

#[test]
fn a_command_that_cannot_be_executed() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    assert_refused(
        &agent,
        &[
            (json!({"command": "no-such-command"}), &["no-such-command", "not found"]),
            (json!({"command": "/no/such/command"}), &["/no/such/command"]),
            (json!({"command": "/etc/passwd"}), &["/etc/passwd", "executable"]),
            (json!({"command": "/etc"}), &["/etc", "folder"]),
            (json!({"command": ""}), &["config.command"]),
        ],
    );
}

#[test]
fn what_the_agent_does_not_allow() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let devices = json!([{"host_path": "/dev/kmsg"}]);
    let mount = json!([{"source": "/root", "target": "/mnt"}]);
    let outside = json!([{"source": "../../../etc", "target": "/mnt"}]);
    assert_refused(
        &agent,
        &[
            (json!({"cap_add": ["SYS_ADMIN"]}), &["config.cap_add", "SYS_ADMIN", "allow_caps"]),
            (json!({"cap_add": ["all"]}), &["config.cap_add", "allow_caps"]),
            (json!({"pid_mode": "host"}), &["config.pid_mode", "allow_privileged"]),
            (json!({"ipc_mode": "host"}), &["config.ipc_mode", "allow_privileged"]),
            (json!({"seccomp": "unconfined"}), &["config.seccomp", "allow_privileged"]),
            (json!({"apparmor": "unconfined"}), &["config.apparmor", "allow_privileged"]),
            (json!({"no_new_privs": false}), &["config.no_new_privs", "allow_privileged"]),
            (json!({"oom_score_adj": -500}), &["config.oom_score_adj", "allow_privileged"]),
            (json!({"devices": devices}), &["config.devices", "allow_privileged"]),
            (json!({"image": "/"}), &["config.image", "allow_host_paths"]),
            (json!({"mount": mount}), &["config.mount[0].source", "/root", "allow_host_paths"]),
            (json!({"mount": outside}), &["config.mount[0].source", "allow_host_paths"]),
            (json!({"seccomp": "/etc/passwd"}), &["config.seccomp", "allow_host_paths"]),
        ],
    );
}

#[test]
fn root_where_the_agent_does_not_allow_it() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for user in ["root", "0", "root:root", "0:1000"] {
        plugin.task("true").field("user", user).assert_refused(&["user", user, "allow_root"]);
    }
    plugin.kill();
    // By another name that the job's image has for it.
    let plugin = agent.launch_with(json!({"allow_host_paths": true}));
    let root = host.busybox_root();
    root.file("etc/passwd", "web:x:0:1000::/:/bin/sh\n", 0o644);
    let task = plugin.task_of(json!({"command": "/bin/true", "image": root.path()}));
    task.field("user", "web").assert_refused(&["user", "web", "allow_root"]);
    plugin.kill();
}

#[test]
fn what_is_there_in_no_task() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    assert_refused(
        &agent,
        &[
            (json!({"work_dir": "../outside"}), &["config.work_dir"]),
            (json!({"cap_add": ["NOPE"]}), &["config.cap_add", "NOPE"]),
            (json!({"cap_drop": ["NOPE"]}), &["config.cap_drop", "NOPE"]),
            (json!({"pid_mode": "shared"}), &["config.pid_mode", "shared"]),
            (json!({"image": "busybox:latest"}), &["config.image", "busybox:latest"]),
            (json!({"ulimit": [{"nofile": "many"}]}), &["config.ulimit", "nofile"]),
            (json!({"ulimit": [{"nonsense": "1"}]}), &["config.ulimit", "nonsense"]),
            (json!({"sysctl": [{"kernel.hostname": "x"}]}), &["config.sysctl", "kernel.hostname"]),
            (json!({"pids_limit": 0}), &["config.pids_limit"]),
            (json!({"pids_limit": 1.5}), &["config.pids_limit"]),
            (json!({"memory_high": "much"}), &["config.memory_high", "much"]),
            (json!({"memory_swap": "much"}), &["config.memory_swap", "much"]),
            (json!({"cpu_period": "1h"}), &["config.cpu_period"]),
            (json!({"timeout": "soon"}), &["config.timeout", "soon"]),
            (json!({"mount": [{"type": "nfs", "target": "/mnt"}]}), &["config.mount[0].type", "nfs"]),
            (json!({"mount": [{"type": "tmpfs", "target": "mnt"}]}), &["config.mount[0].target", "mnt"]),
            (json!({"labels": [{"job": "mine"}]}), &["config.labels.job"]),
            (json!({"oom_score_adj": 4711}), &["config.oom_score_adj", "4711"]),
        ],
    );
}

#[test]
fn a_device_that_does_not_exist() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_privileged": true}));
    let devices = json!([{"host_path": "/dev/no-such-device"}]);
    plugin.task("true").config("devices", devices).assert_refused(&["/dev/no-such-device"]);
    // Nomad's own devices need no permission of the agent.
    let given = json!([{"host_path": "/dev/no-such-gpu", "task_path": "/dev/gpu", "cgroup_permissions": "rw"}]);
    plugin.task("true").field("devices", given).assert_refused(&["/dev/no-such-gpu"]);
    plugin.kill();
}

#[test]
fn a_user_that_nobody_knows() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for user in ["no-such-user", "-1"] {
        plugin.task("true").field("user", user).assert_refused(&["user", user]);
    }
    plugin.task("true").field("user", "65536:no-such-group").assert_refused(&["no-such-group"]);
    plugin.kill();
}

#[test]
fn a_volume_that_is_not_there() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let volume = json!([{"host_path": host.work().join("none"), "task_path": "/data", "propagation_mode": "private"}]);
    plugin.task("true").field("mounts", volume).assert_refused(&["/w/none"]);
    plugin.kill();
}

#[test]
fn a_network_that_is_gone() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let network = json!({"mode": "GROUP", "path": "/run/netns/no-such-network"});
    plugin.task("true").field("network_isolation_spec", network).assert_refused(&["/run/netns/no-such-network"]);
    plugin.kill();
}

#[test]
fn resources_that_make_no_sense() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    plugin.task("true").cpu_shares(-5).assert_refused(&["resources.cpu", "-5"]);
    plugin.task("true").memory(-5, 0).assert_refused(&["resources.memory", "-5"]);
    plugin.task("true").cores("4711").assert_refused(&["resources.cores", "4711"]);
    plugin.task("true").cores("x-y").assert_refused(&["resources.cores", "x-y"]);
    plugin.kill();
}

#[test]
fn a_job_with_a_wrong_option_is_refused_by_the_agent() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for (key, value, parts) in [
        ("comand", json!("/bin/true"), &["comand"][..]),
        ("args", json!("-c"), &["args"]),
        ("cpu_hard_limit", json!("perhaps"), &["cpu_hard_limit"]),
        ("pids_limit", json!("many"), &["pids_limit"]),
        ("mount", json!([{"source": "local"}]), &["target"]),
    ] {
        plugin.task("true").config(key, value).assert_refused_by_the_agent(parts);
    }
    plugin.task_of(json!({})).assert_refused_by_the_agent(&["command"]);
    plugin.kill();
}

#[test]
fn an_option_that_came_all_the_same_is_refused_by_the_driver() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for (config, parts) in [
        (json!({"command": "/bin/true", "comand": "x"}), &["config.comand"][..]),
        (json!({"command": 4711}), &["config.command", "number"]),
        (json!({"command": "/bin/true", "args": "-c"}), &["config.args"]),
        (json!({"command": "/bin/true", "args": [1]}), &["config.args[0]"]),
        (json!({"command": "/bin/true", "cpu_hard_limit": 1}), &["config.cpu_hard_limit"]),
        (json!({"command": "/bin/true", "ulimit": ["nofile"]}), &["config.ulimit"]),
        (json!({"command": "/bin/true", "mount": {"target": "/x"}}), &["config.mount"]),
        (json!({"args": []}), &["config.command"]),
        (json!({}), &["config.command"]),
        (json!([]), &["config"]),
    ] {
        let packed = agent.msgpack(&config, false);
        let refusal = plugin.task("true").packed(packed).assert_refused(parts);
        assert_eq!(refusal.code, "InvalidArgument", "{refusal}");
    }
    // Cut short, too long, and none at all.
    for packed in ["gQ==", "wMA=", "/////w==", ""] {
        plugin.task("true").packed(packed).assert_refused(&["config"]);
    }
    plugin.ping();
    plugin.kill();
}

#[test]
fn numbers_may_be_whole_or_floating() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let config = json!({"command": "/bin/true", "pids_limit": 64, "oom_score_adj": 100});
    for floats in [false, true] {
        let task = plugin.task("true").packed(agent.msgpack(&config, floats)).start();
        plugin.wait(&task).assert_code(0);
        plugin.destroy(&task);
    }
    plugin.kill();
}

#[test]
fn a_configuration_of_the_agent_that_makes_no_sense() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_bare();
    for (config, parts) in [
        (json!({"allow_caps": ["NOPE"]}), &["config.allow_caps", "NOPE"][..]),
        (json!({"state_dir": "relative"}), &["config.state_dir", "relative"]),
        (json!({"default_pid_mode": "shared"}), &["config.default_pid_mode", "shared"]),
        (json!({"pids_limit": 0}), &["config.pids_limit"]),
        (json!({"nonsense": 1}), &["config.nonsense"]),
        (json!({"allow_privileged": "yes"}), &["config.allow_privileged"]),
        (json!("text"), &["config"]),
    ] {
        let packed = agent.msgpack(&config, false);
        let refusal = plugin.configure_packed(&packed, Value::Null).expect_err("it makes no sense");
        refusal.assert_says(parts);
        assert_eq!(refusal.code, "InvalidArgument", "{refusal}");
    }
    let refusal = plugin.encoded("config", &json!({"nonsense": true})).expect_err("the agent checks that");
    refusal.assert_says(&["nonsense"]);
    plugin.kill();
}

#[test]
fn an_option_that_is_not_set_is_null_and_has_its_default() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    // What the agent sends has every key of the schema; here, each as null.
    let packed =
        bowline_tests::harness::nomad::decoded(&plugin.encoded("task", &json!({"command": "x"})).expect("allowed"));
    let keys = plugin.driver("TaskConfigSchema", json!({})).expect("it has one");
    let keys = keys["spec"]["object"]["attributes"].as_object().expect("an object at the root").clone();
    assert!(keys.len() > 20 && packed.len() > 100, "{keys:?}");
    let mut whole: Value = keys.keys().map(|key| (key.clone(), Value::Null)).collect();
    whole["command"] = json!("/bin/true");
    let task = plugin.task("").packed(agent.msgpack(&whole, false)).start();
    plugin.wait(&task).assert_code(0);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn an_identity_that_leads_out_of_the_allocation() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for (field, value) in [("name", "../.."), ("name", ".."), ("alloc_dir", "relative"), ("name", "")] {
        plugin.task("true").field(field, value).assert_refused(&["folder"]);
    }
    plugin.kill();
}

#[test]
fn what_fails_on_the_way_names_its_step_and_leaves_no_process() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    // The folders of the task are gone, as after a clean-up by hand.
    let build = plugin.task("true");
    std::fs::remove_dir_all(build.folder()).expect("ours");
    build.assert_refused(&["local"]);
    assert!(!host.all_of_it().iter().any(|left| left.contains("bowline-shim")), "{:?}", host.all_of_it());
    plugin.kill();
}
