//! Logs on disks that are full, read-only or away: nobody is held up, what is
//! lost is counted, and what comes later is kept.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::{Process, Task, eventually};
use serde_json::Value;

/// A script says `step NAME` to wait until the test lets it.
const STEPS: &str = "step() { while [ ! -e /tmp/$1 ]; do sleep 0.01; done; }; ";

/// A task in the foreground that keeps a log of one file in `folder`.
///
/// What has come through to `run` has been offered to the log before.
fn foreground<'h>(host: &'h Host, folder: &Path, script: &str) -> (Task<'h>, Process) {
    let toml = format!("command = 'sh'\nlog = {{ path = '{}', max_size = '1M', max_files = 1 }}", folder.display());
    let build = host.task(&format!("{STEPS}{script}")).toml(&toml);
    let (task, run) = build.spawn();
    run.read_stdout();
    run.read_stderr();
    (task, run)
}

fn step(task: &Task<'_>, name: &str) {
    // It may be killed with the task that it has let end.
    let _ = task.exec(&format!("touch /tmp/{name}"));
}

/// Waits until the shim has had to drop output: a reader may have it before the shim writes it.
#[track_caller]
fn wait_until_dropped(host: &Host, task: &Task<'_>) {
    let dropped = || host.metrics().of_task("output_dropped_bytes_total", task.id(), "");
    eventually("some of it has nowhere to go", || (dropped() > 0.0).then_some(()));
}

fn log_of(task: &Task<'_>, folder: &Path) -> PathBuf {
    folder.join(format!("{}.json", task.id()))
}

/// The lines of a log, which are all JSON.
#[track_caller]
fn stored(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a log");
    assert!(text.is_empty() || text.ends_with('\n'), "the log ends within a line");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn noted(lines: &[Value]) -> u64 {
    lines.iter().filter_map(|line| line["dropped"].as_u64()).sum()
}

fn texts(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["line"].as_str()).collect()
}

/// How many bytes the task wrote that are in these lines.
fn kept(lines: &[Value]) -> u64 {
    texts(lines).iter().map(|line| line.len() as u64 + 1).sum()
}

/// How many bytes `seq FIRST LAST` writes.
fn seq(first: u64, last: u64) -> u64 {
    (first..=last).map(|n| n.to_string().len() as u64 + 1).sum()
}

/// Fills a disk to its last byte.
fn fill(folder: &Path) -> PathBuf {
    let filler = folder.join("filler");
    // An error, as meant: no byte is free then.
    assert!(fs::write(&filler, vec![0; 8 << 20]).is_err());
    filler
}

#[test]
fn a_full_disk_holds_up_nobody_and_all_that_is_lost_is_counted() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let toml = format!("command = 'sh'\nlog.path = '{}'", disk.path().display());
    let task = host.task("seq 1 20000; exit 3").toml(&toml).start();
    let report = task.wait();
    report.assert_code(3);
    let lines = stored(&log_of(&task, disk.path()));
    let dropped = report.number("output_dropped_bytes");
    assert!(!lines.is_empty() && dropped > 0);
    assert_eq!(kept(&lines) + dropped, seq(1, 20_000));
    let said = format!("bowline: {dropped} bytes of the output were dropped, as they could not be written");
    assert_eq!(task.bowline("logs", []).assert_code(0).err(), said);
    drop(disk);
}

#[test]
fn a_raw_log_on_a_full_disk_counts_to_the_byte() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let toml = format!("command = 'sh'\nlog = {{ path = '{}', format = 'raw' }}", disk.path().display());
    let task = host.task("seq 1 20000").toml(&toml).start();
    let report = task.wait();
    let written = fs::metadata(disk.path().join(format!("{}.stdout.log", task.id()))).expect("a log").len();
    assert!(written > 0);
    assert_eq!(written + report.number("output_dropped_bytes"), seq(1, 20_000));
    drop(disk);
}

