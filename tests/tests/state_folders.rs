//! Several state folders on one host: the same id in two of them is two tasks.

use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Ran, assert_cgroup_is_below, binary, cgroup_of, eventually, process_exists};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Another state folder of this host's, as a flag.
fn other(host: &Host) -> String {
    format!("--state={}", host.work().join("other").display())
}

#[track_caller]
fn text(ran: &Ran, field: &str) -> String {
    ran.assert_code(0).json()[field].as_str().expect(field).to_owned()
}

#[test]
fn one_name_in_two_state_folders_is_two_tasks() {
    let host = Host::new();
    let other = other(&host);
    let task = host.task("echo ready; exec sleep 1000").start();
    host.bowline(["start", &other, "--name", task.id(), "--", "sleep", "1000"]).assert_code(0);
    let of_other = |verb: &str| host.bowline([verb, &other, task.id()]);
    let (one, two) = (text(&host.bowline(["inspect", task.id()]), "cgroup"), text(&of_other("inspect"), "cgroup"));
    assert_ne!(one, two);
    assert_cgroup_is_below(task.pid(), &one);
    for ids in [&[][..], &[task.id()]] {
        let found = host.bowline(["gc", "--dry-run"].iter().chain(ids)).assert_code(0).out();
        assert!(!found.contains(task.id()), "each has an owner: {found}");
    }
    // A shim that died is no reason to take the other for it.
    let pid = task.pid();
    task.kill_shim(task.shim_pid());
    std::fs::write(task.file("task.json"), "").expect("ours");
    let ran = task.bowline("rm", ["-f"]);
    assert!(!ran.assert_code(0).err().contains("left alone"), "{ran}");
    assert!(!process_exists(pid));
    host.bowline(["exec", &other, task.id(), "--", "echo", "well"]).assert_says("well");
    host.bowline(["rm", &other, "-f", task.id()]).assert_code(0);
}

#[test]
fn one_name_in_two_state_folders_is_two_sandboxes() {
    let host = Host::new();
    let other = other(&host);
    let sandbox = host.sandbox().flag("--pids=50").create();
    host.bowline(["sandbox", "create", &other, "--pids=60", "--name", sandbox.id()]).assert_code(0);
    let member = sandbox.task("exec sleep 1000").start();
    let args = ["start", &other, "--sandbox", sandbox.id(), "--name", member.id(), "--", "sleep", "1000"];
    host.bowline(args).assert_code(0);
    assert_eq!(sandbox.cgroup_file("pids", "pids.max"), "50");
    let of_other = host.bowline(["sandbox", "inspect", &other, sandbox.id()]);
    assert_ne!(sandbox.inspect()["cgroup"], *text(&of_other, "cgroup"));
    host.bowline(["sandbox", "rm", &other, "-f", sandbox.id()]).assert_code(0);
    member.exec("echo well").assert_says("well");
    sandbox.rm(["-f"]);
}

#[test]
fn a_place_is_one_sandboxs_whatever_its_state_folder() {
    let host = Host::new();
    let other = other(&host);
    let at = |path: &str| format!("/{}-ecs/all{path}", host.prefix());
    let create = |id: &str, path: &str| {
        host.bowline(["sandbox", "create", &other, "--name", id, "--network=none", &format!("--place={}", at(path))])
    };
    let sandbox = host.sandbox().toml(&format!("place = '{}'", at("/one"))).flag("--network=none").create();
    let task = host.task("echo ready; exec sleep 1000").toml(&format!("cgroup = '{}'", at("/task"))).start();
    let (folder, id) = (host.state().display().to_string(), host.new_id());
    for (path, relation, what, owner) in [
        ("/one", "is that of", "sandbox", sandbox.id()),
        ("/one/in", "is below that of", "sandbox", sandbox.id()),
        ("", "is above that of", "", ""),
        ("/task", "is that of", "task", task.id()),
        ("/task/in", "is below that of", "task", task.id()),
    ] {
        create(&id, path).assert_refused(125, &["place", &at(path), relation, what, owner, &folder]);
    }
    let description = host.file("place.toml", &format!("cgroup = '{}'", at("/one/in")));
    let file = format!("--file={}", description.display());
    let started = host.bowline(["start", &other, "--name", &id, &file, "--", "sleep", "1000"]);
    started.assert_refused(125, &["cgroup", "is below that of", "sandbox", sandbox.id(), &folder]);
    sandbox.task("echo well").run().assert_says("well");
    task.exec("echo well").assert_says("well");
    // What ends gives its place back, also where the cgroup was there before.
    sandbox.rm(["-f"]);
    task.end();
    host.bowline(["cgroup", "ensure", &at("/one")]).assert_code(0);
    for path in ["/one", "/task"] {
        create(&id, path).assert_code(0);
        host.bowline(["sandbox", "rm", &other, &id]).assert_code(0);
    }
    // One that was killed with all that it had has left its cgroup.
    create(&id, "/one").assert_code(0);
    let shim = host.bowline(["sandbox", "inspect", &other, &id]).assert_code(0).json()["shim_pid"].clone();
    let shim = i32::try_from(shim.as_i64().expect("a pid")).expect("a pid");
    let pidfd = pidfd_open(Pid::from_raw(shim).expect("a pid"), PidfdFlags::empty()).expect("it lives");
    pidfd_send_signal(&pidfd, Signal::KILL).expect("it lives");
    eventually("it has ended", || (!process_exists(shim)).then_some(()));
    let sandbox = host.sandbox().toml(&format!("place = '{}'", at("/one"))).flag("--network=none").create();
    host.bowline(["sandbox", "rm", &other, "-f", &id]).assert_code(0);
    sandbox.task("echo well").run().assert_says("well");
    sandbox.rm(["-f"]);
    host.bowline(["cgroup", "destroy", &format!("/{}-ecs", host.prefix())]).assert_code(0);
}

