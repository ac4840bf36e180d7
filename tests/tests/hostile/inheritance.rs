//! A task has what its description says, and nothing of what whoever launches it happens to have.

use std::fs;
use std::path::Path;
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Containerd, Shim, Stdio};
use bowline_tests::harness::{binary, status_lines};
use rustix::process::{Resource, getrlimit};
use serde_json::json;

/// `command`, run by a process with unusual settings of every kind.
fn odd(command: &Command) -> Command {
    let script = "umask 077; ulimit -Sn 77; ulimit -Sc 8; ulimit -Ss 1024; trap '' USR1; \
                  echo 500 >/proc/self/oom_score_adj; export ODD=1; \
                  exec setarch -R ionice -c 3 nice -n 7 taskset -c 0 env --block-signal=USR2 \"$@\"";
    let mut odd = Command::new("/bin/sh");
    odd.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    odd.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        odd.current_dir(folder);
    }
    odd
}

/// What a process has of each, a line each.
const SHOW: &str = "umask; cut -d' ' -f19,41 /proc/self/stat; cat /proc/self/oom_score_adj /proc/self/personality; \
                    grep -E '^(SigBlk|SigIgn|Cpus_allowed_list)' /proc/self/status | cut -f2; echo \"ODD=$ODD\"";

/// What it is to be.
fn expected() -> String {
    let everywhere = status_lines(std::process::id().cast_signed(), &["Cpus_allowed_list"]);
    let cpus = everywhere.split('\t').nth(1).expect("a list");
    format!("0022\n0 0\n0\n00000000\n0000000000000000\n0000000000000000\n{cpus}\nODD=")
}

/// The limits that are shown, and those that descriptions leave out have.
const SHOW_LIMITS: &str = "ulimit -Sn; ulimit -Sc; ulimit -Ss; ulimit -Sl";

fn expected_limits() -> String {
    // A hard limit is raised by nobody without CAP_SYS_RESOURCE.
    let most = |resource, wanted: u64| getrlimit(resource).maximum.map_or(wanted, |hard| hard.min(wanted));
    let (files, locked) = (most(Resource::Nofile, 1024), most(Resource::Memlock, 8 << 20) >> 10);
    format!("{files}\n0\n8192\n{locked}")
}

#[test]
fn of_a_task_and_its_execs() {
    let host = Host::new();
    let id = host.new_id();
    let mut start = host.command(binary("bowline"));
    start.args(["start", "--name", &id, "--", "/bin/sh", "-c"]);
    start.arg(format!("{SHOW}; {SHOW_LIMITS}; ionice; echo shown; exec sleep 1000"));
    host.execute(odd(&start)).assert_says(&id);
    let task = host.adopt(&id);
    task.wait_for_line("shown");
    let expected = format!("{}\n{}\nnone: prio 0", expected(), expected_limits());
    assert_eq!(task.said("stdout"), format!("{expected}\nshown\n"));
    task.exec(&format!("{SHOW}; {SHOW_LIMITS}; ionice")).assert_says(&expected);

    let mut exec = host.command(binary("bowline"));
    exec.args(["exec", &id, "--", "/bin/sh", "-c", &format!("{SHOW}; {SHOW_LIMITS}; ionice")]);
    host.execute(odd(&exec)).assert_says(&expected);
    task.end();
}

#[test]
fn what_a_description_says_is_what_it_has() {
    let host = Host::new();
    let script = "ulimit -Sn; ulimit -Hn; cat /proc/self/oom_score_adj";
    let toml = format!(
        "command = '/bin/sh'\nargs = ['-c', '{script}']\nrlimits = {{nofile = '300:400'}}\noom_score_adj = 700"
    );
    let id = host.new_id();
    let mut run = host.command(binary("bowline"));
    run.args(["run", "--name", &id, "--file"]).arg(host.file("task.toml", &toml));
    let mut raised = Command::new("/bin/sh");
    // Its caller may have more, and as much as the description wants is not beyond that.
    raised.args(["-c", "ulimit -Sn $(ulimit -Hn); exec \"$@\"", "sh"]).arg(run.get_program()).args(run.get_args());
    raised.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    host.execute(raised).assert_says("300\n400\n700");
    host.adopt(&id);
}

