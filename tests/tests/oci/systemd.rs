//! `--systemd-cgroup`: a container's cgroup is a scope.

use bowline_tests::Host;
use bowline_tests::harness::containerd::Bundle;
use bowline_tests::harness::{assert_cgroup_is_below, assert_forgotten, has_systemd};
use serde_json::json;

use super::SLEEPS;

#[test]
fn a_container_is_in_a_scope_until_it_is_deleted() {
    let host = Host::new();
    let runtime = host.oci();
    let bundle = runtime.bundle().script(SLEEPS);
    let asked = format!("system.slice:bowline:{}", bundle.id);
    let bundle = bundle.edit(|config| config["linux"]["cgroupsPath"] = json!(asked));
    let path = bundle.path.to_str().expect("ASCII").to_owned();
    let create = runtime.call_apart(&bundle.id, &["--systemd-cgroup", "create", "--bundle", &path, &bundle.id]);
    if !has_systemd() {
        create.assert_code(1);
        return assert!(create.err().contains("systemd"), "{create}");
    }
    create.assert_code(0);
    let scope = format!("bowline-{}.scope", bundle.id);
    let container = runtime.adopt(bundle);
    assert_cgroup_is_below(container.pid(), &format!("/system.slice/{scope}"));
    // Podman's own calls come without the flag.
    container.call("start", &[]).assert_code(0);
    container.exec(&[], &["true"]).assert_code(0);
    assert_eq!(container.status(), "running");
    container.call("pause", &[]).assert_code(0);
    assert_eq!(container.status(), "paused");
    container.call("resume", &[]).assert_code(0);
    container.call("delete", &["--force"]).assert_code(0);
    assert_forgotten(&scope);
}

#[test]
fn annotations_are_properties_of_its_scope() {
    let host = Host::new();
    let runtime = host.oci();
    let annotated = |id: &str, name: &str, value: &str| {
        runtime.bundle_of(id).script(SLEEPS).edit(|config| {
            config["linux"]["cgroupsPath"] = json!(format!("system.slice:bowline:{id}"));
            config["annotations"][format!("org.systemd.property.{name}")] = json!(value);
        })
    };
    let create = |bundle: &Bundle| {
        let path = bundle.path.to_str().expect("ASCII");
        runtime.call_apart(&bundle.id, &["--systemd-cgroup", "create", "--bundle", path, &bundle.id])
    };
    let wrong = annotated(&host.new_id(), "After", "['a'");
    let ran = create(&wrong);
    ran.assert_code(1);
    assert!(!has_systemd() || ran.err().contains("org.systemd.property.After"), "{ran}");
    if !has_systemd() {
        return;
    }
    for (name, value, shown) in [
        // As CRI-O names them.
        ("TimeoutStopUSec", "uint64 7000000", "TimeoutStopUSec=7s"),
        ("DefaultDependencies", "true", "DefaultDependencies=yes"),
        ("After", "['dbus.service']", "After=dbus.service"),
        ("TimeoutStopSec", "8", "TimeoutStopUSec=8s"),
    ] {
        let bundle = annotated(&host.new_id(), name, value);
        create(&bundle).assert_code(0);
        let scope = format!("bowline-{}.scope", bundle.id);
        let (property, wanted) = shown.split_once('=').expect("a property");
        let mut show = host.command("systemctl");
        show.args(["show", "--property", property, "--value", &scope]);
        let ran = host.execute(show);
        assert!(ran.assert_code(0).out().split_whitespace().any(|word| word == wanted), "{name}: {ran}");
        runtime.adopt(bundle).call("delete", &["--force"]).assert_code(0);
        assert_forgotten(&scope);
    }
}

#[test]
fn a_scope_that_goes_as_its_container_is_deleted_is_no_error() {
    let host = Host::new();
    if !has_systemd() {
        return;
    }
    let runtime = host.oci();
    for _ in 0..20 {
        let id = host.new_id();
        let bundle = runtime.bundle_of(&id).script(SLEEPS).edit(|config| {
            config["linux"]["cgroupsPath"] = json!(format!("system.slice:bowline:{id}"));
        });
        let path = bundle.path.to_str().expect("ASCII");
        runtime.call_apart(&id, &["--systemd-cgroup", "run", "--detach", "--bundle", path, &id]).assert_code(0);
        runtime.adopt(bundle).call("delete", &["--force"]).assert_code(0);
        assert_forgotten(&format!("bowline-{id}.scope"));
    }
}
