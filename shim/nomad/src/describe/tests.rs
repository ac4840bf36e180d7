#![allow(clippy::unwrap_used)]

use bowline_spec::capability::Capability;
use bowline_spec::values::{ByteSize, Ceiling};
use bowline_spec::{MountKind, Propagation, Signal};
use rmpv::Value as Packed;

use super::*;
use crate::proto::driver::{
    AllocatedCpuResources, AllocatedMemoryResources, AllocatedTaskResources, Device, HostsConfig, LinuxResources,
    Resources,
};

const ID: &str = "1c2f3a4b-6bb6-11e6-bc26-28d2444e470d/web/0f0e0d0c";

fn map(entries: &[(&str, Packed)]) -> Packed {
    Packed::Map(entries.iter().map(|(key, value)| (Packed::from(*key), value.clone())).collect())
}

fn list(items: &[&str]) -> Packed {
    items.iter().map(|item| Packed::from(*item)).collect::<Vec<_>>().into()
}

/// A task with `options` besides its command.
fn task(options: &[(&str, Packed)]) -> TaskConfig {
    let all: Vec<_> = [("command", Packed::from("sleep"))].into_iter().chain(options.iter().cloned()).collect();
    let mut msgpack_driver_config = Vec::new();
    rmpv::encode::write_value(&mut msgpack_driver_config, &map(&all)).unwrap();
    let allocated_resources = AllocatedTaskResources {
        cpu: Some(AllocatedCpuResources { cpu_shares: 500 }),
        memory: Some(AllocatedMemoryResources { memory_mb: 64, memory_max_mb: 128 }),
        networks: Vec::new(),
    };
    let linux_resources = LinuxResources { cpu_shares: 500, percent_ticks: 0.25, ..LinuxResources::default() };
    TaskConfig {
        id: ID.to_owned(),
        name: "web".to_owned(),
        msgpack_driver_config,
        alloc_dir: "/var/nomad/alloc/1c2f".to_owned(),
        alloc_id: "1c2f3a4b-6bb6-11e6-bc26-28d2444e470d".to_owned(),
        job_name: "shop".to_owned(),
        task_group_name: "front".to_owned(),
        stdout_path: "/var/nomad/alloc/1c2f/alloc/logs/.web.stdout.fifo".to_owned(),
        stderr_path: "/dev/null".to_owned(),
        env: [("NOMAD_TASK_DIR".to_owned(), "/local".to_owned())].into(),
        resources: Some(Resources {
            allocated_resources: Some(allocated_resources),
            linux_resources: Some(linux_resources),
            ports: Vec::new(),
        }),
        ..TaskConfig::default()
    }
}

fn described(task: &TaskConfig, settings: &Settings) -> Result<Described> {
    describe(task, Around { settings, cgroup_v2: true, nonce: "start-0123" })
}

fn plain(options: &[(&str, Packed)]) -> Task {
    described(&task(options), &Settings::default()).unwrap().description
}

#[test]
fn nomads_folders_user_and_streams_are_the_tasks() {
    let task = plain(&[]);
    let mounts: Vec<_> = task.mounts.iter().map(|m| (m.source.clone().unwrap(), m.destination.clone())).collect();
    let expected = [
        ("/var/nomad/alloc/1c2f/alloc", "/alloc"),
        ("/var/nomad/alloc/1c2f/web/local", "/local"),
        ("/var/nomad/alloc/1c2f/web/secrets", "/secrets"),
    ];
    assert_eq!(mounts, expected.map(|(source, inside)| (PathBuf::from(source), PathBuf::from(inside))));
    assert_eq!(task.user.as_ref().unwrap().to_string(), "nobody");
    assert_eq!(task.output.stdout.as_deref(), Some(Path::new("/var/nomad/alloc/1c2f/alloc/logs/.web.stdout.fifo")));
    assert_eq!((task.output.stderr, task.stop.signal), (None, Some(Signal::INT)));
    assert_eq!((task.init, task.env["NOMAD_TASK_DIR"].as_str()), (Some(true), "/local"));
    let labels = ["job", "group", "task", "nomad.nonce"].map(|name| task.labels[name].as_str());
    assert_eq!(labels, ["shop", "front", "web", "start-0123"]);
}

