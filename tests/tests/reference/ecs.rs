//! What the ECS agent does of a task's cgroup and network, function by function, with the kernel's files as witness.
//! What it does besides is in `sandbox::budgets`, `sandbox::limits` and `sandbox::network`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use bowline_tests::Host;
use bowline_tests::harness::{
    Elsewhere, Limits, Ran, Sandbox, SandboxBuild, assert_cgroup_is_below, assert_forgotten, has_systemd, hierarchies,
    hierarchy, only_v2, process_exists, set_frozen, weight,
};
use serde_json::{Value, json};

const IDLE: &str = "exec sleep 1000";

/// A place of this test's, in place of `/ecs/ID`.
fn place(host: &Host, of: &SandboxBuild<'_>) -> String {
    format!("/{}-ecs/{}", host.prefix(), of.id())
}

/// The folders of a cgroup that there are.
fn there(path: &str) -> Vec<PathBuf> {
    let folders = hierarchies().into_iter().map(|(_, mount)| mount.join(&path[1..]));
    folders.filter(|folder| folder.exists()).collect()
}

fn notes(sandbox: &Sandbox<'_>) -> String {
    sandbox.inspect()["notes"].to_string()
}

/// What its shim has logged.
fn log(sandbox: &Sandbox<'_>) -> String {
    fs::read_to_string(sandbox.file("shim.log")).unwrap_or_default()
}

#[test]
fn build_cgroup_root() {
    let host = Host::new();
    let build = host.sandbox();
    let at = place(&host, &build);
    let sandbox = build.toml(&format!("place = '{at}'")).flag("--memory=64M").create();
    assert_eq!(sandbox.inspect()["cgroup"], *at);
    assert_eq!(Limits::of(&at).memory, "67108864");
    let member = sandbox.task(IDLE).start();
    assert_cgroup_is_below(member.pid(), &format!("{at}/{}", member.id()));
    assert!(host.bowline(["gc", "--dry-run"]).assert_code(0).out().lines().all(|line| !line.contains(sandbox.id())));
    member.end();
    sandbox.rm([]);
    let above = at.rsplit_once('/').expect("it has a parent").0;
    assert_eq!((there(&at), there(above)), (vec![], vec![]), "with the parents that were made for it");
}

#[test]
fn build_cgroup_root_names_the_sandbox() {
    let host = Host::new();
    let id = host.new_id();
    // What it ends with is its id; behind a slash comes whatever that is.
    let ran = host.bowline(["sandbox", "create", &format!("--place=/{}-ecs/{id}", host.prefix())]);
    ran.assert_says(&id);
    let named = host.adopt_sandbox(&id);
    let other = host.sandbox();
    let of_other = place(&host, &other);
    let other = other.flag(format!("--place=/{}-ecs/", host.prefix())).create();
    assert_eq!(other.inspect()["cgroup"], *of_other);
    // One below a place of others is not everybody's to remove.
    named.rm([]);
    assert!(!there(&of_other).is_empty());
    other.rm([]);
    let above = of_other.rsplit_once('/').expect("it has a parent").0.to_owned();
    for folder in there(&above) {
        fs::remove_dir(folder).expect("nothing is in it");
    }
}

#[test]
fn build_cgroup_root_by_systemd() {
    let host = Host::new();
    let build = host.sandbox();
    let escaped = build.id().replace('-', "\\x2d");
    let slice = format!("ecstasks-{escaped}.slice");
    if !has_systemd() {
        build.flag(format!("--place={slice}")).assert_refused(125, &[&slice, "made by systemd", "is cgroupfs"]);
        return host.assert_nothing_left();
    }
    let sandbox = build.flag(format!("--place={slice}")).flag("--cgroup-driver=systemd").flag("--pids=50").create();
    let at = format!("/ecstasks.slice/{slice}");
    assert_eq!((&sandbox.inspect()["cgroup"], &sandbox.inspect()["unit"]["name"]), (&json!(at), &json!(slice)));
    // Which controllers besides there are in a slice that other sandboxes share changes with them.
    assert_eq!(sandbox.cgroup_file("pids", "pids.max"), "50");
    let member = sandbox.task(IDLE).start();
    assert_cgroup_is_below(member.pid(), &format!("{at}/bowline-{}.scope", member.on_host()));
    member.end();
    sandbox.rm([]);
    assert_forgotten(&slice);
    assert_eq!(there(&at), [] as [PathBuf; 0]);
}

