//! What masks a file, and what a stream that leads nowhere is, belongs to the task: whatever it does to that, the host's
//! device nodes stay as they are.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Stdio};
use bowline_tests::harness::eventually;
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid};
use serde_json::json;

/// The device nodes that every task has.
const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// What a task tries on every file that is masked, its standard streams and its own nodes; then it says so.
const ATTACK: &str = r#"
attack() {
    chmod 1666 $1
    chown 1:1 $1
    touch $1
    true >$1
    truncate -s 0 $1
    perl -e '($path, $name, $value) = ($ARGV[0], "security.bowline", "x");
        syscall(188, $path, $name, $value, 1, 0)' $1
    setfacl -m u:1:rw $1
}
masked=$(cut -d' ' -f5 /proc/self/mountinfo | grep -E '^/(proc|sys)/')
for file in $masked /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty; do
    test ! -c $file || attack $file
done
test -c /proc/keys || exit 9
"#;

/// The host's nodes as they were; they are so again in the end, whatever a test has found.
struct Nodes(Vec<(String, fs::Metadata)>);

impl Nodes {
    fn of_host() -> Nodes {
        let of = |name: &str| {
            let path = format!("/dev/{name}");
            let before = fs::metadata(&path).expect("every host has it");
            (path, before)
        };
        Nodes(NODES.map(of).into())
    }

    #[track_caller]
    fn assert_unchanged(&self) {
        for (path, before) in &self.0 {
            let after = fs::metadata(path).expect("every host has it");
            assert_eq!(facts(&after), facts(before), "{path} has changed on the host");
        }
    }
}

/// Mode, owner and times; the change time also shows changed attributes.
fn facts(meta: &fs::Metadata) -> (String, [u32; 2], [i64; 6]) {
    let times = [meta.atime(), meta.atime_nsec(), meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
    (format!("{:o}", meta.mode()), [meta.uid(), meta.gid()], times)
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (path, before) in &self.0 {
            let now = fs::metadata(path).expect("every host has it");
            if facts(&now) == facts(before) {
                continue;
            }
            let (uid, gid) = (Uid::from_raw(before.uid()), Gid::from_raw(before.gid()));
            let _ = rustix::fs::chown(path, Some(uid), Some(gid));
            let _ = rustix::fs::chmod(path, Mode::from_raw_mode(before.mode() & 0o7777));
            let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
            let times = Timestamps {
                last_access: time(before.atime(), before.atime_nsec()),
                last_modification: time(before.mtime(), before.mtime_nsec()),
            };
            let _ = rustix::fs::utimensat(CWD, path, &times, AtFlags::empty());
        }
    }
}

/// Lines of a description: a task that attacks, then sleeps, with all this besides.
fn attacker(more: &str) -> String {
    format!("command = '/bin/sh'\nargs = ['-c', '''{ATTACK} echo done; exec sleep 1000''']\n{more}\n")
}

const USER_NAMESPACE: &str = "namespaces.user = 'private'\n\
                              uid_mappings = [{container = 0, host = 200000, size = 65536}]\n\
                              gid_mappings = [{container = 0, host = 200000, size = 65536}]";

/// Starts a task with these lines, and attacks from init and by an exec.
#[track_caller]
fn attack(more: &str) {
    let host = Host::alone();
    let nodes = Nodes::of_host();
    let task = host.described(&attacker(more)).start();
    task.wait_for_line("done");
    nodes.assert_unchanged();
    task.exec(&format!("{ATTACK} echo done")).assert_says("done");
    nodes.assert_unchanged();
    task.end();
}

#[test]
fn masks_and_streams_of_a_default_task_are_its_own() {
    attack("");
}

#[test]
fn masks_and_streams_of_a_task_without_capabilities_are_its_own() {
    attack("capabilities = {drop = ['ALL']}");
}

#[test]
fn masks_and_streams_of_a_task_with_many_rights_are_its_own() {
    attack("capabilities = {add = ['SYS_ADMIN', 'DAC_OVERRIDE', 'FOWNER']}\nseccomp = 'unconfined'");
}

#[test]
fn masks_and_streams_in_a_user_namespace_are_its_own() {
    attack(USER_NAMESPACE);
}

#[test]
fn a_null_device_that_the_description_mounts_masks_nothing() {
    attack("[[mounts]]\nsource = '/etc/hostname'\ndestination = '/dev/null'\nread_only = true");
}

#[test]
fn streams_of_a_health_check_are_its_own() {
    for more in ["", USER_NAMESPACE] {
        let host = Host::alone();
        let nodes = Nodes::of_host();
        let task = host
            .described(&format!(
                "command = 'sleep'\nargs = ['1000']\n{more}\n[healthcheck]\ninterval = '10ms'\n\
                 exec = ['/bin/sh', '-c', '''{ATTACK} echo done''']"
            ))
            .start();
        eventually("a check", || (task.inspect()["health"]["status"] == "healthy").then_some(()));
        nodes.assert_unchanged();
        task.end();
        host.assert_nothing_left();
    }
}

