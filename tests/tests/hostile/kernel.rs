//! What a task asks of the kernel itself: devices, keys, terminals, calls and cgroups that are the host's.
//!
//! Nodes that a task makes for itself: `devices.rs`.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::containerd::Bundle;
use bowline_tests::harness::{binary, disk, hierarchies, only_v2, skip};
use rustix::fs::{CWD, FileType, makedev, mknodat};

/// The numbers of add_key(2) and keyctl(2).
#[cfg(target_arch = "x86_64")]
const KEYS: (u32, u32) = (248, 250);
#[cfg(not(target_arch = "x86_64"))]
const KEYS: (u32, u32) = (217, 219);

/// A node of the host's disk at `path`.
fn disk_node(path: &std::path::Path, (major, minor): (u32, u32)) {
    mknodat(CWD, path, FileType::BlockDevice, 0o666.into(), makedev(major, minor)).expect("root may");
    fs::File::open(path).expect("the host can");
}

#[test]
fn a_device_node_in_an_image_cannot_be_opened() {
    let Some(disk) = disk() else { return skip("this host has no disk") };
    let host = Host::new();
    let root = host.busybox_root();
    disk_node(&root.path().join("disk"), disk);
    let script = "[ -b /disk ] && echo there; head -c 1 /disk; : >> /disk";
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    let exec = task.exec(script);
    let init = host.task_of(["sh", "-c", script]).rootfs(root.path()).run();
    for ran in [init, exec] {
        assert_eq!(ran.out(), "there", "{ran}");
        assert_eq!(ran.err().matches("Operation not permitted").count(), 2, "{ran}");
    }
    task.end();
}

/// In an image, in a volume, and one that is made inside with CAP_MKNOD.
#[test]
fn a_device_node_cannot_be_opened_in_a_container_of_containerds() {
    let Some((major, minor)) = disk() else { return skip("this host has no disk") };
    let host = Host::new();
    let containerd = host.containerd();
    let volume = host.work().join("volume");
    fs::create_dir(&volume).expect("the work folder is writable");
    disk_node(&volume.join("disk"), (major, minor));
    let script = format!(
        "mknod /made b {major} {minor}; for disk in /disk /volume/disk /made; do [ -b $disk ] && echo there; \
         head -c 1 $disk 2>&1; (: >> $disk) 2>&1; done; true"
    );
    let mount = serde_json::json!({ "destination": "/volume", "type": "bind", "source": volume, "options": ["rbind"] });
    // ctr's configuration denies every device before it allows the usual ones; one without any rules is Docker's of old.
    let own_rules = containerd.bundle().script(&script).mount(&mount);
    let no_rules = containerd.bundle().script(&script).mount(&mount).edit(|config| {
        config["linux"]["resources"].as_object_mut().expect("an object").remove("devices");
    });
    for bundle in [own_rules, no_rules] {
        disk_node(&bundle.rootfs().join("disk"), (major, minor));
        let io = bundle.fifos("init");
        let running = containerd.run_with(bundle, &io);
        let said = running.stdout.to_end();
        assert_eq!(said.matches("there\n").count(), 3, "{said}");
        assert_eq!(said.matches("Operation not permitted").count(), 6, "{said}");
        running.shim.end(&running.id);
    }
}

/// CVE-2022-29162: Docker and runc gave their processes inheritable capabilities, which programs with file capabilities
/// have then.
#[test]
fn cve_2022_29162_no_capability_is_inheritable() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let script = "grep -E '^Cap(Inh|Amb|Prm)' /proc/self/status; sleep 1000";
    let running = containerd.run_with(bundle.script(script), &Bundle::fifos(&containerd.bundle(), "init"));
    running.stdout.wait_for("CapAmb");
    let said = running.stdout.text();
    let (status, exec) = running.exec("e", "grep -E '^Cap(Inh|Amb|Prm)' /proc/self/status");
    assert_eq!((status, &exec), (0, &said));
    assert!(said.starts_with("CapInh:\t0000000000000000\nCapPrm:\t00000000a80425fb\n"), "{said}");
    assert!(said.ends_with("CapAmb:\t0000000000000000\n"), "{said}");
    running.end();
}

