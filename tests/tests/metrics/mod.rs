//! `bowline metrics`: what it says, against the kernel's own files, and that
//! nobody holds it up.

mod crowd;
mod format;
mod unit;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::metrics::{Samples, ask, read_answer};
use bowline_tests::harness::{Task, eventually, is_slow, lacks, only_v2, process_exists};
use rustix::process::{Pid, Signal, kill_process};

/// How long a scrape waits for a shim, as documented.
const DEADLINE: Duration = Duration::from_secs(2);

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it lives");
}

/// A figure of the kernel's: by v1's file and key, or by v2's.
fn kernels(task: &Task<'_>, v1: (&str, &str, &str), v2: (&str, &str, &str)) -> f64 {
    let (controller, file, key) = if only_v2() { v2 } else { v1 };
    let text = task.cgroup_file(controller, file);
    let value = match key {
        "" => Some(text.as_str()),
        key => text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')),
    };
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {key} in {file}: {text}"))
}

#[test]
fn figures_are_those_of_the_kernel() {
    let host = Host::new();
    let script = "x=$(head -c 20971520 /dev/zero | tr '\\0' x); echo ready; exec sleep 1000";
    let task = host.task(script).flag("--memory=128M").flag("--cpus=0.25").flag("--pids=50").start();
    task.wait_for_line("ready");
    // Once it sleeps nothing of it changes.
    let sleeps =
        || fs::read_to_string(format!("/proc/{}/comm", task.program_pid())).is_ok_and(|name| name == "sleep\n");
    eventually("it sleeps", || sleeps().then_some(()));
    let metrics = host.metrics();
    let of = |name: &str| metrics.of_task(name, task.id(), "");
    let unit = if only_v2() { 1e6 } else { 1e9 };
    let usage = kernels(&task, ("cpuacct", "cpuacct.usage", ""), ("cpu", "cpu.stat", "usage_usec")) / unit;
    assert!(usage > 0.0 && (usage - of("cpu_usage_seconds_total")).abs() < 0.02, "{usage}");
    for (name, v1, v2) in [
        ("cpu_periods_total", "nr_periods", "nr_periods"),
        ("cpu_throttled_periods_total", "nr_throttled", "nr_throttled"),
    ] {
        let kernels = kernels(&task, ("cpu", "cpu.stat", v1), ("cpu", "cpu.stat", v2));
        assert!((kernels - of(name)).abs() <= 3.0, "{name}: {kernels} and {}", of(name));
    }
    let throttled = kernels(&task, ("cpu", "cpu.stat", "throttled_time"), ("cpu", "cpu.stat", "throttled_usec")) / unit;
    assert!((throttled - of("cpu_throttled_seconds_total")).abs() < 0.3, "{throttled}");
    assert_eq!(of("cpu_quota_seconds") / of("cpu_period_seconds"), 0.25);
    let memory = kernels(&task, ("memory", "memory.usage_in_bytes", ""), ("memory", "memory.current", ""));
    assert!((memory - of("memory_usage_bytes")).abs() < 2e6, "{memory}");
    let cache =
        kernels(&task, ("memory", "memory.stat", "total_inactive_file"), ("memory", "memory.stat", "inactive_file"));
    assert!((memory - cache - of("memory_working_set_bytes")).abs() < 2e6, "{memory} {cache}");
    assert_eq!(of("memory_limit_bytes"), 128.0 * 1048576.0);
    assert!(lacks("memory.peak") || of("memory_peak_bytes") > 20e6);
    assert_eq!((of("pids"), of("pids_limit"), of("oom_kills_total")), (2.0, 50.0, 0.0));
    assert_eq!(of("up"), 1.0);
    for (state, is) in [("running", 1.0), ("created", 0.0), ("exited", 0.0), ("dead", 0.0)] {
        assert_eq!(metrics.of_task("state", task.id(), &format!(",state=\"{state}\"")), is);
    }
    let started: jiff::Timestamp = task.inspect()["started_at"].as_str().expect("a time").parse().expect("a time");
    assert_eq!(of("start_time_seconds"), started.as_microsecond() as f64 / 1e6);
    let cgroup = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
    let info = format!(",shim=\"{}\",cgroup=\"{cgroup}\"", task.id());
    assert_eq!(metrics.of_task("info", task.id(), &info), 1.0);
    task.end();
}

