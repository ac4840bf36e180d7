//! Containers of a pod through containerd's CRI plugin: execs, ends and their reasons, limits, statistics.

use bowline_tests::Host;
use bowline_tests::harness::containerd::Code;
use bowline_tests::harness::cri::proto::LinuxContainerResources;
use bowline_tests::harness::cri::{Container, Cri, Pod, knows_drain};
use bowline_tests::harness::{eventually, only_v2, process_exists, skip_version};
use rustix::process::{Pid, Signal, kill_process};

const LIMIT: i64 = 64 << 20;
/// Wants four times as much.
const GREEDY: &str = "exec dd if=/dev/zero of=/dev/null bs=256M count=1";

/// What is done with a pod on the host's network, which is there soonest.
#[track_caller]
fn with_a_pod(test: impl FnOnce(&Cri<'_>, &Pod<'_, '_>)) {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().on_the_hosts_network().run();
    test(&cri, &pod);
    pod.remove();
    cri.end();
}

#[track_caller]
fn with_a_sleeper(test: impl FnOnce(&Container<'_, '_, '_>)) {
    with_a_pod(|_, pod| test(&pod.container("sleeper", "sleep 1000").start()));
}

/// What a container that runs `script` comes to.
#[track_caller]
fn end_of(pod: &Pod<'_, '_>, name: &str, script: &str) -> (i32, String) {
    pod.container(name, script).start().end()
}

fn end(code: i32, reason: &str) -> (i32, String) {
    (code, reason.to_owned())
}

#[test]
fn an_exec_answers_with_its_output_and_exit_code() {
    with_a_sleeper(|sleeper| {
        let answer = sleeper.exec("echo out; echo err >&2; exit 5");
        assert_eq!((answer.code, answer.stdout.as_str(), answer.stderr.as_str()), (5, "out\n", "err\n"));
        let much = sleeper.exec("seq 200000 | sed 's/$/ abcde/'");
        assert_eq!(much.stdout.lines().count(), 200_000);
    });
}

#[test]
fn an_exec_that_takes_too_long_is_killed() {
    with_a_sleeper(|sleeper| {
        let command = ["/bin/sh", "-c", "echo $$ > /pid; exec sleep 1000"];
        let failure = sleeper.try_exec(&command, 1).expect_err("it takes too long");
        assert_eq!(failure.code, Code::DEADLINE_EXCEEDED, "{failure:?}");
        eventually("it has gone", || (sleeper.exec("test -e /proc/$(cat /pid)").code != 0).then_some(()));
        assert!(sleeper.is_running());
    });
}

#[test]
fn an_exec_whose_output_a_child_holds_is_given_up_in_time() {
    // Bookworm's containerd is older; the virtual machine has a younger one.
    if !knows_drain() {
        return skip_version("containerd before 1.6.22 waits for ever, whatever the runtime");
    }
    with_a_sleeper(|sleeper| {
        let command = ["/bin/sh", "-c", "sleep 1000 & echo $! > /pid"];
        let failure = sleeper.try_exec(&command, 0).expect_err("its output has not ended");
        assert!(failure.message.contains("failed to drain exec process"), "{failure:?}");
        assert!(sleeper.exec("test -e /proc/$(cat /pid)").code == 0, "what it has left lives, as with runc");
        assert!(sleeper.is_running());
    });
}

#[test]
fn an_exec_of_what_is_not_there_is_refused() {
    with_a_sleeper(|sleeper| {
        let failure = sleeper.try_exec(&["nowhere"], 0).expect_err("there is none");
        assert!(failure.message.contains("executable file not found"), "{failure:?}");
    });
}

#[test]
fn containers_are_started_many_at_a_time() {
    with_a_pod(|cri, pod| {
        let all = pod.start_at_once(&["a", "b", "c", "d", "e", "f", "g", "h"], "sleep 1000");
        assert!(all.iter().all(Container::is_running));
        assert_eq!(cri.shims().len(), 1);
    });
}

#[test]
fn execs_many_at_a_time_all_have_their_answer() {
    let host = Host::new();
    if host.reference_fails("most have no answer after ten seconds") {
        return;
    }
    let Some(cri) = host.cri() else { return };
    let pod = cri.pod().on_the_hosts_network().run();
    let sleeper = pod.container("sleeper", "sleep 1000").start();
    let scripts: Vec<String> = (0..32).map(|number| format!("echo {number}; exit {number}")).collect();
    for (number, answer) in (0..).zip(sleeper.exec_at_once(&scripts)) {
        assert_eq!((answer.code, answer.stdout), (number, format!("{number}\n")));
    }
    pod.remove();
    cri.end();
}

#[test]
fn a_container_with_a_missing_program_fails_and_its_pod_lives() {
    with_a_pod(|_, pod| {
        let broken = pod.container("broken", "").runs(&["nowhere"]).create();
        let failure = broken.start().expect_err("there is none");
        assert!(failure.message.contains("executable file not found"), "{failure:?}");
        let (code, reason) = broken.end();
        assert!(code != 0 && reason == "StartError", "{code} {reason}");
        broken.remove();
        assert!(pod.is_ready());
        assert_eq!(end_of(pod, "good", "exit 0"), end(0, "Completed"));
    });
}

#[test]
fn an_end_is_told_with_its_exit_code_and_reason() {
    with_a_pod(|_, pod| {
        assert_eq!(end_of(pod, "good", "exit 0"), end(0, "Completed"));
        assert_eq!(end_of(pod, "bad", "exit 3"), end(3, "Error"));
        let killed = pod.container("killed", "sleep 1000").start();
        kill_process(Pid::from_raw(killed.pid()).expect("a pid"), Signal::KILL).expect("a live process");
        assert_eq!(killed.end(), end(137, "Error"));
    });
}

#[test]
fn the_output_of_a_container_is_in_its_log() {
    with_a_pod(|_, pod| {
        // While it runs: containerd 1.6 closes the pipes of one that has ended, read or not.
        let talker = pod.container("talker", "echo out; echo err >&2; seq 50000; sleep 1000").start();
        let lines = eventually("all lines", || Some(talker.log()).filter(|lines| lines.len() == 50_002));
        assert!(lines.contains(&"stdout F out".to_owned()) && lines.contains(&"stderr F err".to_owned()));
        assert_eq!(lines.last().map(String::as_str), Some("stdout F 50000"));
    });
}

#[test]
fn a_container_at_its_limit_of_memory_is_told_as_oom_killed() {
    with_a_pod(|_, pod| {
        let greedy = pod.container("greedy", GREEDY).memory(LIMIT).start();
        assert_eq!(greedy.end(), end(137, "OOMKilled"));
    });
}

#[test]
fn a_container_at_the_limit_of_its_pod_is_told_as_oom_killed() {
    let host = Host::new();
    let Some(cri) = host.cri() else { return };
    // The container's own is the same, as the kubelet makes it of a pod of one.
    let pod = cri.pod().on_the_hosts_network().memory(LIMIT.cast_unsigned()).run();
    let greedy = pod.container("greedy", GREEDY).memory(LIMIT).start();
    assert_eq!(greedy.end(), end(137, "OOMKilled"));
    assert!(pod.is_ready());
    pod.remove();
    cri.end();
}

#[test]
fn stop_waits_for_who_ends_by_itself() {
    with_a_pod(|_, pod| {
        let polite = pod.container("polite", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done").start();
        eventually("it is ready", || (!polite.log().is_empty()).then_some(()));
        polite.stop(600);
        assert_eq!(polite.end(), end(5, "Error"));
    });
}

#[test]
fn stop_kills_who_does_not_end() {
    with_a_pod(|_, pod| {
        let deaf = pod.container("deaf", "trap '' TERM; echo ready; while :; do sleep 1; done").start();
        eventually("it is ready", || (!deaf.log().is_empty()).then_some(()));
        let pid = deaf.pid();
        deaf.stop(1);
        assert_eq!(deaf.end(), end(137, "Error"));
        assert!(!process_exists(pid));
        // Once more is fine.
        deaf.stop(1);
    });
}

#[test]
fn statistics_of_a_container_and_of_its_pod_are_told() {
    with_a_pod(|_, pod| {
        // It holds 32 MiB.
        let script = "a=$(head -c 33554432 /dev/zero | tr '\\0' a); echo ready; while :; do :; done";
        let busy = pod.container("busy", script).memory(4 * LIMIT).start();
        eventually("it is ready", || (!busy.log().is_empty()).then_some(()));
        let stats = busy.stats();
        let memory = stats.memory.clone().unwrap_or_default();
        assert_eq!(stats.attributes.id, busy.id);
        assert!(memory.working_set_bytes.value >= 32 << 20, "{stats}");
        if memory.usage_bytes.is_some() {
            assert!(memory.usage_bytes.value >= memory.working_set_bytes.value, "{stats}");
            assert!(memory.rss_bytes.value >= 32 << 20, "{stats}");
            assert!(memory.available_bytes.value <= 4 * LIMIT.cast_unsigned() - (32 << 20), "{stats}");
            assert!(memory.page_faults.value > 0, "{stats}");
        }
        let cpu = || busy.stats().cpu.usage_core_nano_seconds.value;
        let before = cpu();
        assert!(before > 0);
        eventually("more CPU time", || (cpu() > before).then_some(()));
        let all = pod.stats();
        assert!(all.memory.working_set_bytes.value >= 32 << 20, "{all}");
        assert!(all.cpu.usage_core_nano_seconds.value >= before, "{all}");
        assert_eq!(all.containers.len(), 1, "{all}");
        assert!(all.process.process_count.value > 0, "{all}");
    });
}

#[test]
fn limits_change_while_a_container_runs() {
    with_a_pod(|_, pod| {
        let sleeper = pod.container("sleeper", "sleep 1000").memory(LIMIT).start();
        let memory = if only_v2() { "memory.max" } else { "memory.limit_in_bytes" };
        assert_eq!(sleeper.cgroup_file("memory", memory), LIMIT.to_string());
        sleeper.update(LinuxContainerResources {
            memory_limit_in_bytes: 2 * LIMIT,
            cpu_period: 100_000,
            cpu_quota: 50_000,
            cpu_shares: 512,
            ..Default::default()
        });
        assert_eq!(sleeper.cgroup_file("memory", memory), (2 * LIMIT).to_string());
        if only_v2() {
            assert_eq!(sleeper.cgroup_file("cpu", "cpu.max"), "50000 100000");
        } else {
            assert_eq!(sleeper.cgroup_file("cpu", "cpu.cfs_quota_us"), "50000");
            assert_eq!(sleeper.cgroup_file("cpu", "cpu.shares"), "512");
        }
        // What is not named stays.
        sleeper.update(LinuxContainerResources { cpu_shares: 1024, ..Default::default() });
        assert_eq!(sleeper.cgroup_file("memory", memory), (2 * LIMIT).to_string());
    });
}

#[test]
fn a_container_is_removed_and_made_anew_while_its_pod_stays() {
    with_a_pod(|cri, pod| {
        let first = pod.container("first", "sleep 1000").start();
        let shims = cri.shims();
        first.stop(0);
        first.remove();
        assert!(pod.is_ready());
        let second = pod.container("second", "sleep 1000").start();
        assert_eq!(second.exec("echo in").out(), "in");
        assert_eq!(cri.shims(), shims);
    });
}
