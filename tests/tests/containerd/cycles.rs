//! Many containers, one after the other: nothing adds up.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Input, Stdio, api};
use bowline_tests::harness::{eventually, fds_of, is_slow, status_lines};

#[test]
fn two_hundred_cycles_leave_shim_and_host_as_they_were() {
    let host = Host::new();
    if host.reference_fails("every third cycle or so leaves an fd") {
        return;
    }
    let containerd = host.containerd();
    let group = host.new_id();
    let keeper = containerd.bundle().script("sleep 1000").annotation("io.containerd.runc.v2.group", &group);
    let bundle = containerd.bundle().script("sleep 1000").rootfs_aside("lower");
    let shim = containerd.start(&keeper);
    shim.run(&keeper, &Stdio::null());
    let pid = shim.pid();
    let cgroups = || {
        let walk = |path: std::path::PathBuf| fs::read_dir(path).map_or(0, |entries| entries.count());
        let all = bowline_tests::harness::hierarchies();
        all.into_iter().map(|(_, mount)| walk(mount.join(host.prefix()))).sum::<usize>()
    };
    let measure = || {
        let rss = status_lines(pid, &["VmRSS"]).split_whitespace().nth(1).expect("kB").parse::<u64>().expect("kB");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc");
        let ours = mounts.lines().filter(|line| line.contains(host.prefix())).count();
        let sockets = bowline_tests::harness::unix_sockets(&shim.socket);
        (fds_of(pid).len(), rss, ours, cgroups(), sockets)
    };
    let mut before = None;
    for round in 0..if is_slow() { 100 } else { 200 } {
        let io = bundle.fifos_with_stdin(&format!("r{round}"));
        let _outputs = io.open();
        let mut request = shim.creation(&bundle, &io);
        let source = bundle.path.join("lower").to_str().expect("ASCII").to_owned();
        request.rootfs =
            vec![api::Mount { type_: "bind".into(), source, options: vec!["rbind".into()], ..Default::default() }];
        shim.create_by(&request).expect("created");
        let _stdin = Input::open(io.stdin.as_ref());
        shim.start(&bundle.id, "").expect("started");
        shim.run_exec(&bundle, "e", &["/bin/true"], &Stdio::null());
        assert_eq!(shim.status_at_end(&bundle.id, "e"), 0);
        shim.delete(&bundle.id, "e").expect("deleted");
        shim.remove(&bundle.id);
        if round == 20 {
            before = Some(measure());
        }
    }
    let before = before.expect("more than twenty rounds");
    let mut after = measure();
    let flat = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("as it was", || {
            after = measure();
            // A heap breathes; 200 leaks of two pages would show.
            let same = (before.0 + 1, before.2, before.3, before.4);
            let flat = after.0 < same.0 + 1 && (after.2, after.3, after.4) == (same.1, same.2, same.3);
            (flat && after.1 < before.1 + 1024).then_some(())
        });
    }));
    assert!(flat.is_ok(), "fds, RSS in kB, mounts, cgroups, sockets: {before:?} became {after:?}");
    shim.remove(&keeper.id);
    shim.over();
}
