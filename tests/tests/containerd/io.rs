//! Where a task's streams go under containerd: FIFOs that clients leave and come back to, files, loggers, terminals.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Containerd, Input, Output, Stdio};
use bowline_tests::harness::{eventually, process_exists};

/// A logger: it notes what it was given, says that it is ready, and keeps both streams to their end, though the shim
/// asks it to go as soon as the task has ended.
const LOGGER: &str = r#"
trap '' TERM
cd "$(dirname "$0")"
echo "$1 $CONTAINER_ID $CONTAINER_NAMESPACE" >given
cat <&3 >out 5>&- &
cat <&4 >err 5>&- &
exec 5>&-
wait
echo over >over
"#;

/// A script beside config.json, run by the host's shell.
fn logger(bundle: &Bundle, scheme: &str, script: &str) -> Stdio {
    let path = bundle.path.join("logger");
    fs::write(&path, script).expect("the work folder is writable");
    Stdio::uri(&format!("{scheme}:///bin/sh?{}=word", path.display()))
}

/// What a file in the bundle has once it contains `text`.
fn wait_for_file(bundle: &Bundle, name: &str, text: &str) {
    let read = || fs::read_to_string(bundle.path.join(name)).unwrap_or_default();
    eventually(format_args!("{text:?} in {name}"), || read().contains(text).then_some(()));
}

#[test]
fn stdout_and_stderr_go_to_their_fifos() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("echo out; echo err >&2");
    assert_eq!(running.stdout.to_end(), "out\n");
    assert_eq!(running.stderr.as_ref().expect("a FIFO").to_end(), "err\n");
    running.end();
}

#[test]
fn no_path_is_dev_null() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000");
    let shim = containerd.start(&bundle);
    let pid = shim.run(&bundle, &Stdio::null());
    for fd in 0..3 {
        let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).expect("a live process");
        assert!(link.ends_with("null"), "{fd}: {link:?}");
    }
    shim.end(&bundle.id);
}

#[test]
fn one_stream_may_be_nowhere_while_the_other_is_read() {
    let host = Host::new();
    if host.reference_fails("it opens the empty path: no such file or directory") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo err >&2; echo out");
    let io = Stdio { stderr: String::new(), ..bundle.fifos("init") };
    let running = containerd.run_with(bundle, &io);
    assert_eq!(running.stdout.to_end(), "out\n");
    running.end();
}

#[test]
fn one_fifo_may_take_both_streams() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo one; echo two >&2; echo three");
    let io = bundle.fifos("init");
    let io = Stdio { stderr: io.stdout.clone(), ..io };
    let shim = containerd.start(&bundle);
    let stdout = Output::open(io.stdout.as_ref());
    shim.run(&bundle, &io);
    eventually("three lines", || (stdout.text().lines().count() == 3).then_some(()));
    let mut lines: Vec<_> = stdout.text().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one", "three", "two"]);
    shim.end(&bundle.id);
}

#[test]
fn a_reader_may_leave_and_another_come_and_nothing_is_lost() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run("i=0; while :; do echo $i; i=$((i+1)); done");
    running.stdout.wait_for("100\n");
    // It takes what fits and waits: no error, no signal.
    let path = running.bundle.path.join("init-stdout");
    let elsewhere = Output::open_paused(&path);
    let mut text = std::mem::replace(&mut running.stdout, elsewhere).leave();
    drop(std::mem::replace(&mut running.stdout, Output::open_paused(&path)));
    assert!(process_exists(running.pid));
    let third = Output::open(&path);
    third.wait_for("\n");
    let seen = third.len();
    eventually("it goes on", || (third.len() > seen + 1_000_000).then_some(()));
    text.extend(third.leave());
    let text = String::from_utf8(text).expect("digits");
    let complete = &text[..text.rfind('\n').expect("a line")];
    for (index, line) in complete.lines().enumerate() {
        assert_eq!(line, index.to_string(), "after {index} lines");
    }
    running.end();
}

