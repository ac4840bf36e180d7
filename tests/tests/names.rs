//! The names of a task and of the hosts that it talks to: its host name, `/etc/hostname`, `/etc/hosts` and
//! `/etc/resolv.conf`.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Root, binary, eventually};

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

/// All that is below `root`, with modes and times but those of folders, and the text of small files.
fn listing(host: &Host, root: &Root) -> String {
    let mut find = host.command("find");
    find.arg(root.path()).args(["-path", "*/bin/*", "-prune", "-o", "-printf", "%P %y %m %s %l\n"]);
    let mut lines: Vec<_> = host.execute(find).assert_code(0).out().lines().map(str::to_owned).collect();
    lines.sort();
    lines.join("\n")
}

/// What a task with `flags` in `root` says.
#[track_caller]
fn said(host: &Host, root: &Root, flags: &[&str], script: &str) -> String {
    let task = flags.iter().fold(host.task(script).rootfs(root.path()), |task, flag| task.flag(*flag));
    task.run().assert_code(0).out()
}

/// A root without any of the files, with what every task makes in one.
fn bare(host: &Host) -> Root {
    let root = host.busybox_root();
    said(host, &root, &["--set=names.files=false"], "true");
    root
}

/// Says where the name `localhost` leads to, by whatever the C library does.
const LOCALHOST: &str = "/bin/busybox wget -qO- http://localhost:1/ 2>&1 | grep -o '(.*)'";

#[test]
fn a_bare_root_has_names_and_nothing_is_made_in_it() {
    let host = Host::new();
    let root = bare(&host);
    let before = listing(&host, &root);
    let at = "/etc/hostname /etc/hosts /etc/resolv.conf";
    let script = format!(
        "cat /etc/hostname; grep -c . /etc/resolv.conf; grep \" $(hostname)$\\|\t$(hostname)$\" /etc/hosts; {LOCALHOST}; ls {at}"
    );
    let task = host.task("exec sleep 1000").rootfs(root.path()).start();
    let servers = fs::read_to_string("/etc/resolv.conf").expect("there is one");
    let servers = servers.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])).count();
    let id = task.id().to_owned();
    task.exec(&script)
        .assert_says(&format!("{id}\n{servers}\n127.0.1.1\t{id}\n(127.0.0.1)\n{}", at.replace(' ', "\n")));
    task.end();
    eventually("nothing is left in the root", || (listing(&host, &root) == before).then_some(()));
    // As on the host, with the task's own name.
    let hosts = said(&host, &root, &["--hostname=box.example.org"], "cat /etc/hosts; cat /etc/hostname");
    let of_host = fs::read_to_string("/etc/hosts").expect("there is one");
    assert!(hosts.starts_with(of_host.trim_end()), "{hosts}");
    assert!(hosts.ends_with("127.0.1.1\tbox.example.org box\nbox.example.org"), "{hosts}");
    assert_eq!(listing(&host, &root), before);
}

#[test]
fn a_root_that_has_the_files_shows_the_tasks_and_keeps_its_own() {
    let host = Host::new();
    let root = bare(&host);
    for name in ["hostname", "hosts", "resolv.conf"] {
        root.file(&format!("etc/{name}"), "of-the-root\n", 0o600);
    }
    let script = "cat /etc/hostname /etc/hosts /etc/resolv.conf | grep -c of-the-root; stat -c '%a %u %g' /etc/hosts; \
                  grep ' /etc/hosts ' /proc/mounts | cut -d' ' -f4; echo x 2>&1 >/etc/hosts | grep -o Read-only; \
                  rm /etc/hosts 2>/dev/null || echo stays";
    let out = said(&host, &root, &[], script);
    let lines: Vec<_> = out.lines().collect();
    assert!(
        matches!(lines[..], ["0", "644 0 0", flags, "Read-only", "stays"]
        if ["ro", "nosuid", "nodev", "noexec"].iter().all(|flag| flags.split(',').any(|is| is == *flag))),
        "{out}"
    );
    let own = said(&host, &root, &["--set=names.files=false"], "cat /etc/hostname /etc/hosts /etc/resolv.conf");
    assert_eq!(own, "of-the-root\nof-the-root\nof-the-root");
}