#[test]
fn a_user_namespace_takes_no_oom_score_away() {
    let host = Host::new();
    let toml = "command = '/bin/sh'\nargs = ['-c', 'cat /proc/self/oom_score_adj']\nnamespaces.user = 'private'\n\
                uid_mappings = [{container = 0, host = 200000, size = 65536}]\n\
                gid_mappings = [{container = 0, host = 200000, size = 65536}]\noom_score_adj = 321";
    host.described(toml).run().assert_says("321");
}

/// A shim that somebody odd has started.
fn start_oddly(containerd: &Containerd<'_>, bundle: &Bundle) -> Shim {
    containerd.read_log(bundle);
    let (succeeded, said) = containerd.answer_of(odd(&containerd.command(bundle, &["start"])), &[]);
    let said = String::from_utf8(said).expect("text");
    let socket = said.strip_prefix("unix://").filter(|_| succeeded).unwrap_or_else(|| panic!("start: {said}"));
    containerd.dial(Path::new(socket))
}

/// What `bundle` says in such a shim.
fn said_in(shim: Shim, bundle: &Bundle) -> String {
    let io = bundle.fifos("init");
    let (stdout, stderr) = io.open();
    shim.run(bundle, &io);
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0, "{}", stderr.expect("a FIFO").text());
    shim.end(&bundle.id);
    stdout.to_end()
}

#[test]
fn of_a_container_of_containerd() {
    let host = Host::new();
    if host.reference_fails("niceness, I/O class, affinity and signals are those of its shim") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script(&format!("{SHOW}; ulimit -Sn; ulimit -Ss"));
    let said = said_in(start_oddly(&containerd, &bundle), &bundle);
    // Limits that the configuration leaves out are those of containerd's own service.
    assert_eq!(said, format!("{}\n1024\n1024\n", expected()));
}

#[test]
fn of_an_exec_of_containerd() {
    let host = Host::new();
    if host.reference_fails("niceness, I/O class, affinity and signals are those of its shim") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("sleep 1000");
    let shim = start_oddly(&containerd, &bundle);
    shim.run(&bundle, &Stdio::null());
    let io = bundle.fifos("e");
    let (stdout, _stderr) = io.open();
    shim.run_exec(&bundle, "e", &["/bin/sh", "-c", SHOW], &io);
    assert_eq!(shim.status_at_end(&bundle.id, "e"), 0);
    shim.delete(&bundle.id, "e").expect("it has ended");
    assert_eq!(stdout.to_end(), format!("{}\n", expected()));
    shim.end(&bundle.id);
}

#[test]
fn of_hooks() {
    let host = Host::new();
    if host.reference_fails("niceness, I/O class, affinity and signals are those of its shim") {
        return;
    }
    let containerd = host.containerd();
    let files = ["outside", "inside"].map(|name| host.work().join(name));
    // What makes the shim's own allocator frugal is none of theirs.
    let show = format!("{SHOW}; echo ${{GLIBC_TUNABLES-as ever}}");
    let hook = |to: &Path| json!([{ "path": "/bin/sh", "args": ["sh", "-c", format!("({show}) >{}", to.display())] }]);
    let bundle = containerd.bundle().script("cat /tmp/image").edit(|config| {
        config["hooks"] = json!({
            "createRuntime": hook(&files[0]),
            "createContainer": hook(&files[1]),
            "startContainer": hook(Path::new("/tmp/image")),
        });
        config["process"]["env"] = json!(["PATH=/bin:/usr/bin", "ODD=its own"]);
    });
    let image = said_in(start_oddly(&containerd, &bundle), &bundle);
    let [outside, inside] = files.map(|file| fs::read_to_string(file).expect("the hook has run"));
    // The host's own hooks go on with the environment and the score of the shim, which is one more than its caller's.
    assert_eq!(outside, format!("{}1\nas ever\n", expected().replacen("0 0\n0\n", "0 0\n1\n", 1)));
    for said in [inside, image] {
        assert_eq!(said, format!("{}its own\nas ever\n", expected()));
    }
}
