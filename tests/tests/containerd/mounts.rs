//! The mounts of a bundle's configuration, as managers write them and as images bend them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{self, Bundle, Containerd};
use bowline_tests::harness::lacks;
use serde_json::{Value, json};

pub fn text(path: &Path) -> &str {
    path.to_str().expect("ASCII")
}

pub fn bind(source: &str, destination: &str) -> Value {
    json!({ "type": "bind", "source": source, "destination": destination, "options": ["rbind", "rprivate"] })
}

fn tmpfs(destination: &str, options: &[&str]) -> Value {
    json!({ "type": "tmpfs", "source": "tmpfs", "destination": destination, "options": options })
}

fn link(bundle: &Bundle, name: &str, target: &str) {
    let path = bundle.rootfs().join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("the work folder is writable");
    let _ = fs::remove_file(&path);
    symlink(target, path).expect("the work folder is writable");
}

/// Makes a folder in the bundle's root that is not root's.
fn make_folder(bundle: &Bundle, name: &str, mode: u32) {
    let folder = bundle.rootfs().join(name);
    fs::create_dir(&folder).expect("ours");
    std::os::unix::fs::chown(&folder, Some(1234), Some(2345)).expect("root may");
    fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).expect("ours");
}

/// Runs the bundle to its end; what its output says must be `out`.
#[track_caller]
pub fn assert_says(containerd: &Containerd<'_>, bundle: &Bundle, out: &str) {
    let file = bundle.path.join("out");
    let shim = containerd.start(bundle);
    let io = containerd::Stdio::uri(&format!("file://{}", file.display()));
    shim.create(bundle, &io).unwrap_or_else(|failure| panic!("create: {failure:?}"));
    shim.start(&bundle.id, "").expect("started");
    shim.status_at_end(&bundle.id, "");
    shim.delete(&bundle.id, "").expect("deleted");
    assert_eq!(fs::read_to_string(file).expect("output").trim_end(), out);
    shim.over();
}

/// The error by which creating the bundle fails.
#[track_caller]
pub fn refusal(containerd: &Containerd<'_>, bundle: &Bundle) -> String {
    let shim = containerd.start(bundle);
    let failure = shim.create(bundle, &containerd::Stdio::null()).expect_err("refused");
    shim.over();
    failure.message
}

#[test]
fn a_file_may_be_bound_onto_a_link_to_nothing() {
    let host = Host::new();
    let containerd = host.containerd();
    let conf = host.file("resolv.conf", "nameserver 192.0.2.1\n");
    // As in images of distributions with systemd-resolved.
    let bundle = containerd.bundle().script("cat /etc/resolv.conf; readlink /etc/resolv.conf; stat -c %a /srv/resolve");
    let bundle = bundle.mount(&bind(text(&conf), "/etc/resolv.conf"));
    link(&bundle, "etc/resolv.conf", "../srv/resolve/stub-resolv.conf");
    assert_says(&containerd, &bundle, "nameserver 192.0.2.1\n../srv/resolve/stub-resolv.conf\n755");
    let made = bundle.rootfs().join("srv/resolve/stub-resolv.conf");
    assert_eq!(fs::read_to_string(made).expect("it was made in the root"), "");
}

#[test]
fn a_folder_may_be_bound_onto_links_to_nothing() {
    let host = Host::new();
    let containerd = host.containerd();
    let data = host.work().join("data");
    fs::create_dir(&data).expect("the work folder is writable");
    fs::write(data.join("file"), "in\n").expect("the work folder is writable");
    let bundle = containerd.bundle().script("cat /srv/real/there/file").mount(&bind(text(&data), "/one/deeper/there"));
    link(&bundle, "one", "two");
    link(&bundle, "two", "/three");
    link(&bundle, "three/deeper", "../srv/real");
    assert_says(&containerd, &bundle, "in");
}

