//! The descriptions to start from, in `docs/examples`.

use bowline_tests::Host;
use bowline_tests::harness::only_v2;

const SIDE_JOB: &str = include_str!("../../docs/examples/side-job.toml");
const SIDE_JOB_V1: &str = include_str!("../../docs/examples/side-job-v1.toml");

/// The description with a shell that runs this in place of its command.
fn running(description: &str, script: &str) -> String {
    let command = format!("command = \"/bin/sh\"\nargs = [\"-c\", '{script}']");
    let budget = description.lines().filter(|line| !line.starts_with("command") && !line.starts_with("args"));
    budget.fold(command, |text, line| text + "\n" + line)
}

#[test]
fn the_side_job_has_its_budget() {
    let host = Host::new();
    let described = running(SIDE_JOB, "exec sleep 1000");
    if !only_v2() {
        // memory.high is v2's.
        host.described(&described).assert_refused(125, &["memory.high", "cgroup v2"]);
        return host.assert_nothing_left();
    }
    let task = host.described(&described).start();
    let files = [("cpu", "cpu.max", "5000 100000"), ("memory", "memory.high", "178257920")];
    for (controller, file, expected) in files {
        assert_eq!(task.cgroup_file(controller, file), expected, "{file}");
    }
    task.end();
}

#[test]
fn a_side_job_that_needs_more_is_stopped() {
    let host = Host::new();
    // 230 MiB in memory: of its own on v1, more than memory.high on v2.
    let (description, policy) = if only_v2() { (SIDE_JOB, "memory_high") } else { (SIDE_JOB_V1, "memory") };
    let hog = "(head -c 230M /dev/zero; exec sleep 1000) | tail -c 230M";
    // A twentieth of a CPU would take a minute over it, and a look comes every ten seconds.
    let hurried =
        running(description, hog).replace("limit = 0.05", "limit = 1").replace("155M\"", "155M\"\nevery = \"500ms\"");
    let report = host.described(&hurried).start().wait();
    assert_eq!((&report["stopped_by"], &report["stopped_for"]["policy"]), (&"watch".into(), &policy.into()));
}
