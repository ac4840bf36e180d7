//! Launching: exit codes, command, environment, user, folders, ids.

use bowline_tests::Host;

#[test]
fn run_passes_the_exit_code_through() {
    let host = Host::new();
    host.task("exit 7").run().assert_code(7);
}

#[test]
fn what_follows_the_first_word_is_the_command_s() {
    let host = Host::new();
    let run = |args: &[&str]| {
        let id = host.new_id();
        host.bowline(["run", "--rm", "--name", &id].iter().chain(args))
    };
    run(&["echo", "hi"]).assert_says("hi");
    run(&["echo", "--rm", "-n", "--json", "--", "--help"]).assert_says("--rm -n --json -- --help");
    run(&["--env", "X=1", "sh", "-c", "echo $X $0", "--env"]).assert_says("1 --env");
    run(&["--", "echo", "--", "hi"]).assert_says("-- hi");
    let task = host.task("exec sleep 1000").start();
    host.bowline(["exec", task.id(), "echo", "--json", "hi"]).assert_says("--json hi");
    host.bowline(["exec", "--env", "X=1", task.id(), "sh", "-c", "echo $X"]).assert_says("1");
    host.bowline(["exec", task.id(), "--env", "X=1", "sh", "-c", "echo $X"]).assert_says("1");
    task.end();
    let id = host.new_id();
    host.bowline(["start", "--name", &id, "sh", "-c", "echo $0", "--name"]).assert_says(&id);
    let started = host.adopt(&id);
    started.wait_for_line("--name");
    started.wait();
}

#[test]
fn a_flag_that_is_none_is_not_taken_for_a_command() {
    let host = Host::new();
    for args in [&["run", "--mem", "5", "true"][..], &["run", "-x", "true"], &["exec", "x", "--no-such-flag", "true"]] {
        host.bowline(args).assert_refused(2, &["unexpected argument"]);
    }
}

#[test]
fn run_passes_both_streams_through() {
    let host = Host::new();
    let ran = host.task("echo out; echo err >&2").run();
    ran.assert_says("out");
    assert_eq!(ran.err(), "err", "{ran}");
}

#[test]
fn a_signal_becomes_128_plus_its_number() {
    let host = Host::new();
    // A pid namespace's init is deaf to its own signals: the host's is not.
    host.described("command = 'sh'\nargs = ['-c', 'kill -9 $$']\nnamespaces.pid = 'host'").run().assert_code(137);
}

#[test]
fn run_with_rm_leaves_nothing() {
    let host = Host::new();
    host.bowline(["run", "--rm", "--name", &host.new_id(), "--", "true"]).assert_says("");
    host.assert_nothing_left_without_rm();
}

#[test]
fn a_task_that_has_exited_stays_until_it_is_removed() {
    let host = Host::new();
    let build = host.task("exit 3");
    let id = build.id().to_owned();
    build.run().assert_code(3);
    assert_eq!(host.bowline(["inspect", &id]).json()["status"], "exited");
    host.bowline(["rm", &id]).assert_code(0);
    host.bowline(["inspect", &id]).assert_refused(125, &[&id]);
    host.assert_nothing_left_without_rm();
}

#[test]
fn start_prints_the_id_and_returns_while_the_task_runs() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").start();
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn start_keeps_the_output_in_the_tasks_folder() {
    let host = Host::new();
    let task = host.task("echo out; echo err >&2").start();
    task.wait().assert_code(0);
    assert_eq!(task.said("stdout"), "out\n");
    assert_eq!(task.said("stderr"), "err\n");
}

#[test]
fn an_id_is_made_up_where_none_is_given() {
    let host = Host::new();
    let started = host.bowline(["start", "--", "sleep", "1000"]);
    let task = host.adopt(started.out());
    started.assert_code(0);
    assert_eq!(task.status(), "running");
    task.end();
}