#[test]
fn the_default_state_folder_has_the_ids_alone() {
    let host = Host::new();
    let id = host.new_id();
    let script = "mount -t tmpfs none /run && mkdir -m 700 /run/bowline && ln -s bowline /run/link && \
                  export BOWLINE_STATE=/run/$1 && \"$0\" start --name $2 -- sleep 1000 >/dev/null && \"$0\" inspect $2; \
                  \"$0\" rm -f $2";
    for at in ["bowline", "link"] {
        let mut command = host.command("unshare");
        command.args(["--mount", "--propagation=private", "/bin/sh", "-c", script]);
        command.arg(binary("bowline")).args([at, &id]);
        assert_eq!(text(&host.execute(command), "cgroup"), format!("/bowline/{id}/{id}"), "{at}");
    }
}

#[test]
fn a_task_named_by_an_older_bowline_is_found_by_its_record() {
    let host = Host::new();
    let id = host.new_id();
    let path = format!("/bowline/{id}/{id}");
    let start = || host.task("echo ready; exec sleep 1000").toml(&format!("cgroup = '{path}'")).named(&id).start();
    let task = start();
    task.kill_shim(task.shim_pid());
    let found = host.bowline(["gc", &id]).assert_code(0).out();
    assert_eq!(found, "", "a new shim can take it over");
    task.exec("echo well").assert_says("well");
    task.kill_shim(task.shim_pid());
    task.bowline("rm", ["-f"]).assert_code(0);
    assert!(host.cgroup(&path).there().is_empty());
    let task = start();
    task.end();
}

/// A shim that died is no reason to end the task: its own state folder has a new one started.
#[test]
fn cleaning_up_ends_no_task_of_another_state_folder() {
    let host = Host::new();
    let other = other(&host);
    let task = host.task("echo ready; exec sleep 1000").start();
    task.wait_for_line("ready");
    let pid = task.pid();
    task.kill_shim(task.shim_pid());
    // Its own processes and nobody else's.
    let name = task.on_host();
    let ran = host.bowline(["gc", &other, &name]);
    assert_eq!(ran.assert_code(0).out(), "", "{ran}");
    assert!(ran.err().contains(&name) && ran.err().contains("another state folder"), "{ran}");
    assert!(process_exists(pid));
    task.exec("echo well").assert_says("well");
    // What is left without a process is for that folder's `gc` too.
    task.kill_shim(task.shim_pid());
    task.bowline("rm", ["-f"]).assert_code(0);
    let path = format!("/bowline/{name}");
    for by_hand in [false, true] {
        host.bowline(["cgroup", "ensure", &path]).assert_code(0);
        let ran = host.bowline(["gc", &other, &name]);
        assert_eq!(ran.assert_code(0).out(), "", "{ran}");
        assert!(ran.err().contains("another state folder"), "{ran}");
        assert!(ran.err().contains(&format!("`bowline cgroup destroy {path}`")), "{ran}");
        match by_hand {
            true => host.bowline(["cgroup", "destroy", &path]).assert_code(0),
            false => host.bowline(["gc", task.id()]).assert_code(0),
        };
        assert!(host.cgroup(&path).there().is_empty());
    }
}

