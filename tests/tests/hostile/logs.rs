//! Files for a task's output that another user has put where the log, or `output.stdout`, will be.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Stdio, make_fifo};
use bowline_tests::harness::eventually;

const STRANGER: u32 = 1234;

/// A folder like `/tmp`.
fn shared(host: &Host) -> PathBuf {
    let folder = host.work().join("shared");
    fs::create_dir(&folder).expect("ours");
    fs::set_permissions(&folder, Permissions::from_mode(0o1777)).expect("ours");
    folder
}

fn plant(path: &Path) {
    fs::write(path, "theirs\n").expect("ours");
    chown(path, Some(STRANGER), Some(STRANGER)).expect("root may");
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("text")
}

#[test]
fn a_log_is_not_written_to_one() {
    let host = Host::new();
    let folder = shared(&host);
    for (format, name) in [("json", "json"), ("raw", "stdout.log")] {
        let toml =
            format!("command = 'echo'\nargs = ['out']\nlog = {{ format = '{format}', path = '{}' }}", folder.display());
        let task = host.described(&toml);
        let path = folder.join(format!("{}.{name}", task.id()));
        plant(&path);
        task.assert_refused(125, &["log", "belongs to user 1234, and other users may write to its folder"]);
        assert_eq!(text(&path), "theirs\n");
    }
}

#[test]
fn nor_one_that_is_there_later() {
    let host = Host::new();
    let folder = shared(&host);
    let toml = format!(
        "command = '/bin/sh'\nargs = ['-c', 'echo one; while [ ! -e /go ]; do sleep 0.1; done; echo two']\n\
         log = {{ format = 'json', path = '{}' }}",
        folder.display()
    );
    let root = host.busybox_root();
    let task = host.described(&toml).rootfs(root.path()).start();
    let path = folder.join(format!("{}.json", task.id()));
    eventually("the first line is there", || text(&path).contains("one").then_some(()));
    fs::remove_file(&path).expect("ours");
    plant(&path);
    root.file("go", "", 0o644);
    let report = task.wait();
    assert_eq!((text(&path).as_str(), report.number("output_dropped_bytes")), ("theirs\n", 4));
}

#[test]
fn a_file_or_fifo_for_output_is_not_either() {
    let host = Host::new();
    let folder = shared(&host);
    let (file, fifo) = (folder.join("file"), folder.join("fifo"));
    plant(&file);
    make_fifo(&fifo);
    chown(&fifo, Some(STRANGER), Some(STRANGER)).expect("root may");
    let reader = fs::File::options().read(true).write(true).open(&fifo);
    for path in [&file, &fifo] {
        let toml = format!("command = 'echo'\nargs = ['out']\noutput.stdout = '{}'", path.display());
        host.described(&toml).assert_refused(125, &["output", "belongs to user 1234"]);
    }
    assert_eq!(text(&file), "theirs\n");
    drop(reader.expect("ours"));
    if !host.reference_fails("it writes to whatever is there") {
        let containerd = host.containerd();
        let bundle = containerd.bundle().args(&["/bin/echo", "out"]);
        let shim = containerd.start(&bundle);
        let refused = shim.create(&bundle, &Stdio::uri(&format!("file://{}", file.display())));
        refused.expect_err("it is refused");
        shim.over();
        assert_eq!(text(&file), "theirs\n");
    }
}

/// What has a second name may be any file of ours.
#[test]
fn a_hard_link_is_not_followed() {
    let host = Host::new();
    let folder = shared(&host);
    let ours = host.file("ours", "ours\n");
    let toml = format!("command = 'echo'\nargs = ['out']\nlog = {{ format = 'json', path = '{}' }}", folder.display());
    let task = host.described(&toml);
    let link = folder.join(format!("{}.json", task.id()));
    fs::hard_link(&ours, &link).expect("a second name");
    task.assert_refused(125, &["log", "has a second name"]);
    assert_eq!(text(&ours), "ours\n");
}

