//! `bowline gc`: removes leftovers, and touches nothing else.
//! The kernel's files are the witnesses.
//!
//! Each test names its own: others run at the same time, and have orphans too.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{
    Elsewhere, Process, Ran, Task, binary, eventually, has_systemd, hierarchies, lacks_systemd, only_v2, process_exists,
};
use rustix::process::{Pid, Signal, kill_process};

const IDLE: &str = "exec sleep 1000";

/// A cgroup that nobody will come back for.
fn orphan(host: &Host, path: &str) -> Elsewhere {
    host.bowline(["cgroup", "ensure", path]).assert_says("");
    host.cgroup(path)
}

/// A process in it, which is the test's, and of no shim.
fn process_in(host: &Host, cgroup: &Elsewhere) -> Process {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let process = host.spawn_command(cgroup.inside(&sleep));
    cgroup.wait_for(process.pid());
    process
}

fn gc<const N: usize>(host: &Host, args: [&str; N]) -> Ran {
    host.bowline(["gc"].into_iter().chain(args))
}

#[track_caller]
fn assert_gone(cgroup: &Elsewhere) {
    assert!(cgroup.there().is_empty(), "left: {:?}", cgroup.there());
}

/// A task whose shim is dead and whose processes live on.
fn dead(host: &Host) -> Task<'_> {
    let task =
        host.described("command = 'sh'\nargs = ['-c', 'sleep 1000 & echo ready; wait']\nnamespaces.pid = 'host'");
    let task = task.start();
    task.wait_for_line("ready");
    task.kill_shim(task.shim_pid());
    task
}

/// A task whose shim is dead, whose init has ended since, and whose other process lives on.
fn dead_with_init(host: &Host) -> Task<'_> {
    let toml = "command = 'sh'\nargs = ['-c', 'sleep 1000 & echo ready; wait']\nnamespaces.pid = 'host'\ninit = false";
    let task = host.described(toml).start();
    task.wait_for_line("ready");
    let init = task.pid();
    task.kill_shim(task.shim_pid());
    kill_process(Pid::from_raw(init).expect("a pid"), Signal::KILL).expect("it lives");
    eventually("its init is gone", || (!process_exists(init)).then_some(()));
    task
}

/// A task whose shim died, as another state folder sees it, or after its own was removed.
fn dead_elsewhere(host: &Host) -> (String, Vec<i32>, Elsewhere) {
    let task = dead(host);
    let (id, pids) = (task.id().to_owned(), task.all_processes());
    let cgroup = host.cgroup(&format!("/bowline/{}", task.on_host()));
    fs::remove_dir_all(host.state().join(&id)).expect("ours");
    (id, pids, cgroup)
}

#[test]
fn an_orphan_without_processes_is_listed_and_removed() {
    let host = Host::new();
    let id = host.new_id();
    let (cgroup, inner) =
        (orphan(&host, &format!("/bowline/{id}")), orphan(&host, &format!("/bowline/{id}/{id}/below")));
    let ran = gc(&host, ["--dry-run", &id]);
    assert!(ran.assert_code(0).out().starts_with(&format!("cgroup {id}: ")), "{ran}");
    assert_eq!(ran.out().lines().count(), 1, "{ran}");
    assert_eq!(inner.there().len(), hierarchies().len(), "a dry run touches nothing");
    let ran = gc(&host, [&id]);
    assert!(ran.assert_code(0).out().starts_with(&format!("cgroup {id}: ")), "{ran}");
    assert_gone(&cgroup);
    gc(&host, [&id]).assert_says("");
}

#[test]
fn from_another_pid_namespace_an_orphan_is_left_alone() {
    let host = Host::new();
    let id = host.new_id();
    let cgroup = orphan(&host, &format!("/bowline/{id}"));
    let mut apart = host.command("unshare");
    apart.args(["--pid", "--fork", "--mount-proc", "--"]).arg(binary("bowline")).args(["gc", &id]);
    let ran = host.execute(apart);
    ran.assert_code(0);
    assert!(ran.err().contains("another pid namespace"), "{ran}");
    assert!(!cgroup.there().is_empty(), "its shim might live");
    gc(&host, [&id]).assert_code(0);
    assert_gone(&cgroup);
}