/// The keys of whoever starts a task are neither seen nor kept by it, though nothing filters its calls.
#[test]
fn the_callers_session_keys_are_not_seen() {
    let host = Host::new();
    let (add_key, keyctl) = KEYS;
    // KEYCTL_SEARCH of the session keyring (-3) for what the caller has put there.
    let search = format!(
        "my $k = syscall({keyctl}, 10, -3, my $t = \"user\", my $d = \"bowline-test\", 0); print $k > 0 ? \"found\" : \"$!\", \"\\n\""
    );
    let file = host.file("search.pl", &search);
    let described = |id: &str, command: &str| {
        let toml = format!(
            "name = '{id}'\n{command}\nseccomp = 'unconfined'\n\
             mounts = [{{source = '{}', destination = '/tmp/search.pl'}}]\n",
            file.display()
        );
        host.file(&format!("{id}.toml"), &toml)
    };
    let (one, other) = (host.new_id(), host.new_id());
    let run = described(&one, "command = 'perl'\nargs = ['/tmp/search.pl']");
    let start = described(&other, "command = 'sleep'\nargs = ['1000']");
    let script = format!(
        "syscall({keyctl}, 1, 0) > 0 or die; \
         syscall({add_key}, my $t = 'user', my $d = 'bowline-test', my $s = 'secret', 6, -3) > 0 or die \"add_key: $!\"; \
         $| = 1; for (['perl', '{search}'], [@ARGV, 'run', '--rm', '--file', '{run}'], [@ARGV, 'start', '--file', '{start}'], \
         [@ARGV, 'exec', '{other}', '--', 'perl', '/tmp/search.pl'], [@ARGV, 'rm', '-f', '{other}']) {{ system @$_ }}",
        search = file.display(),
        run = run.display(),
        start = start.display(),
    );
    let mut caller = host.command("perl");
    caller.args(["-e", &script]).arg(binary("bowline"));
    let ran = host.execute(caller);
    let none = "Required key not available";
    ran.assert_says(&format!("found\n{none}\n{other}\n{none}"));
    // With the default filter a task cannot even ask.
    host.task_of(["perl", "-e", &search]).run().assert_says("Operation not permitted");
}

/// TIOCSTI: what a task types at any terminal that it has is never typed at its caller's.
#[test]
fn tiocsti_types_nothing_at_the_callers_terminal() {
    let host = Host::new();
    let types = host.file(
        "type.pl",
        "for my $path ('/dev/stdin', '/dev/stdout', '/dev/stderr', '/dev/tty') { \
         my $tty; my $how = open($tty, '+<', $path) ? 'opened' : \"$!\"; my $done = 1; \
         if ($how eq 'opened') { for (split //, \"evil\\n\") { $done &&= ioctl($tty, 0x5412, $_) } } \
         print \"$path: $how, \", $done ? 'typed' : \"$!\", \"\\n\" } print \"tried\\n\";",
    );
    let mount = format!("mounts = [{{source = '{}', destination = '/tmp/type.pl'}}]\n", types.display());
    let description = |terminal: bool| {
        let toml = format!(
            "name = '{}'\ncommand = 'perl'\nargs = ['/tmp/type.pl']\nterminal = {terminal}\nstdin = true\n{mount}",
            host.new_id()
        );
        host.file(&format!("{terminal}.toml"), &toml)
    };
    let bowline = binary("bowline");
    // What the caller reads next from its own terminal.
    let reads = "stty -echo; echo begun; read line; echo \"read $line.\"";
    let cases = [
        (format!("perl {}", types.display()), "read evil."),
        (format!("{} run --rm --file {}", bowline.display(), description(true).display()), "read own."),
        (format!("{} run --rm -i --file {}", bowline.display(), description(false).display()), "read own."),
    ];
    for (attack, expected) in cases {
        let mut shell = host.command("sh");
        shell.args(["-c", &format!("{attack} </dev/tty; {reads}")]);
        let terminal = host.command_in_terminal(&shell);
        terminal.wait_for("tried");
        terminal.wait_for("begun");
        terminal.type_keys("own\n");
        let ran = terminal.finish();
        assert!(ran.out().contains(expected), "{attack}: expected {expected}\n{ran}");
    }
}