#[test]
fn shims_tell_of_themselves() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let rss = || {
        let status = fs::read_to_string(format!("/proc/{}/status", task.shim_pid())).expect("it lives");
        let kilobytes = |line: &str| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok();
        status.lines().find_map(kilobytes).expect("its memory") * 1024.0
    };
    // A shim with nothing to do gives its code back, and reads it again to answer.
    let metrics = eventually("its memory is what the kernel says", || {
        let (metrics, rss) = (host.metrics(), rss());
        ((rss - metrics.of_shim("memory_rss_bytes", task.id())).abs() < 4e6).then_some(metrics)
    });
    let of = |name: &str| metrics.of_shim(name, task.id());
    assert!(of("memory_pss_bytes") > 0.0 && of("memory_pss_bytes") <= of("memory_rss_bytes"));
    assert_eq!((of("up"), of("events_lost_total")), (1.0, 0.0));
    assert_eq!(metrics.with("bowline_shim_info{").len(), 1);
    task.end();
}

#[test]
fn every_exec_is_counted_and_no_health_check() {
    let host = Host::new();
    let healthcheck = "[healthcheck]\nexec = [\"true\"]\ninterval = \"100ms\"";
    let task = host.task("exec sleep 1000").toml(healthcheck).start();
    let of = |name: &str, more: &str| host.metrics().of_task(&format!("exec_start_{name}"), task.id(), more);
    assert_eq!((of("seconds_count", ""), of("failures_total", "")), (0.0, 0.0));
    (0..5).for_each(|_| {
        task.exec("true").assert_code(0);
    });
    task.bowline("exec", ["--", "/no/such/command"]).assert_code(127);
    let healthy = || host.metrics().of_task("health_status", task.id(), ",status=\"healthy\"") == 1.0;
    eventually("a check has succeeded", || healthy().then_some(()));
    let metrics = host.metrics();
    let value = |name: &str, more: &str| metrics.of_task(&format!("exec_start_{name}"), task.id(), more);
    assert_eq!((value("seconds_count", ""), value("failures_total", "")), (5.0, 1.0));
    assert_eq!(value("seconds_bucket", ",le=\"+Inf\""), 5.0);
    let buckets = metrics.with(&format!("exec_start_seconds_bucket{{task=\"{}\"", task.id()));
    let mut bounds: Vec<(f64, f64)> = buckets
        .iter()
        .map(|series| {
            let bound = series.split("le=\"").nth(1).and_then(|rest| rest.strip_suffix("\"}")).expect("a bound");
            (bound.parse().expect("a number, or +Inf"), metrics.value(series))
        })
        .collect();
    bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(bounds.len() == 13 && bounds.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{bounds:?}");
    let sum = value("seconds_sum", "");
    assert!(sum > 0.0 && sum < 60.0, "{sum}");
    task.end();
}

#[test]
fn how_a_task_has_ended_is_told_until_it_is_removed() {
    let host = Host::new();
    let failed = host.task("exit 3");
    let id = failed.id().to_owned();
    failed.run().assert_code(3);
    let metrics = host.metrics();
    let of = |name: &str| metrics.of_task(name, &id, "");
    assert_eq!((of("exit_code"), of("oom_killed")), (3.0, 0.0));
    assert!(of("exit_time_seconds") >= of("start_time_seconds"));
    assert_eq!(metrics.of_task("state", &id, ",state=\"exited\""), 1.0);
    assert_eq!(metrics.value("bowline_tasks{state=\"exited\"}"), 1.0);
    for gone in ["bowline_task_up", "bowline_shim_up", "bowline_task_cpu", "bowline_task_memory"] {
        assert!(metrics.with(gone).is_empty(), "{gone}");
    }
    host.bowline(["rm", &id]).assert_code(0);
    assert!(host.metrics().with(&id).is_empty());
}

#[test]
fn output_that_nobody_takes_is_counted_while_the_task_runs() {
    let host = Host::new();
    let disk = host.tmpfs("disk", "size=64k");
    let toml = format!("command = 'sh'\nlog.path = '{}'", disk.path().display());
    let task = host.task("seq 1 20000; exec sleep 1000").toml(&toml).start();
    let dropped = || host.metrics().of_task("output_dropped_bytes_total", task.id(), "");
    let told = eventually("some of it has nowhere to go", || Some(dropped()).filter(|bytes| *bytes > 0.0));
    assert!(task.end().number("output_dropped_bytes") as f64 >= told);
    drop(disk);
}

#[test]
fn events_that_could_not_be_written_are_counted() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let counted = || host.metrics().of_shim("events_lost_total", task.id());
    let execs = |count: usize| {
        (0..count).for_each(|_| {
            task.exec("true").assert_code(0);
        });
    };
    // What the events say: each, how many there were between it and the one before.
    let said = || {
        let ran = host.bowline(["events", "--json", task.id()]);
        let events = ran.assert_code(0).out();
        let events = events.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        events.filter_map(|event| event["lost"].as_u64()).sum::<u64>()
    };
    execs(1);
    assert_eq!((counted(), said()), (0.0, 0));
    // A disk that is full.
    let folder = host.state().join(".events");
    fs::remove_dir_all(&folder).expect("it was made");
    let disk = host.tmpfs("../s/.events", "size=16k");
    assert!(fs::write(disk.path().join("filler"), vec![0; 1 << 20]).is_err(), "no byte is free then");
    execs(3);
    assert_eq!(counted(), 3.0);
    fs::remove_file(disk.path().join("filler")).expect("it was made");
    execs(1);
    assert_eq!((counted(), said()), (3.0, 3));
    // No folder.
    fs::remove_file(disk.path().join("journal")).expect("it was made");
    drop(disk);
    fs::remove_dir(&folder).expect("the test's own");
    fs::write(&folder, "").expect("the state folder is writable");
    execs(2);
    assert_eq!(counted(), 5.0);
    fs::remove_file(&folder).expect("the test's own");
    execs(1);
    assert_eq!((counted(), said()), (5.0, 2), "those before are told of in the journal that is gone");
    task.end();
}

