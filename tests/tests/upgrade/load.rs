//! Shims are upgraded back and forth between two versions under load, and killed at random moments, and nothing is lost.
//!
//! `BOWLINE_UPGRADES=200` and `BOWLINE_KILLS=200` say how often, as `make faults` does; without them it is a few times.
//! The moments of the kills are those of `BOWLINE_SEED`, the same in each run.
//! Each case prints what it did (`--nocapture`).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::versions::stand_in;
use bowline_tests::harness::{Process, Task, binary, child_pids, eventually, touch};
use rustix::process::{Pid, Signal, kill_process};

/// A megabyte a second on each stream, in lines of eight bytes that are numbered, until it is told to end.
const WRITER: &str = "i=1000000; until [ -e /tmp/end ]; do seq $i $((i+12999)); seq $i $((i+12999)) >&2; \
                      i=$((i+13000)); sleep 0.1; done; exit 7";

const CHECKED: &str = "[healthcheck]\nexec = [\"/bin/true\"]\ninterval = \"100ms\"\nretries = 1\n";

/// How often, by this variable.
fn times(variable: &str, otherwise: usize) -> usize {
    let asked = std::env::var(variable).ok();
    asked.map_or(otherwise, |times| times.parse().unwrap_or_else(|_| panic!("{variable}: a number")))
}

#[allow(clippy::print_stdout, reason = "what was done, for --nocapture")]
fn print(line: &str) {
    println!("{line}");
}

/// The two programs, of two versions of the facts.
fn versions(host: &Host, name: &str) -> [PathBuf; 2] {
    [stand_in(host, name, "facts=3;"), binary(name)]
}

/// The lines are numbered without a gap; how many there are.
#[track_caller]
fn counted<'t>(lines: impl Iterator<Item = &'t str>, what: &str) -> usize {
    let mut next = 1_000_000_usize;
    for line in lines {
        assert_eq!(line.parse(), Ok(next), "{what}: after {} lines", next - 1_000_000);
        next += 1;
    }
    next - 1_000_000
}

#[track_caller]
fn assert_complete(run: Process, what: &str) -> usize {
    let ran = run.finish();
    assert_eq!(ran.code, Some(7), "{what}: {}", ran.err().lines().last().unwrap_or_default());
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let both = [counted(out.lines(), what), counted(err.lines(), what)];
    assert_eq!(both[0], both[1], "{what}: as much on both streams");
    both[0] * 8
}

/// What is asked of a task while its shim is upgraded by `upgrading`: each answer is the right one.
#[track_caller]
fn ask(host: &Host, task: &Task<'_>, number: usize, upgrading: Process) {
    let code = i32::try_from(number % 100).expect("small");
    let late = task.spawn_exec(["--timeout", "30s"], &format!("sleep 0.1; echo {number}; exit {code}"));
    late.read_stdout();
    let attached = host.spawn(["attach", "--no-stdin", task.id()]);
    task.exec_with(["--timeout", "10s"], &format!("exit {code}")).assert_code(code);
    task.bowline("stats", ["--json"]).assert_code(0);
    attached.wait_for_out("\n");
    let ran = late.finish();
    assert_eq!((ran.code, ran.out()), (Some(code), number.to_string()), "{ran}");
    let ran = upgrading.finish();
    assert_eq!(ran.code, Some(0), "upgrade {number}: {ran}");
}

fn to_healthy(task: &Task<'_>) {
    eventually("it is healthy", || (task.inspect()["health"]["status"] == "healthy").then_some(()));
}

#[track_caller]
fn assert_healthy(task: &Task<'_>) {
    let health = &task.inspect()["health"];
    assert_eq!((&health["status"], &health["failing_streak"]), (&"healthy".into(), &0.into()), "{health}");
}

#[test]
fn a_task_is_upgraded_back_and_forth_under_load() {
    let host = Host::new();
    let versions = versions(&host, "bowline-shim");
    let (task, run) = host.task(WRITER).toml(CHECKED).spawn();
    run.read_stdout();
    run.read_stderr();
    task.wait_until_running();
    to_healthy(&task);
    let (shim, begun, times) = (task.shim_pid(), Instant::now(), times("BOWLINE_UPGRADES", 6));
    for number in 0..times {
        let to = versions[number % 2].to_str().expect("ASCII");
        ask(&host, &task, number, host.spawn(["upgrade", "--shim", to, task.id()]));
    }
    let took = begun.elapsed();
    assert_eq!(task.shim_pid(), shim);
    assert_healthy(&task);
    touch(task.program_pid(), "end");
    let bytes = assert_complete(run, "the task");
    print(&format!("{times} upgrades in {took:.0?}, {bytes} bytes on each stream"));
}