#[test]
fn the_processes_of_an_orphan_are_ended() {
    let host = Host::new();
    let (id, pids, cgroup) = dead_elsewhere(&host);
    let ran = gc(&host, ["--dry-run", &id]);
    assert!(ran.assert_code(0).out().ends_with(&format!("; {} processes", pids.len())), "{ran}");
    assert!(pids.len() == 3 && pids.iter().all(|pid| process_exists(*pid)), "a dry run touches nothing: {pids:?}");
    gc(&host, [&id]).assert_code(0);
    assert!(!pids.iter().any(|pid| process_exists(*pid)), "gone when it returns");
    assert_gone(&cgroup);
    host.assert_nothing_left_without_rm();
}

#[test]
fn an_orphan_that_keeps_forking_is_ended() {
    let host = Host::new();
    let id = host.new_id();
    let cgroup = orphan(&host, &format!("/bowline/{id}"));
    // Its children are nobody's a moment later.
    let mut forks = Command::new("/bin/sh");
    forks.args(["-c", "f() { while :; do (setsid sleep 0.05 &); done; }; f & f & f & wait"]);
    let process = host.spawn_command(cgroup.inside(&forks));
    eventually("there are many", || (cgroup.pids().len() > 15).then_some(()));
    gc(&host, [&id]).assert_code(0);
    assert_eq!(process.finish().code, None);
    assert_gone(&cgroup);
}

#[test]
fn a_frozen_orphan_is_ended_too() {
    let host = Host::new();
    let (id, pids, cgroup) = dead_elsewhere(&host);
    let (file, frozen) = if only_v2() { ("cgroup.freeze", "1") } else { ("freezer.state", "FROZEN") };
    let inner = host.cgroup(&format!("{}/{id}", cgroup.path()));
    let folder = inner.there().into_iter().find(|folder| folder.join(file).exists()).expect("a freezer");
    fs::write(folder.join(file), frozen).expect("root may");
    gc(&host, [&id]).assert_code(0);
    assert!(!pids.iter().any(|pid| process_exists(*pid)), "{pids:?}");
    assert_gone(&cgroup);
    host.assert_nothing_left_without_rm();
}

#[test]
fn an_orphan_in_one_hierarchy_alone_is_removed() {
    let host = Host::new();
    let id = host.new_id();
    let cgroup = host.cgroup(&format!("/bowline/{id}"));
    // Not where processes are looked for first.
    let folder = cgroup.folders().into_iter().find(|folder| only_v2() || folder.to_string_lossy().contains("/pids/"));
    let folder = folder.expect("a hierarchy");
    fs::create_dir_all(&folder).expect("root may");
    let process = process_in(&host, &cgroup);
    let ran = gc(&host, ["--json", &id]);
    let listed = ran.assert_code(0).json();
    assert_eq!((&listed[0]["what"], &listed[0]["id"]), (&"cgroup".into(), &id.as_str().into()), "{ran}");
    assert_eq!((&listed[0]["processes"], &listed[0]["removed"]), (&1.into(), &true.into()), "{ran}");
    assert!(ran.out().contains(folder.to_str().expect("ASCII")) || only_v2(), "{ran}");
    assert_eq!(process.finish().code, None, "it was killed");
    assert_gone(&cgroup);
}

#[test]
fn a_task_that_lives_is_touched_by_nobody() {
    let host = Host::new();
    let (task, paused) = (host.task(IDLE).start(), host.task(IDLE).start());
    paused.bowline("pause", []).assert_code(0);
    let elsewhere = host.work().join("other");
    for state in [host.state(), elsewhere] {
        let state = format!("--state={}", state.display());
        for id in [task.id(), paused.id()] {
            host.bowline(["gc", &state, "--dry-run", id]).assert_says("");
            host.bowline(["gc", &state, id]).assert_says("");
        }
    }
    task.exec("echo well").assert_says("well");
    assert_eq!((task.status().as_str(), paused.status().as_str()), ("running", "paused"));
    paused.bowline("resume", []).assert_code(0);
    task.end();
    paused.end();
}