/// Without a process the cgroups of a dead sandbox look like leftovers, and its own state folder needs them.
#[test]
fn cleaning_up_ends_no_sandbox_of_another_state_folder() {
    let host = Host::new();
    let other = other(&host);
    let (empty, used) = (host.sandbox().create(), host.sandbox().create());
    let member = used.task("exec sleep 1000").start();
    for sandbox in [&empty, &used] {
        sandbox.kill_shim();
        let ran = host.bowline(["gc", &other]);
        assert!(!ran.out().contains(&sandbox.on_host()) && !ran.err().contains(&sandbox.on_host()), "{ran}");
        let ran = host.bowline(["gc", &other, &sandbox.on_host()]);
        assert_eq!(ran.assert_code(0).out(), "", "{ran}");
        assert!(ran.err().contains("another state folder"), "{ran}");
        host.bowline(["adopt", sandbox.id()]).assert_code(0);
        assert_eq!(sandbox.status(), "ready");
    }
    member.exec("echo well").assert_says("well");
    empty.rm([]);
    used.rm(["-f"]);
}

#[test]
fn a_copied_state_folder_gives_up_nothing_but_the_copies() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let sandbox = host.sandbox().flag("--share-pid").create();
    let member = sandbox.task("exec sleep 1000").start();
    let pids = [task.pid(), member.pid(), sandbox.pause_pid(), sandbox.shim_pid()];
    let charged = cgroup_of(sandbox.shim_pid());
    let is_well = || {
        assert!(pids.iter().all(|pid| process_exists(*pid)));
        task.exec("echo well").assert_says("well");
        member.exec("echo well").assert_says("well");
        assert_eq!(cgroup_of(sandbox.shim_pid()), charged);
    };
    let copy = host.work().join("copy");
    let state = format!("--state={}", copy.display());
    let of_copy = |args: &[&str]| host.bowline(args.iter().copied().chain([&*state]));
    let anew = || {
        let copied = Command::new("cp").arg("-aT").args([&host.state(), &copy]).status().expect("cp");
        assert!(copied.success());
    };
    for damaged in [false, true] {
        anew();
        for (id, verb) in [(task.id(), &["rm"][..]), (member.id(), &["rm"]), (sandbox.id(), &["sandbox", "rm"])] {
            let (file, is_task) = (if verb.len() == 1 { "task.json" } else { "sandbox.json" }, verb.len() == 1);
            if damaged {
                std::fs::write(copy.join(id).join(file), "").expect("ours");
            } else {
                let ran = of_copy(&[verb, &[id]].concat());
                ran.assert_refused(125, &["is a copy", "another state folder"]);
                let hint = format!("`bowline {} -f {id}` removes this copy alone", verb.join(" "));
                assert!(ran.err().contains(&hint) && !ran.err().contains("ends"), "{ran}");
                if is_task {
                    of_copy(&["stop", id]).assert_refused(125, &["is a copy"]);
                    of_copy(&["adopt", id]).assert_refused(125, &["is a copy"]);
                }
            }
            of_copy(&["gc", id]).assert_says("");
            let ran = of_copy(&[verb, &["-f", id]].concat());
            ran.assert_code(0);
            assert!(!copy.join(id).exists(), "{ran}");
            is_well();
        }
        std::fs::remove_dir_all(&copy).expect("ours");
    }
    // Nobody knows whether the other folder is there: what lives is not given up.
    anew();
    task.kill_shim(task.shim_pid());
    let ran = of_copy(&["rm", "-f", task.id()]);
    ran.assert_refused(125, &["is a copy", "another state folder"]);
    assert!(copy.join(task.id()).exists() && !ran.err().contains("destroy"), "{ran}");
    task.exec("echo well").assert_says("well");
    task.end();
    sandbox.rm(["-f"]);
}

#[test]
fn a_copy_of_the_default_state_folder_ends_nothing() {
    let host = Host::new();
    let id = host.new_id();
    let script = "mount -t tmpfs none /run && mkdir -m 700 /run/bowline && unset BOWLINE_STATE && \
                  \"$0\" start --name $1 -- sleep 1000 >/dev/null && cp -a /run/bowline /run/copy && \
                  \"$0\" --state /run/copy rm -f $1 && test ! -e /run/copy/$1 && \"$0\" exec $1 -- echo well; \
                  \"$0\" rm -f $1";
    let mut command = host.command("unshare");
    command.args(["--mount", "--propagation=private", "/bin/sh", "-c", script]).arg(binary("bowline")).arg(&id);
    let ran = host.execute(command);
    assert!(ran.out().contains("well"), "{ran}");
}

#[test]
fn the_cgroup_of_a_sandbox_is_named_as_it_is_called() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let cgroup = text(&host.bowline(["sandbox", "inspect", sandbox.id()]), "cgroup");
    host.bowline(["cgroup", "name", "--sandbox", sandbox.id()]).assert_says(&cgroup);
    let back = host.bowline(["cgroup", "name", "--json", &cgroup]).assert_code(0).json();
    assert_eq!(back["sandbox"], sandbox.id());
    sandbox.rm([]);
}
