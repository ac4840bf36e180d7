//! The list of tasks, as a person and as a script sees it.

use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::{Screen, Task, binary};
use serde_json::Value;

const IDLE: &str = "exec sleep 1000";

/// What `ps` shows, each line's words.
fn words(lines: &[String]) -> Vec<Vec<String>> {
    lines.iter().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

/// `bowline ARGS` on a screen this wide, once it has ended.
fn shown<'h>(host: &'h Host, columns: u16, environment: &[(&str, &str)], args: &[&str]) -> Screen<'h> {
    let mut command = Command::new(binary("bowline"));
    command.args(args).envs(environment.iter().copied());
    let screen = host.screen_of(command, columns, 24);
    assert_eq!(screen.wait_for_end(), 0);
    screen
}

/// One that runs, one that is paused, one that ended with 3.
fn three(host: &Host) -> [Task<'_>; 3] {
    let tasks = [host.task(IDLE).start(), host.task(IDLE).start(), host.task("exit 3").start()];
    tasks[1].bowline("pause", []).assert_code(0);
    tasks[2].wait();
    tasks
}

fn end(tasks: [Task<'_>; 3]) {
    tasks.iter().for_each(|task| drop(task.end()));
}

#[test]
fn a_person_sees_what_each_task_does() {
    let host = Host::new();
    let tasks = three(&host);
    let screen = shown(&host, 80, &[], &["ps"]);
    let lines = words(&screen.lines());
    assert_eq!(lines[0], ["ID", "STATUS", "AGE", "PID", "COMMAND"]);
    assert_eq!(lines[1][..2], [tasks[0].id(), "running"]);
    assert_eq!(lines[1][3], tasks[0].pid().to_string());
    assert_eq!(lines[1][4..], ["/bin/sh", "-c", "exec", "sleep", "1000"]);
    assert_eq!(lines[2][..2], [tasks[1].id(), "paused"]);
    assert_eq!(lines[3][..3], [tasks[2].id(), "exited", "(3)"]);
    assert!(lines[3][3].ends_with('s') && lines[3][4] == "ago", "{lines:?}");
    assert_eq!(lines[3][6..], ["-", "/bin/sh", "-c", "exit", "3"]);
    assert_eq!(lines.len(), 4);
    screen.close();
    end(tasks);
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let host = Host::new();
    let script = format!(": {}; {IDLE}", "日本語 ".repeat(60));
    let task = host.task(&script).start();
    for (columns, environment, widest) in [(80, &[][..], 80), (50, &[], 50), (80, &[("COLUMNS", "60")], 60)] {
        let screen = shown(&host, columns, environment, &["ps"]);
        let lines = screen.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[1].ends_with('…'), "{lines:?}");
        // What is wide takes two columns, and none is wasted.
        let wide = lines[1].chars().filter(|c| "日本語".contains(*c)).count();
        let width = lines[1].chars().count() + wide;
        assert!((widest - 2..=widest).contains(&width), "{width} of {widest}: {lines:?}");
        screen.close();
    }
    let screen = shown(&host, 80, &[], &["ps", "--no-trunc"]);
    assert!(screen.lines().len() > 3, "{:?}", screen.lines());
    screen.close();
    task.end();
}

#[test]
fn long_ids_are_shortened_to_what_still_means_them() {
    let host = Host::new();
    let id = |end: &str| format!("{}-{}-{end}", host.prefix(), "x".repeat(40));
    let tasks = ["a1", "a2", "b"].map(|end| host.task(IDLE).named(id(end)).start());
    let other = host.task(IDLE).start();
    let screen = shown(&host, 80, &[], &["ps"]);
    let lines = words(&screen.lines());
    let short: Vec<&String> = lines[1..].iter().map(|line| &line[0]).collect();
    assert!(short[0].as_str() == other.id() || short[3].as_str() == other.id(), "{short:?}");
    for short in short {
        let meant = host.bowline(["inspect", short]).assert_code(0).json()["id"].clone();
        assert!(meant.as_str().is_some_and(|id| id.starts_with(short.as_str())), "{meant}");
    }
    screen.close();
    tasks.iter().for_each(|task| drop(task.end()));
    other.end();
}

#[test]
fn a_script_gets_everything_and_no_escape_codes() {
    let host = Host::new();
    let script = format!(": {}; {IDLE}", "x".repeat(300));
    let task = host.task(&script).start();
    for args in [&["ps"][..], &["stats"], &["top"], &["inspect", task.id()], &["ps", "--json"], &["--help"]] {
        let ran = host.bowline(args);
        ran.assert_code(0);
        assert!(!ran.out().contains('\x1b'), "{ran}");
    }
    let refused = host.bowline(["inspect", "nobody"]);
    assert!(!refused.err().contains('\x1b'), "{refused}");
    assert!(host.bowline(["ps"]).out().contains(&script));
    task.end();
}

