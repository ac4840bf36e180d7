//! The mounts that a manager gives with a bundle: the image's layers and what lies on them, mounted into the
//! bundle's root folder and taken down again.
//!
//! A worker mounts them, because any mount may block, in the shim's mount namespace, where the manager finds them
//! too. A mount that fails undoes those before it. Mounts are found through mountinfo, so that `unmount` takes down
//! whatever a crash left behind. Must not: guess an option's meaning; follow an image's symlinks out.

mod apart;
mod attach;
mod layer;
mod loops;
mod making;
mod mapped;
mod overlay;
mod place;
mod transformed;
mod unmount;

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use bowline_error::{Doing as _, Kind, Result};

use crate::process::worker;
use attach::attach;
pub use layer::Layer;
use layer::named;

/// Mounts `layers` into `root` in their order; all of them, or none.
///
/// # Errors
/// Names the layer and what is wrong with it.
pub async fn mount(root: &Path, layers: &[Layer]) -> Result<()> {
    if layers.is_empty() {
        return Ok(());
    }
    worker::run("the root's mounts", || mount_blocking(root, layers)).await
}

/// Takes down everything that is mounted at `root` and below it, last first. Succeeds if nothing is mounted.
pub async fn unmount(root: &Path) -> Result<()> {
    worker::run("the root's mounts", || unmount_blocking(root)).await
}

/// Like [`mount`], for a process that has one thread and may block.
pub fn mount_blocking(root: &Path, layers: &[Layer]) -> Result<()> {
    let what = || format!("cannot create {}", root.display());
    match DirBuilder::new().mode(0o711).create(root) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error).doing(Kind::Internal, what),
        _ => {}
    }
    let before: BTreeSet<u64> = unmount::mounted(root)?.into_iter().map(|mount| mount.id).collect();
    let (below, above) = transformed::split(layers);
    for layer in above {
        let done = match transformed::is(layer) {
            true => transformed::build(root, below, layer),
            false => attach(root, layer),
        };
        if let Err(error) = done {
            if let Err(left) = unmount::all_but(root, &before) {
                tracing::error!(error = %left, "a mount is left behind");
            }
            return Err(error.within(named(layer)));
        }
    }
    Ok(())
}

/// Like [`unmount()`], for a process that may block.
pub fn unmount_blocking(root: &Path) -> Result<()> {
    unmount::all_but(root, &BTreeSet::new())
}

#[cfg(test)]
mod tests {
    use std::fs as files;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::PathBuf;
    use std::process::Command;

    use bowline_sys::{self as sys, Cloned};
    use rustix::fs;
    use rustix::mount as kernel;
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::unmount::{canonical, mounted};
    use super::*;
    use crate::view::rootfs::{open_path, stage};

