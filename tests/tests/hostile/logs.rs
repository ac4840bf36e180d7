//! Files for a task's output that another user has put where the log, or `output.stdout`, will be.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
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
