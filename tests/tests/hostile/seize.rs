//! A process that is being started cannot be seized by a task that sees it (CVE-2016-9962).

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Containerd, Running, Stdio};
use bowline_tests::harness::{eventually, is_slow};
use serde_json::json;

const GROUP: &str = "io.containerd.runc.v2.group";

/// Tells the attacker which file of the host to go for.
const SECRET: &str = "BOWLINE_TEST_SECRET";

/// How many processes the attacker has to choose from.
fn many() -> usize {
    if is_slow() { 30 } else { 300 }
}

/// What the attacker's container runs: this very program. By itself it is no test.
#[test]
fn an_attacker() {
    if let Ok(secret) = std::env::var(SECRET) {
        attack(&secret);
    }
}

/// Looks into every other process again and again: by the rule of `ptrace`, which `/proc/PID/exe` and `root` follow.
fn attack(secret: &str) -> ! {
    let say = |line: String| {
        // Nobody reads it any more.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    };
    let ourselves = std::process::id().to_string();
    let mut met = HashSet::new();
    say("ready".to_owned());
    loop {
        for entry in fs::read_dir("/proc").expect("a /proc").flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            if name == ourselves || !name.starts_with(|first: char| first.is_ascii_digit()) {
                continue;
            }
            // What a victim executes is busybox; before that it is ours.
            if let Some(exe) = fs::read_link(format!("/proc/{name}/exe")).ok().filter(|exe| !exe.ends_with("busybox")) {
                say(format!("seized {}", exe.display()));
            }
            if let Ok(text) = fs::read_to_string(format!("/proc/{name}/root{secret}")) {
                say(format!("seized the host: {text}"));
            }
            if met.insert(name) {
                say("met".to_owned());
            }
        }
    }
}

/// Makes the bundle run the attacker.
fn attacking(bundle: Bundle, secret: &Path) -> Bundle {
    let program = std::env::current_exe().expect("a test has a path");
    fs::write(bundle.rootfs().join("attacker"), "").expect("ours");
    let bind = |from: &Path, to: &str| json!({ "source": from, "destination": to, "type": "bind", "options": ["rbind", "ro"] });
    let mut bundle = bundle.mount(&bind(&program, "/attacker"));
    // The program is linked dynamically.
    for libraries in ["/lib", "/lib64", "/usr/lib"].into_iter().filter(|path| Path::new(path).exists()) {
        fs::create_dir_all(bundle.rootfs().join(&libraries[1..])).expect("ours");
        bundle = bundle.mount(&bind(Path::new(libraries), libraries));
    }
    let args = ["/attacker", "--exact", "hostile::seize::an_attacker", "--nocapture", "--test-threads=1"];
    bundle.args(&args).edit(|config| config["process"]["env"] = json!([format!("{SECRET}={}", secret.display())]))
}

/// Has the attacker in `bundle` watch launches beside it, which share what `shared` names, and execs beside those.
fn assert_nothing_seized(host: &Host, containerd: &Containerd<'_>, bundle: Bundle, shared: &[&str]) {
    let group = host.new_id();
    let secret = host.file("secret", "the host's");
    let bundle = attacking(bundle, &secret).annotation(GROUP, &group);
    let io = bundle.fifos("init");
    let attacker = containerd.run_with(bundle, &io);
    eventually("the attacker runs", || attacker.stdout.text().contains("ready\n").then_some(()));

    let namespaces = |kind: &str| json!({ "type": kind, "path": format!("/proc/{}/ns/{kind}", attacker.pid) });
    let victim = containerd.bundle().args(&["/bin/true"]).annotation(GROUP, &group).edit(|config| {
        let all = config["linux"]["namespaces"].as_array_mut().expect("a list");
        all.retain(|namespace| !shared.iter().any(|kind| namespace["type"] == *kind));
        all.extend(shared.iter().map(|kind| namespaces(kind)));
        config["linux"]["uidMappings"] = attacker.bundle.config["linux"]["uidMappings"].clone();
        config["linux"]["gidMappings"] = attacker.bundle.config["linux"]["gidMappings"].clone();
    });
    let shim = containerd.start(&victim);
    assert_eq!(shim.socket, attacker.shim.socket, "one shim for both");
    for _ in 0..many() {
        shim.run(&victim, &Stdio::null());
        assert_eq!(shim.status_at_end(&victim.id, ""), 0);
        shim.delete(&victim.id, "").expect("it has ended");
    }
    for _ in 0..many() {
        shim.run_exec(&attacker.bundle, "e", &["/bin/true"], &Stdio::null());
        assert_eq!(shim.status_at_end(&attacker.id, "e"), 0);
        shim.delete(&attacker.id, "e").expect("it has ended");
    }
    assert_left_alone(attacker);
}