#[test]
fn members_and_their_sandbox_are_told_of() {
    let host = Host::new();
    let sandbox = host.sandbox().flag("--memory=256M").create();
    let tasks = [1, 2].map(|_| host.task("exec sleep 1000").in_sandbox(&sandbox).start());
    let metrics = host.metrics();
    let of =
        |name: &str| metrics.value(&format!("bowline_sandbox_{name}{{sandbox=\"{}\",namespace=\"\"}}", sandbox.id()));
    assert_eq!((of("up"), of("members"), of("memory_limit_bytes"), of("pids")), (1.0, 2.0, 268435456.0, 4.0));
    for task in &tasks {
        let pids = format!("bowline_task_pids{{task=\"{}\",sandbox=\"{}\",namespace=\"\"}}", task.id(), sandbox.id());
        assert_eq!(metrics.value(&pids), 2.0);
        let (id, sandbox) = (task.id(), sandbox.id());
        let info = format!("bowline_task_info{{task=\"{id}\",sandbox=\"{sandbox}\",namespace=\"\",shim=\"{sandbox}\"");
        assert_eq!(metrics.with(&info).len(), 1);
    }
    // One shim for all.
    assert_eq!(metrics.with("bowline_shim_up").len(), 1);
    assert_eq!(metrics.value("bowline_sandboxes"), 1.0);
    tasks.iter().for_each(|task| drop(task.end()));
    let metrics = host.metrics();
    assert_eq!(metrics.value(&format!("bowline_sandbox_members{{sandbox=\"{}\",namespace=\"\"}}", sandbox.id())), 0.0);
    assert_eq!(metrics.value("bowline_tasks{state=\"exited\"}"), 2.0);
}