#[test]
fn a_mount_takes_the_place_of_a_file() {
    let host = Host::new();
    let root = bare(&host);
    let file = host.file("mine", "mine\n");
    let folder = host.work().join("folder");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("hosts"), "of the folder\n").expect("a file");
    let mount = format!("-v={}:/etc/hosts:ro", file.display());
    assert_eq!(said(&host, &root, &[&mount], "cat /etc/hosts; wc -l </etc/hostname"), "mine\n1");
    // As any mount point that is missing is made, and stays.
    fs::remove_file(root.path().join("etc/hosts")).expect("made by -v");
    let mount = format!("-v={}:/etc", folder.display());
    assert_eq!(
        said(&host, &root, &[&mount, "--add-host=db:1.2.3.4"], "cat /etc/hosts; ls /etc"),
        "of the folder\nhosts"
    );
}

#[test]
fn a_joined_host_name_is_not_known_and_in_no_file() {
    let host = Host::new();
    let root = bare(&host);
    let toml = format!("command = 'ls'\nargs = ['/etc']\nnamespaces.uts = '/proc/{}/ns/uts'", std::process::id());
    host.described(&toml).rootfs(root.path()).run().assert_says("group\nhosts\npasswd\nresolv.conf");
}

#[test]
fn a_read_only_root_and_one_that_forgets_have_names_too() {
    let host = Host::new();
    let script =
        format!("cat /etc/hostname; {LOCALHOST}; cat /etc/passwd | head -n 1; touch /etc/x 2>/dev/null || echo closed");
    let seen = |id: &str, last: &str| format!("{id}\n(127.0.0.1)\nroot:x:0:0::/root:/bin/sh{last}");
    for (flag, last) in [("--read-only", "\nclosed"), ("--ephemeral", "")] {
        let root = bare(&host);
        let before = listing(&host, &root);
        let task = host.task(&script).rootfs(root.path()).flag(flag);
        let id = task.id().to_owned();
        task.run().assert_says(&seen(&id, last));
        assert_eq!(listing(&host, &root), before, "{flag}");
    }
    // A filesystem that takes no mount point.
    let disk = host.tmpfs("disk", "size=16m");
    let root = bare(&host);
    let mut copy = host.command("cp");
    copy.arg("-a").arg(root.path().join(".")).arg(disk.path());
    host.execute(copy).assert_code(0);
    disk.read_only();
    let task = host.task(&script).rootfs(disk.path());
    let id = task.id().to_owned();
    task.run().assert_says(&seen(&id, "\nclosed"));
    drop(disk);
}

#[test]
fn a_root_without_etc_has_no_files_unless_it_forgets() {
    let host = Host::new();
    let root = bare(&host);
    fs::remove_dir_all(root.path().join("etc")).expect("ours");
    let before = listing(&host, &root);
    for flag in ["--init=false", "--read-only"] {
        assert_eq!(said(&host, &root, &[flag], "ls -d /etc || echo none"), "none");
        assert_eq!(listing(&host, &root), before, "{flag}");
    }
    let seen = said(&host, &root, &["--ephemeral"], &format!("ls /etc; {LOCALHOST}"));
    assert_eq!(seen, "hostname\nhosts\nresolv.conf\n(127.0.0.1)");
    assert_eq!(listing(&host, &root), before);
}

#[test]
fn tasks_that_share_a_root_keep_their_names_while_others_end() {
    let host = Host::new();
    let root = bare(&host);
    let before = listing(&host, &root);
    let [a, b] = [(); 2].map(|()| host.task("exec sleep 1000").rootfs(root.path()).flag("--init").start());
    a.end();
    a.bowline("rm", []).assert_code(0);
    b.exec(LOCALHOST).assert_says("(127.0.0.1)");
    // What takes over from a shim that died goes on.
    b.crash_shim();
    b.exec(LOCALHOST).assert_says("(127.0.0.1)");
    b.end();
    eventually("nothing is left in the root", || (listing(&host, &root) == before).then_some(()));
    let c = host.task("exec sleep 1000").rootfs(root.path()).start();
    c.kill_shim(c.shim_pid());
    c.bowline("rm", ["-f"]).assert_code(0);
    assert_eq!(listing(&host, &root), before);
}