#[test]
fn colours_are_for_terminals_unless_somebody_says_otherwise() {
    let host = Host::new();
    let tasks = three(&host);
    let coloured = |environment: &[(&str, &str)], args: &[&str]| {
        let screen = shown(&host, 80, environment, args);
        let found = screen.coloured().contains("\x1b[3");
        screen.close();
        found
    };
    assert!(coloured(&[], &["ps"]));
    assert!(!coloured(&[("NO_COLOR", "1")], &["ps"]));
    assert!(!coloured(&[("TERM", "dumb")], &["ps"]));
    assert!(!coloured(&[], &["ps", "--color=never"]));
    assert!(coloured(&[("NO_COLOR", "1")], &["--color", "always", "ps"]));
    let piped = host.bowline(["ps", "--color=always"]);
    assert!(piped.out().contains("\x1b[32mrunning"), "{piped}");
    host.bowline(["ps", "--color=sometimes"]).assert_refused(2, &["--color"]);
    end(tasks);
}

#[test]
fn errors_are_red_on_a_terminal() {
    let host = Host::new();
    let mut command = Command::new(binary("bowline"));
    let screen = host.screen_of(std::mem::replace(command.args(["inspect", "nobody"]), Command::new("true")), 80, 24);
    assert_eq!(screen.wait_for_end(), 125);
    assert_eq!(screen.lines(), ["bowline: there is no task named nobody", "hint: `bowline ps` lists all tasks"]);
    let coloured = screen.coloured();
    assert!(coloured.contains("\x1b[1m\x1b[31mbowline:"), "{coloured:?}");
    screen.close();
}

#[test]
fn control_characters_never_reach_the_terminal() {
    let host = Host::new();
    let script = format!(": '\x1b[2J\x07\x1b]0;mine\x07'; {IDLE}");
    let task = host.task(&script).start();
    let ran = host.bowline(["ps"]);
    assert!(!ran.out().chars().any(|c| c.is_control() && c != '\n'), "{ran:?}");
    let screen = shown(&host, 80, &[], &["inspect", task.id(), "--format", "{{ task.args }}{{ task.args[1] }}"]);
    assert!(screen.text().contains("[2J"), "{}", screen.text());
    screen.close();
    let piped = task.bowline("inspect", ["--format={{ task.args[1] }}"]);
    assert_eq!(piped.out(), script, "a script gets it as it is");
    task.end();
}