#[test]
fn a_task_whose_shim_died_is_down() {
    let host = Host::new();
    let dead = host.task("exec sleep 1000").start();
    let lives = host.task("exec sleep 1000").start();
    dead.kill_shim(dead.shim_pid());
    let metrics = host.metrics();
    assert_eq!((metrics.of_task("up", dead.id(), ""), metrics.of_task("up", lives.id(), "")), (0.0, 1.0));
    assert_eq!(metrics.of_task("state", dead.id(), ",state=\"dead\""), 1.0);
    assert_eq!(metrics.of_shim("up", dead.id()), 0.0);
    // Nothing is wrong with the scrape.
    assert_eq!(metrics.value("bowline_scrape_errors"), 0.0);
    host.bowline(["rm", "-f", dead.id()]).assert_code(0);
    lives.end();
}

#[test]
fn a_shim_that_is_stopped_holds_up_no_scrape() {
    let host = Host::alone();
    let stuck = host.task("exec sleep 1000").start();
    let others: Vec<Task<'_>> = (0..3).map(|_| host.task("exec sleep 1000").start()).collect();
    let exporter = host.exporter([]);
    kill(stuck.shim_pid_on_disk(), Signal::STOP);
    let asked = Instant::now();
    let metrics = exporter.scrape();
    let took = asked.elapsed();
    assert!(took >= DEADLINE / 2 && (is_slow() || took < 2 * DEADLINE), "{took:?}");
    assert_eq!(metrics.of_task("up", stuck.id(), ""), 0.0);
    assert_eq!(metrics.value("bowline_scrape_errors"), 1.0);
    let states = metrics.with(&format!("bowline_task_state{{task=\"{}\"", stuck.id()));
    assert!(states.is_empty(), "nobody knows: {states:?}");
    for task in &others {
        assert_eq!(metrics.of_task("up", task.id(), ""), 1.0);
        assert_eq!(metrics.of_task("pids", task.id(), ""), 2.0);
    }
    kill(stuck.shim_pid_on_disk(), Signal::CONT);
    assert_eq!(exporter.scrape().of_task("up", stuck.id(), ""), 1.0);
    exporter.end(Signal::TERM);
    stuck.end();
    others.iter().for_each(|task| drop(task.end()));
}

/// The samples of a scrape in which every shim answered. One that took as long as a shim may take is asked for again:
/// there the machine stood still, and not a shim.
fn whole(mut scrape: impl FnMut() -> Samples) -> Samples {
    eventually("a scrape ends before its deadline", || {
        let samples = scrape();
        let errors = samples.value("bowline_scrape_errors");
        let took = Duration::from_secs_f64(samples.value("bowline_scrape_duration_seconds"));
        assert!(errors == 0.0 || took >= DEADLINE, "{errors} errors within {took:?}: {samples:?}");
        (errors == 0.0).then_some(samples)
    })
}

#[test]
fn many_scrapes_at_a_time_are_answered_while_tasks_come_and_go() {
    let host = Host::new();
    let count = if is_slow() { 4 } else { 20 };
    let tasks: Vec<Task<'_>> = (0..count).map(|_| host.task("exec sleep 1000").start()).collect();
    let exporter = host.exporter(["--listen", "127.0.0.1:0"]);
    let running = "bowline_tasks{state=\"running\"}";
    std::thread::scope(|scope| {
        let exporter = exporter.place().to_owned();
        for _ in 0..8 {
            let address = exporter["http://".len()..].trim_end_matches("/metrics").to_owned();
            scope.spawn(move || {
                let mut connection = std::net::TcpStream::connect(&address).expect("it listens");
                for _ in 0..5 {
                    let metrics = whole(|| {
                        let answer = ask(&mut connection, "GET", "/metrics", "");
                        assert_eq!(answer.status, 200, "{answer:?}");
                        Samples::of(&answer.body)
                    });
                    assert_eq!(metrics.value(running), f64::from(count), "{metrics:?}");
                }
            });
        }
    });
    let (going, staying) = tasks.split_at(tasks.len() / 2);
    for task in going {
        kill(task.pid(), Signal::KILL);
        let metrics = whole(|| exporter.scrape());
        assert_eq!(metrics.with("bowline_task_info{").len(), tasks.len(), "{metrics:?}");
    }
    eventually("all that were killed have ended", || {
        let metrics = exporter.scrape();
        (metrics.value("bowline_tasks{state=\"exited\"}") == going.len() as f64
            && metrics.value(running) == staying.len() as f64)
            .then_some(())
    });
    staying.iter().for_each(|task| drop(task.end()));
    exporter.end(Signal::INT);
}

