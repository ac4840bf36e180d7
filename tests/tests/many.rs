//! Many tasks at a time: they do not disturb one another.

use bowline_tests::Host;

#[test]
fn many_tasks_come_and_go_at_a_time() {
    let host = Host::new();
    for _ in 0..3 {
        let ids: Vec<_> = (0..12).map(|_| host.new_id()).collect();
        let runs: Vec<_> = ids.iter().map(|id| host.spawn(["run", "--rm", "--name", id, "--", "echo", id])).collect();
        for (id, run) in ids.iter().zip(runs) {
            run.finish().assert_says(id);
        }
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn each_task_has_its_own_output_and_code() {
    let host = Host::new();
    let tasks: Vec<_> =
        (0..8).map(|n| host.task(&format!("seq 1 20000 | tail -n 1; echo {n}; exit {n}")).spawn()).collect();
    for (n, (_, run)) in tasks.into_iter().enumerate() {
        let ran = run.finish();
        ran.assert_code(n.try_into().expect("small"));
        assert_eq!(ran.out(), format!("20000\n{n}"), "{ran}");
    }
}

#[test]
fn tasks_that_end_while_others_begin_leave_their_cgroups_alone() {
    let host = Host::new();
    let long = host.task("exec sleep 1000").start();
    for _ in 0..20 {
        host.bowline(["run", "--rm", "--name", &host.new_id(), "--memory=64M", "--", "true"]).assert_code(0);
    }
    assert_eq!(long.cgroup_file("pids", "pids.max"), "4096");
    long.exec("echo well").assert_says("well");
    long.end();
}