#[test]
fn a_file_for_now_counts_the_tasks_of_all_state_folders() {
    let host = Host::new();
    let root = bare(&host);
    let before = listing(&host, &root);
    let other = format!("--state={}", host.work().join("other").display());
    let rootfs = format!("--rootfs={}", root.path().display());
    let (a, b) = (host.task("exec sleep 1000").rootfs(root.path()).start(), host.new_id());
    host.bowline(["start", &other, &rootfs, "--name", &b, "--", "/bin/sh", "-c", "exec sleep 1000"]).assert_code(0);
    a.bowline("rm", ["-f"]).assert_code(0);
    host.bowline(["exec", &other, &b, "--", "/bin/sh", "-c", LOCALHOST]).assert_says("(127.0.0.1)");
    // A task that is gone without a trace does not count.
    let hosts = root.path().join("etc/hosts");
    let lines = fs::read_to_string(&hosts).expect("for now");
    fs::write(&hosts, format!("{lines}# bowline: /run/bowline/gone\n")).expect("ours");
    host.bowline(["rm", "-f", &other, &b]).assert_code(0);
    eventually("nothing is left in the root", || (listing(&host, &root) == before).then_some(()));
}

#[test]
fn an_empty_file_of_the_users_that_nobody_may_read_stays() {
    let host = Host::new();
    let root = bare(&host);
    for name in ["hostname", "hosts", "resolv.conf"] {
        root.file(&format!("etc/{name}"), "", 0);
    }
    let before = listing(&host, &root);
    let task = host.task("exec sleep 1000").rootfs(root.path()).start();
    task.exec(LOCALHOST).assert_says("(127.0.0.1)");
    assert_eq!(listing(&host, &root), before, "nothing is written into it either");
    task.end();
    assert_eq!(listing(&host, &root), before);
}

#[test]
fn a_program_of_another_version_takes_over_a_task_with_files_for_now() {
    let host = Host::new();
    let root = bare(&host);
    let before = listing(&host, &root);
    let task = host.task("exec sleep 1000").rootfs(root.path()).start();
    task.bowline("upgrade", []).assert_code(0);
    task.exec(LOCALHOST).assert_says("(127.0.0.1)");
    task.end();
    eventually("nothing is left in the root", || (listing(&host, &root) == before).then_some(()));
}

#[test]
fn names_in_a_network_of_its_own_are_not_the_hosts() {
    let host = Host::new();
    let script = "grep -c localhost /etc/hosts; grep \"$(hostname)\" /etc/hosts; cat /etc/hostname; wc -l </etc/hosts";
    let task = host.task(script).flag("--network=none");
    let id = task.id().to_owned();
    task.run().assert_says(&format!("2\n127.0.1.1\t{id}\n{id}\n7"));
    // In the host's network, the view shows the host's own.
    let seen = |path: &str| fs::read_to_string(path).expect("there is one").trim().to_owned();
    host.task("cat /etc/hosts").run().assert_says(&seen("/etc/hosts"));
    let untrusted = host.task(script).flag("--untrusted");
    let id = untrusted.id().to_owned();
    untrusted.run().assert_says(&format!("2\n127.0.1.1\t{id}\n{id}\n7"));
}

