//! What the runtime claims of itself in `-info`, and that it is so.

use bowline_tests::Host;
use bowline_tests::harness::binary;
use bowline_tests::harness::containerd::{Bundle, Containerd, Stdio};
use serde_json::{Value, json};

/// The OCI's features, which are the JSON in the answer to `-info`.
fn features(host: &Host) -> Value {
    let mut command = host.command(binary("containerd-shim-bowline-v1"));
    command.arg("-info").stdin(std::process::Stdio::null());
    let said = command.output().expect("the shim is executable").stdout;
    let begin = said.windows(2).position(|two| two == b"{\"").expect("an object");
    let mut values = serde_json::Deserializer::from_slice(&said[begin..]).into_iter();
    values.next().expect("a value").expect("JSON")
}

/// The names in a list.
fn names(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|name| name.as_str().expect("a name")).collect()
}

/// Runs `bundle` to its end.
#[track_caller]
fn runs(containerd: &Containerd<'_>, bundle: &Bundle, what: &str) {
    let shim = containerd.start(bundle);
    shim.create(bundle, &Stdio::null()).unwrap_or_else(|failure| panic!("{what}: {failure:?}"));
    shim.start(&bundle.id, "").unwrap_or_else(|failure| panic!("{what}: {failure:?}"));
    assert_eq!(shim.status_at_end(&bundle.id, ""), 0, "{what}");
    shim.end(&bundle.id);
}

/// Has `bundle` refused, with the name of what it may not have.
#[track_caller]
fn is_refused(containerd: &Containerd<'_>, bundle: &Bundle, name: &str) {
    let shim = containerd.start(bundle);
    let failure = shim.create(bundle, &Stdio::null()).expect_err(name);
    assert!(failure.message.contains(name), "{failure:?}");
    shim.over();
}

#[test]
fn every_claim_is_accepted() {
    let host = Host::new();
    let containerd = host.containerd();
    let features = features(&host);
    let bundle = || containerd.bundle().script("exit 0");
    for version in ["ociVersionMin", "ociVersionMax"] {
        let version = &features[version];
        runs(&containerd, &bundle().edit(|config| config["ociVersion"] = version.clone()), &version.to_string());
    }
    assert_eq!(features["ociVersionMax"], "1.3.0");

    let hook = json!([{ "path": "/bin/true" }]);
    let hooks = names(&features["hooks"]).into_iter().map(|name| (name.to_owned(), hook.clone()));
    let hooks = Value::Object(hooks.collect());
    runs(&containerd, &bundle().edit(|config| config["hooks"] = hooks), "hooks");

    let linux = &features["linux"];
    let all = &linux["capabilities"];
    let capabilities = json!({ "bounding": all, "permitted": all, "effective": all });
    runs(&containerd, &bundle().edit(|config| config["process"]["capabilities"] = capabilities), "capabilities");

    let options = names(&features["mountOptions"]);
    let at = |option: &str| format!("/mnt/{option}");
    let mount = |option: &&str| match *option {
        // Those of an idmapped mount need mappings.
        "idmap" | "ridmap" => None,
        "bind" | "rbind" => Some(json!({ "destination": at(option), "source": "/usr", "options": [option] })),
        option => Some(json!({ "destination": at(option), "type": "tmpfs", "source": "x", "options": [option] })),
    };
    // `remount` changes a mount that is there.
    let mounts = options.iter().filter(|option| **option != "remount").filter_map(mount);
    let bundle_of_mounts = mounts.fold(bundle(), |bundle, mount| bundle.mount(&mount));
    runs(&containerd, &bundle_of_mounts, "mountOptions");

    let seccomp = &linux["seccomp"];
    let rule = |action: &str, operator: &str| {
        json!({
            "names": ["swapoff"], "action": action, "args": [{ "index": 0, "value": 1, "valueTwo": 1, "op": operator }],
        })
    };
    for action in names(&seccomp["actions"]).into_iter().filter(|action| *action != "SCMP_ACT_NOTIFY") {
        let rules: Vec<Value> = names(&seccomp["operators"]).into_iter().map(|op| rule(action, op)).collect();
        let default = if action == "SCMP_ACT_ALLOW" { "SCMP_ACT_LOG" } else { "SCMP_ACT_ALLOW" };
        let profile = json!({ "defaultAction": default, "architectures": ["SCMP_ARCH_X86_64"], "syscalls": rules });
        let bundle = bundle().edit(|config| config["linux"]["seccomp"] = profile);
        runs(&containerd, &bundle, action);
    }
}

#[test]
fn what_is_not_claimed_is_refused_by_name() {
    let host = Host::new();
    let containerd = host.containerd();
    let linux = &features(&host)["linux"];
    let without = |field: &str, value: &Value| {
        containerd.bundle().script("exit 0").edit(|config| config["linux"][field] = value.clone())
    };
    assert_eq!(linux["intelRdt"], json!({ "enabled": false, "schemata": false, "monitoring": false }));
    is_refused(&containerd, &without("intelRdt", &json!({ "closID": "x" })), "intelRdt");
}