#[track_caller]
fn assert_left_alone(attacker: Running<'_>) {
    let said = attacker.stdout.text();
    let of = |what: &str| said.lines().filter(|line| line.starts_with(what)).collect::<Vec<_>>();
    assert!(of("seized").is_empty(), "{} of {}: {:?}", of("seized").len(), 2 * many(), of("seized")[0]);
    assert!(of("met").len() > many(), "it hardly saw any: {}", of("met").len());
    attacker.end();
}

#[test]
fn a_user_namespace_sharer_that_may_trace_seizes_nothing() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().edit(|config| {
        for set in ["bounding", "effective", "permitted"] {
            let all = config["process"]["capabilities"][set].as_array_mut().expect("a list");
            all.push(json!("CAP_SYS_PTRACE"));
        }
        let mapping = json!([{ "containerID": 0, "hostID": 200_000, "size": 65_536 }]);
        config["linux"]["uidMappings"] = mapping.clone();
        config["linux"]["gidMappings"] = mapping;
        config["linux"]["namespaces"].as_array_mut().expect("a list").push(json!({ "type": "user" }));
    });
    assert_nothing_seized(&host, &containerd, bundle, &["pid", "user"]);
}

#[test]
fn a_pid_sharer_with_default_capabilities_seizes_nothing() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    assert_nothing_seized(&host, &containerd, bundle, &["pid"]);
}

/// What a process has open beyond its standard streams.
fn held_by(pid: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").flatten();
    let others = entries.filter(|entry| !["0", "1", "2"].iter().any(|number| entry.file_name() == *number));
    others.filter_map(|entry| fs::read_link(entry.path()).ok()).map(|of| of.display().to_string()).collect()
}

/// Its manager may never start it.
#[test]
fn an_init_that_was_created_holds_two_pipes_and_its_streams() {
    let host = Host::new();
    if host.reference_fails("its init is another program") {
        return;
    }
    let containerd = host.containerd();
    let data = host.file("data", "text");
    let mount = json!({ "source": data, "destination": "/data", "type": "bind", "options": ["bind", "ro"] });
    for terminal in [false, true] {
        let bundle = containerd.bundle().args(&["/bin/true"]).mount(&mount);
        let bundle = bundle.edit(|config| config["process"]["terminal"] = json!(terminal));
        let io = if terminal { bundle.fifos_of_terminal("init") } else { bundle.fifos("init") };
        let (stdout, _stderr) = io.open();
        let shim = containerd.start(&bundle);
        let pid = shim.create(&bundle, &io).expect("created");
        let held = held_by(pid);
        // By these it is told to start, and reports.
        assert!(held.len() == 2 && held.iter().all(|of| of.starts_with("pipe:")), "{held:?}");
        shim.start(&bundle.id, "").expect("started");
        assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
        shim.end(&bundle.id);
        drop(stdout);
    }
}

/// The number of the system call ptrace(2), for perl's `syscall`.
const PTRACE: &str = if cfg!(target_arch = "x86_64") { "101" } else { "117" };

/// Seizes every process that there may be, by number, without end, and counts the refusals. Busybox is the program of a
/// victim that has started.
const SEIZES: &str = r#"
    $| = 1; my ($refused, $told, $last) = (0, 0, $$);
    print "ready\n";
    while (1) {
        for my $pid (2 .. $last + 20) {
            next if $pid == $$;
            my $seized = syscall(PTRACE, 0x4206, $pid, 0, 0) == 0;
            next if !$seized && $! == 3;
            $last = $pid if $pid > $last;
            if (!$seized) { $refused++; next }
            my $exe = readlink "/proc/$pid/exe";
            print "seized $pid $exe\n" unless $exe =~ /busybox/;
            syscall(PTRACE, 0x4207, $pid, 0, 0); waitpid $pid, 0x40000000; syscall(PTRACE, 17, $pid, 0, 0);
        }
        if ($refused > $told + 1000) { $told = $refused; print "refused $refused\n" }
    }