#[test]
fn units_that_are_tracked_are_told_of() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let cgroup = task.inspect()["cgroup"].as_str().expect("a path").to_owned();
    let folder = host.state().join(".limits");
    fs::create_dir_all(&folder).expect("the state folder is there");
    let list = format!(
        r#"[{{"unit":"there.service","cgroup":"{cgroup}"}},{{"unit":"gone.service","cgroup":"/no-such.slice/gone.service"}}]"#
    );
    fs::write(folder.join("tracked.json"), list).expect("writable");
    let metrics = host.metrics();
    let labels = format!("{{unit=\"there.service\",cgroup=\"{cgroup}\"}}");
    assert_eq!(metrics.value(&format!("bowline_unit_up{labels}")), 1.0);
    assert_eq!(metrics.value(&format!("bowline_unit_pids{labels}")), 2.0);
    let memory = metrics.value(&format!("bowline_unit_memory_usage_bytes{labels}"));
    assert!((memory - metrics.of_task("memory_usage_bytes", task.id(), "")).abs() < 2e6, "{memory}");
    for name in ["cpu_usage_seconds_total", "cpu_throttled_seconds_total"] {
        assert!(metrics.value(&format!("bowline_unit_{name}{labels}")) >= 0.0);
    }
    let gone = metrics.with("gone.service");
    assert_eq!(gone, ["bowline_unit_up{unit=\"gone.service\",cgroup=\"/no-such.slice/gone.service\"}"]);
    assert_eq!((metrics.value(gone[0]), metrics.value("bowline_scrape_errors")), (0.0, 0.0));
    fs::write(folder.join("tracked.json"), "[{").expect("writable");
    assert_eq!(host.metrics().value("bowline_scrape_errors"), 1.0, "a list that is damaged");
    task.end();
}

#[test]
fn what_is_damaged_hides_nothing_else() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    let odd = host.new_id();
    fs::create_dir(host.state().join(&odd)).expect("the state folder is there");
    fs::write(host.state().join(&odd).join("exit.json"), "{").expect("writable");
    let metrics = host.metrics();
    assert!(metrics.value("bowline_scrape_errors") > 0.0);
    assert_eq!(metrics.of_task("up", task.id(), ""), 1.0);
    fs::remove_dir_all(host.state().join(&odd)).expect("ours");
    task.end();
}

#[test]
fn a_socket_is_its_owners_alone_and_goes_with_it() {
    let host = Host::new();
    for signal in [Signal::TERM, Signal::INT] {
        let exporter = host.exporter([]);
        let socket = host.state().join(".metrics.sock");
        assert_eq!(exporter.place(), format!("unix:{}", socket.display()));
        assert_eq!(fs::metadata(&socket).expect("a socket").permissions().mode() & 0o7777, 0o600);
        assert_eq!(exporter.scrape().value("bowline_sandboxes"), 0.0);
        exporter.end(signal);
        assert!(!socket.exists());
    }
}

#[test]
fn an_unused_socket_is_replaced_and_one_in_use_is_not() {
    let host = Host::new();
    let first = host.exporter([]);
    let socket = host.state().join(".metrics.sock");
    host.bowline(["metrics"]).assert_refused(125, &[".metrics.sock", "somebody listens there"]);
    assert_eq!(first.scrape().value("bowline_sandboxes"), 0.0, "it was not disturbed");
    kill(first.pid(), Signal::KILL);
    eventually("it is gone", || (!process_exists(first.pid())).then_some(()));
    assert!(socket.exists(), "nobody has removed it");
    let second = host.exporter([]);
    second.scrape();
    // Whoever has put another there keeps it.
    let theirs = PathBuf::from(&socket);
    fs::remove_file(&theirs).expect("ours");
    fs::write(&theirs, "not a socket").expect("writable");
    second.end(Signal::TERM);
    assert_eq!(fs::read_to_string(&theirs).expect("still there"), "not a socket");
    fs::remove_file(theirs).expect("ours");
}