#[test]
fn a_link_that_would_lead_out_leads_to_a_place_inside() {
    let host = Host::new();
    let containerd = host.containerd();
    let conf = host.file("conf", "content\n");
    let outside = host.work().join("outside");
    fs::create_dir(&outside).expect("the work folder is writable");
    let inside = format!("{}/absolute", text(&outside));
    let bundle = containerd.bundle().script(&format!("cat {inside} /climbing/there")).edit(|_| ());
    let bundle = bundle.mount(&bind(text(&conf), "/to/absolute")).mount(&bind(text(&conf), "/to/climbing/there"));
    link(&bundle, "to/absolute", &inside);
    link(&bundle, "to/climbing", "../../../../../../../../../climbing");
    assert_says(&containerd, &bundle, "content\ncontent");
    assert_eq!(fs::read_dir(&outside).expect("it is there").count(), 0, "nothing was made outside");
    assert!(!Path::new("/climbing").exists(), "nothing was made outside");
}

#[test]
fn a_loop_of_links_is_no_place_for_a_mount() {
    let host = Host::new();
    let containerd = host.containerd();
    let conf = host.file("conf", "content\n");
    let bundle = containerd.bundle().script("true").mount(&bind(text(&conf), "/loop/there"));
    link(&bundle, "loop", "pool");
    link(&bundle, "pool", "loop");
    let message = refusal(&containerd, &bundle);
    assert!(message.contains("symbolic links") && message.contains("/loop/there"), "{message}");
}

#[test]
fn a_relative_source_is_relative_to_the_bundle() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("cat /a /b/conf");
    fs::create_dir(bundle.path.join("own")).expect("ours");
    fs::write(bundle.path.join("own/conf"), "content\n").expect("ours");
    let bundle = bundle.mount(&bind("own/conf", "/a")).mount(&bind("./nowhere/../own", "/b"));
    assert_says(&containerd, &bundle, "content\ncontent");
}

#[test]
fn a_source_may_lie_in_an_earlier_mount() {
    let host = Host::new();
    let containerd = host.containerd();
    let data = host.work().join("data");
    fs::create_dir_all(data.join("sub")).expect("the work folder is writable");
    fs::write(data.join("sub/file"), "in\n").expect("the work folder is writable");
    let bundle = containerd.bundle().script("cat /second/file; cat /third; ls /mnt");
    let inside = |path: &str| format!("{}/{path}", text(&bundle.rootfs()));
    let (second, third) = (inside("mnt/sub"), inside("mnt/sub/file"));
    fs::create_dir_all(bundle.rootfs().join("mnt")).expect("ours");
    let bundle = bundle.mount(&bind(text(&data), "/mnt"));
    let bundle = bundle.mount(&bind(&second, "/second")).mount(&bind(&third, "/third"));
    assert_says(&containerd, &bundle, "in\nin\nsub");
}

#[test]
fn a_source_in_the_root_leads_nowhere_else() {
    let host = Host::new();
    if host.reference_fails("it follows the image's links on the host") {
        return;
    }
    let containerd = host.containerd();
    let secret = host.file("secret", "secret\n");
    let bundle = containerd.bundle().script("cat /there; cat /climbed");
    link(&bundle, "out", text(&secret));
    link(&bundle, "up", "../../../../../../../..");
    let inside = |path: &str| format!("{}/{path}", text(&bundle.rootfs()));
    let here = bundle.rootfs().join(secret.strip_prefix("/").expect("absolute"));
    fs::create_dir_all(here.parent().expect("a folder")).expect("ours");
    fs::write(&here, "the image's\n").expect("ours");
    let (out, up) = (inside("out"), inside(&format!("up{}", text(&secret))));
    let bundle = bundle.mount(&bind(&out, "/there")).mount(&bind(&up, "/climbed"));
    assert_says(&containerd, &bundle, "the image's\nthe image's");
}

