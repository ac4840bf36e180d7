//! What is wrong is refused by its name, with nothing left; and Go's syntax of flags.

use std::fs;

use bowline_tests::Host;

use super::SLEEPS;

#[test]
fn a_bundle_without_a_configuration_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle();
    fs::remove_file(bundle.path.join("config.json")).expect("it was written");
    let ran = runtime.create(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("config.json"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn a_bundle_that_is_not_there_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.call(&["create", "--bundle", "/no/such/bundle", "some-id"]);
    ran.assert_code(1);
    assert!(ran.err().contains("/no/such/bundle"), "{ran}");
    runtime.call(&["list", "-q"]).assert_says("");
}

#[test]
fn a_configuration_that_is_no_json_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().write("{");
    runtime.create(&bundle, &[]).assert_code(1);
    runtime.assert_gone(&bundle);
}

#[test]
fn a_configuration_without_a_root_filesystem_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS).edit(|config| config["root"]["path"] = "nowhere".into());
    let ran = runtime.create(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains("nowhere"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn ids_that_are_no_names_are_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let path = bundle.path.to_str().expect("ASCII");
    for id in ["", ".", "..", "a/b", "../b", "a b", "a\nb"] {
        let ran = runtime.call_apart(&bundle.id, &["create", "--bundle", path, "--", id]);
        ran.assert_code(1);
        runtime.call(&["list", "-q"]).assert_says("");
    }
    assert!(runtime.cgroup(&bundle).there().is_empty());
}

#[test]
fn an_id_is_needed() {
    let host = Host::new();
    let runtime = host.oci();
    for command in ["create", "start", "state", "kill", "delete", "exec", "pause", "resume", "ps"] {
        let ran = runtime.call(&[command]);
        assert!(ran.code.is_some_and(|code| code != 0), "{ran}");
    }
}

#[test]
fn an_argument_too_many_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    for command in ["start", "state", "delete", "pause", "resume"] {
        let ran = runtime.call(&[command, "one", "two"]);
        ran.assert_code(1);
        assert!(!ran.err().contains("does not exist"), "{ran}");
    }
}

#[test]
fn an_id_that_is_taken_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    let before = container.state();
    let other = runtime.bundle();
    let path = other.path.to_str().expect("ASCII");
    let ran = runtime.call_apart("second", &["create", "--bundle", path, &container.id]);
    ran.assert_code(1);
    assert!(ran.err().contains("exist") && !ran.err().contains("not exist"), "{ran}");
    assert_eq!(container.state(), before);
}

#[test]
fn of_two_creates_of_one_id_at_once_one_wins() {
    let host = Host::new();
    if host.reference_fails("the one that loses may remove the state of the other") {
        return;
    }
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let path = bundle.path.to_str().expect("ASCII");
    let codes = std::thread::scope(|scope| {
        let create = || {
            let mut command = runtime.command(&["create", "--bundle", path, &bundle.id]);
            command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
            command.stderr(std::process::Stdio::null());
            scope.spawn(move || command.status().expect("it is executable").code())
        };
        let mut codes = [create(), create()].map(|thread| thread.join().expect("it waits"));
        codes.sort_unstable();
        codes
    });
    assert_eq!(codes, [Some(0), Some(1)]);
    assert_eq!(runtime.adopt(bundle).status(), "created");
}

#[test]
fn an_unknown_flag_is_named() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.call(&["state", "--colour", "some-id"]);
    ran.assert_code(1);
    let said = format!("{}{}", ran.err(), ran.out());
    assert!(said.contains("flag provided but not defined: -colour"), "{ran}");
}

#[test]
fn a_flag_without_its_value_is_named() {
    let host = Host::new();
    let runtime = host.oci();
    let ran = runtime.call(&["create", "--bundle"]);
    ran.assert_code(1);
    let said = format!("{}{}", ran.err(), ran.out());
    assert!(said.contains("flag needs an argument: -bundle"), "{ran}");
}

#[test]
fn an_unknown_command_is_refused_by_its_name() {
    let host = Host::new();
    if host.reference_fails("runc ends with the code 3") {
        return;
    }
    let ran = host.oci().call(&["moor"]);
    ran.assert_code(1);
    assert!(ran.err().contains("moor"), "{ran}");
}

#[test]
fn a_flag_has_one_dash_or_two() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    for quiet in ["-q", "--q", "-quiet", "--quiet"] {
        runtime.call(&["list", quiet]).assert_says(&container.id);
    }
}

#[test]
fn a_value_is_behind_an_equals_sign_or_beside() {
    let host = Host::new();
    let runtime = host.oci();
    let container = runtime.created(runtime.bundle().script(SLEEPS));
    for format in [&["--format", "json"][..], &["--format=json"], &["-format=json"], &["-f", "json"], &["-f=json"]] {
        let list = runtime.call(&[&["list"], format].concat()).assert_code(0).json();
        assert_eq!(list[0]["id"], container.id.as_str());
    }
}

#[test]
fn a_switch_takes_true_and_false() {
    let host = Host::new();
    let runtime = host.oci();
    runtime.call(&["delete", "--force=false", "nobody"]).assert_code(1);
    runtime.call(&["delete", "--force=true", "nobody"]).assert_code(0);
}

#[test]
fn a_number_that_is_none_is_refused() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let ran = runtime.create(&bundle, &["--preserve-fds", "many"]);
    ran.assert_code(1);
    assert!(format!("{}{}", ran.err(), ran.out()).contains("preserve-fds"), "{ran}");
    runtime.assert_gone(&bundle);
}

#[test]
fn a_torn_state_is_refused_by_its_id() {
    let host = Host::new();
    if host.reference_fails("runc does not name the container") {
        return;
    }
    let runtime = host.oci();
    let container = runtime.started(runtime.bundle().script(SLEEPS));
    let folder = runtime.root().join(&container.id);
    let record = fs::read_dir(&folder).expect("it is there").flatten().map(|entry| entry.path());
    let record = record.filter(|path| path.extension().is_some_and(|ext| ext == "json"));
    let record = record.filter(|path| path.file_name().is_some_and(|name| name != "config.json")).collect::<Vec<_>>();
    let [record] = &record[..] else { panic!("more than one: {record:?}") };
    let whole = fs::read(record).expect("it is there");
    fs::write(record, &whole[..whole.len() / 2]).expect("root may");
    let ran = container.call("state", &[]);
    ran.assert_code(1);
    assert!(ran.err().contains(&container.id), "{ran}");
    fs::write(record, whole).expect("root may");
    assert_eq!(container.status(), "running");
}

#[test]
fn a_state_folder_of_another_user_is_refused() {
    let host = Host::new();
    if host.reference_fails("runc believes anybody's") {
        return;
    }
    let runtime = host.oci();
    fs::create_dir(runtime.root()).expect("ours");
    std::os::unix::fs::chown(runtime.root(), Some(1000), Some(1000)).expect("root may");
    let bundle = runtime.bundle().script(SLEEPS);
    let ran = runtime.create(&bundle, &[]);
    ran.assert_code(1);
    assert!(ran.err().contains(runtime.root().to_str().expect("ASCII")), "{ran}");
}
