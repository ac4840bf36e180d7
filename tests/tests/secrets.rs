//! `--secret`: a file in memory that the task alone reads, and variables that nothing shows.

use std::fs;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::{Build, Task};

const SECRET: &str = "s3cr3t-of-the-test";

/// Whatever bowline tells or keeps of the task: none of it has the secret.
#[track_caller]
fn assert_hidden(host: &Host, task: &Task<'_>) {
    let told = [
        host.bowline(["inspect", task.id()]).assert_code(0).out(),
        host.bowline(["inspect", "--facts", task.id()]).assert_code(0).out(),
        host.bowline(["ps", "--json"]).assert_code(0).out(),
        host.bowline(["events", "--json"]).assert_code(0).out(),
    ];
    for text in &told {
        assert!(text.contains(task.id()) && !text.contains(SECRET), "{text}");
    }
    assert_not_below(&host.state());
}

/// No file below `folder` has the secret.
#[track_caller]
fn assert_not_below(folder: &Path) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
        if kind.is_dir() {
            assert_not_below(&path);
        } else if kind.is_file() {
            let bytes = fs::read(&path).expect("readable");
            assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{}", path.display());
        }
    }
}

fn secret<'h>(host: &'h Host, script: &str) -> Build<'h> {
    let file = host.file("key.pem", SECRET);
    host.task(script).flag(format!("--secret={}", file.display()))
}

#[test]
fn a_secret_is_a_file_in_memory_for_the_task_s_user_alone() {
    let host = Host::new();
    let script = "cat /run/secrets/key.pem && stat -c ' %a %u:%g' /run/secrets/key.pem && stat -f -c %T /run/secrets";
    let expected = |user: &str| format!("{SECRET} 400 {user}\ntmpfs");
    secret(&host, script).run().assert_says(&expected("0:0"));
    secret(&host, script).flag("--user=1234:567").run().assert_says(&expected("1234:567"));
    let root = host.busybox_root();
    secret(&host, "cat /run/secrets/key.pem").rootfs(root.path()).run().assert_says(SECRET);
}

#[test]
fn the_folder_of_secrets_takes_no_writes() {
    let host = Host::new();
    let script = "for f in key.pem new; do echo x >/run/secrets/$f || echo no; done 2>/dev/null; \
                  grep ' /run/secrets ' /proc/self/mounts | cut -d ' ' -f 4 | tr ',' '\\n' | grep -cE '^(ro|nosuid|nodev|noexec)$'";
    secret(&host, script).run().assert_says("no\nno\n4");
}

#[test]
fn a_secret_has_the_name_that_it_is_given() {
    let host = Host::new();
    let (a, b) = (host.file("a", "1"), host.file("b", "2"));
    let flags = [format!("--secret={}:token", a.display()), format!("--secret={}", b.display())];
    let build = flags.iter().fold(host.task("cd /run/secrets; echo *; cat b token"), |build, flag| build.flag(flag));
    build.run().assert_says("b token\n21");
    // What a shell substitutes for `<(command)` is a pipe.
    let mut shell = host.command("/bin/bash");
    let bowline = bowline_tests::harness::binary("bowline");
    let line = "exec \"$0\" run --rm --name \"$1\" --secret <(echo piped):token cat /run/secrets/token";
    shell.args(["-c", line]).arg(bowline).arg(host.new_id());
    host.execute(shell).assert_says("piped");
}

#[test]
fn nothing_shows_a_secret() {
    let host = Host::new();
    let task = secret(&host, "exec sleep 1000").start();
    task.exec("cat /run/secrets/key.pem").assert_says(SECRET);
    assert_hidden(&host, &task);
    task.end();
    assert_not_below(&host.state());
}

#[test]
fn variables_of_a_file_that_is_a_secret_are_shown_nowhere() {
    let host = Host::new();
    let file = host.file("db.env", &format!("PASSWORD={SECRET}\nUSER=file\n"));
    let flags = [format!("--env-file={}", file.display()), format!("--secret={}", file.display())];
    let with = |script: &str| flags.iter().fold(host.task(script), |build, flag| build.flag(flag));
    let task = with("echo $PASSWORD $USER | md5sum >/tmp/sum; exec sleep 1000").flag("--env=USER=flag").start();
    let in_it = task.exec("echo $PASSWORD $USER").assert_code(0).out();
    assert_eq!(in_it, format!("{SECRET} flag"));
    assert_hidden(&host, &task);
    assert_eq!(task.inspect()["task"]["env"], serde_json::json!({ "USER": "flag" }));
    task.end();
}

