//! Tasks by the beginnings of their ids.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::{Task, binary, trace};

const IDLE: &str = "exec sleep 1000";

/// A task whose id is the host's prefix with `end` behind it.
fn named<'h>(host: &'h Host, end: &str) -> Task<'h> {
    host.task(IDLE).named(format!("{}-{end}", host.prefix())).start()
}

#[test]
fn every_command_takes_the_beginning_of_an_id() {
    let host = Host::new();
    let task = named(&host, "web");
    named(&host, "api");
    let short = format!("{}-w", host.prefix());
    assert_eq!(host.bowline(["inspect", &short]).assert_code(0).json()["id"], task.id());
    assert_eq!(host.bowline(["stats", "--json", &short]).assert_code(0).json()["id"], task.id());
    assert_eq!(host.bowline(["top", "--json", &short]).assert_code(0).json()[0]["task"], task.id());
    host.bowline(["exec", &short, "--", "echo", "inside"]).assert_says("inside");
    host.bowline(["update", &short, "--pids=9"]).assert_says("");
    host.bowline(["pause", &short]).assert_says("");
    host.bowline(["resume", &short]).assert_says("");
    host.bowline(["kill", &short, "--signal=KILL"]).assert_says("");
    host.bowline(["wait", &short]).assert_says("137");
    host.bowline(["stop", &short]).assert_says("");
    host.bowline(["rm", &short]).assert_says("");
    host.bowline(["rm", "-f", &format!("{}-a", host.prefix())]).assert_says("");
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_full_id_wins_over_longer_ids_that_begin_with_it() {
    let host = Host::new();
    let (short, long) = (named(&host, "web"), named(&host, "web-2"));
    short.end().assert_killed_by("KILL");
    assert_eq!(long.status(), "running");
    long.end();
}

#[test]
fn an_ambiguous_beginning_is_refused_with_the_ids_it_matches() {
    let host = Host::new();
    let (one, two) = (named(&host, "web-1"), named(&host, "web-2"));
    let short = format!("{}-web", host.prefix());
    for verb in ["inspect", "stats", "top", "wait", "stop", "kill", "pause", "resume", "rm"] {
        host.bowline([verb, &short]).assert_refused(2, &[&short, "2 tasks", one.id(), two.id()]);
    }
    host.bowline(["rm", "-f", &short]).assert_refused(2, &[one.id(), two.id()]);
    host.bowline(["exec", &short, "--", "true"]).assert_refused(2, &[one.id(), two.id()]);
    host.bowline(["update", &short, "--pids=9"]).assert_refused(2, &[one.id(), two.id()]);
    assert_eq!((one.status(), two.status()), ("running".to_owned(), "running".to_owned()));
    one.end();
    two.end();
}

#[test]
fn of_many_candidates_only_some_are_named() {
    let host = Host::new();
    // Folders are enough: nobody is asked.
    for number in 0..30 {
        let folder = host.state().join(format!("{}-{number:02}", host.prefix()));
        fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("shim.sock"), "")).expect("a folder");
    }
    let ran = host.bowline(["inspect", host.prefix()]);
    ran.assert_refused(2, &["30 tasks", &format!("{}-00", host.prefix()), "26 more"]);
    assert!(ran.err().len() < 300, "{ran}");
    fs::remove_dir_all(host.state()).expect("a folder");
}

#[test]
fn a_slip_is_told_the_id_that_was_probably_meant() {
    let host = Host::new();
    let task = named(&host, "web");
    let ran = host.bowline(["inspect", &format!("{}-wbe", host.prefix())]);
    ran.assert_refused(125, &["no task named"]);
    assert!(ran.err().contains(&format!("hint: a task named {} exists", task.id())), "{ran}");
    let stranger = host.bowline(["inspect", "somebody-else"]);
    assert!(stranger.err().ends_with("hint: `bowline ps` lists all tasks"), "{stranger}");
    task.end();
}

#[test]
fn a_whole_id_needs_no_listing_of_the_state_folder() {
    let host = Host::new();
    let task = named(&host, "web");
    let listings = |id: &str| {
        let mut inspect = host.command(binary("bowline"));
        inspect.args(["inspect", id]);
        trace(&host, &inspect).matches("getdents64").count()
    };
    assert_eq!(listings(task.id()), 0);
    assert!(listings(host.prefix()) > 0, "the beginning of one does");
    task.end();
}

#[test]
fn an_empty_beginning_means_nobody() {
    let host = Host::new();
    let task = named(&host, "web");
    for verb in ["inspect", "rm", "stop", "stats"] {
        host.bowline([verb, ""]).assert_refused(2, &["empty"]);
    }
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn a_task_that_is_removed_meanwhile_is_there_or_it_is_not() {
    let host = Host::new();
    for _ in 0..20 {
        let task = named(&host, "web");
        let short = format!("{}-w", host.prefix());
        let remove = host.spawn(["rm", "-f", &short]);
        loop {
            let ran = host.bowline(["inspect", &short]);
            if ran.code == Some(125) {
                ran.assert_refused(125, &["no task named"]);
                break;
            }
            assert_eq!(ran.assert_code(0).json()["id"], task.id());
        }
        remove.finish().assert_says("");
    }
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_command_that_is_a_tasks_name_is_told_from_one() {
    let host = Host::new();
    let (running, ended) = (named(&host, "web"), named(&host, "job"));
    ended.end();
    for verb in ["run", "start"] {
        for (task, says) in [
            (
                &running,
                "exists already: `bowline {verb} --replace --name {id}` with a command or -f FILE starts another in its place, `bowline rm -f {id}` removes it",
            ),
            (
                &ended,
                "exists, and has ended: `bowline {verb} --replace --name {id}` with a command or -f FILE starts another in its place, `bowline rm {id}` removes it",
            ),
        ] {
            let says = says.replace("{verb}", verb).replace("{id}", task.id());
            let name = host.new_id();
            let ran = host.bowline([verb, "--name", &name, task.id()]);
            assert!(ran.assert_refused(127, &[task.id()]).err().contains(&says), "{ran}");
        }
    }
    let ran = host.bowline(["run", "--name", &host.new_id(), "no-such-command"]);
    assert!(!ran.assert_refused(127, &["no-such-command"]).err().contains("a task named"), "{ran}");
    assert_eq!(running.status(), "running");
    running.end();
}