#[test]
fn a_task_survives_that_nobody_reads() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run("trap '' PIPE; echo ready; i=0; while echo $i; do i=$((i+1)); done; exit 9");
    running.stdout.wait_for("ready");
    let path = running.bundle.path.join("init-stdout");
    let nobody = running.bundle.path.join("init-stderr");
    drop(std::mem::replace(&mut running.stdout, Output::open_paused(&nobody)));
    // The kernel says when it waits for room.
    eventually("it waits", || {
        let wchan = fs::read_to_string(format!("/proc/{}/wchan", running.pid)).unwrap_or_default();
        wchan.contains("pipe").then_some(())
    });
    running.stdout = Output::open(&path);
    let seen = running.stdout.len();
    eventually("it goes on", || (running.stdout.len() > seen + 500_000).then_some(()));
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    running.end();
}

#[test]
fn a_reader_that_stops_for_a_while_gets_all_of_it_afterwards() {
    let host = Host::new();
    let containerd = host.containerd();
    let until_paused = "until [ -e /paused ]; do sleep 0.01; done";
    let running =
        containerd.run(&format!("echo go; {until_paused}; head -c 4000000 /dev/zero | tr '\\0' x; echo done"));
    running.stdout.wait_for("go");
    running.stdout.pause();
    fs::write(running.bundle.rootfs().join("paused"), "").expect("ours");
    // State and execs do not wait for the reader.
    assert_eq!(running.shim.status(&running.id, ""), "RUNNING");
    assert_eq!(running.exec("e", "echo hi").1, "hi\n");
    running.stdout.resume();
    let text = running.stdout.to_end();
    assert!(text.ends_with("done\n"));
    assert_eq!(text.len(), 4_000_008);
    running.end();
}

#[test]
fn output_that_nobody_has_read_yet_is_there_after_the_end() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo out");
    let io = bundle.fifos("init");
    let shim = containerd.start(&bundle);
    let stdout = Output::open_paused(io.stdout.as_ref());
    let _stderr = Output::open(io.stderr.as_ref());
    shim.run(&bundle, &io);
    shim.wait(&bundle.id, "").expect("an end");
    stdout.resume();
    assert_eq!(stdout.to_end(), "out\n");
    shim.end(&bundle.id);
}

#[test]
fn delete_waits_for_a_client_about_to_read_the_last_output() {
    let host = Host::new();
    if host.reference_fails("it loses what nobody has read") {
        return;
    }
    let containerd = host.containerd();
    // A machine may need longer for this than Delete waits.
    assert!((0..5).any(|_| reads_in_time(&containerd)), "no client comes within a second");
}

/// Whether a client comes within the second that Delete waits; it gets all then.
fn reads_in_time(containerd: &Containerd<'_>) -> bool {
    let bundle = containerd.bundle().script("echo out; echo err >&2");
    let io = bundle.fifos("init");
    let shim = containerd.start(&bundle);
    // A client that has not opened its end yet when init ends, as one that has just been started anew.
    let early = [&io.stdout, &io.stderr].map(|path| Output::open_paused(path.as_ref()));
    shim.run(&bundle, &io);
    let read = early.map(Output::leave);
    assert!(read.iter().all(Vec::is_empty), "{read:?}");
    shim.wait(&bundle.id, "").expect("an end");
    let begun = Instant::now();
    let deleted = shim.delete_later(&bundle.id, "");
    eventually("it is being deleted", || shim.state(&bundle.id, "").is_err().then_some(()));
    let readers = [&io.stdout, &io.stderr].map(|path| Output::open(path.as_ref()));
    let is_in_time = begun.elapsed() < Duration::from_secs(1);
    if is_in_time {
        readers.iter().zip(["out\n", "err\n"]).for_each(|(reader, text)| reader.wait_for(text));
    }
    deleted.wait().expect("deleted");
    shim.over();
    is_in_time
}

#[test]
fn delete_gives_up_waiting_for_a_client_that_does_not_read() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo out");
    let io = bundle.fifos("init");
    let shim = containerd.start(&bundle);
    let stdout = Output::open_paused(io.stdout.as_ref());
    let _stderr = Output::open(io.stderr.as_ref());
    shim.run(&bundle, &io);
    shim.wait(&bundle.id, "").expect("an end");
    shim.delete(&bundle.id, "").expect("deleted");
    stdout.resume();
    assert_eq!(stdout.to_end(), "out\n", "who has an end gets it later");
    shim.over();
}