/// A task with a secret file of variables.
fn with_variables<'h>(host: &'h Host) -> Build<'h> {
    let file = host.file("db.env", &format!("PASSWORD={SECRET}\nUSER=file\n"));
    let flags = [
        format!("--env-file={}", file.display()),
        format!("--secret={}", file.display()),
        "--env=USER=flag".to_owned(),
    ];
    flags.into_iter().fold(host.task("exec sleep 1000"), |build, flag| build.flag(flag))
}

const READS_THEM: &str = "echo $PASSWORD $USER; cat /run/secrets/db.env";

#[test]
fn an_upgrade_and_a_new_shim_keep_secrets_and_show_none() {
    let host = Host::new();
    let task = with_variables(&host).flag("--init").start();
    let said = format!("{SECRET} flag\nPASSWORD={SECRET}\nUSER=file");
    task.exec(READS_THEM).assert_says(&said);
    let check = || {
        task.exec(READS_THEM).assert_says(&said);
        assert_hidden(&host, &task);
    };
    for _ in 0..2 {
        task.bowline("upgrade", []).assert_says(task.id());
        check();
        task.kill_shim(task.shim_pid());
        assert_not_below(&host.state());
        task.bowline("adopt", []).assert_says(task.id());
        check();
    }
    // Only root reads what is kept meanwhile, in the memory of init.
    task.exec("cat /proc/1/environ 2>/dev/null || echo no").assert_says("no");
    task.end();
    assert_not_below(&host.state());
}

#[test]
fn without_init_a_new_shim_says_that_it_lacks_secret_variables() {
    let host = Host::new();
    let task = with_variables(&host).toml("init = false").start();
    task.kill_shim(task.shim_pid());
    task.bowline("adopt", []).assert_says(task.id());
    task.exec(READS_THEM).assert_says(&format!("flag\nPASSWORD={SECRET}\nUSER=file"));
    assert!(task.log("shim.log").contains("lack its secret variables"), "{}", task.log("shim.log"));
    assert_hidden(&host, &task);
    // Before Linux 6.15 nobody knows how it ends, if its parent reaps it before the new shim looks.
    task.bowline("rm", ["-f"]).assert_code(0);
}

#[test]
fn a_member_of_a_sandbox_has_secrets_of_its_own() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    secret(&host, "cat /run/secrets/key.pem").in_sandbox(&sandbox).run().assert_says(SECRET);
    host.task("ls /run/secrets 2>/dev/null || echo none").in_sandbox(&sandbox).run().assert_says("none");
    sandbox.rm([]);
}

#[test]
fn wrong_secrets_are_refused() {
    let host = Host::new();
    let large = host.work().join("large");
    fs::write(&large, vec![b'x'; (1 << 20) + 1]).expect("written");
    let (large, exact) = (large.display().to_string(), host.work().join("exact"));
    fs::write(&exact, vec![b'x'; 1 << 20]).expect("written");
    let refused = |flag: &str, code: i32, parts: &[&str]| {
        host.task("true").flag(format!("--secret={flag}")).assert_refused(code, parts);
    };
    refused(&large, 2, &["larger than 1 MiB"]);
    refused("/dev/zero:x", 2, &["larger than 1 MiB"]);
    refused("/no/such/file", 125, &["cannot read the secret", "/no/such/file"]);
    refused("/usr", 2, &["/usr"]);
    for file in ["/no/such/file", "/usr"] {
        let ran = host.bowline(["run", "--name", &host.new_id(), "--secret", file, "true"]);
        assert!(ran.err().contains("\nhint: --secret takes a file"), "{ran}");
    }
    for form in ["", ":", ":x", "/etc/passwd:", "/etc/passwd:a/b", "/etc/passwd:..", "/"] {
        refused(form, 2, &["--secret"]);
    }
    let (file, other) = (host.file("a", "1"), host.file("b", "1"));
    let twice = [format!("--secret={}:n", file.display()), format!("--secret={}:n", other.display())];
    twice.iter().fold(host.task("true"), |build, flag| build.flag(flag)).assert_refused(2, &["two of this name"]);
    let much = (0..3).fold(host.task("true"), |build, n| build.flag(format!("--secret={}:{n}", exact.display())));
    much.assert_refused(2, &["together"]);
    let covered = host.task("true").flag("--volume=/tmp:/run/secrets").flag(format!("--secret={}", file.display()));
    covered.assert_refused(125, &["mounts[0].destination: the task's secrets are mounted at /run/secrets"]);
    host.task("stat -c %s /run/secrets/exact")
        .flag(format!("--secret={}", exact.display()))
        .run()
        .assert_says("1048576");
}