#[test]
fn build_cgroup_root_of_what_is_no_place() {
    let host = Host::new();
    for (place, parts) in [
        ("/ecs/../web", ".."),
        ("/..", "with a cgroup above it"),
        ("/ecs/..", ".."),
        ("/web", "with a cgroup above it"),
        ("ecs/web", "as /ecs/web"),
        ("/ecs//web", "cannot be empty"),
        ("/ecs.slice/web", "without its suffix"),
        ("/bowline/web/inner", "bowline's own"),
        ("/bowline-overhead/web", "bowline's own"),
    ] {
        host.sandbox().toml(&format!("place = '{place}'")).assert_refused(125, &["place", place, parts]);
        host.sandbox().flag(format!("--place={place}")).assert_refused(2, &["--place", parts]);
    }
    let other = host.sandbox().toml("place = '/bowline/other'");
    let id = other.id().to_owned();
    other.assert_refused(125, &["place", "of a sandbox other", &id]);
}

#[test]
fn setup_task_cgroup_where_one_is_in_use() {
    let host = Host::new();
    let theirs = host.elsewhere("ecs");
    let build = host.sandbox();
    let at = format!("{}/{}", theirs.path(), build.id());
    let own = host.cgroup(&at);
    host.bowline(["cgroup", "ensure", &at]).assert_code(0);
    let mut command = host.command("sleep");
    command.arg("1000");
    let mut stranger = host.spawn_command(own.inside(&command));
    own.wait_for(stranger.pid());
    build.flag(format!("--place={at}")).assert_refused(125, &[&at, "exists already"]);
    assert!(stranger.is_running(), "it is nobody's to kill");
    stranger.signal(rustix::process::Signal::KILL);
    stranger.finish();
    own.remove();
    theirs.remove();
}

/// A cgroup of somebody else's, with a limit of memory.
fn limited(host: &Host, path: &str) -> Elsewhere {
    host.bowline(["cgroup", "ensure", path]).assert_code(0);
    host.bowline(["cgroup", "set", path, "--memory=32M"]).assert_code(0);
    let file = if only_v2() { "cpu.weight" } else { "cpu.shares" };
    fs::write(hierarchy("cpu").join(&path[1..]).join(file), weight(600).to_string()).expect("root may");
    host.cgroup(path)
}

#[track_caller]
fn assert_is_as_it_was(cgroup: &Elsewhere) {
    assert_eq!(cgroup.there(), cgroup.folders());
    let limits = Limits::of(cgroup.path());
    assert_eq!((limits.memory, limits.weight, cgroup.pids()), ("33554432".to_owned(), weight(600), vec![]));
}

fn freeze(cgroup: &Elsewhere, is_frozen: bool) {
    set_frozen(&hierarchy("freezer").join(&cgroup.path()[1..]), is_frozen);
}