#[test]
fn more_hosts_and_other_servers_are_written() {
    let host = Host::new();
    let root = bare(&host);
    let flags = ["--add-host=db:10.0.0.7", "--add-host=db=fd00::7", "--add-host=me:host-gateway", "--dns=192.0.2.1"];
    let more = ["--dns=2001:db8::1", "--dns-search=a.example", "--dns-search=b.example", "--dns-option=ndots:2"];
    let flags = [&flags[..], &more].concat();
    let script = "grep -A9 db /etc/hosts | head -n 3; cat /etc/resolv.conf";
    let resolver = "nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch a.example b.example\noptions ndots:2";
    let expected = format!("10.0.0.7\tdb\nfd00::7\tdb\n127.0.0.1\tme\n{resolver}");
    assert_eq!(said(&host, &root, &flags, script), expected);
    let in_host_view = flags.iter().fold(host.task(script), |task, flag| task.flag(*flag));
    in_host_view.run().assert_says(&expected);
    let described = "command = 'sh'\nargs = ['-c', 'grep db /etc/hosts; head -n 1 /etc/resolv.conf']\n\
                     [names]\nhosts = ['db:10.0.0.7']\nservers = ['192.0.2.1']";
    host.described(described).rootfs(root.path()).run().assert_says("10.0.0.7\tdb\nnameserver 192.0.2.1");
    // No line of the host's is left of what is replaced.
    let bare = ["--dns=192.0.2.1", "--dns-search=.", "--dns-opt=rotate"];
    assert_eq!(said(&host, &root, &bare, "cat /etc/resolv.conf"), "nameserver 192.0.2.1\noptions rotate");
}

#[test]
fn each_flag_of_names_means_what_it_means_for_docker() {
    let host = Host::new();
    for (flags, script, said) in [
        (&["--add-host=db:10.0.0.7"][..], "grep db /etc/hosts", "10.0.0.7\tdb"),
        (&["--add-host=db=10.0.0.7"], "grep db /etc/hosts", "10.0.0.7\tdb"),
        (&["--add-host=db.example.org:10.0.0.7"], "grep db /etc/hosts", "10.0.0.7\tdb.example.org"),
        (&["--untrusted", "--dns=192.0.2.1"], "cat /etc/resolv.conf", "nameserver 192.0.2.1"),
        (&["--add-host=db:[fd00::7]", "--add-host=db:10.0.0.7"], "grep db /etc/hosts", "fd00::7\tdb\n10.0.0.7\tdb"),
        (&["--add-host=up:host-gateway"], "grep up$ /etc/hosts", "127.0.0.1\tup"),
        (&["--dns=192.0.2.1"], "grep nameserver /etc/resolv.conf", "nameserver 192.0.2.1"),
        (&["--dns=::1", "--dns=192.0.2.1"], "grep nameserver /etc/resolv.conf", "nameserver ::1\nnameserver 192.0.2.1"),
        (&["--dns-search=a.example", "--dns-search=b"], "grep search /etc/resolv.conf", "search a.example b"),
        (&["--dns-search=."], "grep -c search /etc/resolv.conf", "0"),
        (&["--dns-option=ndots:2"], "grep options /etc/resolv.conf", "options ndots:2"),
        (&["--dns-opt=rotate"], "grep options /etc/resolv.conf", "options rotate"),
        (&["--hostname=box"], "hostname", "box"),
    ] {
        let task = flags.iter().fold(host.task(&format!("{script}; true")), |task, flag| task.flag(*flag));
        task.run().assert_says(said);
    }
}

