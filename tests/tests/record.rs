//! Recordings of runs, and their pictures.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Task, eventually};
use jiff::Timestamp;
use roxmltree::{Document, Node};
use rustix::process::Signal;
use serde_json::Value;

const IDLE: &str = "exec sleep 1000";

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a recording");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"))).collect()
}

/// What the lines say of this kind.
fn of<'l>(lines: &'l [Value], kind: &str) -> Vec<&'l Value> {
    lines.iter().filter_map(|line| line.get(kind)).collect()
}

fn events(lines: &[Value]) -> Vec<&str> {
    of(lines, "event").iter().filter_map(|event| event["event"].as_str()).collect()
}

fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no time: {value}"))
}

/// The picture, if it is XML at all.
#[track_caller]
fn picture(text: &str) -> Document<'_> {
    let document = Document::parse(text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!(document.root_element().tag_name().name(), "svg");
    document
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {name} in {node:?}"))
}

/// The lines that stand for events, with their names.
fn marks<'d>(document: &'d Document<'d>) -> Vec<(&'d str, f64)> {
    let lines = document.descendants().filter_map(|node| Some((node.attribute("data-event")?, node)));
    lines.map(|(name, node)| (name, number(node, "x1"))).collect()
}

/// Where a moment is, so many seconds from where the axis begins.
fn at(document: &Document<'_>, seconds: f64) -> f64 {
    let ticks = document.descendants().filter(|node| node.attribute("data-seconds").is_some());
    let ticks: Vec<(f64, f64)> = ticks.map(|tick| (number(tick, "data-seconds"), number(tick, "x1"))).collect();
    let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
    first.1 + (seconds - first.0) / (last.0 - first.0) * (last.1 - first.1)
}

/// `bowline stats --record FILE … ID`, which goes on.
fn record(host: &Host, task: &Task<'_>, file: &Path, more: &[&str]) -> bowline_tests::harness::Process {
    let file = file.to_str().expect("ASCII");
    let process = host.spawn(["stats", "--record", file, "--interval=100ms"].iter().chain(more).chain([&task.id()]));
    eventually("a reading", || fs::read_to_string(file).is_ok_and(|text| text.contains("{\"reading\"")).then_some(()));
    process
}

#[test]
fn a_run_is_recorded_to_its_end_and_drawn() {
    let host = Host::new();
    let (file, svg) = (host.work().join("run.jsonl"), host.work().join("run.svg"));
    let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let task = host.task(script).flag("--memory=64M").flag("--cpus=0.5").start();
    let recording = record(&host, &task, &file, &["--plot", svg.to_str().expect("ASCII")]);
    task.exec("true").assert_code(0);
    task.bowline("update", ["--memory=96M"]).assert_code(0);
    let readings = || fs::read_to_string(&file).expect("readable").matches("{\"reading\"").count();
    let so_far = readings();
    eventually("two readings more", || (readings() > so_far + 1).then_some(()));
    task.stop(["--grace=50s"]).assert_code(3);
    let ran = recording.finish();
    assert!(ran.assert_code(0).out().contains("readings"), "{ran}");

    let all = lines(&file);
    let header = of(&all, "recording")[0];
    assert_eq!(
        (&header["format"], &header["id"], &header["limits"]["memory"]["limit"]),
        (&1.into(), &task.id().into(), &"64M".into())
    );
    assert_eq!(&events(&all)[events(&all).len() - 3..], ["exec", "updated", "exited"]);
    assert_eq!(of(&all, "exit")[0]["exit_code"], 3);
    assert_eq!(of(&all, "end")[0]["because"], "exited");
    let limits: Vec<u64> =
        of(&all, "reading").iter().filter_map(|reading| reading["memory"]["limit_bytes"].as_u64()).collect();
    assert!(limits.first() == Some(&(64 << 20)) && limits.last() == Some(&(96 << 20)), "{limits:?}");
    let first = of(&all, "reading")[0];
    assert!(
        first["processes"].is_null() && first["measured"].is_array() && first["cpu"]["limit_usec"] == 50_000,
        "{first}"
    );
    let times: Vec<Timestamp> = of(&all, "reading").iter().map(|reading| time(&reading["read_at"])).collect();
    assert!(times.is_sorted(), "{times:?}");

    let text = fs::read_to_string(&svg).expect("a picture");
    let document = picture(&text);
    let marks = marks(&document);
    // It begins with the first that is known.
    let told = of(&all, "event");
    let begin = told.iter().map(|event| time(&event["time"])).chain([time(&header["begun_at"])]).min().expect("some");
    assert_eq!(marks.len(), told.len(), "{marks:?}");
    for event in told {
        let seconds = time(&event["time"]).duration_since(begin).as_secs_f64();
        let expected = at(&document, seconds);
        assert!(marks.iter().any(|(_, x)| (x - expected).abs() < 0.5), "{event} at {expected}: {marks:?}");
    }
    assert!(marks.iter().any(|(name, _)| *name == "exited: 3"), "{marks:?}");
    assert!(text.contains("limit 96 MiB") && text.contains("limit 50 %"), "the limits are named");
}