#[test]
fn resources_become_limits() {
    let task = plain(&[("cpu_hard_limit", true.into()), ("memory_high", "100M".into())]);
    assert_eq!((task.cpu.shares, task.pids), (Some(500), Some(Ceiling::At(4096))));
    let memory = (task.memory.limit, task.memory.low, task.memory.high);
    assert_eq!(memory, (Some(ByteSize::mib(128)), Some(ByteSize::mib(64)), Some(ByteSize::mib(100))));
    let cores = f64::from(Settings::default().topology.cores);
    assert_eq!(task.cpu.limit.unwrap().as_f64(), cores / 4.0);
}

#[test]
fn a_groups_network_brings_its_namespace_hosts_and_resolver() {
    let network = NetworkIsolationSpec {
        mode: NetworkIsolationMode::Group.into(),
        path: "/var/run/netns/1c2f".to_owned(),
        hosts_config: Some(HostsConfig { hostname: "shop".to_owned(), address: "172.26.64.2".to_owned() }),
        ..NetworkIsolationSpec::default()
    };
    let dns = DnsConfig {
        servers: vec!["10.0.0.1".to_owned()],
        searches: vec!["a.example".to_owned(), "b.example".to_owned()],
        options: Vec::new(),
    };
    let in_group =
        |task: TaskConfig| TaskConfig { network_isolation_spec: Some(network.clone()), dns: Some(dns.clone()), ..task };
    let asked = in_group(task(&[]));
    let Described { description, files, .. } = described(&asked, &Settings::default()).unwrap();
    assert_eq!(description.namespaces.network().to_string(), "/var/run/netns/1c2f");
    assert_eq!(description.hostname.as_deref(), Some("shop"));
    assert_eq!(files[0].1, "nameserver 10.0.0.1\nsearch a.example b.example\n");
    assert!(files[1].1.ends_with("\n172.26.64.2\tshop\n") && files[1].1.starts_with("127.0.0.1\tlocalhost\n"));
    let bound: Vec<_> =
        description.mounts[3..].iter().map(|m| (m.destination.to_str().unwrap(), m.read_only)).collect();
    assert_eq!(bound, [("/etc/resolv.conf", true), ("/etc/hosts", true)]);
    let own = map(&[("type", "tmpfs".into()), ("target", "/etc/hosts".into())]);
    let asked = in_group(task(&[("mount", Packed::Array(vec![own]))]));
    let Described { description, files, .. } = described(&asked, &Settings::default()).unwrap();
    assert_eq!((files.len(), description.mounts[4].kind), (1, MountKind::Tmpfs));
}

#[test]
fn volumes_and_devices_of_the_agent_need_no_permission() {
    let volume = Mount {
        task_path: "/data".to_owned(),
        host_path: "/srv/data".to_owned(),
        readonly: true,
        propagation_mode: "host-to-task".to_owned(),
        ..Mount::default()
    };
    let device = Device {
        task_path: "/dev/fuse".to_owned(),
        host_path: "/dev/fuse".to_owned(),
        cgroup_permissions: "rw".to_owned(),
    };
    let asked = TaskConfig { mounts: vec![volume], devices: vec![device], ..task(&[]) };
    let task = described(&asked, &Settings::default()).unwrap().description;
    let data = &task.mounts[3];
    assert_eq!((data.read_only, data.propagation, data.kind), (true, Some(Propagation::Rslave), MountKind::Bind));
    assert_eq!(task.devices[0].access.unwrap().to_string(), "rw");
}