    /// Runs `body` of the test `name` in a separate process with one thread and its own mount namespace. Says so
    /// where that is not possible.
    fn alone(name: &str, body: fn()) {
        if std::env::var("BOWLINE_TEST_ALONE").is_ok_and(|alone| alone == name) {
            let Cloned::Parent { pidfd, .. } = sys::fork().expect("a process") else {
                let done = std::panic::catch_unwind(body);
                sys::exit_now(i32::from(done.is_err()))
            };
            let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            assert_eq!(status.expect("ours").expect("ended").exit_status(), Some(0));
            return;
        }
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var("CI").is_err(), "{name} needs root");
            println!("SKIPPED: {name} needs root");
            return;
        }
        let (_, module) = module_path!().split_once("::").expect("within the crate");
        let test = format!("{module}::{name}");
        let exe = std::env::current_exe().expect("this program");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]).arg(exe).args(["--exact", &test, "--nocapture"]);
        // What is mounted in its folders goes with it, and the folders once that has gone.
        let folders = tempfile::tempdir().expect("a folder");
        let output = command.env("BOWLINE_TEST_ALONE", name).env("TMPDIR", folders.path()).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    /// A folder with a root in it, on a tmpfs, which overlays can lie on.
    fn bundle() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let at = open_path(dir.path()).expect("it opens");
        let flags = rustix::mount::MountFlags::empty();
        kernel::mount("tmpfs", stage::at(at.as_fd()), "tmpfs", flags, c"mode=755").expect("mounted");
        let root = dir.path().join("rootfs");
        (dir, root)
    }

    fn layer(kind: &str, source: &Path, target: &str, options: &[&str]) -> Layer {
        let options = options.iter().map(|o| (*o).to_owned()).collect();
        let (kind, source) = (kind.to_owned(), source.display().to_string());
        Layer { kind, source, target: target.to_owned(), options }
    }

    /// An overlay of `lowers` folders below `dir`, each with a file that has its number, and of an upper folder.
    /// `more` are further options.
    fn overlay(dir: &Path, lowers: usize, more: &[&str]) -> Layer {
        let lower = |number: usize| {
            let folder = dir.join(format!("layers/{number:0>60}/fs"));
            files::create_dir_all(&folder).expect("made");
            files::write(folder.join(format!("file-{number}")), "text").expect("written");
            folder.display().to_string()
        };
        let lowers: Vec<String> = (0..lowers).map(lower).collect();
        let [upper, work] = ["upper", "work"].map(|name| dir.join(name));
        files::create_dir_all(&upper).and_then(|()| files::create_dir_all(&work)).expect("made");
        let options = [
            format!("lowerdir={}", lowers.join(":")),
            format!("upperdir={}", upper.display()),
            format!("workdir={}", work.display()),
        ];
        let all: Vec<&str> = options.iter().map(String::as_str).chain(more.iter().copied()).collect();
        layer("overlay", Path::new("overlay"), "", &all)
    }

    #[test]
    fn layers_are_mounted_in_order_and_taken_down_last_first() {
        alone("layers_are_mounted_in_order_and_taken_down_last_first", || {
            let (dir, root) = bundle();
            files::create_dir_all(dir.path().join("layers")).expect("made");
            let first = overlay(dir.path(), 2, &[]);
            files::create_dir_all(dir.path().join("layers").join(format!("{:0>60}", 0)).join("fs/data/deep"))
                .expect("made");
            let second = layer("tmpfs", Path::new("tmpfs"), "/data", &["size=1m", "nosuid"]);
            mount_blocking(&root, &[first, second]).expect("mounted");
            assert!(root.join("file-0").exists() && root.join("file-1").exists());
            files::write(root.join("data/x"), "text").expect("writable");
            assert_eq!(mounted(&root).expect("readable").len(), 2);
            assert!(!dir.path().join("upper/data").exists(), "what was written is on the tmpfs");
            // It is taken down even if it is busy.
            let held = files::File::open(root.join("data/x")).expect("it opens");
            unmount_blocking(&root).expect("taken down");
            unmount_blocking(&root).expect("nothing to do");
            drop(held);
            assert!(mounted(&root).expect("readable").is_empty());
            assert_eq!(files::read_dir(&root).expect("readable").count(), 0);
        });
    }

    #[test]
    fn an_overlay_of_more_layers_than_a_page_of_options_holds() {
        alone("an_overlay_of_more_layers_than_a_page_of_options_holds", || {
            let before = std::env::current_dir().expect("one");
            // Named below their common folder first, then by numbers of fds.
            for count in [52, 200] {
                let (dir, root) = bundle();
                mount_blocking(&root, &[overlay(dir.path(), count, &[])]).expect("mounted");
                for number in 0..count {
                    assert!(root.join(format!("file-{number}")).exists(), "{number} of {count}");
                }
                unmount_blocking(&root).expect("taken down");
            }
            assert_eq!(std::env::current_dir().expect("one"), before);
        });
    }

    #[track_caller]
    fn assert_refused(root: &Path, layers: &[Layer], why: &str) {
        let error = mount_blocking(root, layers).expect_err("refused");
        assert!(error.to_string().contains(why), "{error}");
        assert!(mounted(root).expect("readable").is_empty(), "{why}");
    }

    #[test]
    fn one_that_fails_undoes_those_before_it() {
        alone("one_that_fails_undoes_those_before_it", || {
            let (dir, root) = bundle();
            let good = overlay(dir.path(), 1, &[]);
            symlink("/", dir.path().join("layers").join(format!("{:0>60}", 0)).join("fs/out")).expect("made");
            let source = dir.path();
            for (bad, why) in [
                (layer("nosuchfs", source, "", &[]), "nosuchfs"),
                (layer("bind", source, "", &["X-containerd.upper=1"]), "X-containerd.upper=1"),
                (layer("bind", source, "", &["size=1"]), "size"),
                (layer("bind", &source.join("no"), "", &["rbind"]), "no"),
                (layer("bind", source, "/missing", &["rbind"]), "/missing"),
                (layer("bind", source, "", &["uidmap=0:0"]), "uidmap=0:0"),
                (layer("tmpfs", source, "", &["uidmap=0:0:1", "gidmap=0:0:1"]), "tmpfs"),
                (layer("fuse3.x", source, "", &[]), "fuse3"),
                (layer("bind", source, "", &["rbind", "loop"]), "loop"),
                (layer("bind", source, "", &["bind", "remount", "ro"]), "remount"),
                (layer("ext4", &source.join("no"), "", &["loop"]), "no"),
                (layer("mkfs/ext4", source, "", &["loop"]), "mkfs/ext4"),
                (layer("bind", Path::new("{{ mount 0 }}/upper"), "", &["rbind"]), "{{ mount 0 }}"),
            ] {
                assert_refused(&root, &[good.clone(), bad], why);
            }
            // A symlink of the image leads to the image's own root.
            let inside = layer("bind", source, "/out/", &["bind"]);
            mount_blocking(&root, &[good, inside]).expect("mounted");
            let [_, last] = &mounted(&root).expect("readable")[..] else { panic!("two mounts") };
            assert_eq!(last.target, canonical(&root).expect("a path"));
            unmount_blocking(&root).expect("taken down");
        });
    }

    #[test]
    fn one_that_cannot_be_built_is_refused_with_the_reason() {
        alone("one_that_cannot_be_built_is_refused_with_the_reason", || {
            if !sys::has_mount_fds() {
                return;
            }
            let (dir, root) = bundle();
            let (good, source) = (overlay(dir.path(), 1, &[]), dir.path());
            for (bad, why) in [
                (layer("format/bind", Path::new("{{ mount 1 }}"), "", &["rbind"]), "{{ mount 1 }}"),
                (layer("format/mkfs/ext4", source, "", &["loop"]), "mkfs/ext4"),
                (layer("mkdir/bind", source, "", &["rbind", "X-containerd.mkdir.path=here"]), "path=here"),
                (layer("mkdir/bind", source, "", &["rbind", "X-containerd.mkdir.path=/:0755"]), "path=/:0755"),
                (layer("mkdir/bind", source, "", &["rbind", "X-containerd.mkdir.path=/a:9"]), "/a:9"),
                (layer("mkdir/bind", source, "", &["rbind", "X-containerd.mkdir.mode=7"]), "mkdir.mode=7"),
            ] {
                assert_refused(&root, &[good.clone(), bad], why);
            }
        });
    }

    #[test]
    fn one_that_is_built_on_others_shows_nothing_of_them() {
        alone("one_that_is_built_on_others_shows_nothing_of_them", || {
            if !sys::has_mount_fds() {
                return;
            }
            let (dir, root) = bundle();
            let (lower, upper) = (dir.path().join("lower"), dir.path().join("writable"));
            files::create_dir_all(lower.join("data")).and_then(|()| files::create_dir(&upper)).expect("made");
            files::write(lower.join("of-the-image"), "text").expect("written");
            // What was in an earlier mount before may be anybody's.
            symlink("/", upper.join("out")).expect("made");
            let folder = |path: &str| format!("X-containerd.mkdir.path={{{{ mount 1 }}}}/{path}");
            let options = [
                folder("upper:0751:7:8"),
                folder("work"),
                folder("out/made-inside:0700"),
                "lowerdir={{ overlay 0 0 }}".to_owned(),
                "upperdir={{ mount 1 }}/upper".to_owned(),
                "workdir={{ mount 1 }}/work".to_owned(),
            ];
            let layers = [
                layer("bind", &lower, "", &["rbind", "ro"]),
                layer("bind", &upper, "", &["rbind"]),
                layer("format/mkdir/overlay", Path::new("overlay"), "", &options.each_ref().map(String::as_str)),
                layer("tmpfs", Path::new("tmpfs"), "/data", &["size=1m"]),
            ];
            // Twice: the folders are there then.
            for _ in 0..2 {
                mount_blocking(&root, &layers).expect("mounted");
                assert_eq!(mounted(&root).expect("readable").len(), 2);
                let mut names: Vec<_> =
                    files::read_dir(&root).expect("readable").flatten().map(|e| e.file_name()).collect();
                names.sort();
                assert_eq!(names, ["data", "of-the-image"]);
                files::write(root.join("new"), "text").expect("writable");
                files::remove_file(root.join("new")).expect("writable");
                let made = files::metadata(upper.join("upper")).expect("it was made");
                assert_eq!((made.mode() & 0o7777, made.uid(), made.gid()), (0o751, 7, 8));
                unmount_blocking(&root).expect("taken down");
                assert!(mounted(&root).expect("readable").is_empty());
            }
            assert!(upper.join("made-inside").is_dir() && !Path::new("/made-inside").exists());
        });
    }

    #[test]
    fn a_read_only_bind_keeps_what_its_source_forbids() {
        alone("a_read_only_bind_keeps_what_its_source_forbids", || {
            let (dir, root) = bundle();
            let source = dir.path().join("source");
            files::create_dir(&source).expect("made");
            let at = open_path(&source).expect("it opens");
            let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
            kernel::mount("tmpfs", stage::at(at.as_fd()), "tmpfs", flags, c"").expect("mounted");
            mount_blocking(&root, &[layer("bind", &source, "", &["rbind", "ro"])]).expect("mounted");
            use rustix::fs::StatVfsMountFlags as Flags;
            let now = fs::statvfs(&root).expect("mounted").f_flag;
            assert!(now.contains(Flags::RDONLY | Flags::NOSUID | Flags::NODEV), "{now:?}");
            let there = fs::statvfs(&source).expect("mounted").f_flag;
            assert!(!there.contains(Flags::RDONLY), "the source stays writable");
            unmount_blocking(&root).expect("taken down");
            assert!(!mounted(&source).expect("readable").is_empty(), "the source stays");
        });
    }

    #[test]
    fn owners_are_shown_by_a_map() {
        alone("owners_are_shown_by_a_map", || {
            if !sys::has_mount_fds() {
                return;
            }
            let map = ["uidmap=0:5000:10", "gidmap=0:6000:10"];
            let (dir, root) = bundle();
            for given in [overlay(dir.path(), 60, &map), layer("bind", dir.path(), "", &["rbind", map[0], map[1]])] {
                mount_blocking(&root, &[given]).expect("mounted");
                let seen = ["file-7", "upper"].map(|name| files::metadata(root.join(name)).ok());
                let meta = seen.into_iter().flatten().next().expect("one of them");
                assert_eq!((meta.uid(), meta.gid()), (5000, 6000));
                assert_eq!(mounted(&root).expect("readable").len(), 1);
                unmount_blocking(&root).expect("taken down");
            }
        });
    }
}