#[test]
fn tasks_are_sorted_filtered_and_told_by_id_alone() {
    let host = Host::new();
    let tasks = three(&host);
    let late =
        host.task(IDLE).named(format!("{}-0", host.prefix())).toml("labels = {tier = 'web'}\ncommand = 'sh'").start();
    let ids = |args: &[&str]| {
        let ran = host.bowline([&["ps", "-q"], args].concat());
        ran.assert_code(0).out().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let [a, b, c] = [tasks[0].id(), tasks[1].id(), tasks[2].id()];
    let l = late.id();
    assert_eq!(ids(&[]), [l, a, b, c]);
    assert_eq!(ids(&["--reverse"]), [c, b, a, l]);
    assert_eq!(ids(&["--sort=created"]), [a, b, c, l]);
    assert_eq!(ids(&["--sort=status", "-r"]), [c, b, a, l]);
    assert_eq!(ids(&["--filter=status=exited"]), [c]);
    assert_eq!(ids(&["-f", "status=exited", "-f", "status=paused"]), [b, c]);
    assert_eq!(ids(&["--filter=label=tier=web"]), [l]);
    assert_eq!(ids(&["--filter=label=tier", "--filter=status=paused"]), [] as [&str; 0]);
    for filter in ["status=up", "x", "label=", ""] {
        host.bowline(["ps", "--filter", filter]).assert_refused(2, &["--filter"]);
    }
    late.end();
    end(tasks);
}

#[test]
fn as_json_it_is_a_list_with_every_figure() {
    let host = Host::new();
    assert_eq!(host.bowline(["ps", "--json"]).json(), Value::Array(Vec::new()));
    let tasks = three(&host);
    let rows = host.bowline(["ps", "--json"]).assert_code(0).json();
    assert_eq!((&rows[0]["status"], &rows[0]["pid"]), (&"running".into(), &tasks[0].pid().into()));
    assert_eq!((&rows[2]["status"], &rows[2]["exit_code"]), (&"exited".into(), &3.into()));
    assert!(rows[2]["exited_at"].is_string() && rows[0]["exited_at"].is_null(), "{rows}");
    end(tasks);
}

#[test]
fn it_goes_by_the_names_that_others_have_for_it() {
    let host = Host::new();
    let tasks = three(&host);
    let ids = host.bowline(["ps", "-q"]).assert_code(0).out();
    assert_eq!(ids.lines().count(), 3);
    for args in [&["ls", "-q"][..], &["list", "-q"], &["ps", "-a", "-q"], &["ps", "-aq"], &["ls", "--all", "-q"]] {
        host.bowline(args).assert_says(&ids);
    }
    end(tasks);
}

#[test]
fn a_format_may_be_a_table() {
    let host = Host::new();
    host.bowline(["ps", "--format", "table {{.ID}}\\t{{.CreatedAt}}"]).assert_says("ID  CREATED AT");
    let [short, long] = ["0", "more-than-one"].map(|end| format!("{}-{end}", host.prefix()));
    let tasks = [&short, &long].map(|id| host.task(IDLE).named(id).start());
    let gap = " ".repeat(long.len() - "ID".len() + 2);
    let of_short = " ".repeat(long.len() - short.len() + 2);
    for format in ["table {{.ID}}\\t{{.State}}", "table\\t{{.ID}}\\t{{.State}}", "table {{ .ID }}\t{{.State}}"] {
        let expected = format!("ID{gap}STATE\n{short}{of_short}running\n{long}  running");
        host.bowline(["ps", "--format", format]).assert_says(&expected);
    }
    let plain = host.bowline(["ps", "--format", "table"]).assert_code(0).out();
    assert!(plain.starts_with("ID") && plain.contains("COMMAND"), "{plain}");
    tasks.iter().for_each(|task| drop(task.end()));
}

#[test]
fn tasks_are_found_by_name_and_by_exit_code() {
    let host = Host::new();
    let tasks = three(&host);
    let listed = |filters: &[&str]| {
        let args = filters.iter().map(|filter| format!("--filter={filter}"));
        host.bowline(["ps".to_owned(), "-q".to_owned()].into_iter().chain(args)).assert_code(0).out()
    };
    let [running, paused, ended] = tasks.each_ref().map(Task::id);
    let both = format!("{running}\n{paused}");
    assert_eq!((listed(&["exited=3"]).as_str(), listed(&["exited=0"]).as_str()), (ended, ""));
    assert_eq!(listed(&["exited=0", "exited=3", "status=exited"]), ended);
    assert_eq!(listed(&[&format!("name=^{running}$")]), running);
    assert_eq!(listed(&[&format!("name={running}"), &format!("name={}$", &paused[1..])]), both);
    assert_eq!(listed(&[&format!("name={running}"), "exited=3"]), "");
    for filter in ["name=", "name=(", "exited=x", "exited=", "since=web"] {
        host.bowline(["ps", "--filter", filter]).assert_refused(2, &["--filter", "'"]);
    }
    end(tasks);
}

#[test]
fn a_line_is_made_of_dockers_fields() {
    let host = Host::new();
    host.bowline(["ps", "--format", "{{.ID}}"]).assert_says("");
    let [task, other] = [host.task(IDLE).flag("--label=a=b").flag("-l=c=d").start(), host.task("exit 3").start()];
    other.wait();
    let one = |format: &str| {
        let ran = host.bowline(["ps", "--filter", &format!("name={}", task.id()), "--format", format]);
        ran.assert_code(0).out()
    };
    assert_eq!(one("{{.Names}}\\t{{ .ID }}"), format!("{0}\t{0}", task.id()));
    assert_eq!(one("{{.State}}: {{.Status}} [{{.ExitCode}}] {{.Pid}}"), format!("running: running [] {}", task.pid()));
    assert_eq!(one("{{.Labels}} {{.Command}} {{.Sandbox}}"), format!("a=b,c=d /bin/sh -c {IDLE} "));
    assert!(one("{{.RunningFor}}").ends_with(" ago") && one("{{.CreatedAt}}").ends_with('Z'));
    let ended = host.bowline(["ps", "--filter=exited=3", "--format={{.Status}} {{.ExitCode}}"]).assert_code(0).out();
    assert!(ended.starts_with("exited (3) ") && ended.ends_with(" ago 3"), "{ended}");
    let (json, as_format) = (host.bowline(["ps", "--json"]), host.bowline(["ps", "--format", "json"]));
    assert_eq!(json.assert_code(0).json(), as_format.assert_code(0).json());
    assert_eq!(one("{{json .Labels}} {{json .Pid}}"), format!("\"a=b,c=d\" {}", task.pid()));
    let all: Value = serde_json::from_str(&one("{{json .}}")).expect("JSON");
    assert_eq!((&all["ID"], &all["State"], &all["Pid"]), (&task.id().into(), &"running".into(), &task.pid().into()));
    for format in ["{{.Image}}", "{{ status }}", "{{json .Image}}", "table {{.Name}}", "{{range .}}x{{end}}", "{{.ID"] {
        let ran = host.bowline(["ps", "--format", format]);
        assert!(ran.assert_refused(2, &["--format"]).err().contains("\nhint: "), "{ran}");
    }
    let ran = host.bowline(["ps", "--format", "{{.Image}}"]);
    let ran = ran.assert_refused(2, &["there is no field Image"]);
    assert!(ran.err().contains("\nhint: the fields are Command, CreatedAt, ExitCode, ID, "), "{ran}");
    host.bowline(["ps", "--json", "--format", "{{.ID}}"]).assert_refused(2, &["--json", "--format"]);
    task.end();
}