#[test]
fn a_disk_that_has_room_again_is_written_again() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=256k");
    let script = "echo before; step full; seq 1 2000; step room; echo after";
    let (task, run) = foreground(&host, disk.path(), script);
    run.wait_for_out("before");
    let filler = fill(disk.path());
    step(&task, "full");
    run.wait_for_out("2000\n");
    wait_until_dropped(&host, &task);
    fs::remove_file(filler).expect("it was made");
    step(&task, "room");
    run.finish().assert_code(0);
    let lines = stored(&log_of(&task, disk.path()));
    let texts = texts(&lines);
    assert_eq!((texts.first(), texts.last()), (Some(&"before"), Some(&"after")));
    let dropped = noted(&lines);
    assert!(dropped > 0);
    assert_eq!(kept(&lines) + dropped, "before\n".len() as u64 + seq(1, 2000) + "after\n".len() as u64);
    let all: Vec<String> = ["before".to_owned()].into_iter().chain((1..=2000).map(|n| n.to_string())).collect();
    let at = lines.iter().position(|line| line["dropped"].is_u64()).expect("a note");
    assert!(all.iter().take(at).eq(&texts[..at]), "what is missing is noted where it is: {at}");
    assert_eq!(task.wait().number("output_dropped_bytes"), dropped);
    drop(disk);
}

#[test]
fn a_disk_that_is_read_only_for_a_while_keeps_what_comes_later() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=256k");
    let toml =
        format!("command = 'sh'\nlog = {{ path = '{}', max_size = '4K', max_files = 100 }}", disk.path().display());
    let script = format!("{STEPS}echo before; step away; seq 1 500; step back; echo after");
    let (task, run) = host.task(&script).toml(&toml).spawn();
    run.read_stdout();
    run.wait_for_out("before");
    // What is open can still be written; nothing can be renamed or begun.
    let cover = host.tmpfs("disk", "size=4k");
    cover.read_only();
    step(&task, "away");
    run.wait_for_out("500\n");
    wait_until_dropped(&host, &task);
    drop(cover);
    step(&task, "back");
    run.finish().assert_code(0);
    let newest = stored(&log_of(&task, disk.path()));
    let before = stored(&disk.path().join(format!("{}.json.1", task.id())));
    // What the shim had still to write by then is there too.
    assert_eq!(texts(&newest).last(), Some(&"after"));
    // There may have been room for a note, where there was none for a line.
    let dropped = noted(&before) + noted(&newest);
    assert!(dropped > 0);
    assert_eq!(kept(&before) + dropped, "before\n".len() as u64 + seq(1, 500));
    assert_eq!(task.wait().number("output_dropped_bytes"), dropped);
    let said = task.bowline("logs", []);
    assert!(said.assert_code(0).err().contains(&format!("{dropped} bytes")), "{said}");
    drop(disk);
}

#[test]
fn a_folder_that_vanishes_is_found_again() {
    let host = Host::new();
    let folder = host.work().join("logs");
    fs::create_dir(&folder).expect("a folder");
    let script = "echo before; step away; echo lost; step back; echo after";
    let (task, run) = foreground(&host, &folder, script);
    run.wait_for_out("before");
    fs::remove_dir_all(&folder).expect("ours");
    step(&task, "away");
    run.wait_for_out("lost");
    assert_eq!(task.status(), "running");
    fs::create_dir(&folder).expect("a folder");
    step(&task, "back");
    run.finish().assert_code(0);
    let lines = stored(&log_of(&task, &folder));
    assert_eq!((noted(&lines), texts(&lines)), (5, vec!["after"]));
    assert_eq!(task.wait().number("output_dropped_bytes"), 5);
}

#[test]
fn follow_goes_on_in_a_folder_that_has_come_back() {
    let host = Host::new();
    let folder = host.work().join("logs");
    fs::create_dir(&folder).expect("a folder");
    let (task, run) = foreground(&host, &folder, "echo before; step back; echo after");
    run.wait_for_out("before");
    let logs = host.spawn(["logs", "-f", task.id()]);
    logs.wait_for_out("before");
    fs::remove_dir_all(&folder).expect("ours");
    fs::create_dir(&folder).expect("a folder");
    step(&task, "back");
    run.finish().assert_code(0);
    logs.finish().assert_says("before\nafter");
}

