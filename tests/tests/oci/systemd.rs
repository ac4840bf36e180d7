//! `--systemd-cgroup`: a container's cgroup is a scope.

use bowline_tests::Host;
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