#[test]
fn a_tmpfs_without_a_mode_has_that_of_the_folder_it_covers() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("stat -c '%a %u %g' /covered /made; stat -c %a /copied; ls /copied");
    for (name, mode) in [("covered", 0o2750), ("copied", 0o1711)] {
        make_folder(&bundle, name, mode);
    }
    fs::write(bundle.rootfs().join("copied/file"), "").expect("ours");
    let bundle = bundle.mount(&tmpfs("/covered", &["size=64k"])).mount(&tmpfs("/made", &[]));
    let bundle = bundle.mount(&tmpfs("/copied", &["tmpcopyup"]));
    assert_says(&containerd, &bundle, "2750 0 0\n1777 0 0\n1711\nfile");
}

#[test]
fn a_tmpfs_has_the_mode_that_it_is_given() {
    let host = Host::new();
    if host.reference_fails("runc 1.1 prefers the mode of the folder, runc 1.2 no more") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle().script("stat -c '%a %u' /asked /both; ls /both");
    make_folder(&bundle, "asked", 0o750);
    make_folder(&bundle, "both", 0o711);
    fs::write(bundle.rootfs().join("both/file"), "").expect("ours");
    let bundle = bundle.mount(&tmpfs("/asked", &["mode=701"])).mount(&tmpfs("/both", &["tmpcopyup", "mode=700"]));
    assert_says(&containerd, &bundle, "701 0\n700 1234\nfile");
}

#[test]
fn one_text_may_have_several_options_of_a_filesystem() {
    let host = Host::new();
    let containerd = host.containerd();
    let script = "stat -c %a /made; grep -o ' /made tmpfs.*size=4096k' /proc/mounts | wc -l";
    let bundle = containerd.bundle().script(script).mount(&tmpfs("/made", &["size=4m,mode=701"]));
    assert_says(&containerd, &bundle, "701\n1");
}

#[test]
fn dev_may_be_read_only() {
    let host = Host::new();
    let containerd = host.containerd();
    let script = "grep ' /dev ' /proc/mounts | grep -o ' ro,'; echo x >/dev/null && readlink /dev/stdin; \
                  ls /dev/pts/ptmx; touch /dev/x 2>&1 | grep -o Read-only; touch /dev/shm/x && echo shm";
    let bundle = containerd.bundle().script(script).edit(|config| {
        let all = config["mounts"].as_array_mut().expect("a list");
        let dev = all.iter_mut().find(|mount| mount["destination"] == "/dev").expect("there is one");
        dev["options"].as_array_mut().expect("a list").push(json!("ro"));
    });
    assert_says(&containerd, &bundle, " ro,\n/proc/self/fd/0\n/dev/pts/ptmx\nRead-only\nshm");
}

#[test]
fn a_read_only_tmpfs_takes_later_mounts() {
    let host = Host::new();
    let containerd = host.containerd();
    let conf = host.file("conf", "content\n");
    let script = "cat /srv/a/conf; touch /srv/x 2>&1 | grep -o Read-only";
    let bundle = containerd.bundle().script(script).mount(&tmpfs("/srv", &["ro", "mode=755"]));
    let bundle = bundle.mount(&bind(text(&conf), "/srv/a/conf"));
    assert_says(&containerd, &bundle, "content\nRead-only");
}

#[test]
fn a_relative_destination_begins_at_the_root() {
    let host = Host::new();
    let containerd = host.containerd();
    let conf = host.file("conf", "content\n");
    let bundle = containerd.bundle().script("cat /srv/conf; ls -A /dev | grep -c null").edit(|config| {
        for mount in config["mounts"].as_array_mut().expect("a list") {
            let relative = mount["destination"].as_str().expect("a path").trim_start_matches('/').to_owned();
            mount["destination"] = json!(relative);
        }
    });
    let bundle = bundle.mount(&bind(text(&conf), "srv/conf"));
    assert_says(&containerd, &bundle, "content\n1");
}