#[test]
fn what_a_new_shim_can_take_over_is_left_alone() {
    let host = Host::new();
    let (task, sandbox, empty) = (dead(&host), host.sandbox().flag("--share-pid").create(), host.sandbox().create());
    let member = sandbox.task(IDLE).start();
    let pids = [task.all_processes(), member.all_processes(), vec![sandbox.pause_pid()]].concat();
    [&sandbox, &empty].iter().for_each(|sandbox| sandbox.kill_shim());
    let ids = [task.id(), sandbox.id(), member.id(), empty.id()];
    for flags in [&["--dry-run"][..], &[], &["--pods-root", "bowline-no-such-root"]] {
        let ran = host.bowline([&["gc"], flags, &ids[..]].concat());
        ran.assert_says("");
        assert_eq!(ran.err().lines().count(), ids.len(), "{ran}");
        for id in ids {
            assert!(ran.err().contains(&format!("`bowline adopt {id}`")), "{id}: {ran}");
        }
    }
    assert!(pids.iter().all(|pid| process_exists(*pid)), "{pids:?}");
    host.bowline(["adopt", "--all"]).assert_code(0);
    assert_eq!((task.status().as_str(), member.status().as_str()), ("running", "running"));
    gc(&host, ids).assert_says("");
    task.end();
    sandbox.rm(["-f"]);
    empty.rm([]);
}

#[test]
fn a_pod_with_an_adoptable_task_stays_unless_known_to_be_gone() {
    let host = Host::new();
    let root = host.prefix().replace('_', "-");
    let uid = format!("1-{root}");
    let pod = orphan(&host, &format!("/{root}/pod{uid}"));
    let task =
        host.described(&format!("command = 'sleep'\nargs = ['1000']\ncgroup = '{}/of-task'", pod.path())).start();
    let init = task.pid();
    task.kill_shim(task.shim_pid());
    let other = host.file("alive", "another\n");
    let named = host.file("named", &format!("{uid}\n"));
    let alive = |file: &Path| ["--alive", file.to_str().expect("ASCII"), "--pods-root", &root].map(str::to_owned);
    for flags in [vec!["--pods-root".to_owned(), root.clone()], alive(&named).to_vec()] {
        let ran = host.bowline([vec!["gc".to_owned()], flags, vec![uid.clone(), task.id().to_owned()]].concat());
        ran.assert_says("");
        assert!(process_exists(init) && !pod.there().is_empty(), "{ran}");
    }
    let ran = host.bowline([vec!["gc".to_owned()], alive(&other).to_vec(), vec![uid, task.id().to_owned()]].concat());
    ran.assert_code(0);
    assert!(!process_exists(init), "{ran}");
    assert_gone(&pod);
    task.bowline("rm", []).assert_code(0);
    host.bowline(["cgroup", "destroy", &format!("/{root}")]).assert_code(0);
}

