//! `bowline cgroup name`: where pods and sandboxes are, and whose a cgroup is.

use bowline_tests::Host;
use bowline_tests::harness::Ran;

fn name(host: &Host, args: &[&str]) -> Ran {
    host.bowline(["cgroup", "name"].iter().chain(args))
}

/// As cgroup_manager_linux.go of the kubelet and task_linux_test.go of the ECS agent have them.
#[test]
fn a_pod_and_a_sandbox_are_named_for_either_driver_and_back() {
    let host = Host::new();
    let slice = "kubepods-burstable-pod1234_abcd_5678_efgh.slice";
    let pod = ["--pod", "1234-abcd-5678-efgh", "--qos", "burstable"];
    let cgroupfs = "/kubepods/burstable/pod1234-abcd-5678-efgh";
    let systemd = format!("/kubepods.slice/kubepods-burstable.slice/{slice}");
    name(&host, &pod).assert_says(cgroupfs);
    name(&host, &[&pod[..], &["--driver", "systemd"]].concat()).assert_says(&systemd);
    for path in [cgroupfs, &systemd, slice] {
        name(&host, &[path]).assert_says("pod 1234-abcd-5678-efgh\nqos burstable\nroot kubepods");
    }
    let place = ["--sandbox", "111mytaskid", "--root", "/ecs"];
    let both = name(&host, &[&place[..], &["--json"]].concat()).assert_code(0).json();
    assert_eq!(both["systemd"], "/ecs.slice/ecs-111mytaskid.slice");
    assert_eq!(both["cgroupfs"], "/ecs/111mytaskid");
    // Only below the root of pods is it a pod's, and only below ours a sandbox's.
    name(&host, &["/ecs/111mytaskid", "--root", "/ecs"]).assert_says("root ecs\nsandbox 111mytaskid");
    let back = name(&host, &["/ecs/podcast", "--root", "ecs", "--json"]).assert_code(0).json();
    assert_eq!((&back["pod"], &back["qos"]), (&"cast".into(), &"guaranteed".into()));
}

/// As the kubelet makes them, wherever its root is, and as it writes the classes.
#[test]
fn cgroups_of_a_kubelets_pods_and_their_containers_are_named() {
    let host = Host::new();
    let pod = "/h9b.slice/h9b-kubepods.slice/h9b-kubepods-besteffort.slice/h9b-kubepods-besteffort-pod1_2.slice";
    for (path, container) in [
        ("/h9b/kubepods/besteffort/pod1-2", ""),
        (pod, ""),
        ("/h9b/kubepods/besteffort/pod1-2/abc", "container abc\n"),
        (&format!("{pod}/cri-containerd-abc.scope"), "container abc\n"),
        (&format!("{pod}/crio-abc.scope"), "container abc\n"),
        ("/h9b/kubepods/besteffort/pod1-2/crio-abc", "container abc\n"),
    ] {
        let expected = format!("{container}pod 1-2\nqos best-effort\nroot h9b/kubepods");
        name(&host, &[path]).assert_says(&expected);
    }
    for class in ["BestEffort", "besteffort", "best-effort"] {
        name(&host, &["--pod", "1", "--qos", class]).assert_says("/kubepods/besteffort/pod1");
    }
    for (class, path) in [("Burstable", "/kubepods/burstable/pod1"), ("Guaranteed", "/kubepods/pod1")] {
        name(&host, &["--pod", "1", "--qos", class]).assert_says(path);
    }
    for path in ["/docker/abc", "/kubepods/burstable", "/user.slice/user-0.slice", "/ecs/podcast", "/bowline/a/b"] {
        name(&host, &[path]).assert_code(1);
    }
    for none in ["..", ".", "/x", "x.service", "x.slice", "-.scope", ".scope", "crio-conmon-abc.scope"] {
        name(&host, &[&format!("{pod}/{none}")]).assert_code(1);
    }
    let refused = name(&host, &["--sandbox", "x", "--root", "a.slice"]);
    refused.assert_refused(2, &["\"a.slice\" is a slice"]);
    assert!(!refused.err().contains("TaskId"), "{refused}");
}

#[test]
fn what_names_no_pod_and_no_sandbox_is_refused_or_nobodys() {
    let host = Host::new();
    for path in ["/", "/kubepods", "/kubepods.slice/kubepods-burstable-pod123.slice/x", "/a/../b", "x", "..slice"] {
        name(&host, &[path]).assert_code(1);
    }
    for (args, part) in [
        (&["--pod", "a_b", "--qos", "burstable"][..], "a_b"),
        (&["--pod", "a/b", "--qos", "burstable"], "a/b"),
        (&["--pod", "1", "--qos", "burstable", "--root", "a_b"], "a_b"),
        (&["--sandbox", "..", "--root", "ecs"], ".."),
        (&["--sandbox", "x", "--root", "/ecs/../x"], ".."),
        (&["--pod", "1"], "--qos"),
        (&["--pod", "1", "--qos", "best"], "best"),
        (&["--pod", "1", "--qos", "burstable", "--sandbox", "x"], "--sandbox"),
        (&[], "--pod"),
    ] {
        name(&host, args).assert_refused(2, &[part]);
    }
}