#[test]
fn a_mount_can_be_changed_by_a_later_one() {
    let host = Host::new();
    let containerd = host.containerd();
    let data = host.work().join("data");
    fs::create_dir(&data).expect("the work folder is writable");
    let script = "touch /data/x 2>&1 | grep -o Read-only; df -k /srv | tail -n 1 | awk '{print $2}'; \
                  grep -o ' /srv [a-z]* [a-z,]*' /proc/mounts; touch /srv/x && echo made";
    let bundle = containerd.bundle().script(script).mount(&bind(text(&data), "/data"));
    let bundle = bundle.mount(&json!({
        "type": "bind", "source": text(&data), "destination": "/data", "options": ["bind", "remount", "ro"],
    }));
    let bundle = bundle.mount(&tmpfs("/srv", &["size=64k", "noexec"]));
    let bundle = bundle.mount(&tmpfs("/srv", &["remount", "size=128k", "nosuid", "nodev"]));
    assert_says(&containerd, &bundle, "Read-only\n128\n /srv tmpfs rw,nosuid,nodev,relatime,size\nmade");
    assert_eq!(fs::read_dir(&data).expect("it is there").count(), 0);
}

#[test]
fn a_remount_changes_nothing_of_the_host() {
    let host = Host::new();
    if host.reference_fails("it makes the host's filesystem read-only") {
        return;
    }
    let containerd = host.containerd();
    let own = host.tmpfs("own", "size=64k");
    let bundle = containerd.bundle().script("true").mount(&bind(text(own.path()), "/data"));
    let bundle = bundle.mount(&tmpfs("/data", &["remount", "ro"]));
    let message = refusal(&containerd, &bundle);
    assert!(message.contains("/data") && message.contains("remount"), "{message}");
    fs::write(own.path().join("file"), "").expect("it is writable");
    drop(own);
}

#[test]
fn sysfs_may_be_remounted_where_the_network_is_private() {
    let host = Host::new();
    let containerd = host.containerd();
    let remount =
        json!({ "type": "sysfs", "source": "sysfs", "destination": "/sys", "options": ["remount", "rw", "nosuid"] });
    let bundle = containerd.bundle().script("grep -o ' /sys sysfs r[ow],[a-z]*' /proc/mounts").mount(&remount);
    assert_says(&containerd, &bundle, " /sys sysfs rw,nosuid");
    if !host.reference_fails("it changes the host's") {
        let message = refusal(&containerd, &bundle.without_namespace("network"));
        assert!(message.contains("/sys") && message.contains("remount"), "{message}");
    }
}

#[test]
fn a_place_without_a_mount_cannot_be_remounted() {
    let host = Host::new();
    let containerd = host.containerd();
    let options = json!(["bind", "remount", "ro"]);
    let mount = json!({ "type": "bind", "source": "/tmp", "destination": "/etc", "options": options });
    let bundle = containerd.bundle().script("true").mount(&mount);
    let message = refusal(&containerd, &bundle);
    assert!(message.contains("/etc") && message.to_lowercase().contains("invalid argument"), "{message}");
}

#[test]
fn an_option_of_a_filesystem_has_no_effect_on_a_bind() {
    let host = Host::new();
    let containerd = host.containerd();
    let options = json!(["rbind", "size=64k", "mode=755", "sync", "dirsync", "lazytime", "iversion"]);
    let mount = json!({ "type": "bind", "source": "/tmp", "destination": "/srv", "options": options });
    assert_says(&containerd, &containerd.bundle().script("test -d /srv && echo there").mount(&mount), "there");
}