#[test]
fn leftovers_of_a_dead_shim_are_removed_and_its_folder_stays() {
    let host = Host::new();
    let task = dead_with_init(&host);
    let (pids, cgroup) = (task.all_processes(), host.cgroup(&format!("/bowline/{}", task.on_host())));
    let ran = gc(&host, ["--dry-run", task.id()]);
    assert!(ran.assert_code(0).out().starts_with(&format!("task {}: ", task.id())), "{ran}");
    assert_eq!(ran.out().lines().count(), 1, "{ran}");
    assert!(!pids.is_empty() && pids.iter().all(|pid| process_exists(*pid)), "a dry run touches nothing: {pids:?}");
    let ran = gc(&host, [task.id()]);
    assert!(ran.assert_code(0).out().starts_with(&format!("task {}: ", task.id())), "{ran}");
    assert!(!pids.iter().any(|pid| process_exists(*pid)), "{pids:?}");
    assert_gone(&cgroup);
    assert_eq!(task.status(), "dead");
    gc(&host, [task.id()]).assert_says("");
    task.bowline("rm", []).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_cgroup_that_was_there_before_its_dead_task_stays() {
    let host = Host::new();
    for left in [1, 0] {
        let own = orphan(&host, &format!("/{}-own/t", host.prefix()));
        let toml =
            "command = 'sh'\nargs = ['-c', 'sleep 1000 & echo ready; wait']\nnamespaces.pid = 'host'\ninit = false";
        let task = host.described(&format!("{toml}\ncgroup = '{}'", own.path())).start();
        task.wait_for_line("ready");
        let (init, there) = (task.pid(), own.there());
        task.kill_shim(task.shim_pid());
        for pid in own.pids().into_iter().filter(|pid| left == 0 || *pid == init) {
            kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL).expect("it lives");
        }
        eventually("what was killed has ended", || (own.pids().len() == left).then_some(()));
        gc(&host, [task.id()]).assert_code(0);
        assert_eq!((own.there(), own.pids()), (there, Vec::new()));
        gc(&host, ["--dry-run", task.id()]).assert_says("");
        task.bowline("rm", ["-f"]).assert_code(0);
        host.bowline(["cgroup", "destroy", own.path()]).assert_code(0);
    }
    host.bowline(["cgroup", "destroy", &format!("/{}-own", host.prefix())]).assert_code(0);
}

#[test]
fn a_task_that_has_taken_the_place_of_a_dead_one_is_not_touched() {
    let host = Host::new();
    let task = dead(&host);
    host.bowline(["cgroup", "destroy", &format!("/bowline/{}", task.on_host())]).assert_code(0);
    // Of the same name, in another state folder: where that one was.
    let other = format!("--state={}", host.work().join("other").display());
    host.bowline(["start", &other, "--name", task.id(), "--", "sleep", "1000"]).assert_code(0);
    gc(&host, [task.id()]).assert_says("");
    host.bowline(["exec", &other, task.id(), "--", "echo", "well"]).assert_says("well");
    host.bowline(["rm", &other, "-f", task.id()]).assert_code(0);
}

#[test]
fn leftovers_of_an_ended_task_are_removed_and_its_folder_stays() {
    let host = Host::new();
    let task = host.task("exit 3").start();
    task.wait().assert_code(3);
    eventually("its shim has gone", || (!process_exists(task.shim_pid_on_disk())).then_some(()));
    let cgroup = orphan(&host, &format!("/bowline/{}", task.on_host()));
    let ran = gc(&host, [task.id()]);
    assert!(ran.assert_code(0).out().contains("has ended"), "{ran}");
    assert_gone(&cgroup);
    assert_eq!(task.status(), "exited");
}

#[test]
fn the_cgroup_of_a_shim_that_has_gone_is_removed() {
    let host = Host::new();
    let id = host.new_id();
    let cgroup = orphan(&host, &format!("/bowline-overhead/{id}"));
    let process = process_in(&host, &cgroup);
    let ran = gc(&host, [&id]);
    assert!(ran.assert_code(0).out().starts_with(&format!("overhead {id}: ")), "{ran}");
    assert_eq!(process.finish().code, None);
    assert_gone(&cgroup);
}

#[test]
fn an_orphan_is_known_by_the_name_that_systemd_gives_it() {
    // Where systemd runs, it has made it.
    if has_systemd() {
        return;
    }
    let host = Host::new();
    let id = host.new_id();
    let slice = format!("bowline-{}.slice", id.replace('-', "\\x2d"));
    let cgroup = orphan(&host, &format!("/bowline.slice/{slice}/bowline-{id}.scope"));
    let process = process_in(&host, &cgroup);
    let ran = gc(&host, [&id]);
    assert!(ran.assert_code(0).out().starts_with(&format!("cgroup {id}: ")), "{ran}");
    assert_eq!(process.finish().code, None);
    assert_gone(&host.cgroup(&format!("/bowline.slice/{slice}")));
}

