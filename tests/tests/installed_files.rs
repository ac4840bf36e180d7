//! Whatever happens to the installed binaries, what runs goes on: shims run from a copy of their own.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::Stdio;
use bowline_tests::harness::{Ran, binary, lacks};

const ALL: [&str; 4] = ["bowline", "bowline-shim", "containerd-shim-bowline-v1", "bowline-init"];

/// The binaries, installed into a folder of the test's own.
fn installed(host: &Host) -> PathBuf {
    let folder = host.work().join("bin");
    fs::create_dir(&folder).expect("the work folder is writable");
    for name in ALL {
        install(&binary(name), &folder.join(name));
    }
    folder
}

/// By a process of its own: none of ours then has the file open for writing as it is executed.
fn install(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().expect("cp").success());
}

fn bowline(host: &Host, bin: &Path, args: &[&str]) -> Ran {
    let mut command = host.command(bin.join("bowline"));
    command.args(args);
    host.execute(command)
}

/// What people and packages do to an installed file.
const CHANGES: [(&str, &str); 5] = [
    ("overwritten in place", "cp /bin/true $0"),
    ("truncated", ": >$0"),
    ("filled with zeroes", "head -c $(stat -c %s $0) /dev/zero | dd of=$0 conv=notrunc status=none"),
    ("deleted", "rm $0"),
    ("replaced", "cp /bin/true $0.new; mv $0.new $0"),
];

fn change(script: &str, file: &Path) {
    assert!(Command::new("/bin/sh").args(["-c", script]).arg(file).status().expect("sh").success());
}

#[test]
fn a_task_does_not_notice_what_happens_to_the_installed_shim() {
    let host = Host::new();
    let bin = installed(&host);
    let shim = bin.join("bowline-shim");
    for (what, script) in CHANGES {
        let id = host.new_id();
        let task = host.adopt(&id);
        let started = bowline(&host, &bin, &["start", "--name", &id, "--", "sleep", "1000"]);
        started.assert_code(0);
        change(script, &shim);
        // Whatever pages its shim has not touched yet are those of its copy.
        task.exec("exit 7").assert_code(7);
        assert!(task.stats()["memory"].is_object(), "{what}");
        task.end();
        install(&binary("bowline-shim"), &shim);
    }
}

#[test]
fn a_container_does_not_notice_changes_to_the_installed_shim() {
    let host = Host::new();
    if host.reference_fails("it runs from the installed file, which cannot be written to meanwhile") {
        return;
    }
    let bin = installed(&host);
    let installed = bin.join(ALL[2]);
    let containerd = host.containerd();
    for (what, script) in CHANGES {
        let bundle = containerd.bundle().script("exec sleep 1000");
        containerd.read_log(&bundle);
        let theirs = containerd.command(&bundle, &["start"]);
        let mut command = Command::new(&installed);
        command.args(theirs.get_args()).current_dir(theirs.get_current_dir().expect("the bundle"));
        for (name, value) in theirs.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let (succeeded, said) = containerd.answer_of(command, b"");
        let said = String::from_utf8(said).expect("text");
        assert!(succeeded, "{said}");
        let shim = containerd.dial(said.strip_prefix("unix://").expect("an address").as_ref());
        shim.run(&bundle, &Stdio::null());
        change(script, &installed);
        shim.run_exec(&bundle, "e", &["/bin/sh", "-c", "exit 7"], &Stdio::null());
        assert_eq!(shim.status_at_end(&bundle.id, "e"), 7, "{what}");
        shim.delete(&bundle.id, "e").expect("deleted");
        shim.end(&bundle.id);
        install(&binary(ALL[2]), &installed);
    }
}

#[test]
fn the_next_shim_is_what_was_installed_last() {
    let host = Host::new();
    let bin = installed(&host);
    let run = || bowline(&host, &bin, &["run", "--rm", "--", "true"]);
    run().assert_code(0);
    // In place, with the size and the time of modification of what was there.
    let shim = bin.join("bowline-shim");
    change(
        "touch -r $0 $0.time; printf '#!/bin/false\\n' | dd of=$0 conv=notrunc status=none; touch -r $0.time $0",
        &shim,
    );
    run().assert_code(125);
    install(&binary("bowline-shim"), &shim);
    run().assert_code(0);
}

#[test]
fn all_shims_of_a_program_share_one_private_copy() {
    // Without overlays each has a copy in memory.
    if lacks("fsopen") {
        return;
    }
    let host = Host::new();
    let tasks = [(); 2].map(|()| host.task("exec sleep 1000").start());
    let exe = |pid: i32| fs::metadata(format!("/proc/{pid}/exe")).expect("a process has a binary");
    let [one, other] = tasks.each_ref().map(|task| exe(task.shim_pid()).ino());
    assert_eq!(one, other);
    let folder = Path::new("/var/lib/bowline/programs");
    assert_eq!(fs::metadata(folder).expect("copies are there").permissions().mode() & 0o777, 0o700);
    let copies = fs::read_dir(folder).expect("root may").flatten().map(|entry| entry.path().join("program"));
    assert!(copies.filter_map(|copy| fs::metadata(copy).ok()).any(|copy| copy.ino() == one), "it is one of those");
    tasks.iter().for_each(|task| drop(task.end()));
}