#[test]
fn propagation_is_of_the_top_mount_unless_it_is_recursive() {
    let host = Host::new();
    let containerd = host.containerd();
    let top = host.tmpfs("top", "size=64k");
    let below = host.tmpfs("top/below", "size=64k");
    for path in [top.path(), below.path()] {
        rustix::mount::mount_change(path, rustix::mount::MountPropagationFlags::SHARED).expect("root may");
    }
    let mount = |destination: &str, propagation: &str| {
        let options = json!(["rbind", propagation]);
        json!({ "type": "bind", "source": text(top.path()), "destination": destination, "options": options })
    };
    let kind = "sed -E 's/^.* (\\/[a-z]+(\\/below)?) [a-z,]+ /\\1 /; s/ - .*//; s/[0-9]+/N/g' /proc/self/mountinfo";
    let bundle = containerd.bundle().script(&format!("{kind} | grep -E '^/(one|all|slaves|loose)'"));
    let bundle = bundle.mount(&mount("/one", "private")).mount(&mount("/all", "rprivate"));
    let bundle = bundle.mount(&mount("/slaves", "rslave")).mount(&mount("/loose", "unbindable"));
    let said = "/one\n/one/below master:N\n/all\n/all/below\n/slaves master:N\n/slaves/below master:N\n\
                /loose unbindable\n/loose/below master:N";
    assert_says(&containerd, &bundle, said);
    drop((below, top));
}

#[test]
fn a_shared_root_shares_its_mounts_unless_they_say_otherwise() {
    let host = Host::new();
    if host.reference_fails("it shares what is to be private, and with the host") {
        return;
    }
    let containerd = host.containerd();
    let source = host.tmpfs("source", "size=64k");
    rustix::mount::mount_change(source.path(), rustix::mount::MountPropagationFlags::SHARED).expect("root may");
    let mount = |destination: &str, options: &[&str]| json!({ "type": "bind", "source": text(source.path()), "destination": destination, "options": options });
    let kind = "sed -E 's/^([^ ]+ ){4}([^ ]+) [^ ]+/\\2/; s/ - .*//; s/[0-9]+/N/g' /proc/self/mountinfo";
    let script = format!("{kind} | grep -E '^/((proc|dev/shm|as-it-is|own|slave|loose|tmp)?( |$))' | busybox sort");
    let bundle = || {
        let bundle = containerd.bundle().script(&script).mount(&mount("/as-it-is", &["rbind"]));
        let bundle = bundle.mount(&mount("/own", &["rbind", "rprivate"])).mount(&mount("/slave", &["bind", "slave"]));
        let bundle = bundle.mount(&mount("/loose", &["bind", "unbindable"])).mount(&tmpfs("/tmp", &["private"]));
        bundle.edit(|config| config["linux"]["rootfsPropagation"] = json!("rshared"))
    };
    let said = "/ shared:N\n/as-it-is shared:N master:N\n/dev/shm shared:N\n/loose unbindable\n/own\n/proc shared:N\n\
                /slave master:N\n/tmp";
    assert_says(&containerd, &bundle(), said);
    assert_says(&containerd, &bundle().with_users(), said);
    drop(source);
}

#[test]
fn a_path_that_is_masked_twice_has_one_mask() {
    let host = Host::new();
    if host.reference_fails("it mounts one over the other") {
        return;
    }
    let containerd = host.containerd();
    let script = "cut -d' ' -f5 /proc/self/mountinfo | grep -E '^/(etc/passwd|srv)'";
    let bundle = containerd.bundle().script(script).edit(|config| {
        config["linux"]["maskedPaths"] = json!(["/etc/passwd", "/srv", "/etc/passwd", "/srv", "/nowhere", "/nowhere"]);
    });
    make_folder(&bundle, "srv", 0o755);
    assert_says(&containerd, &bundle, "/etc/passwd\n/srv");
}

/// Whether the kernel makes mounts by paths alone: before Linux 5.12.
pub fn lacks_detached_mounts() -> bool {
    lacks("fsopen") || lacks("mount_setattr")
}

