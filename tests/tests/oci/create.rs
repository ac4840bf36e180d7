//! `create`: what is there when it returns, and what is not when it fails.

use std::fs;

use bowline_tests::Host;
use bowline_tests::harness::oci::Taker;
use bowline_tests::harness::{fds_of, status_lines};

use super::SLEEPS;

#[test]
fn the_pid_file_has_inits_pid_once_create_returns() {
    let host = Host::new();
    let runtime = host.oci();
    let file = host.work().join("pid");
    let flags = ["--pid-file", file.to_str().expect("ASCII")];
    let container = runtime.created_with(runtime.bundle().script(SLEEPS), &flags);
    assert_eq!(fs::read_to_string(&file).expect("it was written"), container.pid().to_string());
}

#[test]
fn the_pid_file_is_renamed_into_its_place() {
    let host = Host::new();
    let runtime = host.oci();
    let folder = host.work().join("pids");
    fs::create_dir(&folder).expect("ours");
    // A reader that has the old one open sees all of it, and nothing of the new one.
    let file = folder.join("pid");
    fs::write(&file, "old").expect("ours");
    let old = fs::File::open(&file).expect("ours");
    runtime.created_with(runtime.bundle().script(SLEEPS), &["--pid-file", file.to_str().expect("ASCII")]);
    assert_eq!(std::io::read_to_string(old).expect("a file"), "old");
    assert_eq!(fs::read_dir(&folder).expect("ours").count(), 1, "something is left beside it");
}

#[test]
fn a_pid_file_that_cannot_be_written_undoes_the_create() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let file = host.work().join("none/pid");
    let ran = runtime.create(&bundle, &["--pid-file", file.to_str().expect("ASCII")]);
    ran.assert_code(1);
    assert!(ran.err().contains("none/"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn the_working_folder_is_the_bundle_where_none_is_given() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let mut command = runtime.command(&["create", &bundle.id]);
    command.current_dir(&bundle.path);
    runtime.apart(&bundle.id, command).assert_code(0);
    let state = runtime.call(&["state", &bundle.id]).json();
    assert_eq!(state["bundle"], bundle.path.to_str().expect("ASCII"));
}

#[test]
fn a_program_that_is_not_found_is_an_error_of_create() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().args(&["no-such-program"]);
    let ran = runtime.create(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("no-such-program") && ran.err().contains("executable file not found in"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn a_path_that_is_not_there_is_an_error_of_create() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().args(&["/bin/no-such-program"]);
    let ran = runtime.create(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("/bin/no-such-program") && ran.err().contains("no such file or directory"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn a_program_that_may_not_be_executed_is_an_error_of_create() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().args(&["/etc/passwd"]);
    let ran = runtime.create(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("/etc/passwd") && ran.err().contains("permission denied"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn a_created_init_may_gain_no_privileges() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    assert_eq!(status_lines(container.pid(), &["NoNewPrivs"]), "NoNewPrivs:\t1");
}

#[test]
fn a_created_init_has_the_capabilities_of_the_program_at_most() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS).edit(|config| {
        for set in ["bounding", "effective", "permitted"] {
            config["process"]["capabilities"][set] = serde_json::json!(["CAP_CHOWN"]);
        }
    });
    let container = runtime.created(bundle);
    assert_eq!(status_lines(container.pid(), &["CapEff"]), "CapEff:\t0000000000000001");
}

#[test]
fn a_created_init_holds_no_descriptor_of_the_caller() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let secret = host.file("secret", "x");
    let create = runtime.command(&["create", "--bundle", bundle.path.to_str().expect("ASCII"), &bundle.id]);
    let mut command = host.command("sh");
    command.args(["-c", &format!("exec \"$@\" 7<{}", secret.display()), "sh"]);
    command.arg(create.get_program()).args(create.get_args());
    runtime.apart(&bundle.id, command).assert_code(0);
    let fds = fds_of(runtime.adopt(bundle).pid());
    assert!(!fds.iter().any(|fd| fd.ends_with("/secret")), "{fds:?}");
}

#[test]
fn a_pidfd_socket_gets_inits_pidfd() {
    let host = Host::new();
    if host.reference_fails("runc has it since 1.2") {
        return;
    }
    let runtime = host.oci();
    let taker = Taker::listen(&host, "pidfd.sock");
    let container = runtime.created_with(runtime.bundle().script(SLEEPS), &["--pidfd-socket", &taker.path]);
    let (pidfd, _) = taker.take();
    use std::os::fd::AsRawFd as _;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).expect("it is open");
    assert!(info.lines().any(|line| line == format!("Pid:\t{}", container.pid())), "{info}");
}

#[test]
fn a_pidfd_socket_that_nobody_listens_at_undoes_the_create() {
    let host = Host::new();
    if host.reference_fails("runc has it since 1.2") {
        return;
    }
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let ran = runtime.create(&bundle, &["--pidfd-socket", "/nowhere.sock"]);
    ran.assert_code(1);
    assert!(ran.err().contains("--pidfd-socket") && ran.err().contains("/nowhere.sock"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn config_names_a_configuration_elsewhere() {
    let host = Host::new();
    if host.reference_fails("--config is crun's") {
        return;
    }
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let elsewhere = host.work().join("other.json");
    fs::rename(bundle.path.join("config.json"), &elsewhere).expect("ours");
    let container = runtime.created_with(bundle, &["--config", elsewhere.to_str().expect("ASCII")]);
    assert_eq!(container.status(), "created");
}
