//! A cgroup by its path, mostly of the test's own: where managers are, where
//! processes get moved to, and what is to be removed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::io::Errno;

use super::kernel::{hierarchies, hierarchy, processes_below};
use super::{Host, eventually};

/// A cgroup in every hierarchy, or in some. Whoever has it removes it in the end.
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

    pub(super) fn at(host: &Host, path: &str) -> Elsewhere {
        Elsewhere { prefix: host.prefix().to_owned(), path: path.to_owned() }
    }

    /// Those of its folders that there are.
    pub fn there(&self) -> Vec<PathBuf> {
        self.folders().into_iter().filter(|folder| folder.exists()).collect()
    }

    /// The processes in it and in those below it, in whatever hierarchy.
    pub fn pids(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self.there().iter().flat_map(|folder| processes_below(folder)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Waits until the process is in it, wherever it is.
    #[track_caller]
    pub fn wait_for(&self, pid: i32) {
        eventually(format_args!("{pid} is in {}", self.path), || {
            self.there().iter().all(|folder| processes_below(folder).contains(&pid)).then_some(())
        });
    }

    /// What a file of it contains, in the hierarchy of `controller`.
    #[track_caller]
    pub fn read(&self, controller: &str, file: &str) -> String {
        let path = hierarchy(controller).join(&self.path[1..]).join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        text.trim_end().to_owned()
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
        for folder in self.there() {
            let file = if folder.join("tasks").exists() { "tasks" } else { "cgroup.procs" };
            script += &format!("echo 0 > '{}/{file}'; ", folder.display());
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