#[test]
fn the_units_of_an_orphan_are_stopped() {
    if lacks_systemd() {
        return;
    }
    let host = Host::new();
    let task = host.task(IDLE).flag("--cgroup-driver=systemd").start();
    let (id, name, pids) = (task.id().to_owned(), task.on_host(), task.all_processes());
    task.kill_shim(task.shim_pid());
    fs::remove_dir_all(host.state().join(&id)).expect("ours");
    let ran = gc(&host, [&id]);
    assert!(ran.assert_code(0).out().starts_with(&format!("cgroup {id}: ")), "{ran}");
    assert!(!pids.iter().any(|pid| process_exists(*pid)), "{pids:?}");
    for unit in [format!("bowline-{name}.scope"), format!("bowline-{}.slice", name.replace('-', "\\x2d"))] {
        eventually(format_args!("{unit} is over"), || {
            let shown = Command::new("systemctl").args(["is-active", "--", &unit]).output().expect("systemctl runs");
            (String::from_utf8_lossy(&shown.stdout).trim() != "active").then_some(())
        });
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn pods_without_a_shim_are_removed_when_asked_for() {
    let host = Host::new();
    let root = host.prefix().replace('_', "-");
    let all = [
        (format!("/{root}/pod1-{root}"), format!("1-{root}")),
        (format!("/{root}/burstable/pod2-{root}"), format!("2-{root}")),
        (format!("/{root}/besteffort/pod3-{root}"), format!("3-{root}")),
    ];
    let pods = all.clone().map(|(path, _)| orphan(&host, &path));
    let container = orphan(&host, &format!("{}/container", all[1].0));
    let process = process_in(&host, &container);
    // What is no pod's is nobody's business.
    let other = orphan(&host, &format!("/{root}/burstable/other"));
    let ids: Vec<&str> = all.iter().map(|(_, uid)| uid.as_str()).collect();
    gc(&host, [ids[0], ids[1], ids[2]]).assert_says("");
    let ran = gc(&host, ["--pods-root", &root, ids[0], ids[1], ids[2]]);
    let lines: Vec<String> = ids.iter().map(|uid| format!("pod {uid}: ")).collect();
    let out = ran.assert_code(0).out();
    assert!(out.lines().count() == 3 && out.lines().zip(&lines).all(|(line, begin)| line.starts_with(begin)), "{ran}");
    assert_eq!(process.finish().code, None);
    pods.iter().for_each(assert_gone);
    assert!(!other.there().is_empty(), "it is not a pod");
    host.bowline(["cgroup", "destroy", &format!("/{root}")]).assert_code(0);
}

#[test]
fn a_pod_that_any_shim_has_started_something_in_is_not_touched() {
    let host = Host::new();
    let root = host.prefix().replace('_', "-");
    let uid = format!("1-{root}");
    let pod = orphan(&host, &format!("/{root}/pod{uid}"));
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let inside = pod.inside(&sleep);
    // It stays as the parent of what it starts in the pod.
    let mut shim = host.command("/bin/sh");
    shim.arg0("/usr/bin/containerd-shim-runc-v2")
        .args(["-c", "\"$0\" \"$@\" & wait", "/bin/sh"])
        .args(inside.get_args());
    let shim = host.spawn_command(shim);
    eventually("it is in the pod", || (!pod.pids().is_empty()).then_some(()));
    let pids = pod.pids();
    gc(&host, ["--pods-root", &root, &uid]).assert_says("");
    assert_eq!(pod.pids(), pids);
    // Then its shim has gone.
    shim.signal(rustix::process::Signal::KILL);
    eventually("it has gone", || (!process_exists(shim.pid())).then_some(()));
    gc(&host, ["--pods-root", &root, &uid]).assert_code(0);
    shim.finish();
    assert_gone(&pod);
    host.bowline(["cgroup", "destroy", &format!("/{root}")]).assert_code(0);
}

#[test]
fn what_a_removal_that_was_cut_short_has_left_is_removed() {
    let host = Host::new();
    let id = host.new_id();
    // No pid is so large.
    let remains = host.state().join(format!(".removed-{id}-2147483646"));
    fs::create_dir_all(remains.join("rootfs")).expect("ours");
    let ran = gc(&host, ["--dry-run", &id]);
    assert!(ran.assert_code(0).out().starts_with(&format!("remains {id}: ")) && remains.exists(), "{ran}");
    gc(&host, [&id]).assert_code(0);
    assert!(!remains.exists());
}

/// A process in its command's place, whose pid a folder has in its name.
fn exec_in_place(host: &Host, script: &str) -> Ran {
    let mut sh = host.command("/bin/sh");
    sh.args(["-c", script]).arg(binary("bowline"));
    host.execute(sh)
}

#[test]
fn what_a_command_that_was_killed_has_left_is_removed() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    // As it is attached.
    let exec = task.spawn_exec(["-i"], "echo begun; exec sleep 1000");
    exec.wait_for_out("begun");
    let attached = || {
        let entries = fs::read_dir(task.file("")).expect("a folder").flatten();
        entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains("attach-")).count()
    };
    gc(&host, [task.id()]).assert_says("");
    assert_eq!(attached(), 1, "one that lives is not touched");
    exec.signal(Signal::KILL);
    exec.finish();
    let ran = gc(&host, ["--dry-run", task.id()]);
    assert!(ran.assert_code(0).out().starts_with(&format!("remains {}: ", task.id())), "{ran}");
    gc(&host, [task.id()]).assert_code(0);
    assert_eq!((attached(), &*task.status()), (0, "running"));
    task.end();
    // As it makes a folder.
    let id = host.new_id();
    let new = host.state().join(format!(".new-{id}-2147483646"));
    fs::create_dir(&new).expect("ours");
    let ran = gc(&host, ["--dry-run", &id]);
    assert!(ran.assert_code(0).out().starts_with(&format!("remains {id}: ")) && new.exists(), "{ran}");
    gc(&host, [&id]).assert_code(0);
    assert!(!new.exists());
}