#[test]
fn a_cgroup_that_is_there_is_used_with_its_limits_and_stays() {
    let host = Host::new();
    let own = limited(&host, &format!("/{}-own", host.prefix()));
    let toml = format!("command = 'sleep'\nargs = ['1000']\npids = 50\ncgroup = '{}'", own.path());
    let task = host.described(&toml).start();
    assert_eq!((own.pids().len(), Limits::of(own.path()).memory), (2, "33554432".to_owned()));
    assert_eq!(task.stats()["memory"]["limit_bytes"], 32 << 20);
    host.described(&toml).assert_refused(125, &[own.path(), "in use"]);
    task.end();
    assert_is_as_it_was(&own);
    // After a crash, taken over or not, and where the launch fails.
    let task = host.described(&toml).start();
    task.kill_shim(task.shim_pid());
    task.bowline("rm", ["-f"]).assert_code(0);
    assert_is_as_it_was(&own);
    let task = host.described(&toml).start();
    task.kill_shim(task.shim_pid());
    task.exec("true").assert_code(0);
    task.end();
    assert_is_as_it_was(&own);
    host.described(&toml.replace("'sleep'", "'/nowhere'")).assert_refused(127, &["/nowhere"]);
    assert_is_as_it_was(&own);
    // Its limit of processes, too, where the description says none.
    let limit = hierarchy("pids").join(&own.path()[1..]).join("pids.max");
    fs::write(&limit, "7").expect("root may");
    let task = host.described(&toml.replace("pids = 50\n", "")).start();
    assert_eq!(fs::read_to_string(&limit).expect("readable"), "7\n");
    let explained = task.bowline("explain", []).assert_code(0).out();
    assert!(!explained.contains("somebody else has changed"), "{explained}");
    task.end();
    assert_eq!(fs::read_to_string(&limit).expect("readable"), "7\n");
    assert_is_as_it_was(&own);
    freeze(&own, true);
    host.described(&toml).assert_refused(125, &[own.path(), "frozen"]);
    freeze(&own, false);
    assert_is_as_it_was(&own);
    if !only_v2() && hierarchies().iter().any(|(names, _)| names.is_empty()) {
        // The freezer of v2 beside those of v1 freezes too.
        let mount = &hierarchies().into_iter().find(|(names, _)| names.is_empty()).expect("there is one").1;
        let freezer = mount.join(&own.path()[1..]).join("cgroup.freeze");
        fs::write(&freezer, "1").expect("root may");
        host.described(&toml).assert_refused(125, &[own.path(), "frozen"]);
        fs::write(&freezer, "0").expect("root may");
    }
    if !only_v2() {
        // There the kernel would refuse the device rules.
        let below = hierarchy("devices").join(&own.path()[1..]).join("below");
        fs::create_dir(&below).expect("root may");
        host.described(&toml).assert_refused(125, &[own.path(), "cgroups below it"]);
        fs::remove_dir(below).expect("root may");
        assert_is_as_it_was(&own);
    }
    host.bowline(["cgroup", "destroy", own.path()]).assert_code(0);
}

#[test]
fn setup_task_cgroup_where_one_is_there() {
    let host = Host::new();
    let theirs = host.elsewhere("ecs");
    for crash in [false, true] {
        let build = host.sandbox();
        // Under another name than the sandbox's, as Kata's.
        let at = format!("{}/kata_{}", theirs.path(), build.id());
        let own = limited(&host, &at);
        freeze(&own, true);
        let id = build.id().to_owned();
        build.flag(format!("--place={at}")).assert_refused(125, &[&at, "frozen"]);
        freeze(&own, false);
        let sandbox = host.sandbox().named(id).flag(format!("--place={at}")).flag("--pids=50").create();
        let member = sandbox.task(IDLE).start();
        assert_cgroup_is_below(member.pid(), &format!("{at}/{}", member.id()));
        assert_eq!((Limits::of(&at).memory, Limits::of(&at).weight), ("33554432".to_owned(), weight(600)));
        if crash {
            sandbox.kill_shim();
        }
        sandbox.rm(["-f"]);
        assert_is_as_it_was(&own);
        host.bowline(["cgroup", "destroy", &at]).assert_code(0);
    }
    theirs.remove();
}

#[test]
fn cleanup_after_a_shim_that_died() {
    let host = Host::new();
    let build = host.sandbox();
    let at = place(&host, &build);
    let sandbox = build.flag(format!("--place={at}")).create();
    let member = sandbox.task(IDLE).start();
    let pid = member.pid();
    sandbox.kill_shim();
    let found = host.bowline(["gc", "--dry-run"]);
    assert!(found.assert_code(0).err().contains(sandbox.id()), "a new shim can take it over: {found}");
    sandbox.rm(["-f"]);
    assert!(!process_exists(pid) && there(&at).is_empty());
}