#[test]
fn the_name_in_the_description_is_the_id() {
    let host = Host::new();
    let id = host.new_id();
    let file = host.file("task.toml", &format!("name = '{id}'\ncommand = 'sleep'\nargs = ['1000']\n"));
    host.bowline(["start", "--file", &file.to_string_lossy()]).assert_says(&id);
    host.adopt(&id).end();
}

#[test]
fn a_description_may_be_json() {
    let host = Host::new();
    let file = host.file("task.json", r#"{"command": "/bin/sh", "args": ["-c", "echo $A"], "env": {"A": "json"}}"#);
    host.bowline(["run", "--rm", "-f", &file.to_string_lossy()]).assert_says("json");
    host.assert_nothing_left_without_rm();
}

#[test]
fn the_state_folder_is_given_by_flag_as_well() {
    let host = Host::new();
    let id = host.new_id();
    let mut command = host.command(bowline_tests::harness::binary("bowline"));
    let state = host.state();
    command
        .env_remove("BOWLINE_STATE")
        .arg("--state")
        .arg(&state)
        .args(["start", "--name", &id, "--", "sleep", "1000"]);
    host.execute(command).assert_says(&id);
    assert!(state.join(&id).join("task.json").exists());
    host.adopt(&id).end();
}

#[test]
fn a_command_is_found_in_path_inside_the_root() {
    let host = Host::new();
    let root = host.busybox_root();
    root.folder("opt").file("opt/hello", "#!/bin/sh\necho found $1\n", 0o755);
    host.task_of(["hello", "me"]).rootfs(root.path()).flag("--env=PATH=/bin:/opt").run().assert_says("found me");
}

#[test]
fn a_command_that_is_not_in_path_is_127_and_path_is_named() {
    let host = Host::new();
    host.task_of(["no-such-program"])
        .flag("--env=PATH=/usr/bin:/odd")
        .assert_refused(127, &["no-such-program", "/usr/bin:/odd"]);
}

#[test]
fn a_path_that_does_not_exist_is_127_and_named() {
    let host = Host::new();
    host.task_of(["/no/such/program"]).assert_refused(127, &["/no/such/program"]);
}

#[test]
fn a_file_that_is_not_executable_is_126_named_and_left_as_it_is() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = Host::new();
    let root = host.busybox_root();
    root.file("bin/plain", "#!/bin/sh\n", 0o644);
    host.task_of(["/bin/plain"]).rootfs(root.path()).assert_refused(126, &["/bin/plain"]);
    host.task_of(["plain"]).rootfs(root.path()).assert_refused(126, &["/bin/plain"]);
    let mode = std::fs::metadata(root.path().join("bin/plain")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o644, "never made executable behind the user's back");
}

#[test]
fn a_folder_is_no_command() {
    let host = Host::new();
    host.task_of(["/usr"]).assert_refused(126, &["/usr"]);
}

#[test]
fn a_script_whose_interpreter_is_missing_is_127() {
    let host = Host::new();
    let root = host.busybox_root();
    root.file("bin/script", "#!/no/interpreter\n", 0o755);
    host.task_of(["/bin/script"]).rootfs(root.path()).assert_refused(127, &["/bin/script"]);
}

#[test]
fn a_file_that_is_no_program_is_126() {
    let host = Host::new();
    let root = host.busybox_root();
    root.file("bin/text", "just text\n", 0o755);
    host.task_of(["/bin/text"]).rootfs(root.path()).assert_refused(126, &["/bin/text"]);
}

