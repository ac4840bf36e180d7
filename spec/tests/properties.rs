//! What holds of every description: building never panics, and whatever is
//! not asked for stays protected.
#![allow(clippy::unwrap_used, missing_docs)]

mod facts;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bowline_spec::values::{ByteSize, Ceiling, Cpus, IdSet, TmpfsSize};
use bowline_spec::{
    Cpu, Device, Format, IoDevice, Memory, Mount, MountKind, Namespace, Namespaces, Propagation, Seccomp, Task, build,
    parse, render,
};
use oci_spec::runtime::{LinuxNamespaceType, Spec};
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;

/// Mostly a sound value, now and then any at all.
fn mostly<T: std::fmt::Debug>(
    sound: impl Strategy<Value = T> + 'static,
    any: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = T> {
    prop_oneof![15 => sound, 1 => any]
}

fn path() -> impl Strategy<Value = PathBuf> {
    "/[a-z]{1,8}(/[a-z.]{1,8}){0,2}".prop_map(PathBuf::from)
}

fn mount() -> impl Strategy<Value = Mount> {
    let propagation = prop_oneof![Just(Propagation::Rshared), Just(Propagation::Slave)];
    let bind = (path(), path(), any::<bool>(), of(any::<bool>()), of(propagation)).prop_map(
        |(source, destination, read_only, recursive, propagation)| Mount {
            source: Some(source),
            destination,
            read_only,
            recursive,
            propagation,
            ..Mount::default()
        },
    );
    let size = prop_oneof![
        (1u64..1 << 40).prop_map(|bytes| TmpfsSize::Bytes(ByteSize::bytes(bytes))),
        (1u8..=100).prop_map(TmpfsSize::Percent),
    ];
    let tmpfs = (path(), of(size), of(any::<bool>()), of(0..u32::MAX)).prop_map(|(destination, size, nosuid, uid)| {
        Mount { kind: MountKind::Tmpfs, destination, size, nosuid, uid, ..Mount::default() }
    });
    prop_oneof![bind, tmpfs]
}

fn namespace() -> impl Strategy<Value = Option<Namespace>> {
    of(prop_oneof![Just(Namespace::Private), Just(Namespace::Host), path().prop_map(Namespace::Path)])
}

fn namespaces() -> impl Strategy<Value = Namespaces> {
    (namespace(), namespace(), namespace(), namespace(), namespace())
        .prop_map(|(pid, ipc, uts, network, cgroup)| Namespaces { pid, ipc, uts, network, cgroup, user: None })
}

fn limits() -> impl Strategy<Value = (Cpu, Memory, Option<Ceiling<u64>>, Vec<IoDevice>)> {
    let cpu =
        (of(2..=262_144u64), of(0.01..64.0f64), of(mostly(0..4u32, 0..9u32))).prop_map(|(shares, limit, id)| Cpu {
            shares,
            limit: limit.map(|limit| Cpus::new(limit).unwrap()),
            cpuset: id.and_then(|id| IdSet::new([id].into())),
            ..Cpu::default()
        });
    let memory =
        (of(mostly(1u64 << 25..1 << 40, 0..1u64 << 40)), of(mostly(0u64..1 << 25, 0..1u64 << 40)), of(0..1u64 << 40))
            .prop_map(|(limit, low, swap)| Memory {
                limit: limit.map(ByteSize::bytes),
                low: low.map(ByteSize::bytes),
                swap: limit.and(swap).map(|s| Ceiling::At(ByteSize::bytes(s))),
                ..Memory::default()
            });
    let pids = of(prop_oneof![(1..100_000u64).prop_map(Ceiling::At), Just(Ceiling::Unlimited)]);
    let io = vec((0..20u32, of(mostly(10..=1000u16, any::<u16>())), of(1..1u64 << 32)), 0..3).prop_map(|devices| {
        let device = |(minor, weight, read_iops)| IoDevice {
            path: format!("8:{minor}"),
            weight,
            read_iops,
            ..IoDevice::default()
        };
        devices.into_iter().map(device).collect()
    });
    (cpu, memory, pids, io)
}

fn task() -> impl Strategy<Value = Task> {
    let text = "\\PC{0,20}";
    let command = mostly("[a-z/]{1,9}", text);
    let variable = mostly("[A-Z_]{1,9}", "[A-Z=]{0,3}");
    let process = (command, vec(text, 0..4), btree_map(variable, text, 0..4));
    let hostname = of(mostly("[a-z]{1,9}", "[a-z.-]{0,70}"));
    let isolation = (namespaces(), vec(mount(), 0..4), hostname, of(path()));
    let sysctl = mostly("kernel\\.(msgmax|sem)", "(net|kernel|fs)[.a-z]{0,9}");
    let sysctls = btree_map(sysctl, text, 0..2);
    let label = mostly("[a-z./]{1,9}", text);
    let adjustment = of(mostly(-1000..=1000, any::<i32>()));
    let rest = (sysctls, btree_map(label, text, 0..2), adjustment, any::<bool>());
    (process, isolation, limits(), rest).prop_map(
        |((command, args, env), (namespaces, mounts, hostname, rootfs), limits, rest)| {
            let (cpu, memory, pids, io) = limits;
            let (sysctls, labels, oom_score_adj, device) = rest;
            let mut task = Task {
                command,
                args,
                env,
                namespaces,
                mounts,
                hostname,
                rootfs,
                cpu,
                memory,
                pids,
                sysctls,
                labels,
                oom_score_adj,
                ..Task::default()
            };
            task.io.devices = io;
            if device {
                task.devices.push(Device { path: "/dev/kvm".into(), ..Device::default() });
            }
            task
        },
    )
}

/// What every task has unless its description says otherwise by name.
fn assert_protected(task: &Task, spec: &Spec) {
    let process = spec.process().as_ref().unwrap();
    let linux = spec.linux().as_ref().unwrap();
    let resources = linux.resources().as_ref().unwrap();
    assert_eq!(process.no_new_privileges(), Some(true));
    assert_eq!(process.terminal(), Some(false));
    let capabilities = process.capabilities().as_ref().unwrap();
    for set in [capabilities.bounding(), capabilities.permitted(), capabilities.effective()] {
        assert_eq!(set.as_ref().unwrap().len(), 13);
    }
    assert!(capabilities.ambient().is_none() && capabilities.inheritable().is_none());
    assert!(linux.seccomp().is_some());
    let masked = linux.masked_paths().as_ref().unwrap();
    assert!(masked.iter().any(|path| path == "/proc/kcore"));
    let readonly = linux.readonly_paths().as_ref().unwrap();
    assert!(readonly.iter().any(|path| path == "/proc/sys"));
    let first = &resources.devices().as_ref().unwrap()[0];
    assert!(!first.allow() && first.typ().is_none() && first.access().as_deref() == Some("rwm"));
    let pids = resources.pids().unwrap().limit();
    match task.pids {
        None => assert_eq!(pids, 4096),
        Some(Ceiling::At(limit)) => assert_eq!(pids, limit as i64),
        Some(Ceiling::Unlimited) => assert_eq!(pids, -1),
    }
    let kinds: Vec<_> = linux.namespaces().as_ref().unwrap().iter().map(|n| n.typ()).collect();
    assert!(kinds.contains(&LinuxNamespaceType::Mount));
    for (kind, asked) in [
        (LinuxNamespaceType::Pid, &task.namespaces.pid),
        (LinuxNamespaceType::Ipc, &task.namespaces.ipc),
        (LinuxNamespaceType::Uts, &task.namespaces.uts),
        (LinuxNamespaceType::Cgroup, &task.namespaces.cgroup),
    ] {
        assert_eq!(kinds.contains(&kind), *asked != Some(Namespace::Host), "{kind}");
    }
    let read_only_root = spec.root().as_ref().unwrap().readonly();
    assert_eq!(read_only_root, Some(task.rootfs.is_none()));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        max_global_rejects: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn building_never_panics_and_always_protects(task in task(), v2: bool) {
        let built = build(&task, &facts::host(v2));
        if let Err(error) = &built {
            prop_assert!(!error.field.is_empty(), "{error}");
        }
        if let Ok(spec) = built {
            prop_assert!(task.validate().is_ok());
            assert_protected(&task, &spec);
            let read: Spec = serde_json::from_str(&render(&spec)).unwrap();
            prop_assert_eq!(render(&read), render(&spec));
        }
    }

    #[test]
    fn a_description_reads_back_as_it_was_written(task in task()) {
        prop_assume!(task.validate().is_ok());
        let json = serde_json::to_string(&task).unwrap();
        prop_assert_eq!(parse(&json, Format::Json).unwrap(), task.clone());
        let toml = toml::to_string(&task).unwrap();
        prop_assert_eq!(parse(&toml, Format::Toml).unwrap(), task);
    }
}

/// Guards the property above against a generator that only makes nonsense.
#[test]
fn enough_of_the_generated_descriptions_are_valid() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let valid = (0..1000)
        .filter(|_| {
            let task = task().new_tree(&mut runner).unwrap().current();
            build(&task, &facts::host(true)).is_ok()
        })
        .count();
    assert!(valid > 250, "{valid} of 1000");
}

#[test]
fn protections_go_only_when_named() {
    let host = facts::host(false);
    let mut task = Task { command: "true".into(), ..Task::default() };
    task.seccomp = Some(Seccomp::Unconfined);
    task.no_new_privs = Some(false);
    task.masked_paths = Some(vec![]);
    task.env = BTreeMap::new();
    let spec = build(&task, &host).unwrap();
    let linux = spec.linux().as_ref().unwrap();
    assert!(linux.seccomp().is_none());
    assert_eq!(linux.masked_paths().as_ref().unwrap().len(), 0);
    assert_eq!(spec.process().as_ref().unwrap().no_new_privileges(), Some(false));
}