#[test]
fn an_interrupt_ends_a_recording_and_not_the_task() {
    let host = Host::new();
    let file = host.work().join("run.jsonl");
    let task = host.task(IDLE).start();
    let recording = record(&host, &task, &file, &[]);
    recording.signal(Signal::INT);
    recording.finish().assert_code(0);
    assert_eq!(of(&lines(&file), "end")[0]["because"], "asked");
    assert_eq!(task.status(), "running");
    let length = host.work().join("length.jsonl");
    host.bowline(["stats", "--record", length.to_str().expect("ASCII"), "--for=100ms", task.id()]).assert_code(0);
    assert_eq!(of(&lines(&length), "end")[0]["because"], "time_over");
    task.end();
}

#[test]
fn a_recording_goes_on_under_a_new_shim() {
    let host = Host::new();
    let file = host.work().join("run.jsonl");
    let task = host.task("trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done").flag("--init").start();
    task.wait_for_line("ready");
    let recording = record(&host, &task, &file, &[]);
    task.crash_shim();
    let readings = || fs::read_to_string(&file).expect("readable").matches("{\"reading\"").count();
    let so_far = readings();
    eventually("two readings more", || (readings() > so_far + 1).then_some(()));
    task.stop(["--grace=50s"]).assert_code(3);
    recording.finish().assert_code(0);
    let all = lines(&file);
    assert_eq!((&of(&all, "exit")[0]["exit_code"], &of(&all, "end")[0]["because"]), (&3.into(), &"exited".into()));
}