#[test]
fn names_that_lead_nowhere_are_refused() {
    let host = Host::new();
    for (flag, parts) in [
        ("--add-host=db", &["--add-host", "such as db:10.0.0.7"][..]),
        ("--add-host=db:1.2.3", &["--add-host", "1.2.3"]),
        ("--add-host=a b:1.2.3.4", &["--add-host", "a b"]),
        ("--dns=one.one.one.one", &["--dns"]),
    ] {
        host.task("true").flag(flag).assert_refused(2, parts);
    }
    host.task("true").flag("--dns-option=a b").assert_refused(2, &["names.options[0]", "not an option"]);
    host.task("true").flag("--dns-search=a/b").assert_refused(2, &["names.search[0]", "not a domain"]);
    let nobody = host.task("true").flag("--network=none").flag("--add-host=me:host-gateway");
    nobody.assert_refused(125, &["names.hosts[0]", "no gateway"]);
    // What is asked for is not left out with a word.
    let root = bare(&host);
    let link = root.path().join("etc/resolv.conf");
    std::os::unix::fs::symlink("../run/systemd/resolve/stub-resolv.conf", link).expect("ours");
    fs::create_dir(root.path().join("run")).expect("ours");
    let covered = || host.task("true").rootfs(root.path()).flag("--tmpfs=/run");
    covered()
        .flag("--dns=192.0.2.1")
        .assert_refused(125, &["names: ", "/etc/resolv.conf is a link that leads nowhere"]);
    assert!(covered().run().assert_code(0).err().contains("leads nowhere: the task has none"));
    fs::remove_dir_all(root.path().join("etc")).expect("ours");
    let without = host.task("true").rootfs(root.path()).flag("--add-host=db:10.0.0.7");
    without.assert_refused(125, &["names.hosts: ", "the root has no /etc"]);
    let task = host.task("exec sleep 1000").start();
    host.bowline(["update", task.id(), "--hostname=other"]).assert_refused(2, &["--hostname"]);
    host.bowline(["update", task.id(), "--dns=192.0.2.1"]).assert_refused(2, &["--dns"]);
    task.end();
}

#[test]
fn members_have_their_sandboxs_name_and_network() {
    let host = Host::new();
    let root = bare(&host);
    let sandbox = host.sandbox().flag("--network=none").flag("--hostname=together").create();
    let script = "cat /etc/hostname; tail -n 1 /etc/hosts; hostname";
    let expected = "together\n127.0.1.1\ttogether\ntogether";
    sandbox.task(script).run().assert_says(expected);
    sandbox.task(script).rootfs(root.path()).run().assert_says(expected);
    let toml = format!("command = 'sh'\nargs = ['-c', '{script}']\nhostname = 'apart'\nnamespaces.uts = 'private'");
    sandbox.described(&toml).run().assert_says("apart\n127.0.1.1\tapart\napart");
}

#[test]
fn users_of_their_own_namespace_read_the_files() {
    let host = Host::new();
    let root = bare(&host);
    let script = "cat /etc/hostname; stat -c '%u %a' /etc/hosts; tail -n 1 /etc/hosts";
    let maps = "namespaces.user = 'private'\nuid_mappings = [{container = 0, host = 100000, size = 65536}]\n\
                gid_mappings = [{container = 0, host = 100000, size = 65536}]";
    let toml = format!("command = 'sh'\nargs = ['-c', \"{script}\"]\nhostname = 'box'\n{maps}");
    let expected = "box\n0 644\n127.0.1.1\tbox";
    host.described(&toml).rootfs(root.path()).run().assert_says(expected);
    let own_network = format!("{toml}\nnamespaces.network = 'private'");
    host.described(&own_network).rootfs(root.path()).run().assert_says(expected);
    host.described(&own_network).run().assert_says(expected);
}

#[test]
fn a_bundle_has_what_its_configuration_says() {
    let host = Host::new();
    let root = host.busybox_root();
    let described = format!("command = 'sh'\nargs = ['-c', 'ls /etc; hostname']\nrootfs = '{}'", root.path().display());
    let file = host.file("task.toml", &described);
    let spec = host.bowline(["spec", file.to_str().expect("UTF-8")]).assert_code(0).out();
    let bundle = host.work().join("bundle");
    fs::create_dir(&bundle).expect("a folder");
    fs::write(bundle.join("config.json"), spec.replace("\"hostname\": \"", "\"hostname\": \"of-")).expect("a file");
    let mut run = host.command(binary("bowline"));
    run.args(["run", "--rm", "--name", &host.new_id(), "--bundle"]).arg(&bundle);
    let ran = host.execute(run);
    let out = ran.assert_code(0).out();
    assert!(out.starts_with("group\npasswd\nof-"), "{ran}");
}