"#;

/// 36 million times in an hour; here a share of it. The victim is a container that is created and not started: an init
/// before execve, which stays.
#[test]
fn an_init_that_waits_is_never_seized_however_often_it_is_tried() {
    let host = Host::new();
    let containerd = host.containerd();
    let group = host.new_id();
    let script = SEIZES.replace("PTRACE", PTRACE);
    let mut bundle = containerd.bundle().annotation(GROUP, &group);
    for folder in ["/lib", "/lib64", "/usr"].into_iter().filter(|path| Path::new(path).exists()) {
        fs::create_dir_all(bundle.rootfs().join(&folder[1..])).expect("ours");
        bundle = bundle
            .mount(&json!({ "source": folder, "destination": folder, "type": "bind", "options": ["rbind", "ro"] }));
    }
    let bundle = bundle.args(&["/usr/bin/perl", "-e", &script]);
    let io = bundle.fifos("init");
    let attacker = containerd.run_with(bundle, &io);
    eventually("the attacker runs", || attacker.stdout.text().contains("ready\n").then_some(()));
    let victim = containerd.bundle().args(&["/bin/true"]).annotation(GROUP, &group).edit(|config| {
        let all = config["linux"]["namespaces"].as_array_mut().expect("a list");
        all.retain(|namespace| namespace["type"] != "pid");
        all.push(json!({ "type": "pid", "path": format!("/proc/{}/ns/pid", attacker.pid) }));
    });
    let shim = containerd.start(&victim);
    let refused = || {
        let said = attacker.stdout.text();
        said.lines().filter_map(|line| line.strip_prefix("refused ")?.parse::<u64>().ok()).next_back().unwrap_or(0)
    };
    for _ in 0..if is_slow() { 2 } else { 4 } {
        shim.create(&victim, &Stdio::null()).expect("created");
        let before = refused();
        eventually("it is tried", || (refused() > before + 1000).then_some(()));
        shim.start(&victim.id, "").expect("started");
        assert_eq!(shim.status_at_end(&victim.id, ""), 0);
        shim.delete(&victim.id, "").expect("it has ended");
    }
    let said = attacker.stdout.text();
    let seized: Vec<&str> = said.lines().filter(|line| line.starts_with("seized")).collect();
    assert!(seized.is_empty(), "{seized:?} after {} tries", refused());
    attacker.end();
}

/// Where init is to be looked at: namespaces made, the root not changed yet.
#[test]
fn init_holds_what_it_needs_alone_while_it_is_being_set_up() {
    let host = Host::new();
    if host.reference_fails("init has the null device of the host open, and more") {
        return;
    }
    let containerd = host.containerd();
    let seen = host.work().join("seen");
    let look = format!(
        "pid=$(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/'); for fd in /proc/$pid/fd/*; do readlink $fd; done >{}",
        seen.display()
    );
    let bundle = containerd.bundle().args(&["/bin/true"]).edit(|config| {
        config["hooks"] = json!({ "createRuntime": [{ "path": "/bin/sh", "args": ["sh", "-c", look] }] });
    });
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &Stdio::null());
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0);
    shim.end(&bundle.id);
    let seen = fs::read_to_string(&seen).expect("the hook has run");
    let root = bundle.rootfs().display().to_string();
    // SECURITY.md lists them: streams and pipes, sources of mounts, how it enters its cgroup, its exit report's file.
    let is_needed = |of: &&str| {
        ["pipe:[", "user:[", root.as_str()].iter().any(|start| of.starts_with(start))
            || ["/tasks", "/cgroup.procs", "/exit.json.new"].iter().any(|end| of.ends_with(end))
    };
    let others: Vec<&str> = seen.lines().filter(|of| !is_needed(of)).collect();
    assert!(others.is_empty() && seen.contains("pipe:["), "{others:?}\n{seen}");
}
