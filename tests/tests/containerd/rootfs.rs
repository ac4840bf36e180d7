//! The mounts that containerd asks for with Create: in order, and undone in reverse.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Bundle, Code, Containerd, Shim, Stdio, api, is_reference};
use bowline_tests::harness::{eventually, lacks};

fn text(path: &Path) -> String {
    path.to_str().expect("ASCII").to_owned()
}

fn mount(kind: &str, source: &str, options: &[&str]) -> api::Mount {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    api::Mount { type_: kind.into(), source: source.into(), options, ..Default::default() }
}

/// A bundle whose root is in `lower`, with folders for an overlay's `upper` and `work`.
fn bundle(containerd: &Containerd<'_>, script: &str) -> Bundle {
    let bundle = containerd.bundle().script(script).rootfs_aside("lower");
    for name in ["upper", "work"] {
        fs::create_dir(bundle.path.join(name)).expect("the work folder is writable");
    }
    bundle
}

fn overlay(bundle: &Bundle) -> api::Mount {
    let option = |name: &str, folder: &str| format!("{name}={}", bundle.path.join(folder).display());
    let options = [option("workdir", "work"), option("upperdir", "upper"), option("lowerdir", "lower")];
    mount("overlay", "overlay", &options.each_ref().map(String::as_str))
}

/// Runs to its end and is removed: the exit status.
fn run(shim: &Shim, bundle: &Bundle, mounts: &[api::Mount]) -> u32 {
    let mut request = shim.creation(bundle, &Stdio::null());
    request.rootfs = mounts.to_vec();
    shim.create_by(&request).unwrap_or_else(|failure| panic!("create: {failure:?}"));
    shim.start(&bundle.id, "").expect("started");
    let status = shim.status_at_end(&bundle.id, "");
    shim.delete(&bundle.id, "").expect("deleted");
    status
}

/// Whether nothing is mounted in the bundle.
fn is_unmounted(bundle: &Bundle) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc");
    !mounts.contains(bundle.path.to_str().expect("ASCII"))
}

#[test]
fn an_overlay_is_the_root_and_what_is_written_is_above() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "echo new >/file && rm /etc/group");
    let shim = containerd.start(&bundle);
    assert_eq!(run(&shim, &bundle, &[overlay(&bundle)]), 0);
    assert!(is_unmounted(&bundle));
    assert_eq!(bundle.read("upper/file"), "new\n");
    assert!(bundle.path.join("lower/etc/group").exists());
    shim.over();
}

#[test]
fn a_read_only_bind_cannot_be_written_to() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "! touch /file 2>/dev/null && test -e /etc/passwd");
    let shim = containerd.start(&bundle);
    let lower = text(&bundle.path.join("lower"));
    assert_eq!(run(&shim, &bundle, &[mount("bind", &lower, &["rbind", "ro"])]), 0);
    assert!(is_unmounted(&bundle));
    assert!(!bundle.path.join("lower/file").exists());
    shim.over();
}

#[test]
fn a_read_only_bind_keeps_what_its_source_forbids() {
    let host = Host::new();
    if host.reference_fails("it drops nosuid and nodev") {
        return;
    }
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "sleep 1000");
    let tmpfs = host.tmpfs("source", "size=16m");
    fs::create_dir(tmpfs.path().join("r")).expect("ours");
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a").arg(bundle.path.join("lower/.")).arg(tmpfs.path().join("r"));
    assert!(copy.status().expect("cp").success());
    let mut remount = std::process::Command::new("mount");
    remount.args(["-o", "remount,bind,nosuid,nodev"]).arg(tmpfs.path());
    assert!(remount.status().expect("mount").success());
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.rootfs = vec![mount("bind", &text(&tmpfs.path().join("r")), &["rbind", "ro"])];
    let pid = shim.create_by(&request).expect("created");
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("a live process");
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).expect("a root").to_owned();
    for flag in ["ro", "nosuid", "nodev"] {
        assert!(root.split(' ').nth(5).is_some_and(|flags| flags.split(',').any(|one| one == flag)), "{root}");
    }
    shim.end(&bundle.id);
    drop(tmpfs);
}

#[test]
fn an_overlay_may_have_more_lower_folders_than_fit_a_page() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "test $(ls /layers | wc -l) = 100");
    let snapshots = host.work().join("io.containerd.snapshotter.v1.overlayfs/snapshots");
    let mut lower: Vec<String> = (0..100)
        .map(|number| {
            let folder = snapshots.join(format!("{number}/fs"));
            fs::create_dir_all(folder.join("layers")).expect("the work folder is writable");
            fs::write(folder.join(format!("layers/{number}")), "").expect("the work folder is writable");
            text(&folder)
        })
        .collect();
    let base = snapshots.join("base");
    fs::rename(bundle.path.join("lower"), &base).expect("ours");
    lower.push(text(&base));
    let lower = format!("lowerdir={}", lower.join(":"));
    assert!(lower.len() > 4096);
    let upper = format!("upperdir={}", bundle.path.join("upper").display());
    let work = format!("workdir={}", bundle.path.join("work").display());
    let shim = containerd.start(&bundle);
    assert_eq!(run(&shim, &bundle, &[mount("overlay", "overlay", &[&work, &upper, &lower])]), 0);
    assert!(is_unmounted(&bundle));
    shim.over();
}

