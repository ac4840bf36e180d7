//! A host for tests: four CPUs, one memory node, a disk, /dev/kvm.

use std::path::PathBuf;

use bowline_spec::{DeviceNode, Host, UserIds};

pub fn host(cgroup_v2: bool) -> Host {
    let node = |kind, major, minor, mode, gid| DeviceNode { kind, major, minor, mode, uid: 0, gid };
    let path = PathBuf::from;
    Host {
        name: "web-1".into(),
        user: UserIds { uid: 0, gid: 0, groups: vec![], home: Some(path("/root")) },
        view: ["/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr"].map(path).into(),
        resolver: None,
        cpus: (0..4).collect(),
        mems: [0].into(),
        devices: [(path("/dev/sda"), node('b', 8, 0, 0o660, 6)), (path("/dev/kvm"), node('c', 10, 232, 0o660, 107))]
            .into(),
        capabilities: None,
        seccomp: None,
        cgroup_v2,
        hugepage_sizes: ["2MB".to_string(), "1GB".to_string()].into(),
        kernel: (6, 12),
        apparmor: None,
        cgroup_path: "/bowline/web-1/web-1".into(),
    }
}
