//! The mounts of a bundle's configuration, as managers write them and as images bend them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{self, Bundle, Containerd};
use serde_json::{Value, json};

fn text(path: &Path) -> &str {
    path.to_str().expect("ASCII")
}

fn bind(source: &str, destination: &str) -> Value {
    json!({ "type": "bind", "source": source, "destination": destination, "options": ["rbind", "rprivate"] })
}

fn link(bundle: &Bundle, name: &str, target: &str) {
    let path = bundle.rootfs().join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("the work folder is writable");
    let _ = fs::remove_file(&path);
    symlink(target, path).expect("the work folder is writable");
}

/// Runs the bundle to its end; what its output says must be `out`.
#[track_caller]
fn assert_says(containerd: &Containerd<'_>, bundle: &Bundle, out: &str) {
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
fn refusal(containerd: &Containerd<'_>, bundle: &Bundle) -> String {
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
    host.assert_nothing_left();
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
    host.assert_nothing_left();
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
    host.assert_nothing_left();
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
    host.assert_nothing_left();
}