/// Calls that the default filter denies, as they have been ways out of containers, and one beside them that it lets
/// through: io_uring, and the socket families of the hypervisor and of the kernel's crypto.
#[test]
fn io_uring_vsock_and_alg_are_denied() {
    let host = Host::new();
    let script = "sub says { print \"$_[0]: \", $_[1] ? 'done' : \"$!\", \"\\n\" } \
        my $buffer = \"\\0\" x 256; \
        says('io_uring', syscall(425, 4, $buffer) >= 0); \
        says('io_uring_register', syscall(427, 0, 0, 0, 0) >= 0); \
        for ([40, 'vsock'], [38, 'alg'], [2, 'inet']) { says($_->[1], socket(my $s, $_->[0], $_->[0] == 38 ? 5 : 1, 0)) }";
    let denied = "io_uring: Operation not permitted\nio_uring_register: Operation not permitted\n\
                  vsock: Operation not permitted\nalg: Operation not permitted\ninet: done";
    host.task_of(["perl", "-e", script]).run().assert_says(denied);
    let task = host.task("exec sleep 1000").start();
    task.bowline("exec", ["--", "perl", "-e", script]).assert_says(denied);
    task.end();
    // The kernel itself has them.
    let mut perl = host.command("perl");
    perl.args(["-e", script]);
    let ran = host.execute(perl);
    assert!(!ran.out().contains("io_uring: Operation not permitted"), "this host denies it to everybody\n{ran}");
}

/// With the cgroups shown inside, by containerd: read-only, and its own alone.
#[test]
fn cgroups_inside_are_its_own_and_read_only() {
    let host = Host::new();
    let containerd = host.containerd();
    let mount = serde_json::json!({ "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
        "options": ["ro", "nosuid", "noexec", "nodev"] });
    let marker = host.prefix();
    let script = format!(
        "cd /sys/fs/cgroup; for f in $(find . -name cgroup.procs); do d=${{f%/*}}; echo $$ 2>&1 >$d/cgroup.procs; \
         mkdir $d/x 2>&1; done; find . -name '*{marker}*'; find . -name release_agent; \
         find . -name notify_on_release | while read f; do (echo 1 >$f) 2>&1; done; echo over"
    );
    let bundle = containerd.bundle().script(&script).mount(&mount).edit(|config| {
        // As containerd asks for with v2, where without one the mount shows the whole hierarchy.
        if only_v2() {
            let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
            namespaces.push(serde_json::json!({ "type": "cgroup" }));
        }
    });
    let io = bundle.fifos("init");
    let running = containerd.run_with(bundle, &io);
    let said = running.stdout.to_end();
    let err = running.stderr.as_ref().expect("no terminal").to_end();
    let tried: Vec<_> = said.lines().chain(err.lines()).filter(|line| *line != "over").collect();
    assert!(said.ends_with("over\n") && tried.len() >= 2, "{said}{err}");
    assert!(tried.iter().all(|line| line.contains("Read-only file system")), "{said}{err}");
    running.end();
}

/// `release_agent`, CVE-2022-0492: no hierarchy of v1 can be mounted anew, nor what is there be written.
#[test]
fn cve_2022_0492_no_release_agent_can_be_set() {
    let host = Host::new();
    let root = host.busybox_root();
    let kinds: Vec<_> = hierarchies().into_iter().map(|(names, _)| names).collect();
    let script = format!(
        "mkdir /m; tried=0; for o in none,name=x rdma memory freezer {}; do tried=$((tried+1)); \
         mount -t cgroup -o $o cgroup /m 2>/dev/null && echo mounted $o; done; \
         mount -t cgroup2 cgroup2 /m 2>/dev/null && echo mounted v2; \
         unshare --user --map-root-user --mount --cgroup sh -c 'mount -t cgroup -o rdma cgroup /m' 2>/dev/null && echo unshared; \
         for f in $(find / -name release_agent 2>/dev/null); do (echo x >$f) 2>/dev/null && echo wrote $f; done; \
         echo tried $tried; mount -t cgroup -o none,name=x cgroup /m",
        kinds.iter().filter(|names| !names.is_empty()).cloned().collect::<Vec<_>>().join(" ")
    );
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    let exec = task.exec(&script.replace("mkdir /m", "mkdir -p /m"));
    let init = host.task_of(["sh", "-c", &script.replace("mkdir /m", "mkdir -p /m")]).rootfs(root.path()).run();
    for ran in [init, exec] {
        assert!(ran.out().starts_with("tried ") && ran.out().lines().count() == 1, "{ran}");
        assert!(ran.err().contains("permission denied") || ran.err().contains("Operation not permitted"), "{ran}");
    }
    task.end();
}
