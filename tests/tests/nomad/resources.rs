//! What a task of Nomad's may use: CPU, memory, processes, and whose cgroup it is in.

use std::fs;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::nomad::{Plugin, Task};
use bowline_tests::harness::{cgroup_of, hierarchy, only_v2, status_lines, weight};
use serde_json::json;

const IDLE: &str = "exec sleep 1000";

/// The pid of its program on the host, above which is bowline's own init.
#[track_caller]
fn pid(host: &Host, task: &Task) -> i32 {
    let id = bowline_id(host, task);
    host.adopt(id).pid()
}

/// What bowline calls the one task of this host.
#[track_caller]
fn bowline_id(host: &Host, task: &Task) -> String {
    let listed = host.bowline(["ps", "--json", "--all"]);
    let all = listed.assert_code(0).json();
    let found = all.as_array().expect("a list").iter().find(|one| one["labels"]["nomad.id"] == task.id());
    found.unwrap_or_else(|| panic!("{} is not in {all}", task.id()))["id"].as_str().expect("text").to_owned()
}

/// The task's folder in the hierarchy of `controller`.
#[track_caller]
fn cgroup(host: &Host, task: &Task, controller: &str) -> PathBuf {
    let pid = pid(host, task);
    let found = cgroup_of(pid);
    let path = found.iter().find(|(names, _)| names.split(',').any(|name| name == controller));
    let path = path.or_else(|| found.iter().find(|(names, _)| names.is_empty())).expect("a cgroup").1;
    hierarchy(controller).join(path.trim_start_matches('/'))
}

#[track_caller]
fn read(host: &Host, task: &Task, controller: &str, v1: &str, v2: &str) -> String {
    let file = cgroup(host, task, controller).join(if only_v2() { v2 } else { v1 });
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.trim_end().to_owned()
}

#[track_caller]
fn end(plugin: &Plugin<'_>, task: &Task) {
    plugin.destroy_by_force(task);
}

#[test]
fn cpu_is_shares_and_on_v2_a_weight_of_them() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for (mhz, shares) in [(1, 2), (100, 100), (1024, 1024), (500_000, 262_144)] {
        let task = plugin.task(IDLE).cpu_shares(mhz).start();
        let found = read(&host, &task, "cpu", "cpu.shares", "cpu.weight");
        assert_eq!(found, weight(shares).to_string(), "{mhz} MHz");
        end(&plugin, &task);
    }
    plugin.kill();
}

#[test]
fn a_hard_limit_is_the_tasks_part_of_the_node() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let quota = |task: &Task| {
        let file = |name: &str| read(&host, task, "cpu", name, "cpu.max");
        if only_v2() { file("") } else { format!("{} {}", file("cpu.cfs_quota_us"), file("cpu.cfs_period_us")) }
    };
    // 0.05 of two cores.
    let task = plugin.task(IDLE).config("cpu_hard_limit", true).start();
    assert_eq!(quota(&task), "10000 100000");
    end(&plugin, &task);
    let task = plugin.task(IDLE).config("cpu_hard_limit", true).config("cpu_period", "200ms").start();
    assert_eq!(quota(&task), "20000 200000");
    end(&plugin, &task);
    let task = plugin.task(IDLE).start();
    assert!(["max 100000", "-1 100000"].contains(&&*quota(&task)), "{}", quota(&task));
    end(&plugin, &task);
    plugin.kill();
}

#[test]
fn memory_and_memory_max_have_three_meanings() {
    const NONE: u64 = 1 << 50;
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let mib = |text: String| match text.parse::<u64>() {
        Ok(bytes) if bytes < NONE => Some(bytes >> 20),
        _ => None,
    };
    for (memory, max, limit, low) in [(64, 0, Some(64), None), (64, 96, Some(96), Some(64)), (64, -1, None, Some(64))] {
        let task = plugin.task(IDLE).memory(memory, max).start();
        let found = mib(read(&host, &task, "memory", "memory.limit_in_bytes", "memory.max"));
        assert_eq!(found, limit, "memory {memory}, memory_max {max}");
        let found = mib(read(&host, &task, "memory", "memory.soft_limit_in_bytes", "memory.low"));
        assert_eq!(found.filter(|low| *low > 0), low, "memory {memory}, memory_max {max}");
        end(&plugin, &task);
    }
    plugin.kill();
}

#[test]
fn reserved_cores_hold_from_the_first_instruction() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let config = json!({"command": "/bin/grep", "args": ["Cpus_allowed_list", "/proc/self/status"]});
    let task = plugin.task_of(config).cores("1").start();
    plugin.wait(&task).assert_code(0);
    assert_eq!(task.out().all(), "Cpus_allowed_list:\t1\n");
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn the_task_is_in_nomads_cgroup_and_its_shim_is_not() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let task = plugin.task(IDLE).start();
    let tasks = bowline_id(&host, &task);
    let (program, shim) = (host.adopt(&*tasks).pid(), host.adopt(&*tasks).shim_pid());
    let given = task.message()["resources"]["linux_resources"]["cpuset_cgroup"].as_str().expect("a path").to_owned();
    let in_given = |pid: i32| cgroup_of(pid).values().any(|path| given.ends_with(path.as_str()) && path.len() > 1);
    if only_v2() {
        assert!(in_given(program), "{:?} is not {given}", cgroup_of(program));
    } else {
        for controller in ["freezer", "cpu", "memory"] {
            assert_eq!(task.cgroup(controller), Some(&*cgroup(&host, &task, controller)), "{controller}");
        }
    }
    assert!(!in_given(shim), "{:?}", cgroup_of(shim));
    let memory = |pid: i32| {
        let of = cgroup_of(pid);
        of.get("memory").or_else(|| of.get("")).cloned().expect("it is somewhere")
    };
    let (shims, tasks) = (memory(shim), memory(program));
    // Neither the task's nor one below it: its memory is not the task's.
    assert!(!shims.starts_with(&tasks), "{shims} is in {tasks}");
    plugin.kill();
    let plugin = agent.launch();
    plugin.recover(&task).expect("it lives");
    end(&plugin, &task);
    plugin.kill();
}