#[test]
fn a_client_gets_what_http_says() {
    let host = Host::new();
    let exporter = host.exporter([]);
    let text = "text/plain; version=0.0.4; charset=utf-8";
    let mut kept = exporter.connect();
    for (method, path, headers, status, media) in [
        ("GET", "/metrics", "", 200, text),
        ("GET", "/metrics?x=1", "Accept: */*\r\n", 200, text),
        ("GET", "/metrics", "Accept: text/html\r\n", 200, text),
        ("HEAD", "/metrics", "", 200, text),
        (
            "GET",
            "/metrics",
            "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n",
            200,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
        ("GET", "/", "", 404, "text/plain; charset=utf-8"),
        ("GET", "/metrics/", "", 404, "text/plain; charset=utf-8"),
        ("GET", "/../metrics", "", 404, "text/plain; charset=utf-8"),
        ("DELETE", "/metrics", "", 405, "text/plain; charset=utf-8"),
        ("POST", "/metrics", "Content-Length: 0\r\n", 405, "text/plain; charset=utf-8"),
    ] {
        // All on one connection.
        let answer = ask(&mut *kept, method, path, headers);
        assert_eq!((answer.status, answer.headers["content-type"].as_str()), (status, media), "{method} {path}");
        assert_eq!(answer.headers.get("allow").map(String::as_str), (status == 405).then_some("GET, HEAD"));
        assert_eq!(answer.body.is_empty(), method == "HEAD");
        assert_eq!(answer.body.ends_with("# EOF\n"), media.contains("openmetrics"));
    }
    drop(kept);
    exporter.end(Signal::TERM);
}

#[test]
fn hostile_clients_keep_nobody_from_scraping() {
    let host = Host::alone();
    let exporter = host.exporter([]);
    // Fewer than there is room for: they say nothing, or half of something.
    let mut silent: Vec<_> = (0..20).map(|_| exporter.connect()).collect();
    for connection in silent.iter_mut().skip(10) {
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: x").expect("it reads");
    }
    exporter.scrape();
    // A head without an end, and what is no HTTP.
    let mut large = exporter.connect();
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(100_000));
    // It may close before all is written.
    let _ = large.write_all(long.as_bytes());
    let answer = read_answer(&mut *large, false);
    assert_eq!(answer.status, 431, "{answer:?}");
    for garbage in [&b"\0\x01\x02\x16\x03\x01\r\n\r\n"[..], b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut connection = exporter.connect();
        connection.write_all(garbage).expect("it reads");
        let mut rest = Vec::new();
        // Refused and closed, whatever it is called.
        let _ = connection.read_to_end(&mut rest);
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 4"), "{:?}", String::from_utf8_lossy(&rest));
    }
    // A body that never comes.
    let answer = exporter.ask("POST", "/metrics", "Content-Length: 1000000\r\n");
    assert_eq!(answer.status, 405);
    exporter.scrape();
    // They do not keep it from ending either.
    let asked = Instant::now();
    exporter.end(Signal::TERM);
    assert!(is_slow() || asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    drop(silent);
}

#[test]
fn it_listens_at_any_address_of_this_host_where_allowed() {
    let host = Host::new();
    for (listen, remote) in
        [("127.0.0.1:0", false), ("localhost:0", false), ("127.0.0.2:0", false), ("0.0.0.0:0", true)]
    {
        let exporter = match remote {
            true => host.exporter(["--listen", listen, "--allow-remote"]),
            false => host.exporter(["--listen", listen]),
        };
        let place = exporter.place();
        assert!(place.starts_with("http://") && place.ends_with("/metrics") && !place.contains(":0/"), "{place}");
        exporter.scrape();
        exporter.end(Signal::TERM);
    }
    assert!(!Path::new(&host.state()).join(".metrics.sock").exists());
}
