//! Whole configurations, as committed in `snapshots/`. After a change that is
//! meant: `INSTA_UPDATE=always cargo test -p bowline-spec --test golden`, then
//! read the difference.
#![cfg(target_arch = "x86_64")] // the filter's architectures are part of them
#![allow(clippy::unwrap_used, missing_docs)]

mod facts;

use std::path::Path;

use bowline_spec::{Format, Host, UserIds, build, capability, parse, render, seccomp};
use serde_json::Value;

fn golden(file: &str, host: Host) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/descriptions");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let (name, extension) = file.split_once('.').unwrap();
    let format = match extension {
        "json" => Format::Json,
        _ => Format::Toml,
    };
    let task = parse(&text, format).unwrap();
    let spec = build(&task, &host).unwrap();
    assert_eq!(render(&spec), render(&build(&task, &host).unwrap()), "not deterministic");

    let mut config: Value = serde_json::from_str(&render(&spec)).unwrap();
    if let Some(profile) = config.pointer_mut("/linux/seccomp") {
        match *profile == default_profile() {
            true => *profile = "as in seccomp_default".into(),
            false => condense(profile),
        }
    }
    insta::assert_snapshot!(name, serde_json::to_string_pretty(&config).unwrap());
}

fn default_profile() -> Value {
    let capabilities = capability::default_set();
    let profile = seccomp::default_profile(&capabilities, seccomp::native_arch(), (6, 12), seccomp::Abis::All);
    let mut profile = serde_json::to_value(profile).unwrap();
    profile.sort_all_objects();
    profile
}

/// The names of a rule on one line: 361 of them would fill the screen.
fn condense(profile: &mut Value) {
    let rules = profile.get_mut("syscalls").and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten() {
        let names = rule["names"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|name| name.as_str().unwrap()).collect();
        rule["names"] = names.join(" ").into();
    }
}

#[test]
fn seccomp_default() {
    let mut profile = default_profile();
    condense(&mut profile);
    insta::assert_snapshot!("seccomp_default", serde_json::to_string_pretty(&profile).unwrap());
}

#[test]
fn minimal() {
    golden("minimal.toml", facts::host(false));
}

#[test]
fn everything() {
    let user = UserIds { uid: 33, gid: 33, groups: vec![29, 2000], home: Some("/var/www".into()) };
    golden("everything.toml", Host { user, ..facts::host(false) });
}

#[test]
fn userns() {
    let user = UserIds { uid: 1000, gid: 1000, ..UserIds::default() };
    golden("userns.toml", Host { user, ..facts::host(true) });
}

#[test]
fn untrusted() {
    let user = UserIds { uid: 2_130_706_432, gid: 2_130_706_432, home: Some("/home".into()), ..UserIds::default() };
    golden("untrusted.toml", Host { user, ..facts::host(true) });
}

#[test]
fn rootfs() {
    golden("rootfs.json", facts::host(false));
}

#[test]
fn v2() {
    golden("v2.toml", facts::host(true));
}

#[test]
fn privileged() {
    golden("privileged.toml", facts::host(true));
}
