//! Root filesystems made of busybox, to be bent into any shape, and mounts.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::write_program;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const APPLETS: [&str; 46] = [
    "awk", "basename", "cat", "chmod", "chown", "cut", "date", "dd", "df", "echo", "env", "false", "find", "grep",
    "head", "hostname", "id", "kill", "ln", "ls", "mkdir", "mknod", "mount", "nproc", "od", "ps", "pwd", "readlink",
    "rm", "sed", "seq", "setsid", "sh", "sleep", "sort", "stat", "tail", "test", "touch", "tr", "true", "umount",
    "uname", "unshare", "wc", "yes",
];

/// A root filesystem in a folder.
pub struct Root(PathBuf);

impl Root {
    /// One with a shell and small tools in `/bin`, two users, and nothing else.
    pub(super) fn busybox(path: PathBuf) -> Root {
        let root = Root(path);
        for folder in ["bin", "dev", "etc", "proc", "root", "sys", "tmp"] {
            fs::create_dir_all(root.0.join(folder)).expect("the work folder is writable");
        }
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| Path::new(path).exists());
        let busybox = busybox.expect("busybox-static is installed (`make test` does)");
        // By another process: what this one has open to write, any that a test forks just now has too, and the kernel
        // executes nothing that somebody has open to write.
        let copied = Command::new("cp").arg(busybox).arg(root.0.join("bin/busybox")).status();
        assert!(copied.expect("cp runs").success(), "the work folder is writable");
        for applet in APPLETS {
            symlink("busybox", root.0.join("bin").join(applet)).expect("the work folder is writable");
        }
        let users = "root:x:0:0::/root:/bin/sh\napp:x:1234:2345::/home/app:/bin/sh\n";
        root.file("etc/passwd", users, 0o644);
        root.file("etc/group", "root:x:0:\napp:x:2345:\nextra:x:3456:app\n", 0o644);
        root
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file in it.
    pub fn file(&self, path: &str, text: &str, mode: u32) -> &Root {
        let path = self.0.join(path);
        match mode & 0o111 {
            0 => fs::write(&path, text).expect("the work folder is writable"),
            _ => write_program(&path, text),
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("the file is ours");
        self
    }

    /// Makes a folder in it.
    pub fn folder(&self, path: &str) -> &Root {
        fs::create_dir_all(self.0.join(path)).expect("the work folder is writable");
        self
    }

    /// Makes `path` a symlink to `target`, instead of the folder it may be.
    pub fn link(&self, path: &str, target: &Path) -> &Root {
        let path = self.0.join(path);
        // An error means that there is no such folder.
        let _ = fs::remove_dir(&path);
        symlink(target, &path).expect("the work folder is writable");
        self
    }
}

/// A filesystem in memory that the test has mounted on the host.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    pub(super) fn mount(path: PathBuf, options: &str) -> Tmpfs {
        fs::create_dir_all(&path).expect("the work folder is writable");
        let data = std::ffi::CString::new(options).expect("no NUL");
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), data.as_c_str()).expect("root may mount");
        Tmpfs(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn read_only(&self) {
        let flags = MountFlags::RDONLY;
        rustix::mount::mount_remount(&self.0, flags, "").expect("root may remount");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // A failure shows as a mount that was left.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}