#[test]
fn the_root_may_be_among_the_read_only_paths() {
    let host = Host::new();
    let containerd = host.containerd();
    let script = "(echo x > /x) 2>/dev/null && echo written; echo x > /dev/shm/x && echo x > /run/x && echo besides";
    let bundle = containerd.bundle().script(script);
    let bundle = bundle.edit(|config| {
        config["root"]["readonly"] = json!(false);
        config["linux"]["readonlyPaths"] = json!(["/"]);
    });
    assert_says(&containerd, &bundle, "besides");
}

#[test]
fn the_root_may_be_changed_by_a_remount() {
    let host = Host::new();
    let containerd = host.containerd();
    let script = "(echo x > /x) 2>/dev/null && echo written; echo x > /run/x && echo besides";
    let remount = |options: Value| json!({ "type": "bind", "source": "/", "destination": "/", "options": options });
    let bundle = || {
        let writable = containerd.bundle().script(script).edit(|config| config["root"]["readonly"] = json!(false));
        writable.mount(&remount(json!(["bind", "remount", "ro"])))
    };
    assert_says(&containerd, &bundle(), "besides");
    if !host.reference_fails("it changes the host's filesystem, and makes no place in the root afterwards") {
        assert_says(&containerd, &bundle().mount(&tmpfs("/later", &[])), "besides");
        let mount = json!({ "type": "ext4", "source": "/", "destination": "/", "options": ["remount", "ro"] });
        let message = refusal(&containerd, &containerd.bundle().script("true").mount(&mount));
        assert!(message.contains("made for the task alone"), "{message}");
    }
}

#[test]
fn of_proc_only_what_holds_figures_can_be_covered() {
    let host = Host::new();
    let containerd = host.containerd();
    let file = host.file("figures", "ours\n");
    let of = |path: &str| containerd.bundle().script(&format!("cat {path}")).mount(&bind(text(&file), path));
    assert_says(&containerd, &of("/proc/uptime"), "ours");
    let fips = "/proc/sys/crypto/fips_enabled";
    // runc takes it since 1.2.
    if Path::new(fips).exists() && !host.reference_fails("runc takes it since 1.2") {
        assert_says(&containerd, &of(fips), "ours");
    }
    // Each process has its own: runc takes this, and covers nobody's but that of the shim's child.
    if !host.reference_fails("it covers the file of a process that is gone") {
        let message = refusal(&containerd, &of("/proc/net/dev"));
        assert!(message.contains("mount /proc/net/dev") && message.contains("must not be mounted over"), "{message}");
    }
}

#[test]
fn mountinfo_has_the_order_of_the_configuration() {
    if lacks_detached_mounts() {
        // What is bound is copied before anything is mounted there.
        return;
    }
    let host = Host::new();
    let containerd = host.containerd();
    let conf = host.file("conf", "content\n");
    let listed = "cut -d' ' -f5 /proc/self/mountinfo | grep -E '^/(a|b|c|d|proc)$'";
    let bundle = containerd.bundle().script(listed).mount(&tmpfs("/a", &[])).mount(&bind(text(&conf), "/b"));
    let bundle = bundle.mount(&tmpfs("/c", &[])).mount(&bind("/tmp", "/d"));
    assert_says(&containerd, &bundle, "/proc\n/a\n/b\n/c\n/d");
}

#[test]
fn options_of_access_times_have_their_effect() {
    let host = Host::new();
    let containerd = host.containerd();
    let own = host.tmpfs("own", "size=64k");
    let script = "sed -n 's/^tmpfs \\/a-\\([a-z]*\\) tmpfs rw,\\([a-z,]*atime\\).*/\\1 \\2/p' /proc/mounts";
    let bundle = ["noatime", "norelatime", "nodiratime"].iter().fold(containerd.bundle(), |bundle, option| {
        let destination = format!("/a-{option}");
        bundle.mount(&json!({
            "type": "bind", "source": text(own.path()), "destination": destination, "options": ["bind", option],
        }))
    });
    let said = "noatime noatime\nnorelatime relatime\nnodiratime nodiratime,relatime";
    assert_says(&containerd, &bundle.script(script), said);
    drop(own);
}
