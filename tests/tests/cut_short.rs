//! Launches whose command and shim were killed before anything ran: `gc` and `rm` remove the rest, and every command says
//! that nothing ran.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;

use bowline_tests::Host;
use bowline_tests::harness::eventually;
use rustix::process::Signal;

#[test]
fn the_rest_of_a_launch_is_told_and_removed() {
    let host = Host::new();
    let id = host.new_id();
    let folder = host.state().join(&id);
    DirBuilder::new().mode(0o700).recursive(true).create(&folder).expect("ours");
    let lock = File::create(folder.join("lock")).expect("ours");
    lock.lock().expect("nobody has it");
    host.bowline(["gc", &id]).assert_says("");
    drop(lock);
    // Room for the report is made once there is a record.
    fs::write(folder.join("exit.json.new"), "").expect("ours");
    host.bowline(["gc", &id]).assert_says("");
    assert!(folder.exists(), "its record is missing: it is damaged");
    fs::remove_file(folder.join("exit.json.new")).expect("ours");
    for verb in ["wait", "stop", "adopt"] {
        host.bowline([verb, &id]).assert_refused(125, &[&id, "cut short", "nothing of it ran"]);
    }
    let explained = host.bowline(["explain", &id]);
    assert!(explained.assert_code(0).out().contains("nothing of it ran"), "{explained}");
    let told = format!("remains {id}: its launch was cut short; nothing of it ran");
    host.bowline(["gc", "--dry-run", &id]).assert_says(&told);
    assert!(folder.exists(), "a dry run touches nothing");
    host.bowline(["gc", &id]).assert_says(&told);
    assert!(!folder.exists());
    host.bowline(["run", "--rm", "--name", &id, "true"]).assert_code(0);
}

#[test]
fn the_rest_of_a_member_s_launch_is_told_while_its_sandbox_lives() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let id = host.new_id();
    let folder = host.state().join(&id);
    DirBuilder::new().mode(0o700).create(&folder).expect("ours");
    File::create(folder.join("lock")).expect("ours");
    std::os::unix::fs::symlink(host.state().join(sandbox.id()).join("shim.sock"), folder.join("shim.sock"))
        .expect("ours");
    for verb in ["wait", "stop", "exec"] {
        let words: &[&str] = if verb == "exec" { &["true"] } else { &[] };
        let args = [&[verb, &id], words].concat();
        host.bowline(args).assert_refused(125, &[&id, "cut short", "nothing of it ran"]);
    }
    host.bowline(["rm", "--exited"]).assert_says(&id);
    assert!(!folder.exists());
    sandbox.rm([]);
}

#[test]
fn a_launch_that_is_killed_at_any_moment_blocks_no_name() {
    let host = Host::new();
    // What its folder gets, in this order.
    for moment in ["", "lock", "shim.sock", "shim.log", "task.json"] {
        let id = host.new_id();
        let file = host.state().join(&id).join(moment);
        let start = host.spawn(["start", "--name", &id, "sleep", "1000"]);
        eventually(file.display(), || file.exists().then_some(()));
        start.signal(Signal::KILL);
        start.finish();
        let status = || host.bowline(["inspect", "--format={{.status}}", &id]).out();
        eventually("it runs, or was cut short", || (status() != "created").then_some(()));
        host.bowline(["gc", &id]).assert_code(0);
        assert!(["", "running"].contains(&&*status()), "{moment}: {}", status());
        host.bowline(["rm", "-f", &id]).assert_code(0);
    }
    host.assert_nothing_left_without_rm();
}
