//! A cgroup of the test's own: where managers are, and where processes get moved to.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::io::Errno;

use super::kernel::hierarchies;
use super::{Host, eventually};

/// A cgroup in every hierarchy. Whoever has it removes it in the end.
pub struct Elsewhere {
    prefix: String,
    path: String,
}

impl Elsewhere {
    pub(super) fn make(host: &Host, name: &str) -> Elsewhere {
        let new = Elsewhere { prefix: host.prefix().to_owned(), path: format!("/{}-{name}", host.prefix()) };
        for folder in new.folders() {
            fs::create_dir(&folder).expect("root may");
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let parent = folder.parent().expect("a hierarchy").join(file);
                if let Ok(value) = fs::read_to_string(parent) {
                    fs::write(folder.join(file), value.trim_end()).expect("the parent's own");
                }
            }
        }
        new
    }

    /// Its path below each hierarchy.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its folder in each hierarchy.
    pub fn folders(&self) -> Vec<PathBuf> {
        hierarchies().into_iter().map(|(_, mount)| mount.join(&self.path[1..])).collect()
    }

    /// `command`, which moves there before it begins.
    pub fn inside(&self, command: &Command) -> Command {
        let mut shell = Command::new("/bin/sh");
        let mut script = String::new();
        for folder in self.folders() {
            let file = if folder.join("tasks").exists() { "tasks" } else { "cgroup.procs" };
            script += &format!("echo 0 > {}/{file}; ", folder.display());
        }
        shell
            .args(["-ec", &format!("{script} exec \"$0\" \"$@\"")])
            .arg(command.get_program())
            .args(command.get_args())
            .env("BOWLINE_TEST", &self.prefix);
        for (name, value) in command.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        shell
    }

    /// Moves these processes there, as root may, but for those that end meanwhile.
    #[track_caller]
    pub fn take(&self, pids: &[i32]) {
        for file in self.folders().iter().map(|folder| folder.join("cgroup.procs")) {
            for pid in pids {
                let moved = fs::write(&file, pid.to_string());
                let gone = moved.as_ref().is_err_and(|e| e.raw_os_error() == Some(Errno::SRCH.raw_os_error()));
                assert!(moved.is_ok() || gone, "cannot move {pid} by {}: {moved:?}", file.display());
            }
        }
    }

    /// Removes it, once all have left.
    pub fn remove(self) {
        for folder in self.folders() {
            eventually(format_args!("{} is empty", folder.display()), || {
                (!folder.exists() || fs::remove_dir(&folder).is_ok()).then_some(())
            });
        }
    }
}
