//! The flags of a bind of a bundle's: as soon as an option names one, it has those that are named and no others, as with
//! runc since 1.2.

use bowline_tests::Host;
use bowline_tests::harness::Tmpfs;
use bowline_tests::harness::containerd::{Bundle, Containerd, is_reference};
use serde_json::json;

use crate::containerd::mounts::{assert_says, refusal, text};

/// A filesystem whose mount, and not itself, has these flags, and relatime unless they say otherwise.
pub fn source(host: &Host, name: &str, flags: &str) -> Tmpfs {
    let folder = host.tmpfs(name, "size=64k");
    for options in ["remount,bind,rw,suid,dev,exec,relatime,diratime", &format!("remount,bind,{flags}")] {
        let mut command = host.command("mount");
        command.args(["-o", options]).arg(folder.path());
        host.execute(command).assert_code(0);
    }
    folder
}

/// Prints the flags of the mount at `/mnt`, without what each has for its filesystem.
const FLAGS: &str = "sed -n 's,.* / /mnt \\([a-z,]*\\) .*,\\1,p' /proc/self/mountinfo";

fn of(containerd: &Containerd<'_>, source: &Tmpfs, options: &str) -> Bundle {
    let options: Vec<&str> = options.split(',').collect();
    let bind = json!({ "type": "bind", "source": text(source.path()), "destination": "/mnt", "options": options });
    containerd.bundle().script(FLAGS).mount(&bind)
}

#[test]
fn a_bind_that_names_no_flag_keeps_all_of_its_source() {
    let host = Host::new();
    let containerd = host.containerd();
    let has = source(&host, "source", "ro,nosuid,nodev,noexec,noatime");
    for options in ["bind", "rbind,rprivate", "rbind,rslave,defaults"] {
        assert_says(&containerd, &of(&containerd, &has, options), "ro,nosuid,nodev,noexec,noatime");
        let bundle = of(&containerd, &has, options).with_users();
        assert_says(&containerd, &bundle, "ro,nosuid,nodev,noexec,noatime");
    }
    drop(has);
}

#[test]
fn a_bind_has_exactly_the_flags_that_it_names() {
    let host = Host::new();
    if host.reference_fails("runc does so since 1.2") {
        return;
    }
    let containerd = host.containerd();
    for (has, options, expected) in [
        // What Kubernetes asks for, of a source such as the `/dev/shm` of a pod.
        ("nosuid,nodev,noexec", "rbind,rprivate,rw", "rw,relatime"),
        ("nosuid,nodev,noexec", "rbind,rprivate,ro", "ro,relatime"),
        ("ro,noexec", "bind,dev", "rw,relatime"),
        ("ro", "bind,nosuid,nodev,rprivate", "rw,nosuid,nodev,relatime"),
        ("nosuid,nodev", "rbind,ro,noexec", "ro,noexec,relatime"),
        ("nosuid", "bind,sync", "rw,relatime"),
        // Flags for the mounts below do not count.
        ("nosuid", "rbind,rro", "ro,nosuid,relatime"),
        // Access times are as they were, unless they are named.
        ("ro,noatime", "bind,rw,norelatime", "rw,noatime"),
        ("nosuid,noatime", "bind,dev,suid,exec,atime", "rw,noatime"),
        ("noatime", "bind,relatime", "rw,relatime"),
        ("noatime", "bind,nodiratime", "rw,nodiratime,relatime"),
        ("nodiratime", "bind,strictatime", "rw"),
        ("rw", "bind,noatime,relatime", "rw,noatime"),
        ("rw", "bind,strictatime,noatime", "rw"),
        ("noatime", "bind,relatime,norelatime", "rw,noatime"),
        ("noatime", "bind,strictatime,relatime,nostrictatime", "rw,relatime"),
        ("noatime,nodiratime", "bind,nosuid", "rw,nosuid,noatime,nodiratime"),
    ] {
        let source = source(&host, "source", has);
        assert_says(&containerd, &of(&containerd, &source, options), expected);
        drop(source);
    }
}