#[test]
fn a_sandbox_is_upgraded_back_and_forth_under_load() {
    let host = Host::new();
    let versions = versions(&host, "bowline-shim");
    let sandbox = host.sandbox().toml("share_pid = true").create();
    let members: Vec<_> = (0..2)
        .map(|_| {
            let (task, run) = host.task(WRITER).toml(CHECKED).in_sandbox(&sandbox).spawn();
            run.read_stdout();
            run.read_stderr();
            task.wait_until_running();
            to_healthy(&task);
            (task, run)
        })
        .collect();
    let (begun, times) = (Instant::now(), times("BOWLINE_UPGRADES", 6));
    for number in 0..times {
        let to = versions[number % 2].to_str().expect("ASCII");
        ask(&host, &members[number / 2 % 2].0, number, host.spawn(["upgrade", "--shim", to, sandbox.id()]));
        if number % 10 == 5 {
            // Members come and go.
            host.task("exit 5").in_sandbox(&sandbox).run().assert_code(5);
        }
    }
    let took = begun.elapsed();
    let mut bytes = 0;
    for (task, run) in members {
        assert_healthy(&task);
        touch(task.program_pid(), "end");
        bytes += assert_complete(run, task.id());
    }
    print(&format!("{times} upgrades of a sandbox in {took:.0?}, {bytes} bytes on each stream of two members"));
    sandbox.rm([]);
}

#[test]
fn a_containerd_pod_is_upgraded_back_and_forth_under_load() {
    let host = Host::alone();
    let Some(cri) = host.cri() else { return };
    let versions = versions(&host, "containerd-shim-bowline-v1");
    let pod = cri.pod().run();
    let writer = WRITER.replace("/tmp/end", "/dev/shm/end");
    let writing = pod.container("writing", &writer).start();
    let other = pod.container("other", "until [ -e /dev/shm/end ]; do sleep 0.05; done; exit 9").start();
    let (shims, pids) = (cri.shims(), [pod.pid(), writing.pid(), other.pid()]);
    let state = host.work().join("state");
    let (begun, times) = (Instant::now(), times("BOWLINE_UPGRADES", 6));
    for number in 0..times {
        let to = versions[number % 2].to_str().expect("ASCII");
        let containerd = format!("--containerd={}", state.display());
        let upgrading = host.spawn(["upgrade", &containerd, "--shim", to]);
        let code = i32::try_from(number % 100).expect("small");
        let answers = other.exec_at_once(&[format!("echo {number}; exit {code}"), "sleep 0.05; echo late".to_owned()]);
        assert_eq!(
            (answers[0].stdout.trim_end(), answers[0].code),
            (number.to_string().as_str(), code),
            "exec {number}"
        );
        assert_eq!(answers[1].out(), "late");
        assert!(writing.is_running() && pod.is_ready());
        assert!(writing.stats().cpu.is_some());
        let ran = upgrading.finish();
        assert_eq!(ran.code, Some(0), "upgrade {number}: {ran}");
        // Once in a shim of each version.
        if matches!(number % 20, 2 | 5) {
            let short = pod.container(&format!("short{number}"), "exit 4").start();
            assert_eq!(short.end().0, 4);
            short.remove();
        }
    }
    let took = begun.elapsed();
    assert_eq!((cri.shims(), [pod.pid(), writing.pid(), other.pid()]), (shims, pids));
    let end = |pid: i32| std::fs::write(format!("/proc/{pid}/root/dev/shm/end"), "").expect("root may");
    end(pids[1]);
    assert_eq!((writing.end().0, other.end().0), (7, 9));
    // containerd tells the end before it has written all of the log.
    let of = |log: &[String], stream: &str| -> Vec<String> {
        let prefix = format!("{stream} F ");
        log.iter().filter_map(|line| line.strip_prefix(&prefix).map(str::to_owned)).collect()
    };
    let lines = eventually("as much of both streams is in the log", || {
        let log = writing.log();
        let lines = ["stdout", "stderr"].map(|stream| counted(of(&log, stream).iter().map(String::as_str), stream));
        (lines[0] == lines[1]).then_some(lines)
    });
    print(&format!("{times} upgrades of a pod in {took:.0?}, {} bytes on each stream", lines[0] * 8));
    writing.remove();
    other.remove();
    // While containerd is away, too.
    let last = pod.container("last", "until [ -e /dev/shm/last ]; do sleep 0.05; done; exit 6").start();
    cri.kill();
    host.bowline(["upgrade", &format!("--containerd={}", state.display())]).assert_code(0);
    cri.come_back();
    assert_eq!(last.exec("echo still; touch /dev/shm/last").out(), "still");
    assert_eq!(last.end().0, 6);
    last.remove();
    pod.remove();
    cri.end();
}

