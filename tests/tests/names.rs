//! The names of a task and of the hosts that it talks to.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::binary;

fn of_host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").expect("procfs").trim().to_owned()
}

#[test]
fn the_host_name_is_the_tasks_id_unless_it_has_another() {
    let host = Host::new();
    let before = of_host();
    let script = "cat /proc/sys/kernel/hostname; echo $HOSTNAME";
    let task = host.task("exec sleep 1000").start();
    task.exec(script).assert_says(&format!("{0}\n{0}", task.id()));
    task.end();
    let of_ours = format!("namespaces.uts = '/proc/{}/ns/uts'", std::process::id());
    for (lines, seen) in [
        ("hostname = 'knot'", "knot\nknot".to_owned()),
        ("hostname = ''", before.clone()),
        ("namespaces.uts = 'host'", before.clone()),
        (&of_ours, before.clone()),
        ("env.HOSTNAME = 'mine'\nhostname = 'knot'", "knot\nmine".to_owned()),
    ] {
        host.described(&format!("command = 'sh'\nargs = ['-c', '{script}']\n{lines}")).run().assert_says(&seen);
    }
    assert_eq!(of_host(), before);
}

#[test]
fn the_longest_id_is_a_host_name() {
    let host = Host::new();
    let id = format!("{}{}", host.new_id(), "x".repeat(63)).chars().take(63).collect::<String>();
    let mut run = host.command(binary("bowline"));
    run.args(["run", "--rm", "--name", &id, "--", "cat", "/proc/sys/kernel/hostname"]);
    host.execute(run).assert_says(&id);
}