#[test]
fn cleanup_leaves_what_others_have_made_in_its_place() {
    let host = Host::new();
    let theirs = host.elsewhere("ecs");
    let build = host.sandbox();
    let at = format!("{}/{}", theirs.path(), build.id());
    let sandbox = build.flag(format!("--place={at}")).create();
    sandbox.kill_shim();
    for folder in there(&at) {
        fs::remove_dir(folder).expect("nothing is in it");
    }
    let own = host.cgroup(&at);
    host.bowline(["cgroup", "ensure", &at]).assert_code(0);
    let mut command = host.command("sleep");
    command.arg("1000");
    let mut stranger = host.spawn_command(own.inside(&command));
    own.wait_for(stranger.pid());
    let ran = sandbox.bowline("rm", []);
    ran.assert_code(0);
    assert!(ran.err().contains(&at) && ran.err().contains("left alone"), "{ran}");
    assert!(stranger.is_running(), "it is nobody's to kill");
    stranger.signal(rustix::process::Signal::KILL);
    stranger.finish();
    own.remove();
    theirs.remove();
}

#[test]
fn docker_cpu_shares() {
    let host = Host::new();
    let sandbox = host.sandbox().create();
    let member = |shares: u64| {
        let build = sandbox.described(&format!("command = 'sleep'\nargs = ['1000']\ncpu.shares = {shares}"));
        let (task, start) = build.spawn_start();
        (start.finish().assert_code(0).err(), task)
    };
    let mut sum = 0;
    let mut tasks = Vec::new();
    for (shares, has, said) in [
        (0, 2, "below the least"),
        (1, 2, "below the least"),
        (2, 2, ""),
        (262_144, 262_144, ""),
        (262_145, 262_144, "above the most"),
    ] {
        let (told, task) = member(shares);
        sum = (sum + has).min(262_144);
        assert_eq!((task.cpu_weight(), sandbox.limits().weight), (weight(has), weight(sum)), "{shares}");
        let line = format!("{}: {shares} CPU shares are {said}", task.id());
        for (place, text) in [("answer", &told), ("log", &log(&sandbox)), ("inspect", &notes(&sandbox))] {
            assert_eq!(text.contains(&line), !said.is_empty(), "{shares}: {place}: {text}");
        }
        tasks.push(task);
    }
    // An update is settled as a launch is.
    let (one, others) = tasks.split_first().expect("five");
    let ran = one.bowline("update", ["--cpu-shares=300000"]);
    assert!(ran.assert_code(0).err().contains("300000 CPU shares are above the most"), "{ran}");
    assert_eq!(one.cpu_weight(), weight(262_144));
    let ran = one.bowline("update", ["--cpu-shares=512"]);
    assert_eq!((ran.assert_code(0).err().contains(one.id()), one.cpu_weight()), (false, weight(512)), "{ran}");
    assert!(!notes(&sandbox).contains(one.id()), "{}", notes(&sandbox));
    // A limit that does not concern them changes nothing of what is said.
    let last = others.last().expect("four");
    last.bowline("update", ["--pids=7"]).assert_code(0);
    assert!(notes(&sandbox).contains(&format!("{}: 262145", last.id())), "{}", notes(&sandbox));
    // A task that is nobody's member is refused, as it was.
    host.task(IDLE).toml("cpu.shares = 1").assert_refused(125, &["cpu.shares", "between 2 and 262144"]);
    tasks.iter().for_each(|task| drop(task.end()));
}

#[test]
fn build_implicit_linux_cpu_spec_with_shares_of_the_task() {
    let host = Host::new();
    for (shares, has, said) in
        [(0, 2, true), (1, 2, true), (2, 2, false), (262_144, 262_144, false), (262_145, 262_144, true)]
    {
        let build = host.sandbox().toml(&format!("cpu.shares = {shares}"));
        let ran = build.try_create();
        ran.assert_says(build.id());
        let sandbox = host.adopt_sandbox(build.id());
        let line = format!("the sandbox: {shares} CPU shares are ");
        assert_eq!((sandbox.limits().weight, ran.err().contains(&line)), (weight(has), said), "{shares}: {ran}");
        assert_eq!(log(&sandbox).contains(&line), said);
        sandbox.rm([]);
    }
}

