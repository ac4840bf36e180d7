#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]
use bowline_spec::*;
use std::path::PathBuf;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&a[1]).unwrap();
    let task = parse(
        &text,
        if a[1].ends_with("json") {
            Format::Json
        } else {
            Format::Toml
        },
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let id: u32 = a.get(2).map_or(0, |s| s.parse().unwrap());
    let caps = task.capabilities.allowed();
    let host = Host {
        user: UserIds {
            uid: id,
            gid: id,
            groups: vec![],
            home: Some("/root".into()),
        },
        view: HOST_VIEW
            .iter()
            .map(PathBuf::from)
            .filter(|p| p.exists())
            .collect(),
        cpus: [0, 1].into(),
        mems: [0].into(),
        devices: [
            (
                PathBuf::from("/dev/loop0"),
                DeviceNode {
                    kind: 'b',
                    major: 7,
                    minor: 0,
                    mode: 0o660,
                    uid: 0,
                    gid: 6,
                },
            ),
            (
                PathBuf::from("/dev/fuse"),
                DeviceNode {
                    kind: 'c',
                    major: 10,
                    minor: 229,
                    mode: 0o666,
                    uid: 0,
                    gid: 0,
                },
            ),
        ]
        .into(),
        seccomp: match task.seccomp() {
            Seccomp::File(p) => Some(
                seccomp::parse_profile(&std::fs::read_to_string(p).unwrap(), &caps, (6, 18))
                    .unwrap(),
            ),
            _ => None,
        },
        cgroup_v2: false,
        hugepage_sizes: ["2MB".to_string()].into(),
        kernel: (6, 18),
        cgroup_path: format!("/bowline-spec-test-{}", std::process::id()),
    };
    print!(
        "{}",
        render(&build(&task, &host).unwrap_or_else(|e| panic!("{e}")))
    );
}