#[test]
fn a_pid_that_comes_again_finds_nothing_in_its_way() {
    let host = Host::new();
    let id = host.new_id();
    let state = host.state();
    let state = state.display();
    let ran =
        exec_in_place(&host, &format!("mkdir -p {state}/.new-{id}-$$/x; exec \"$0\" start --name {id} -- sleep 1000"));
    ran.assert_says(&id);
    host.adopt(&id).end();
    let ran = exec_in_place(&host, &format!("mkdir -p {state}/.removed-{id}-$$/x; exec \"$0\" rm {id}"));
    ran.assert_code(0);
}

#[test]
fn what_cannot_be_removed_is_told_and_keeps_nothing_else() {
    let host = Host::new();
    let (id, other) = (host.new_id(), host.new_id());
    let state = host.work().join("s");
    let busy = host.tmpfs(&format!("s/.removed-{id}-2147483646/mounted"), "");
    let cgroup = orphan(&host, &format!("/bowline/{other}"));
    let state = format!("--state={}", state.display());
    let ran = host.bowline(["gc", &state, &id, &other]);
    ran.assert_code(125);
    assert!(ran.out().starts_with(&format!("cgroup {other}: ")) && ran.out().lines().count() == 1, "{ran}");
    assert!(ran.err().contains(&id) && ran.err().contains("cannot remove"), "{ran}");
    assert_gone(&cgroup);
    let listed = host.bowline(["gc", &state, "--json", &id]);
    assert_eq!(listed.assert_code(125).json()[0]["removed"], false, "{listed}");
    drop(busy);
    host.bowline(["gc", &state, &id]).assert_code(0);
}