#[test]
fn flags_of_a_bind_are_locked_in_a_user_namespace() {
    let host = Host::new();
    if host.reference_fails("runc does so since 1.2") {
        return;
    }
    let containerd = host.containerd();
    for (has, options, expected) in [
        ("nosuid,nodev,noexec", "bind,ro", Ok("ro,nosuid,nodev,noexec,relatime")),
        ("ro,noexec,nodiratime", "bind,dev", Ok("ro,noexec,nodiratime,relatime")),
        ("ro", "bind,nosuid,nodev", Ok("ro,nosuid,nodev,relatime")),
        ("nosuid,noatime", "bind,ro,exec", Ok("ro,nosuid,noatime")),
        ("noatime,nodiratime", "bind,norelatime", Ok("rw,noatime,nodiratime")),
        ("noatime", "bind,noatime", Ok("rw,noatime")),
        ("ro", "bind,rw,nosuid", Err("ro")),
        ("nosuid,nodev", "bind,dev,suid,exec", Err("nosuid")),
        ("nodiratime", "bind,strictatime", Err("the mode of access times")),
        ("noatime", "bind,relatime", Err("the mode of access times")),
        ("relatime", "bind,nodiratime", Err("the mode of access times")),
        // What options name for all mounts of a bind is locked too.
        ("nosuid", "rbind,rnoexec,rrw", Ok("rw,nosuid,noexec,relatime")),
        ("ro", "rbind,rrw", Err("ro")),
        ("noexec", "rbind,rexec", Err("noexec")),
        ("nosuid", "bind,rsuid", Err("nosuid")),
        ("nodev", "rbind,rdev,rro", Err("nodev")),
        ("relatime", "rbind,rnoatime", Err("the mode of access times")),
    ] {
        let source = source(&host, "source", has);
        let bundle = of(&containerd, &source, options).with_users();
        match expected {
            Ok(expected) => assert_says(&containerd, &bundle, expected),
            Err(flag) => {
                let message = refusal(&containerd, &bundle);
                let expected = format!("mount /mnt: {flag} of its source is locked");
                assert!(message.contains(&expected) && message.contains("operation not permitted"), "{message}");
            }
        }
        drop(source);
    }
}

#[test]
fn a_filesystem_that_is_read_only_locks_no_flag() {
    let host = Host::new();
    let containerd = host.containerd();
    let source = host.tmpfs("source", "ro");
    // The mount is not: its filesystem is.
    let mut command = host.command("mount");
    command.args(["-o", "remount,bind,rw"]).arg(source.path());
    host.execute(command).assert_code(0);
    for bundle in [of(&containerd, &source, "bind,rw"), of(&containerd, &source, "bind,rw").with_users()] {
        let bundle = bundle.script("touch /mnt/x 2>&1 | grep -o 'Read-only file system'");
        assert_says(&containerd, &bundle, "Read-only file system");
    }
    drop(source);
}

#[test]
fn of_a_recursive_bind_the_top_alone_gets_the_named_flags() {
    let host = Host::new();
    let containerd = host.containerd();
    let top = source(&host, "source", "nosuid,nodev,noexec");
    let below = source(&host, "source/below", "nosuid,nodev");
    let script = "sed -n 's,.* / /mnt/below \\([a-z,]*\\) .*,\\1,p' /proc/self/mountinfo";
    let bundle = of(&containerd, &top, "rbind,rprivate,ro").script(script);
    assert_says(&containerd, &bundle, "rw,nosuid,nodev,relatime");
    drop((below, top));
}

#[test]
fn flags_of_mounts_below_a_bind_are_locked_in_a_user_namespace() {
    let host = Host::new();
    let containerd = host.containerd();
    let top = source(&host, "source", "rw");
    std::fs::create_dir_all(top.path().join("in/below")).expect("a folder");
    let below = source(&host, "source/in/below", "ro,noexec");
    let beside = source(&host, "source/beside", "nosuid");
    for (options, expected) in [
        ("rbind,rrw", Err("ro")),
        ("rbind,rexec", Err("noexec")),
        ("rbind,rnoatime", Err("the mode of access times")),
        ("rbind,rsuid", Ok("ro,noexec,relatime")),
        ("rbind,rdev,rnodev", Ok("ro,nodev,noexec,relatime")),
        ("bind,rrw", Ok("")),
    ] {
        let inside = top.path().join("in");
        let script = "sed -n 's,.* / /mnt/below \\([a-z,]*\\) .*,\\1,p' /proc/self/mountinfo";
        let options: Vec<&str> = options.split(',').collect();
        let bind = json!({ "type": "bind", "source": text(&inside), "destination": "/mnt", "options": options });
        let bundle = containerd.bundle().script(script).mount(&bind).with_users();
        match expected {
            Ok(flags) => assert_says(&containerd, &bundle, flags),
            Err(flag) => {
                let message = refusal(&containerd, &bundle);
                let ours = message.contains(&format!("mount /mnt: {flag} of a mount below its source is locked"));
                assert!(
                    (ours || is_reference()) && message.contains("operation not permitted"),
                    "{options:?}: {message}"
                );
            }
        }
    }
    drop((beside, below, top));
}

#[test]
fn a_remount_where_nothing_is_mounted_is_refused() {
    let host = Host::new();
    let containerd = host.containerd();
    for options in [&["remount", "bind", "ro"][..], &["remount", "bind"], &["bind", "remount", "rprivate"]] {
        let remount = json!({ "type": "none", "source": "none", "destination": "/etc", "options": options });
        let refused = refusal(&containerd, &containerd.bundle().script("exit 3").mount(&remount));
        assert!(refused.contains("/etc"), "{options:?}: {refused}");
    }
}