/// A number below `most`, other ones with each call; the same in each run.
fn random(state: &mut u64, most: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % most
}

/// What became of the tasks whose shims were killed.
#[derive(Default)]
struct Killed {
    /// How many went on under a new shim.
    adopted: usize,
    /// How many had not started their command, which `run` said.
    in_launch: usize,
    /// How many had ended before the kill.
    late: usize,
    bytes: usize,
}

#[test]
fn a_shim_killed_at_any_moment_loses_neither_exit_nor_output() {
    let host = Host::new();
    let (times, seed) = (times("BOWLINE_KILLS", 12), times("BOWLINE_SEED", 7));
    let (mut state, mut killed) = (seed as u64, Killed::default());
    for number in 0..times {
        // Half of them while the task runs, one in four at any moment, one in four while it is launched.
        let (least, span) = [(20_000, 80_000), (0, 350_000), (20_000, 80_000), (0, 40_000)][number % 4];
        let after = Duration::from_micros(least + random(&mut state, span));
        kill_at(&host, number, after, &mut killed);
    }
    let Killed { adopted, in_launch, late, bytes } = killed;
    print(&format!(
        "{times} kills, seed {seed}: {adopted} went on under a new shim, {in_launch} had not started, {late} had ended; \
         {bytes} bytes, each once"
    ));
    assert!(adopted > 0 && in_launch <= times / 2, "{adopted} went on, {in_launch} had not started");
}

/// Runs a task, and kills its shim this long after there is one, or for every second one after its first line.
#[track_caller]
fn kill_at(host: &Host, number: usize, after: Duration, killed: &mut Killed) {
    let mark = host.work().join(format!("mark-{}", host.new_id()));
    std::fs::create_dir(&mark).expect("the work folder is writable");
    let code = i32::try_from(1 + number % 100).expect("small");
    let script = format!(
        "echo >/mark/started; i=0; while [ $i -lt 8 ]; do seq $((i*1000)) $((i*1000+999)); sleep 0.02; i=$((i+1)); done; \
         exit {code}"
    );
    let mounts = format!("mounts = [{{source = '{}', destination = '/mark'}}]", mark.display());
    let (task, run) = host.task(&script).toml(&mounts).flag("--init").flag("--log=json").spawn();
    run.read_stdout();
    run.read_stderr();
    let shim = eventually("there is a shim", || child_pids(run.pid()).first().copied());
    if number.is_multiple_of(2) {
        run.wait_for_out("\n");
    }
    // At a moment by chance, which is what is tried.
    std::thread::sleep(after);
    // It may have ended.
    let _ = kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL);
    let ran = run.finish();
    let what = format!("kill {number}, after {after:?}: {ran}");
    if ran.code == Some(125) {
        assert!(!mark.join("started").exists(), "its command was started: {what}");
        assert!(
            ran.err().contains("before it had started the task") || ran.err().contains("died as it started"),
            "{what}"
        );
        assert!(!task.file("").exists(), "{what}");
        killed.in_launch += 1;
        return;
    }
    assert_eq!(ran.code, Some(code), "{what}");
    let expected: String = (0..8000).map(|n| format!("{n}\n")).collect();
    assert!(ran.stdout == expected.as_bytes(), "{} bytes of {}: {what}", ran.stdout.len(), expected.len());
    assert!(task.said("stdout") == expected, "{} bytes in the log: {what}", task.said("stdout").len());
    killed.bytes += expected.len();
    let took_over = task.log("shim.log").contains("took over");
    killed.adopted += usize::from(took_over);
    killed.late += usize::from(!took_over);
    task.bowline("rm", []).assert_code(0);
}