#[test]
fn several_mounts_are_made_in_order_and_undone_in_reverse() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "! touch /file 2>/dev/null && test -e /etc/passwd");
    let shim = containerd.start(&bundle);
    let lower = text(&bundle.path.join("lower"));
    // The second one covers the first.
    let mounts = [overlay(&bundle), mount("bind", &lower, &["rbind", "ro"])];
    assert_eq!(run(&shim, &bundle, &mounts), 0);
    assert!(is_unmounted(&bundle));
    shim.over();
}

#[test]
fn a_mount_may_be_for_a_place_inside() {
    let host = Host::new();
    if host.reference_fails("of containerd 1.7 on") {
        return;
    }
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "test -e /etc/passwd && mount | grep -q ' /tmp type tmpfs' && touch /tmp/x");
    let shim = containerd.start(&bundle);
    let inside = api::Mount { target: "tmp".into(), ..mount("tmpfs", "tmpfs", &["size=1m"]) };
    assert_eq!(run(&shim, &bundle, &[overlay(&bundle), inside]), 0);
    assert!(is_unmounted(&bundle));
    shim.over();
}

#[test]
fn a_mount_that_fails_undoes_those_before() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "true");
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.rootfs = vec![overlay(&bundle), mount("bind", "/nowhere/at/all", &["rbind"])];
    let failure = shim.create_by(&request).expect_err("no such folder");
    assert!(failure.message.contains("/nowhere/at/all") || failure.message.contains("mount"), "{failure:?}");
    assert!(is_unmounted(&bundle));
    shim.assert_alive();
    shim.over();
}

#[test]
fn a_create_that_fails_after_mounting_unmounts() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "true").args(&["nowhere"]);
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.rootfs = vec![overlay(&bundle)];
    shim.create_by(&request).expect_err("no such command");
    assert!(is_unmounted(&bundle));
    shim.over();
}

#[test]
fn an_option_meant_for_containerd_is_an_error() {
    let host = Host::new();
    if host.reference_fails("containerd 1.6 gives it to the kernel's bind mount, which does not look at it") {
        return;
    }
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "true");
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    let lower = text(&bundle.path.join("lower"));
    request.rootfs = vec![mount("bind", &lower, &["rbind", "X-containerd.mkdir.path=/somewhere"])];
    let failure = shim.create_by(&request).expect_err("an option that should have been taken out");
    assert!(failure.message.contains("X-containerd.mkdir.path"), "{failure:?}");
    assert!(is_unmounted(&bundle));
    shim.over();
}

#[test]
fn a_mount_may_shift_its_owners() {
    let host = Host::new();
    if host.reference_fails("of containerd 2.0 on") {
        return;
    }
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "test $(stat -c %u /etc/passwd) = 100000");
    let shim = containerd.start(&bundle);
    let lower = text(&bundle.path.join("lower"));
    let options = ["rbind", "uidmap=0:100000:65536", "gidmap=0:100000:65536"];
    assert_eq!(run(&shim, &bundle, &[mount("bind", &lower, &options)]), 0);
    assert_eq!(bundle.path.join("lower/etc/passwd").metadata().expect("a file").uid(), 0);
    assert!(is_unmounted(&bundle));
    shim.over();
}

/// An image file with the filesystem of the bundle's root; `None`, said aloud, where it cannot be made.
fn image(host: &Host, bundle: &Bundle) -> Option<PathBuf> {
    let image = bundle.path.join("image");
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-d"]).arg(bundle.path.join("lower")).arg(&image).arg("16M");
    match make.output() {
        Ok(made) => {
            assert!(made.status.success(), "{made:?}");
            Some(image)
        }
        Err(_) => {
            host.not_tested("mkfs.ext4 is not installed");
            None
        }
    }
}

