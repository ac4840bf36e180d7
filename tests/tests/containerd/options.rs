//! What the options of a container do that containerd hands to Create, and which of them are refused.

use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::protobuf::Message as _;
use bowline_tests::harness::containerd::{Code, Stdio, any, api, is_reference};
use containerd_shim_protos::shim::oci;
use serde_json::json;

/// Has a request say these options, as Docker and `ctr` send them.
fn with(options: &oci::Options) -> impl FnOnce(&mut api::CreateTaskRequest) {
    let bytes = options.write_to_bytes().expect("bytes");
    move |request| request.options = Some(any("containerd.runc.v1.Options", bytes)).into()
}

#[test]
fn streams_belong_to_the_process_and_the_group_of_the_options() {
    let host = Host::new();
    let containerd = host.containerd();
    let said = "cat >/dev/null; stat -Lc %u:%g /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2; echo anew >/dev/stdout";
    for (io_gid, group) in [(4321, 4321), (0, if is_reference() { 0 } else { 1000 })] {
        let bundle = containerd.bundle().script(&format!("{said}; sleep 1000"));
        let bundle = bundle.edit(|config| config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 }));
        let io = bundle.fifos_with_stdin("init");
        let options = oci::Options { io_uid: 1234, io_gid, ..Default::default() };
        let mut running = containerd.run_by(bundle, &io, with(&options));
        drop(running.stdin.take());
        running.shim.close_stdin(&running.id, "").expect("closed");
        let expected = format!("1000:{group}\n").repeat(3) + "anew\n";
        running.stdout.wait_for("anew\n");
        assert_eq!(running.stdout.text(), expected, "IoGid {io_gid}");
        let (status, output) = running.exec("e", "stat -Lc %u:%g /proc/self/fd/1; echo anew >/dev/stdout");
        assert_eq!((status, output), (0, format!("1000:{group}\nanew\n")), "an exec, IoGid {io_gid}");
        running.shim.end(&running.id);
    }
}

/// What containerd 1.6 sends for `ctr run --uidmap`, by the numbers of the protocol: io_uid is 10, io_gid is 11.
#[test]
fn stream_owners_are_read_from_containerd_1_6_s_own_type() {
    let host = Host::new();
    if host.reference_fails("containerd does not send it to runc's shim") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("stat -Lc %g /proc/self/fd/1; sleep 1000");
    let io = bundle.fifos("init");
    let sent = [10 << 3, 0xe1, 0x21, 11 << 3, 0xe1, 0x21];
    let running = containerd.run_by(bundle, &io, |request| {
        request.options = Some(any("containerd.linux.runc.CreateOptions", sent.to_vec())).into();
    });
    running.stdout.wait_for("4321\n");
    running.shim.end(&running.id);
}

/// Tells the session keyring that it is in, and makes none.
const KEYRING: &str = "print syscall(250, 0, -3, 0)";

#[test]
fn the_session_keyring_is_new_unless_options_keep_the_old_one() {
    let host = Host::new();
    let containerd = host.containerd();
    let ours = Command::new("perl").args(["-e", KEYRING]).output().expect("perl");
    let ours = String::from_utf8(ours.stdout).expect("a number");
    for keeps in [true, false] {
        let mut bundle = containerd.bundle().script("sleep 1000");
        for folder in ["/usr", "/lib", "/lib64"] {
            // Where perl and its libraries are, also on a host that has them all below /usr.
            bundle = bundle.mount(&json!({
                "destination": folder, "type": "bind", "source": folder, "options": ["rbind", "ro"],
            }));
        }
        let options = oci::Options { no_new_keyring: keeps, ..Default::default() };
        let init = bundle.args(&["/usr/bin/perl", "-e", &format!("$|=1; {KEYRING}; print qq(\\n); sleep 1000")]);
        let io = init.fifos("init");
        let running = containerd.run_by(init, &io, with(&options));
        running.stdout.wait_for("\n");
        let (status, of_exec) = running.exec("e", &format!("/usr/bin/perl -e '{KEYRING}'"));
        assert_eq!(status, 0);
        for (who, keyring) in [("init", running.stdout.text().trim().to_owned()), ("an exec", of_exec)] {
            assert!(keyring.parse().is_ok_and(|serial: i32| serial > 0), "{who}: {keyring:?}");
            assert_eq!(keyring == ours, keeps, "{who}: {keyring}, and ours {ours}");
        }
        running.shim.end(&running.id);
    }
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    let host = Host::new();
    if host.reference_fails("it leaves the root by chroot") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    with(&oci::Options { no_pivot_root: true, ..Default::default() })(&mut request);
    let failure = shim.create_by(&request).expect_err("it is not done");
    assert_eq!(failure.code, Code::FAILED_PRECONDITION, "{failure:?}");
    assert!(failure.message.contains("NoPivotRoot"), "{failure:?}");
    shim.create(&bundle, &Stdio::null()).expect("the id is free");
    shim.end(&bundle.id);
}

#[test]
fn without_systemd_a_cgroup_path_like_a_unit_is_a_path() {
    let host = Host::new();
    let containerd = host.containerd();
    let name = format!("bowline-{}.slice:cri:x", host.prefix());
    let bundle = containerd.bundle().script("cat /proc/self/cgroup; sleep 1000");
    let bundle = bundle.without_namespace("cgroup").edit(|config| config["linux"]["cgroupsPath"] = json!(name));
    let io = bundle.fifos("init");
    let options = oci::Options { systemd_cgroup: false, ..Default::default() };
    let running = containerd.run_by(bundle, &io, with(&options));
    running.stdout.wait_for(&format!("/{name}\n"));
    running.shim.end(&running.id);
}
