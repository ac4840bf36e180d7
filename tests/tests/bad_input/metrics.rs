//! `bowline metrics` where it cannot listen: said at once, with nothing left.

use std::fs;
use std::net::TcpListener;

use bowline_tests::Host;

#[test]
fn what_is_no_place_is_bad_usage() {
    let host = Host::new();
    for place in [
        "",
        "9464",
        ":9464",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "::1",
        "[::1]",
        "[::1:9464",
        "localhost",
        "localhost:x",
        "example.org:9464",
        "256.0.0.1:1",
        "tcp:127.0.0.1:1",
        "http://127.0.0.1:1",
        "unix:",
    ] {
        host.bowline(["metrics", "--listen", place]).assert_refused(2, &["--listen"]);
    }
    assert!(!host.state().exists());
}

#[test]
fn flags_that_make_no_sense_together_are_bad_usage() {
    let host = Host::new();
    for args in [
        &["--once", "--listen", "127.0.0.1:0"][..],
        &["--once", "--allow-remote"],
        &["--allow-remote"],
        &["--allow-remote", "--listen", "unix:/tmp/x"],
        &["extra"],
    ] {
        host.bowline(["metrics"].iter().chain(args)).assert_refused(2, &[]);
    }
}

#[test]
fn an_address_that_others_reach_is_refused_unless_it_is_allowed() {
    let host = Host::new();
    for place in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9464", "[::ffff:192.0.2.1]:0", "[2001:db8::1]:0"] {
        let ran = host.bowline(["metrics", "--listen", place]);
        ran.assert_refused(2, &["--listen", "no loopback address"]);
        assert!(ran.err().contains("--allow-remote"), "{ran}");
    }
}

#[test]
fn an_address_that_is_not_of_this_host_or_is_taken_is_refused() {
    let host = Host::new();
    // Of documentation, and so of nobody: RFC 5737.
    let ran = host.bowline(["metrics", "--allow-remote", "--listen", "192.0.2.1:9464"]);
    ran.assert_refused(125, &["192.0.2.1:9464"]);
    assert!(ran.err().contains("no address of this host"), "{ran}");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = taken.local_addr().expect("bound").to_string();
    let ran = host.bowline(["metrics", "--listen", &place]);
    ran.assert_refused(125, &[&place]);
    assert!(ran.err().contains("another port"), "{ran}");
}

#[test]
fn a_path_that_no_socket_can_have_is_refused() {
    let host = Host::new();
    let work = host.work();
    let there = host.file("there", "of somebody else");
    let long = work.join("x".repeat(120));
    let folder = work.join("no-such-folder/socket");
    for (path, code, part) in [
        (&long, 2, "longer than that of a socket"),
        (&folder, 125, "no-such-folder"),
        (&there, 125, "no socket"),
        (&there.join("below"), 125, "there"),
        (&work, 125, "no socket"),
    ] {
        host.bowline(["metrics", "--listen", &format!("unix:{}", path.display())]).assert_refused(code, &[part]);
    }
    assert_eq!(fs::read_to_string(&there).expect("untouched"), "of somebody else");
    assert!(!folder.parent().expect("a folder").exists());
}

#[test]
fn a_state_folder_that_is_none_is_an_error() {
    let host = Host::new();
    let file = host.file("file", "");
    let state = file.to_str().expect("ASCII");
    host.bowline(["--state", state, "metrics", "--once"]).assert_refused(125, &[state]);
    host.bowline(["--state", state, "metrics"]).assert_refused(125, &[state]);
    // One that is not there yet has no tasks.
    let ran = host.bowline(["metrics", "--once"]);
    assert!(ran.assert_code(0).out().contains("bowline_sandboxes 0"), "{ran}");
    assert!(!host.state().exists());
}