#[test]
fn mounts_of_the_root_that_cannot_be_are_the_manager_s_mistakes() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "true");
    let file = text(&bundle.path.join("lower/etc/passwd"));
    let shim = containerd.start(&bundle);
    for (wrong, words) in [
        (mount("ext4", &file, &["rw"]), "option loop"),
        (mount("bind", &file, &["bind"]), "a file over a folder"),
        (mount("bind", &file, &["rbind", "ro"]), "a file over a folder"),
    ] {
        let mut request = shim.creation(&bundle, &Stdio::null());
        request.rootfs = vec![wrong];
        let failure = shim.create_by(&request).expect_err("it cannot be mounted");
        assert!(is_unmounted(&bundle));
        // containerd's shim for runc has one code for all.
        if !is_reference() {
            assert_eq!(failure.code, Code::INVALID_ARGUMENT, "{failure:?}");
            assert!(failure.message.contains(&file) && failure.message.contains(words), "{failure:?}");
        }
    }
    shim.over();
}

/// Whether a loop device has this file.
fn is_attached(image: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").expect("sysfs").flatten();
    let mut files = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.any(|file| file.trim_end() == text(image))
}

/// Until no loop device has it: whoever looks at a new device, such as udev, keeps it as long.
#[track_caller]
fn assert_detached(image: &Path) {
    eventually("no loop device has the image", || (!is_attached(image)).then_some(()));
}

#[test]
fn a_root_may_be_an_image_in_a_file() {
    let host = Host::new();
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "test -e /etc/passwd && echo new >/file");
    let Some(image) = image(&host, &bundle) else { return };
    let shim = containerd.start(&bundle);
    assert_eq!(run(&shim, &bundle, &[mount("ext4", &text(&image), &["loop", "rw"])]), 0);
    assert!(is_unmounted(&bundle));
    assert_detached(&image);
    // What was written is in the image, and one that is read-only stays as it is.
    let before = fs::read(&image).expect("the image");
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.rootfs = vec![mount("ext4", &text(&image), &["loop", "ro"])];
    shim.create_by(&request).expect("created");
    assert_eq!(bundle.read("rootfs/file"), "new\n");
    assert!(fs::write(bundle.rootfs().join("file"), "").is_err());
    shim.kill(&bundle.id, "", 9).expect("alive");
    shim.status_at_end(&bundle.id, "");
    shim.delete(&bundle.id, "").expect("deleted");
    assert!(is_unmounted(&bundle));
    assert_detached(&image);
    assert!(fs::read(&image).expect("the image") == before, "it was changed");
    shim.over();
}

#[test]
fn a_root_may_be_built_on_images_in_files() {
    let host = Host::new();
    if host.reference_fails("containerd's mount manager does this for it, from 2.2 on") || lacks("fsopen") {
        return;
    }
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "test -e /etc/passwd && echo new >/file");
    let Some(image) = image(&host, &bundle) else { return };
    let writable = bundle.path.join("writable");
    let made = Command::new("mkfs.ext4").arg("-q").arg(&writable).arg("16M").status().expect("it was there before");
    assert!(made.success());
    let mounts = [
        mount("ext4", &text(&writable), &["rw", "loop"]),
        mount("ext4", &text(&image), &["ro", "loop"]),
        mount(
            "format/mkdir/overlay",
            "overlay",
            &[
                "X-containerd.mkdir.path={{ mount 0 }}/upper:0755",
                "X-containerd.mkdir.path={{ mount 0 }}/work:0755",
                "workdir={{ mount 0 }}/work",
                "upperdir={{ mount 0 }}/upper",
                "lowerdir={{ overlay 1 1 }}",
            ],
        ),
    ];
    let before = fs::read(&image).expect("the image");
    let shim = containerd.start(&bundle);
    assert_eq!(run(&shim, &bundle, &mounts), 0);
    assert!(is_unmounted(&bundle));
    assert_detached(&image);
    assert_detached(&writable);
    assert!(fs::read(&image).expect("the image") == before, "it was changed");
    // What one container has written is there for the next, which is killed with its shim.
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.rootfs = mounts.to_vec();
    shim.create_by(&request).expect("created");
    assert_eq!(bundle.read("rootfs/file"), "new\n");
    shim.kill_shim();
    containerd.delete_action(&bundle);
    assert!(is_unmounted(&bundle));
    assert_detached(&image);
    assert_detached(&writable);
}

#[test]
fn an_image_has_no_loop_device_after_the_shim_has_died() {
    let host = Host::new();
    if host.reference_fails("a shim that is killed leaves its socket") {
        return;
    }
    let containerd = host.containerd();
    let bundle = bundle(&containerd, "sleep 1000");
    let Some(image) = image(&host, &bundle) else { return };
    let shim = containerd.start(&bundle);
    let mut request = shim.creation(&bundle, &Stdio::null());
    request.rootfs = vec![mount("ext4", &text(&image), &["loop"])];
    shim.create_by(&request).expect("created");
    assert!(is_attached(&image));
    shim.kill_shim();
    containerd.delete_action(&bundle);
    assert!(is_unmounted(&bundle));
    assert_detached(&image);
}
