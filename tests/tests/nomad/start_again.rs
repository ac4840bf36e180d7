//! The plugin is killed while tasks of Nomad's start, and the agent starts them again.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::nomad::{Allocation, Prepared};
use bowline_tests::harness::{eventually, process_exists, write_program};
use serde_json::json;

use crate::nomad::recover::{relaunched, relaunched_with, shim_of};

/// Notes each run where it outlives the task, and stays.
const NOTED: &str = "echo run >>/alloc/data/runs; echo ready; exec sleep 1000";

/// How often the command was run.
#[track_caller]
fn runs(allocation: &Allocation) -> usize {
    fs::read_to_string(allocation.dir().join("alloc/data/runs")).unwrap_or_default().lines().count()
}

/// How many tasks there are on disk.
fn kept(host: &Host) -> usize {
    let entries = fs::read_dir(host.state()).into_iter().flatten().flatten();
    entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')).count()
}

#[test]
fn a_task_that_runs_is_taken_over() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(NOTED).start();
    task.out().wait_for("ready\n");
    let shim = shim_of(&task);
    let plugin = relaunched(&agent, plugin);
    let task = task.start_again(&plugin);
    assert_eq!((shim_of(&task), runs(&task.allocation())), (shim, 1));
    let (said, _) = plugin.exec(&task, "echo alive", "10s").expect("it runs");
    assert_eq!(said, "alive\n");
    let plugin = relaunched(&agent, plugin);
    plugin.recover(&task).expect("it lives");
    plugin.destroy_by_force(&task);
    plugin.kill();
}

/// The same request may come to another description by then.
#[test]
fn a_task_is_taken_over_whatever_its_folder_and_driver_are_by_now() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let mut plugin = agent.launch();
    for config in [json!({}), json!({"pids_limit": 77})] {
        let build = plugin.task_of(json!({"command": "x.sh"}));
        let folder = build.folder();
        write_program(&folder.join("x.sh"), &format!("#!/bin/sh\n{NOTED}\n"));
        let task = build.start();
        task.out().wait_for("ready\n");
        let shim = shim_of(&task);
        // As the task may; there its command would be found first.
        fs::write(folder.join("local/x.sh"), "#!/bin/sh\n").expect("ours");
        fs::create_dir(folder.join("more")).expect("ours");
        plugin = relaunched_with(&agent, plugin, config);
        let task = task.start_again(&plugin);
        assert_eq!((shim_of(&task), runs(&task.allocation())), (shim, 1));
        plugin.destroy_by_force(&task);
    }
    plugin.kill();
}

#[test]
fn a_task_that_is_asked_for_otherwise_is_replaced() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(&format!("echo as $WORD; {NOTED}")).env("WORD", "old").start();
    task.out().wait_for("as old\nready\n");
    let shim = shim_of(&task);
    let plugin = relaunched(&agent, plugin);
    let task = task.start_again_with(&plugin, "WORD", "new");
    task.out().wait_for("as new\nready\n");
    assert!(shim_of(&task) != shim && !process_exists(shim));
    assert_eq!((kept(&host), runs(&task.allocation())), (1, 2));
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_task_that_has_ended_is_replaced() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("echo run >>/alloc/data/runs; exit 3").start();
    plugin.wait(&task).assert_code(3);
    let plugin = relaunched(&agent, plugin);
    let task = task.start_again(&plugin);
    plugin.wait(&task).assert_code(3);
    assert_eq!(runs(&task.allocation()), 2);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn whenever_the_plugin_is_killed_each_command_runs_once() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let mut plugin = agent.launch();
    for begun in [1, 3, 6] {
        let prepare = || plugin.task(NOTED).prepared().expect("the schema allows it");
        let all: Vec<Prepared> = (0..6).map(|_| prepare()).collect();
        let calls: Vec<_> = all.iter().map(|one| one.begin(&plugin)).collect();
        eventually("some are on disk", || (kept(&host) >= begun).then_some(()));
        plugin = relaunched(&agent, plugin);
        drop(calls);
        let tasks = all.into_iter().map(|one| one.start(&plugin).unwrap_or_else(|refusal| panic!("{refusal}")));
        for task in tasks.collect::<Vec<_>>() {
            task.out().wait_for("ready\n");
            assert_eq!(runs(&task.allocation()), 1, "killed with {begun} on disk");
            plugin.destroy_by_force(&task);
        }
        assert_eq!(kept(&host), 0);
    }
    plugin.kill();
}

#[test]
fn an_end_that_nobody_has_heard_of_is_told() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task("echo run >>/alloc/data/runs; exit 3").start();
    let has_report =
        || fs::read_dir(host.state()).ok()?.flatten().find(|entry| entry.path().join("exit.json").exists());
    eventually("it has ended", has_report);
    // As where the plugin was killed before its answer: the agent never asks about the task.
    let plugin = relaunched(&agent, plugin);
    let task = task.start_again(&plugin);
    plugin.wait(&task).assert_code(3);
    assert_eq!(runs(&task.allocation()), 1);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn an_earlier_start_that_the_agent_has_lost_is_removed() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(NOTED).start();
    task.out().wait_for("ready\n");
    let plugin = relaunched(&agent, plugin);
    let task = task.start_anew(&plugin);
    assert_eq!(kept(&host), 1);
    plugin.destroy_by_force(&task);
    plugin.kill();
}

#[test]
fn a_task_whose_allocation_is_gone_is_removed() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(NOTED).start();
    task.out().wait_for("ready\n");
    let plugin = relaunched(&agent, plugin);
    fs::remove_dir_all(task.allocation().dir()).expect("ours");
    let _told = plugin.fingerprint();
    eventually("it is gone", || (kept(&host) == 0).then_some(()));
    task.remove_cgroups();
    plugin.kill();
}