#[test]
fn a_recording_is_kept_if_no_new_shim_can_adopt_the_task() {
    let host = Host::new();
    let (file, svg) = (host.work().join("run.jsonl"), host.work().join("run.svg"));
    let task = host.task(IDLE).start();
    let recording = record(&host, &task, &file, &["--plot", svg.to_str().expect("ASCII")]);
    recording.signal(Signal::STOP);
    task.kill_shim(task.shim_pid());
    let before = task.log("task.json");
    task.change_record(|record| record["identity"]["boot"] = "another".into());
    recording.signal(Signal::CONT);
    recording.finish().assert_code(125);
    let all = lines(&file);
    assert!(!of(&all, "reading").is_empty());
    assert_eq!(of(&all, "end")[0]["because"], "shim_died");
    picture(&fs::read_to_string(&svg).expect("a picture all the same"));
    fs::write(task.file("task.json"), before).expect("writable");
    task.bowline("rm", ["-f"]).assert_code(0);
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_recording_that_was_cut_short_is_drawn() {
    let host = Host::new();
    let (file, svg) = (host.work().join("run.jsonl"), host.work().join("run.svg"));
    let task = host.task(IDLE).start();
    let recording = record(&host, &task, &file, &[]);
    recording.signal(Signal::INT);
    recording.finish().assert_code(0);
    task.end();
    let text = fs::read_to_string(&file).expect("a recording");
    let draw = |text: &str| {
        fs::write(&file, text).expect("written");
        host.bowline(["stats", "--plot", svg.to_str().expect("ASCII"), "--from", file.to_str().expect("ASCII")])
    };
    // Its header alone; one reading and a half; all but the last byte.
    let begins: Vec<usize> = text.match_indices('\n').map(|(index, _)| index + 1).collect();
    for length in [begins[0], begins[begins.len() - 2] + 20, text.len() - 2] {
        draw(&text[..length]).assert_code(0);
        picture(&fs::read_to_string(&svg).expect("a picture"));
    }
    draw("").assert_refused(125, &["is empty"]);
    draw("hello\n").assert_refused(125, &["line 1"]);
}

#[test]
fn existing_files_are_kept_and_senseless_flags_are_refused() {
    let host = Host::new();
    let task = host.task(IDLE).start();
    let mine = host.file("mine", "mine");
    let mine = mine.to_str().expect("ASCII");
    let free = host.work().join("free");
    let free = free.to_str().expect("ASCII");
    host.bowline(["stats", "--record", mine, task.id()]).assert_refused(125, &[mine, "exists"]);
    host.bowline(["stats", "--record", free, "--plot", mine, task.id()]).assert_refused(125, &[mine, "no picture"]);
    host.bowline(["stats", "--record", "/no/such/folder/x", task.id()]).assert_refused(125, &["/no/such/folder/x"]);
    let fifo = host.work().join("fifo").to_string_lossy().into_owned();
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).expect("the work folder is writable");
    host.bowline(["stats", "--record", free, "--plot", &fifo, task.id()]).assert_refused(125, &[&fifo, "no picture"]);
    host.bowline(["stats", "--record", free, "--plot", "/no/such/folder/x", task.id()])
        .assert_refused(2, &["/no/such/folder/x"]);
    host.bowline(["stats", "--record", free, "--plot", free, task.id()]).assert_refused(2, &["same file"]);
    host.bowline(["stats", "--record", free]).assert_refused(2, &["one task"]);
    host.bowline(["stats", "--record", free, task.id(), "other"]).assert_refused(2, &["one task"]);
    host.bowline(["stats", "--plot", free]).assert_refused(2, &["needs something"]);
    for (name, format) in [("x.png", "PNG"), ("x.JPG", "JPG"), ("/no/such/folder/x.pdf", "PDF")] {
        let ran = host.bowline(["stats", "--record", free, "--plot", name, task.id()]);
        ran.assert_refused(2, &[name, "SVG", format]);
        assert!(ran.err().contains("x.svg"), "{ran}");
    }
    for flags in [["--from", mine], ["--for", "1s"], ["--record", free]] {
        host.bowline(["stats", "--json"].iter().chain(&flags)).assert_code(2);
    }
    host.bowline(["stats", "--record", free, "no-such-task"]).assert_refused(125, &["no-such-task"]);
    host.bowline(["stats", "--plot", free, "--from", "/no/such/file"]).assert_refused(125, &["/no/such/file"]);
    assert_eq!(fs::read_to_string(mine).expect("there"), "mine");
    assert!(!Path::new(free).exists(), "nothing is left of what was refused");
    task.end();
    host.bowline(["stats", "--record", free, task.id()]).assert_refused(125, &["has exited"]);
}

#[test]
fn a_hostile_command_is_text_in_a_picture() {
    let host = Host::new();
    let (file, svg) = (host.work().join("run.jsonl"), host.work().join("run.svg"));
    let script = "exec sleep 1000 # </title><script>alert(1)</script> ]]> & \" ' \u{1}\u{1b}[2J";
    let task = host.task_of(["/bin/sh", "-c", script]).start();
    let recording = record(&host, &task, &file, &["--plot", svg.to_str().expect("ASCII")]);
    recording.signal(Signal::INT);
    recording.finish().assert_code(0);
    let text = fs::read_to_string(&svg).expect("a picture");
    let document = picture(&text);
    assert!(!document.descendants().any(|node| node.has_tag_name("script")), "{text}");
    assert!(text.contains("&lt;script&gt;"), "{text}");
    task.end();
}