#[test]
fn nothing_begins_before_somebody_reads_its_output() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let io = running.bundle.fifos("e");
    let process = running.bundle.process(&["/bin/sh", "-c", "echo out; echo err >&2"]);
    running.shim.exec(&running.id, "e", &process, &io).expect("added");
    // A reader who came when it has gone again would wait for a writer.
    let started = running.shim.start_later(&running.id, "e").wait_for(Duration::from_millis(200));
    assert!(started.is_none(), "{started:?}");
    let readers = [io.stdout, io.stderr].map(|path| std::thread::spawn(move || fs::read_to_string(path)));
    eventually("the end of both", || readers.iter().all(|reader| reader.is_finished()).then_some(()));
    let text = readers.map(|reader| reader.join().expect("a reader").expect("text"));
    assert_eq!(text, ["out\n", "err\n"]);
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    running.shim.delete(&running.id, "e").expect("an exec that has ended");
    running.end();
}

/// After five seconds it begins without a reader of the other stream.
#[test]
fn who_reads_one_of_two_fifos_gets_all_of_it() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let names = ["e1", "e2", "e3", "e4"];
    let started = names.map(|name| {
        let io = running.bundle.fifos(name);
        let process = running.bundle.process(&["/bin/sh", "-c", "echo out; sleep 0.5; echo more"]);
        let reader = std::thread::spawn({
            let stdout = io.stdout.clone();
            move || fs::read_to_string(stdout).expect("text")
        });
        running.shim.exec(&running.id, name, &process, &io).expect("added");
        (running.shim.start_later(&running.id, name), reader)
    });
    for (name, (start, reader)) in names.into_iter().zip(started) {
        start.wait_for(Duration::from_secs(30)).expect("an answer").expect("started");
        assert_eq!(reader.join().expect("a reader"), "out\nmore\n", "{name}");
        assert_eq!(running.shim.status_at_end(&running.id, name), 0);
        running.shim.delete(&running.id, name).expect("it has ended");
    }
    running.end();
}

#[test]
fn stdin_reaches_the_task() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run_with_stdin("while read line; do echo \"got $line\"; done");
    running.stdin.as_mut().expect("a FIFO").write("one\n");
    running.stdout.wait_for("got one");
    running.stdin.as_mut().expect("a FIFO").write("two\n");
    running.stdout.wait_for("got two");
    running.end();
}

#[test]
fn stdin_ends_by_close_io_and_not_when_a_client_leaves() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run_with_stdin("cat; echo end");
    running.stdin.as_mut().expect("a FIFO").write("one\n");
    running.stdout.wait_for("one\n");
    drop(running.stdin.take());
    let mut again = Input::open(&running.bundle.path.join("init-stdin"));
    again.write("two\n");
    running.stdout.wait_for("two\n");
    assert!(!running.stdout.text().contains("end"));
    drop(again);
    running.shim.close_stdin(&running.id, "").expect("closed");
    assert_eq!(running.stdout.to_end(), "one\ntwo\nend\n");
    assert_eq!(running.shim.status_at_end(&running.id, ""), 0);
    running.end();
}

#[test]
fn all_that_was_written_to_stdin_arrives_before_its_end() {
    let host = Host::new();
    let containerd = host.containerd();
    let mut running = containerd.run_with_stdin("wc -c");
    let mut stdin = running.stdin.take().expect("a FIFO");
    stdin.write(vec![b'x'; 1_000_000]);
    drop(stdin);
    running.shim.close_stdin(&running.id, "").expect("closed");
    assert_eq!(running.stdout.to_end().trim(), "1000000");
    running.end();
}

#[test]
fn an_exec_has_a_stdin_of_its_own() {
    let host = Host::new();
    let containerd = host.containerd();
    let running = containerd.run("sleep 1000");
    let io = running.bundle.fifos_with_stdin("e");
    let (stdout, _stderr) = io.open();
    running.shim.run_exec(&running.bundle, "e", &["cat"], &io);
    let mut stdin = Input::open(io.stdin.as_ref());
    stdin.write("hello\n");
    stdout.wait_for("hello");
    drop(stdin);
    running.shim.close_stdin(&running.id, "e").expect("closed");
    assert_eq!(running.shim.status_at_end(&running.id, "e"), 0);
    running.shim.delete(&running.id, "e").expect("deleted");
    assert_eq!(stdout.to_end(), "hello\n");
    running.end();
}