#[test]
fn build_explicit_linux_cpu_spec() {
    let host = Host::new();
    for (cpus, period, has) in [
        ("0.01", "100ms", "1000 100000"),
        ("0.001", "1s", "1000 1000000"),
        ("0.25", "100ms", "25000 100000"),
        ("1.5", "100ms", "150000 100000"),
    ] {
        let sandbox = host.sandbox().toml(&format!("cpu = {{limit = {cpus}, period = '{period}'}}")).create();
        assert_eq!(sandbox.limits().cpu, has, "{cpus}");
        sandbox.rm([]);
    }
    for (cpus, quota) in [("0.009", "900 µs"), ("0.001", "100 µs"), ("0.0001", "10 µs")] {
        host.sandbox().flag(format!("--cpus={cpus}")).assert_refused(2, &["cpu.limit", cpus, quota, "1000"]);
    }
}

#[test]
fn limits_of_a_task_while_they_are_switched_off() {
    let host = Host::new();
    let build = host.sandbox().toml("cgroup = 'off'\ncpu.shares = 300\nmemory.limit = '64M'\npids = 3");
    let ran = build.try_create();
    ran.assert_says(build.id());
    let sandbox = host.adopt_sandbox(build.id());
    let before = sandbox.limits();
    assert_eq!((before.memory.as_str(), before.pids.as_str(), before.weight), ("max", "max", weight(1024)));
    for field in ["cpu.shares", "memory.limit", "pids"] {
        let line = format!("{field} is ignored, as cgroup is \"off\"");
        assert!(ran.err().contains(&line) && log(&sandbox).contains(&line), "{ran}{}", log(&sandbox));
    }
    assert_eq!(sandbox.inspect()["budget"]["memory_bytes"], Value::Null);
    // What a member asks for is compared with nothing, and is its own.
    let member = sandbox.task(IDLE).flag("--memory=128M").start();
    let ran = sandbox.bowline("update", ["--cpus=0.5"]);
    assert!(ran.assert_code(0).err().contains("cpu.limit is ignored"), "{ran}");
    assert_eq!(sandbox.limits(), before);
    member.end();
}

/// Stand-ins for plugins, which note what they are asked: a line of JSON each.
fn plugins<const N: usize>(host: &Host, names: [&str; N]) -> String {
    let dir = host.work().display().to_string();
    fs::create_dir(format!("{dir}/bin")).expect("the test's own");
    for name in names {
        // Written by another process: had this one it open, a fork of another test could keep it so.
        let script = format!(
            "#!/bin/sh\nc=$(cat)\necho \"{{\\\"plugin\\\":\\\"{name}\\\",\\\"verb\\\":\\\"$CNI_COMMAND\\\",\\\"name\\\":\\\"$CNI_IFNAME\\\",\
             \\\"netns\\\":\\\"$CNI_NETNS\\\",\\\"config\\\":$c}}\" >>{dir}/calls\n[ $CNI_COMMAND != ADD ] || echo '{{\"cniVersion\":\"0.3.0\"}}'\n"
        );
        let text = host.file(&format!("{name}.sh"), &script);
        let mut install = host.command("install");
        install.arg(text).arg(format!("{dir}/bin/{name}"));
        host.execute(install).assert_code(0);
    }
    format!("{dir}/bin")
}