#[test]
fn a_log_that_is_removed_is_made_anew() {
    let host = Host::new();
    let (task, run) = foreground(&host, &host.work(), "echo before; step gone; echo after");
    run.wait_for_out("before");
    let log = log_of(&task, &host.work());
    fs::remove_file(&log).expect("there is one");
    step(&task, "gone");
    run.finish().assert_code(0);
    assert_eq!(texts(&stored(&log)), ["after"]);
    assert_eq!(task.wait().number("output_dropped_bytes"), 0);
}

/// What comes after it is in a new file, and `logs` shows that.
#[test]
fn a_log_that_is_renamed_is_treated_as_a_removed_one() {
    for format in ["json", "raw"] {
        let host = Host::new();
        let script = format!("{STEPS}echo before; step moved; echo after; step end");
        let task = host.task(&script).flag(format!("--log={format}")).start();
        let log = task.file(if format == "json" { "log.json" } else { "stdout.log" });
        let logs = host.spawn(["logs", "-f", task.id()]);
        logs.wait_for_out("before\n");
        fs::rename(&log, log.with_file_name("x")).expect("there is one");
        step(&task, "moved");
        logs.wait_for_out("after\n");
        task.bowline("logs", []).assert_says("after");
        step(&task, "end");
        assert_eq!(logs.finish().assert_says("before\nafter").err(), "");
        let [moved, new] = [log.with_file_name("x"), log].map(|path| fs::read_to_string(path).expect("a log"));
        assert!(moved.contains("before") && !moved.contains("after") && new.contains("after"), "{moved}{new}");
        assert_eq!(task.wait().number("output_dropped_bytes"), 0);
        host.assert_nothing_left();
    }
}

#[test]
fn a_symlink_in_place_of_the_log_is_not_followed() {
    let host = Host::new();
    let target = host.file("target", "precious\n");
    let build = host.task("echo hello").toml(&format!("command = 'sh'\nlog.path = '{}'", host.work().display()));
    let log = host.work().join(format!("{}.json", build.id()));
    symlink(&target, &log).expect("the work folder is writable");
    build.assert_refused(125, &["log", &log.to_string_lossy()]);
    assert_eq!(fs::read_to_string(&target).expect("it is there"), "precious\n");
}

#[test]
fn a_symlink_that_takes_the_place_of_the_log_is_not_followed() {
    let host = Host::new();
    let target = host.file("target", "precious\n");
    let (task, run) = foreground(&host, &host.work(), "echo before; step planted; echo lost");
    run.wait_for_out("before");
    let log = log_of(&task, &host.work());
    fs::remove_file(&log).expect("there is one");
    symlink(&target, &log).expect("the work folder is writable");
    step(&task, "planted");
    run.finish().assert_code(0);
    assert_eq!(fs::read_to_string(&target).expect("it is there"), "precious\n");
    assert_eq!(task.wait().number("output_dropped_bytes"), 5);
}

#[test]
fn what_is_no_file_is_no_log() {
    let host = Host::new();
    let build = host.task("echo hello").toml(&format!("command = 'sh'\nlog.path = '{}'", host.work().display()));
    let log = host.work().join(format!("{}.json", build.id()));
    rustix::fs::mknodat(rustix::fs::CWD, &log, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    build.assert_refused(125, &["log", &log.to_string_lossy()]);
}

#[test]
fn a_log_in_a_folder_that_does_not_exist_is_refused() {
    let host = Host::new();
    let folder = host.work().join("missing");
    let toml = format!("command = 'true'\nlog.path = '{}'", folder.display());
    host.described(&toml).assert_refused(125, &["log", &folder.to_string_lossy()]);
}

#[test]
fn a_line_that_a_crash_has_torn_is_left_out_and_said() {
    let host = Host::new();
    let build = host.task("echo hello").toml(&format!("command = 'sh'\nlog.path = '{}'", host.work().display()));
    let log = host.work().join(format!("{}.json", build.id()));
    fs::write(&log, "{\"time\":\"2026-05-01T12:00:00Z\",\"stream\":\"stdout\",\"line\":\"old\"}\n{\"ti").expect("ours");
    let task = build.start();
    task.wait();
    assert_eq!(texts(&stored(&log)), ["hello"]);
    task.bowline("logs", []).assert_says("old\nhello");
}