#[test]
fn an_exec_has_a_null_device_whatever_became_of_the_tasks_own() {
    let host = Host::alone();
    let nodes = Nodes::of_host();
    let root = host.busybox_root();
    let task = host.task_of(["sleep", "1000"]).rootfs(root.path()).start();
    let look = "readlink /proc/self/fd/0; stat -L -c %t:%T /proc/self/fd/0; cat";
    task.exec(look).assert_says("/null\n1:3");
    task.exec("rm /dev/null; echo false >/dev/null; chmod 600 /proc/self/fd/0; cat /dev/null").assert_says("false");
    task.exec(look).assert_says("/null\n1:3");
    nodes.assert_unchanged();
    task.end();
}

#[test]
fn what_an_exec_makes_of_its_null_device_the_next_does_not_find() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let flags = || task.exec("grep flags /proc/self/fdinfo/0").assert_code(0).out();
    let before = flags();
    let change = "perl -e 'use Fcntl; fcntl(STDIN, F_SETFL, O_NONBLOCK | O_APPEND) or die; \
                  open(F, \"/proc/self/fdinfo/0\"); print <F>'";
    assert!(!task.exec(change).assert_code(0).out().contains(before.trim()), "it has changed its own");
    assert_eq!(flags(), before);
    task.end();
}

#[test]
fn masked_files_are_empty_and_masked_folders_too() {
    for more in ["", USER_NAMESPACE] {
        let host = Host::new();
        let script = "for f in /proc/keys /proc/kcore /proc/timer_list; do test ! -e $f || cat $f; done
            for d in /proc/acpi /proc/scsi /sys/firmware; do test ! -d $d || ls -A $d; done; echo x >/proc/keys; echo end";
        let ran = host.described(&format!("command = '/bin/sh'\nargs = ['-c', '''{script}''']\n{more}")).run();
        ran.assert_says("end");
        host.assert_nothing_left();
    }
}

/// Gives a root filesystem to a user namespace's root.
fn give_to(path: &Path, id: u32) {
    chown(path, Some(id), Some(id)).expect("root may give away");
    for entry in fs::read_dir(path).expect("a folder").flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            give_to(&entry.path(), id);
        }
    }
}

fn in_user_namespace(bundle: Bundle) -> Bundle {
    give_to(&bundle.rootfs(), 200_000);
    bundle.edit(|config| {
        let map = json!([{"containerID": 0, "hostID": 200_000, "size": 65536}]);
        let linux = &mut config["linux"];
        (linux["uidMappings"], linux["gidMappings"]) = (map.clone(), map);
        linux["namespaces"].as_array_mut().expect("a list").push(json!({"type": "user"}));
    })
}

/// Attacks from init and by an exec in a bundle; both have these streams.
#[track_caller]
fn attack_by_bundle(io: &Stdio, change: impl FnOnce(Bundle) -> Bundle) {
    let host = Host::alone();
    if host.reference_fails("it hands out the null device of the host") {
        return;
    }
    let nodes = Nodes::of_host();
    let containerd = host.containerd();
    let bundle = change(containerd.bundle().script(&format!("{ATTACK} echo >/tmp/done; sleep 1000")));
    let shim = containerd.start(&bundle);
    let pid = shim.run(&bundle, io);
    let done = format!("/proc/{pid}/root/tmp/done");
    eventually("init has tried all", || Path::new(&done).exists().then_some(()));
    nodes.assert_unchanged();
    let process = bundle.process(&["/bin/sh", "-c", &format!("{ATTACK} exit 7")]);
    shim.exec(&bundle.id, "attack", &process, io).expect("taken");
    shim.start(&bundle.id, "attack").expect("started");
    assert_eq!(shim.status_at_end(&bundle.id, "attack"), 7);
    shim.delete(&bundle.id, "attack").expect("deleted");
    nodes.assert_unchanged();
    shim.end(&bundle.id);
}

#[test]
fn under_containerd_streams_that_lead_nowhere_are_the_tasks_own() {
    attack_by_bundle(&Stdio::null(), |bundle| bundle);
}

#[test]
fn under_containerd_they_are_in_a_user_namespace_too() {
    attack_by_bundle(&Stdio::null(), in_user_namespace);
}

#[test]
fn under_containerd_they_are_without_a_dev_of_the_tasks_own() {
    let without_dev = |bundle: Bundle| {
        bundle.edit(|config| {
            let mounts = config["mounts"].as_array_mut().expect("a list");
            mounts.retain(|mount| mount["destination"] != "/dev");
        })
    };
    attack_by_bundle(&Stdio::null(), |bundle| with_null(without_dev(bundle)));
    attack_by_bundle(&Stdio::null(), |bundle| in_user_namespace(with_null(without_dev(bundle))));
}

/// Its image brings what the attack writes to.
fn with_null(bundle: Bundle) -> Bundle {
    fs::write(bundle.rootfs().join("dev/null"), "").expect("the work folder is writable");
    rustix::fs::chmod(bundle.rootfs().join("dev/null"), Mode::from_raw_mode(0o666)).expect("ours");
    bundle
}
