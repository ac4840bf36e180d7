//! The descriptions to start from, in `docs/examples`.

use bowline_tests::Host;
use bowline_tests::harness::only_v2;

const SIDE_JOB: &str = include_str!("../../docs/examples/side-job.toml");

#[test]
fn the_side_job_has_its_budget() {
    let host = Host::new();
    let idle = "command = \"/bin/sh\"\nargs = [\"-c\", \"exec sleep 1000\"]";
    let budget = SIDE_JOB.lines().filter(|line| !line.starts_with("command") && !line.starts_with("args"));
    let described = budget.fold(idle.to_owned(), |text, line| text + "\n" + line);
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
    host.assert_nothing_left();
}