fn calls(host: &Host) -> Vec<Value> {
    let text = fs::read_to_string(host.work().join("calls")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn new_app_mesh_config() {
    let host = Host::new();
    let folder = plugins(&host, ["ecs-bridge", "aws-appmesh"]);
    let sandbox = host
        .sandbox()
        .toml(&format!(
            "[network]\nplugins = 'ecs'\nplugin_folders = ['{folder}']\ninterfaces = [{{association = 'bridge'}}]\n\
             [network.app_mesh]\nignored_uid = 1337\ningress = 15000\negress = 15001\napp_ports = [80, 8080]\n\
             ignored_ports = [22]\nignored_ips = ['169.254.170.2', '10.0.0.0/8']"
        ))
        .create();
    let made = calls(&host);
    let order: Vec<_> = made.iter().map(|call| (call["plugin"].clone(), call["verb"].clone())).collect();
    assert_eq!(order, [(json!("ecs-bridge"), json!("ADD")), (json!("aws-appmesh"), json!("ADD"))]);
    let asked = &made[1];
    // It makes no interface, and CNI demands a name.
    assert_eq!((&asked["name"], &asked["netns"]), (&json!("eth0"), &made[0]["netns"]));
    let config = &asked["config"];
    let expected = json!({
        "ignoredUID": "1337", "proxyIngressPort": "15000", "proxyEgressPort": "15001", "appPorts": ["80", "8080"],
        "egressIgnoredPorts": ["22"], "egressIgnoredIPs": ["169.254.170.2", "10.0.0.0/8"], "type": "aws-appmesh",
    });
    for (field, value) in expected.as_object().expect("fields") {
        assert_eq!(&config[field], value, "{field}");
    }
    sandbox.rm([]);
    let undone: Vec<_> = calls(&host)[2..].iter().map(|call| call["plugin"].clone()).collect();
    assert_eq!(undone, ["aws-appmesh", "ecs-bridge"], "in reverse");
    host.sandbox()
        .toml(&format!("[network]\nplugin_folders = ['{folder}']\ninterfaces = [{{association = 'bridge'}}]\napp_mesh = {{egress = 1}}"))
        .assert_refused(125, &["network.app_mesh.ignored_uid"]);
}

/// As BuildCNIConfigBridgeMode has it: the network is another's, and only the proxies are set up in it.
#[test]
fn service_connect_and_app_mesh_in_a_network_made_by_others() {
    let host = Host::new();
    let folder = plugins(&host, ["aws-appmesh", "ecs-serviceconnect"]);
    let ip = |verb: &str| {
        let mut ip = host.command("ip");
        ip.args(["netns", verb, host.prefix()]);
        host.execute(ip).assert_code(0);
    };
    ip("add");
    let path = format!("/run/netns/{}", host.prefix());
    let inode = || fs::metadata(&path).expect("it is somebody else's").ino();
    let there = inode();
    for crash in [false, true] {
        let sandbox = host
            .sandbox()
            .toml(&format!(
                "[network]\nmode = '{path}'\nplugin_folders = ['{folder}']\nproxy = {{ingress = [{{listener = 15000}}]}}\n\
                 app_mesh = {{egress = 15001, ignored_uid = 1337}}"
            ))
            .create();
        sandbox.task("readlink /proc/self/ns/net").run().assert_says(&format!("net:[{there}]"));
        if crash {
            sandbox.kill_shim();
        }
        sandbox.rm(["-f"]);
        assert_eq!(inode(), there);
    }
    let order: Vec<_> = calls(&host).iter().map(|call| format!("{} {}", call["verb"], call["plugin"])).collect();
    let once = [
        r#""ADD" "aws-appmesh""#,
        r#""ADD" "ecs-serviceconnect""#,
        r#""DEL" "ecs-serviceconnect""#,
        r#""DEL" "aws-appmesh""#,
    ];
    assert_eq!(order, [once, once].concat());
    assert!(calls(&host).iter().all(|call| call["name"] == "eth0"));
    ip("del");
}

#[test]
fn disable_ipv6_sysctl() {
    let host = Host::new();
    let look = "cat /proc/sys/net/ipv6/conf/all/disable_ipv6; wc -l </proc/net/if_inet6";
    let inside = |sandbox: &Sandbox<'_>| -> Ran { sandbox.task(look).run() };
    let with = host.sandbox().toml("network.mode = 'none'").create();
    inside(&with).assert_says("0\n1");
    let without = host.sandbox().toml("network = {mode = 'none', sysctls = {'net.ipv6.conf.all.disable_ipv6' = '1'}}");
    let without = without.create();
    inside(&without).assert_says("1\n0");
    // It is the sandbox's alone.
    inside(&with).assert_says("0\n1");
}