#[test]
fn pids_are_limited_by_the_agent_and_by_the_job() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"pids_limit": 77}));
    for (job, limit) in [(None, "77"), (Some(33), "33")] {
        let build = plugin.task(IDLE);
        let task = job.into_iter().fold(build, |build, pids| build.config("pids_limit", pids)).start();
        assert_eq!(read(&host, &task, "pids", "pids.max", "pids.max"), limit);
        end(&plugin, &task);
    }
    plugin.kill();
}

#[test]
fn a_task_is_slowed_down_beyond_memory_high() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let build = plugin.task(IDLE).config("memory_high", "48M");
    if only_v2() {
        let task = build.start();
        assert_eq!(read(&host, &task, "memory", "", "memory.high"), (48 << 20).to_string());
        end(&plugin, &task);
    } else {
        build.assert_refused(&["config.memory_high", "v2"]);
    }
    plugin.kill();
}

#[test]
fn swap_counts_beyond_the_memory_and_there_is_none_by_default() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    for (swap, v1, v2) in [
        (None, ("memory.swappiness", "0"), "0"),
        (Some("16M"), ("memory.memsw.limit_in_bytes", "83886080"), "16777216"),
    ] {
        let build = plugin.task(IDLE).memory(64, 0);
        let build = swap.into_iter().fold(build, |build, swap| build.config("memory_swap", swap));
        let task = build.start();
        let found = read(&host, &task, "memory", v1.0, "memory.swap.max");
        assert_eq!(found, if only_v2() { v2 } else { v1.1 }, "{swap:?}");
        end(&plugin, &task);
    }
    plugin.kill();
}

#[test]
fn running_out_of_memory_is_told_apart_from_a_kill() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let events = plugin.events();
    let task = plugin.task("exec tail /dev/zero").memory(32, 0).start();
    plugin.wait(&task).assert_out_of_memory();
    let event = events.wait_for("an event of the OOM", |event| event["message"].to_string().contains("OOM"));
    assert_eq!((&event["task_id"], &event["alloc_id"]), (&json!(task.id()), &task.message()["alloc_id"]));
    assert_eq!(plugin.inspect(&task)["task"]["result"]["oom_killed"], true);
    plugin.destroy(&task);
    let task = plugin.task("kill -KILL $$").memory(32, 0).start();
    plugin.wait(&task).assert_killed_by(9);
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn limits_of_resources_and_the_score_are_the_tasks() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let script = "ulimit -n; ulimit -Hn; ulimit -c; cat /proc/self/oom_score_adj";
    let limits = json!([{"nofile": "1024:4096", "core": "0"}]);
    let task = plugin.task(script).config("ulimit", limits).config("oom_score_adj", 300).start();
    plugin.wait(&task).assert_code(0);
    assert_eq!(task.out().all(), "1024\n4096\n0\n300\n");
    plugin.destroy(&task);
    plugin.kill();
}

#[test]
fn a_task_ends_when_its_time_is_over() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch();
    let events = plugin.events();
    let task = plugin.task("trap 'exit 6' INT; while :; do sleep 0.02; done").config("timeout", "300ms").start();
    plugin.wait(&task).assert_code(6);
    events.wait_for("why it ended", |event| event["message"].to_string().contains("time"));
    plugin.destroy(&task);
    plugin.kill();
}

/// Whether this host lets us lower an `oom_score_adj`.
fn may_spare() -> bool {
    const SYS_RESOURCE: u32 = 24;
    let status = status_lines(std::process::id() as i32, &["CapEff"]);
    let mask = u64::from_str_radix(status.trim_start_matches("CapEff:").trim(), 16).expect("a mask");
    mask >> SYS_RESOURCE & 1 == 1
}

#[test]
fn a_task_is_spared_by_the_kernel_where_the_agent_lets_it() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    let plugin = agent.launch_with(json!({"allow_privileged": true}));
    let build = plugin.task("cat /proc/self/oom_score_adj; exec sleep 1000").config("oom_score_adj", -1000);
    if may_spare() {
        let task = build.start();
        task.out().wait_for("-1000\n");
        end(&plugin, &task);
    } else {
        build.assert_refused(&["config.oom_score_adj", "-1000", "CAP_SYS_RESOURCE"]);
    }
    plugin.kill();
}

#[test]
fn what_spares_the_agent_does_not_spare_shim_and_task() {
    let host = Host::new();
    let Some(agent) = host.nomad() else { return };
    if !may_spare() {
        // The virtual machine lets us.
        return host.assert_nothing_left();
    }
    let plugin = agent.launch();
    // As systemd starts an agent with OOMScoreAdjust=-1000.
    fs::write(format!("/proc/{}/oom_score_adj", plugin.pid()), "-1000").expect("we may");
    let task = plugin.task("cat /proc/self/oom_score_adj; exec sleep 1000").start();
    task.out().wait_for("0\n");
    assert_eq!(task.out().said(), "0\n");
    let id = bowline_id(&host, &task);
    let shim = host.bowline(["inspect", &id]).assert_code(0).json()["shim_pid"].as_i64().expect("a pid");
    let score = fs::read_to_string(format!("/proc/{shim}/oom_score_adj")).expect("it lives");
    assert_eq!(score, "0\n");
    end(&plugin, &task);
    plugin.kill();
}