#[test]
fn the_environment_has_nothing_of_the_callers() {
    let host = Host::new();
    let ran = host.task_of(["/usr/bin/env"]).flag("--env=A=b=c").flag("--env=E=").run();
    ran.assert_code(0);
    let out = ran.out();
    let mut names: Vec<_> = out.lines().filter_map(|l| l.split_once('=')).map(|(name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(names, ["A", "E", "HOME", "HOSTNAME", "PATH"], "{ran}");
    assert!(out.lines().any(|l| l == "A=b=c"), "{ran}");
}

#[test]
fn a_file_may_leave_the_command_to_the_command_line() {
    let host = Host::new();
    let file = host.file("limits.toml", "memory.limit = '32M'\nenv = { WHO = 'you' }\n");
    let file = format!("--file={}", file.display());
    host.bowline(["run", "--rm", &file, "--", "sh", "-c", "echo $WHO"]).assert_says("you");
    host.bowline(["run", "--rm", &file]).assert_refused(125, &["command", "is empty"]);
}

#[test]
fn a_flag_wins_over_the_file() {
    let host = Host::new();
    let toml = "command = 'sh'\nargs = ['-c', 'echo $A $B']\nenv = {A = 'file', B = 'file'}";
    host.described(toml).flag("--env=A=flag").run().assert_says("flag file");
}

#[test]
fn the_working_directory_is_as_described() {
    let host = Host::new();
    host.described("command = 'pwd'\nworkdir = '/usr/bin'").run().assert_says("/usr/bin");
}

#[test]
fn a_missing_working_directory_of_a_folder_root_is_made() {
    let host = Host::new();
    let root = host.busybox_root();
    host.described("command = 'pwd'\nworkdir = '/srv/app'").rootfs(root.path()).run().assert_says("/srv/app");
}

#[test]
fn users_and_groups_are_looked_up_by_name_inside_the_root() {
    let host = Host::new();
    let root = host.busybox_root();
    let toml = "command = 'sh'\nargs = ['-c', 'id -u; id -g; id -G; echo $HOME']\nuser = 'app'";
    host.described(toml).rootfs(root.path()).run().assert_says("1234\n2345\n2345 3456\n/home/app");
}

#[test]
fn a_user_may_be_numbers_that_no_file_knows() {
    let host = Host::new();
    host.task("id -u; id -g").flag("--user=4321:8765").run().assert_says("4321\n8765");
}

#[test]
fn supplementary_groups_are_added() {
    let host = Host::new();
    let root = host.busybox_root();
    let toml = "command = 'id'\nargs = ['-G']\nuser = '77:88'\ngroups = ['extra', 99]";
    let ran = host.described(toml).rootfs(root.path()).run();
    let mut groups: Vec<_> = ran.assert_code(0).out().split(' ').map(str::to_owned).collect();
    groups.sort();
    assert_eq!(groups, ["3456", "88", "99"], "{ran}");
}

#[test]
fn stdin_is_empty() {
    let host = Host::new();
    host.task("wc -c").run().assert_says("0");
}

#[test]
fn labels_are_kept_with_the_task() {
    let host = Host::new();
    let task = host.described("command = 'true'\nlabels = {'team.name' = 'knots'}").start();
    task.wait();
    assert_eq!(task.inspect()["labels"]["team.name"], "knots");
}

#[test]
fn ps_lists_tasks_with_their_status() {
    let host = Host::new();
    let live = host.task("exec sleep 1000").start();
    let over = host.task("true").start();
    over.wait();
    let listed = host.bowline(["ps", "--json"]).assert_code(0).json();
    let status = |id: &str| {
        let tasks = listed.as_array().expect("an array");
        tasks.iter().find(|task| task["id"] == id).map(|task| task["status"].clone()).unwrap_or_default()
    };
    assert_eq!((status(live.id()), status(over.id())), ("running".into(), "exited".into()), "{listed}");
    host.bowline(["ps"]).assert_code(0);
    live.end();
}

#[test]
fn inspect_shows_the_description_and_where_the_task_is() {
    let host = Host::new();
    let task = host.task("exec sleep 1000").flag("--pids=9").start();
    let inspected = task.inspect();
    assert_eq!(inspected["id"], task.id());
    assert_eq!(inspected["cgroup"], format!("/bowline/{}/{}", task.on_host(), task.id()));
    assert_eq!(inspected["task"]["pids"], 9, "{inspected}");
    assert!(inspected["exit"].is_null() && inspected["created_at"].is_string() && inspected["started_at"].is_string());
    task.end();
}