#[test]
fn in_a_folder_of_their_own_they_may_make_it() {
    let host = Host::new();
    let folder = shared(&host);
    for (mode, owner) in [(0o755, STRANGER), (0o1777, STRANGER), (0o1777, 0)] {
        fs::set_permissions(&folder, Permissions::from_mode(mode)).expect("ours");
        chown(&folder, Some(owner), Some(owner)).expect("root may");
        let path = folder.join("out");
        if owner == STRANGER {
            plant(&path);
        } else {
            fs::write(&path, "theirs\n").expect("ours");
        }
        host.described(&format!("command = 'echo'\nargs = ['out']\noutput.stdout = '{}'", path.display()))
            .run()
            .assert_code(0);
        assert_eq!(text(&path), "theirs\nout\n");
        fs::remove_file(&path).expect("ours");
    }
}

#[test]
fn nor_is_one_read() {
    let host = Host::new();
    let folder = shared(&host);
    let toml = format!("command = 'echo'\nargs = ['ours']\nlog = {{ format = 'raw', path = '{}' }}", folder.display());
    let task = host.described(&toml).start();
    task.wait();
    plant(&folder.join(format!("{}.stdout.log.1", task.id())));
    let ours = host.file("secret", "secret\n");
    fs::hard_link(&ours, folder.join(format!("{}.stdout.log.2", task.id()))).expect("a second name");
    task.bowline("logs", []).assert_says("ours");
}

/// `--log` and `--pid-file` of the OCI command, and the man pages: each is written where its caller says.
#[test]
fn nor_is_what_a_caller_names_written_to_one() {
    let host = Host::new();
    if host.reference_fails("runc follows it") {
        return;
    }
    let folder = shared(&host);
    let runtime = host.oci();
    let ours = host.file("ours", "ours\n");
    let links: [fn(&Path, &Path); 3] = [
        |_, at| plant(at),
        |ours, at| fs::hard_link(ours, at).expect("a second name"),
        |ours, at| symlink(ours, at).and_then(|()| lchown(at, Some(STRANGER), Some(STRANGER))).expect("root may"),
    ];
    for link in links {
        for name in ["log", "bowline.1"] {
            link(&ours, &folder.join(name));
        }
        let before = text(&folder.join("log"));
        let log = folder.join("log");
        let ran = runtime.call(&["--log", log.to_str().expect("ASCII"), "state", "nobody"]);
        assert!(ran.code.is_some_and(|code| code != 0) && ran.err().contains("cannot open the log"), "{ran}");
        let ran = host.bowline(["man", folder.to_str().expect("ASCII")]);
        ran.assert_refused(125, &["cannot write", "bowline.1"]);
        assert_eq!(
            [text(&ours), text(&folder.join("log")), text(&folder.join("bowline.1"))],
            ["ours\n", &*before, &*before]
        );
        for name in ["log", "bowline.1"] {
            fs::remove_file(folder.join(name)).expect("ours");
        }
    }
    // A pid file is made beside its place first, by a name that another user can guess.
    let bundle = runtime.bundle().script("exec sleep 1000");
    let file = folder.join("pid");
    let create = ["create", "--pid-file", file.to_str().expect("ASCII"), "--bundle"];
    let command = runtime.command(&[&create[..], &[bundle.path.to_str().expect("ASCII"), &bundle.id]].concat());
    let mut shell = host.command("/bin/sh");
    let script = "ln -s \"$0\" \"$1/.pid.$$\" && chown -h 1234 \"$1/.pid.$$\" && shift && exec \"$@\"";
    shell.args(["-c", script]).args([&ours, &folder]).arg(command.get_program()).args(command.get_args());
    runtime.apart(&bundle.id, shell).assert_code(0);
    let container = runtime.adopt(bundle);
    assert_eq!([text(&ours), text(&file)], ["ours\n".to_owned(), container.pid().to_string()]);
    container.stop();
}

/// A symlink of ours is followed where nobody else can make one, such as `/dev/stderr`.
#[test]
fn a_symlink_of_ours_leads_to_the_log_of_the_oci_command() {
    let host = Host::new();
    if host.reference_fails("it says more") {
        return;
    }
    let runtime = host.oci();
    let (log, to) = (host.work().join("log"), host.work().join("to"));
    symlink(&to, &log).expect("ours");
    assert_ne!(runtime.call(&["--log", log.to_str().expect("ASCII"), "state", "nobody"]).code, Some(0));
    assert!(text(&to).contains("level=error"), "{}", text(&to));
    let ran = runtime.call(&["--log", "/dev/stderr", "state", "nobody"]);
    assert!(ran.err().contains("level=error"), "{ran}");
}