#[test]
fn what_is_wrong_is_called_as_the_job_calls_it() {
    let mount = |entries: &[(&str, Packed)]| ("mount", Packed::Array(vec![map(entries)]));
    for (option, text) in [
        (("pid_mode", "shared".into()), "config.pid_mode: \"shared\" is neither \"private\", \"host\""),
        (("work_dir", "../x".into()), "config.work_dir: "),
        (("cap_add", list(&["nope"])), "config.cap_add[0]: nope is not a capability"),
        (("ulimit", map(&[("nofile", "many".into())])), "config.ulimit.nofile: "),
        (("memory_high", "1Q".into()), "config.memory_high: "),
        (("image", "debian".into()), "config.image: \"debian\" is neither \"host\""),
        (("labels", map(&[("job", "x".into())])), "config.labels.job: the driver sets this label"),
        (("healthcheck", map(&[("exec", list(&[]))])), "config.healthcheck.exec: "),
        (mount(&[("target", "cache".into()), ("type", "tmpfs".into())]), "config.mount[0].target: "),
        (("command", "".into()), "config.command: "),
    ] {
        let error = described(&task(std::slice::from_ref(&option)), &Settings::default()).unwrap_err();
        assert!(error.kind() == Kind::BadSpec && error.message().starts_with(text), "{option:?}: {error}");
    }
}

#[test]
fn what_the_agent_does_not_allow_is_refused_and_given_where_it_does() {
    let mount = |source: &str| {
        (
            "mount",
            Packed::Array(vec![map(&[("target", "/x".into()), ("source", source.into()), ("type", "bind".into())])]),
        )
    };
    let device = ("devices", Packed::Array(vec![map(&[("host_path", "/dev/fuse".into())])]));
    let generous = Settings {
        allow_privileged: true,
        allow_host_paths: true,
        allow_root: true,
        allow_caps: Capability::all(),
        ..Settings::default()
    };
    for (option, setting) in [
        (("pid_mode", "host".into()), "allow_privileged"),
        (("ipc_mode", "host".into()), "allow_privileged"),
        (("seccomp", "unconfined".into()), "allow_privileged"),
        (("apparmor", "unconfined".into()), "allow_privileged"),
        (("no_new_privs", false.into()), "allow_privileged"),
        (("oom_score_adj", (-1).into()), "allow_privileged"),
        (device, "allow_privileged"),
        (("seccomp", "/etc/profile.json".into()), "allow_host_paths"),
        (("image", "/srv/root".into()), "allow_host_paths"),
        (mount("/etc"), "allow_host_paths"),
        (mount("../../x"), "allow_host_paths"),
        (("cap_add", list(&["net_admin"])), "allow_caps"),
        (("cap_add", list(&["all"])), "allow_caps"),
    ] {
        let (name, asked) = (option.0, task(std::slice::from_ref(&option)));
        let error = described(&asked, &Settings::default()).unwrap_err();
        let names = error.message().starts_with(&format!("config.{name}")) && error.message().contains(setting);
        assert!(error.kind() == Kind::BadSpec && names, "{option:?}: {error}");
        described(&asked, &generous).unwrap();
    }
    let own = plain(&[mount("local/data")]);
    assert_eq!(own.mounts[3].source.as_deref(), Some(Path::new("/var/nomad/alloc/1c2f/web/local/data")));
}

#[test]
fn a_default_capability_that_the_agent_denies_is_no_tasks() {
    let settings = Settings { allow_caps: default_set().into_iter().skip(1).collect(), ..Settings::default() };
    let task = described(&task(&[]), &settings).unwrap().description;
    assert_eq!(task.capabilities.allowed(), settings.allow_caps);
}

#[test]
fn a_task_whose_name_leads_elsewhere_is_refused() {
    for (name, alloc_dir) in [("../x", "/a"), ("..", "/a"), ("a/b", "/a"), ("", "/a"), ("web", "a")] {
        let asked = TaskConfig { name: name.to_owned(), alloc_dir: alloc_dir.to_owned(), ..task(&[]) };
        assert_eq!(described(&asked, &Settings::default()).unwrap_err().kind(), Kind::BadSpec, "{name} {alloc_dir}");
    }
}