#[test]
fn file_appends_to_a_file_and_makes_the_folders() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo out; echo err >&2");
    let path = host.work().join("deep/er/log");
    let shim = containerd.start(&bundle);
    for round in 1..=2 {
        shim.run(&bundle, &Stdio::uri(&format!("file://{}", path.display())));
        shim.wait(&bundle.id, "").expect("an end");
        shim.delete(&bundle.id, "").expect("deleted");
        let text = fs::read_to_string(&path).expect("a log");
        assert_eq!((text.matches("out\n").count(), text.matches("err\n").count()), (round, round), "{text:?}");
    }
    assert_eq!(path.metadata().expect("a log").permissions().mode() & 0o777, 0o644);
    shim.over();
}

#[test]
fn a_logger_gets_both_streams_and_is_told_whose_they_are() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo out; echo err >&2");
    let io = logger(&bundle, "binary", LOGGER);
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &io);
    shim.wait(&bundle.id, "").expect("an end");
    shim.delete(&bundle.id, "").expect("deleted");
    wait_for_file(&bundle, "over", "over");
    assert_eq!(bundle.read("given"), format!("word {} {}\n", bundle.id, containerd.namespace()));
    assert_eq!((bundle.read("out"), bundle.read("err")), ("out\n".to_owned(), "err\n".to_owned()));
    shim.over();
}

#[test]
fn a_logger_is_ready_before_init_runs() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo out");
    let gate: PathBuf = bundle.path.join("gate");
    bowline_tests::harness::containerd::make_fifo(&gate);
    let io = logger(&bundle, "binary", &format!("read line <{}; {LOGGER}", gate.display()));
    let shim = containerd.start(&bundle);
    let pending = shim
        .send::<bowline_tests::harness::containerd::api::CreateTaskResponse>("Create", &shim.creation(&bundle, &io));
    let mut gate = Input::open(&gate);
    // The logger is up, and has not said a word.
    assert!(pending.wait_for(std::time::Duration::from_millis(200)).is_none());
    gate.write("\n");
    pending.wait().expect("created");
    shim.start(&bundle.id, "").expect("started");
    shim.wait(&bundle.id, "").expect("an end");
    shim.delete(&bundle.id, "").expect("deleted");
    wait_for_file(&bundle, "out", "out");
    shim.over();
}

#[test]
fn a_logger_that_does_not_end_is_ended() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo out");
    let io = logger(&bundle, "binary", "exec 5>&-; trap 'exit 0' TERM; while :; do sleep 0.1; done");
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &io);
    shim.wait(&bundle.id, "").expect("an end");
    shim.delete(&bundle.id, "").expect("deleted");
    shim.over();
}

#[test]
fn a_logger_that_is_not_there_fails_create() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &Stdio::uri("binary:///nowhere/logger")).expect_err("no logger");
    shim.over();
}

#[test]
fn a_logger_of_the_second_kind_says_by_a_byte_that_it_is_ready() {
    let host = Host::new();
    if host.reference_fails("of containerd 2.2 on") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("echo out; echo err >&2");
    let io = logger(&bundle, "binary-v2", &LOGGER.replace("exec 5>&-", "printf x >&5; exec 5>&-"));
    let shim = containerd.start(&bundle);
    shim.run(&bundle, &io);
    shim.wait(&bundle.id, "").expect("an end");
    shim.delete(&bundle.id, "").expect("deleted");
    wait_for_file(&bundle, "over", "over");
    assert_eq!((bundle.read("out"), bundle.read("err")), ("out\n".to_owned(), "err\n".to_owned()));
    shim.over();
}

#[test]
fn a_binary_v2_logger_that_ends_without_a_byte_fails_create() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let io = logger(&bundle, "binary-v2", "exit 1");
    let shim = containerd.start(&bundle);
    shim.create(&bundle, &io).expect_err("the logger is not ready");
    shim.over();
}

#[test]
fn an_unknown_scheme_fails_create() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    let failure = shim.create(&bundle, &Stdio::uri("carrier-pigeon:///coop")).expect_err("no such scheme");
    assert!(failure.message.contains("carrier-pigeon"), "{failure:?}");
    shim.over();
}