#[test]
fn several_at_the_same_time_do_not_hinder_each_other() {
    let host = Host::new();
    let ids: Vec<String> = (0..6).map(|_| host.new_id()).collect();
    let cgroups: Vec<Elsewhere> = ids.iter().map(|id| orphan(&host, &format!("/bowline/{id}/{id}/x"))).collect();
    let processes: Vec<Process> = cgroups.iter().map(|cgroup| process_in(&host, cgroup)).collect();
    let all: Vec<Process> =
        (0..3).map(|_| host.spawn(["gc"].into_iter().chain(ids.iter().map(String::as_str)))).collect();
    for ran in all.into_iter().map(Process::finish) {
        ran.assert_code(0);
    }
    for process in processes {
        assert_eq!(process.finish().code, None);
    }
    cgroups.iter().for_each(assert_gone);
}

#[test]
fn tasks_are_launched_while_it_runs() {
    let host = Host::new();
    let stop = host.work().join("stop");
    let ids: Vec<String> = (0..16).map(|_| host.new_id()).collect();
    let script = "while [ ! -e \"$1\" ]; do \"$0\" gc --state \"$2\" $3 || exit 7; done";
    // Of another state folder one knows nothing of the tasks.
    let all = [host.state(), host.work().join("other")].map(|state| {
        let mut looks = host.command("/bin/sh");
        looks.args(["-c", script]).arg(bowline_tests::harness::binary("bowline"));
        looks.arg(&stop).arg(state).arg(ids.join(" "));
        host.spawn_command(looks)
    });
    for id in &ids {
        host.task("echo well").named(id).run().assert_says("well");
    }
    fs::write(&stop, "").expect("ours");
    for looks in all {
        looks.finish().assert_says("");
    }
}

#[test]
fn a_root_that_can_hold_no_pods_is_refused() {
    let host = Host::new();
    for root in ["..", "a/../b", "a_b", ""] {
        gc(&host, ["--dry-run", "--pods-root", root]).assert_refused(125, &[root]);
    }
}

#[test]
fn a_state_folder_that_cannot_be_read_is_named() {
    let host = Host::new();
    let file = host.file("plain", "");
    let state = format!("--state={}", file.display());
    host.bowline(["gc", &state, "--dry-run"]).assert_refused(125, &[file.to_str().expect("ASCII")]);
    // That there is none yet is fine.
    gc(&host, ["--dry-run", &host.new_id()]).assert_says("");
}

#[test]
fn a_sandbox_whose_shim_died_is_undone_and_left_for_rm() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let member = sandbox.task(IDLE).start();
    member.wait_until_running();
    let (pid, cgroup, overhead) = (member.pid(), sandbox.cgroup("memory"), sandbox.overhead("memory"));
    sandbox.kill_shim();
    // As of an older bowline: it cannot be taken over.
    sandbox.change_record(|record| drop(record.as_object_mut().expect("an object").remove("whole")));
    let said = gc(&host, ["--dry-run", sandbox.id()]);
    assert!(said.assert_code(0).out().contains(&format!("sandbox {}: its shim died", sandbox.id())), "{said}");
    assert!(cgroup.exists(), "nothing is removed yet");
    gc(&host, [sandbox.id()]).assert_code(0);
    eventually("its processes are gone", || (!process_exists(pid)).then_some(()));
    assert!(!cgroup.exists() && !overhead.exists(), "its cgroups are gone");
    assert_eq!(sandbox.status(), "dead");
    gc(&host, ["--dry-run", sandbox.id()]).assert_says("");
    sandbox.rm([]);
}

#[test]
fn a_cgroup_whose_name_is_no_utf8_is_told_and_left_alone() {
    let host = Host::new();
    let mut name = host.new_id().into_bytes();
    name.extend(b"\xff\xfe");
    let beside = host.cgroup("/bowline").there().into_iter().next().expect("some task has been here");
    let folder = beside.join(std::ffi::OsStr::from_bytes(&name));
    fs::create_dir(&folder).expect("root may");
    let ran = gc(&host, ["--dry-run"]);
    let told = format!("cgroup {} is left alone: bowline gives no such name", name.escape_ascii());
    assert!(ran.assert_code(0).err().contains(&told), "{ran}");
    fs::remove_dir(&folder).expect("it is there, and empty");
}
