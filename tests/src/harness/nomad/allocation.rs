//! What Nomad makes before it starts a task: the folders of the allocation, FIFOs for the task's output, its cgroups.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Host, eventually, hierarchy, only_v2};

use super::fifo::Fifo;
use super::{folder, text};

/// An allocation, whose tasks share `/alloc`.
pub struct Allocation {
    id: String,
    dir: PathBuf,
}

impl Allocation {
    /// The folders of an allocation that has no tasks yet.
    pub(super) fn make(host: &Host) -> Allocation {
        let id = host.new_id();
        let dir = folder(host, &id);
        for name in ["alloc/data", "alloc/logs", "alloc/tmp"] {
            open_folder(&dir.join(name), 0o777);
        }
        Allocation { id, dir }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folders of a task.
    pub(super) fn add(&self, task: &str) {
        for (name, mode) in [("local", 0o777), ("secrets", 0o777), ("tmp", 0o777), ("private", 0o700)] {
            open_folder(&self.dir.join(task).join(name), mode);
        }
    }

    /// A FIFO for a task's stream.
    pub(super) fn fifo(&self, task: &str, stream: &str) -> Fifo {
        Fifo::make(self.dir.join("alloc/logs").join(format!(".{task}.{stream}.fifo")))
    }
}

fn open_folder(path: &Path, mode: u32) {
    fs::create_dir_all(path).expect("ours");
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode)).expect("ours");
}

/// The cgroups that Nomad makes for a task, and ends it by: on v2 one, on v1 one in each of four hierarchies.
///
/// The parent, which is Nomad's `cgroup_parent`, is the test's own.
pub(super) struct Cgroups {
    folders: Vec<PathBuf>,
}

impl Cgroups {
    /// Those of a task, which has cores of its own or shares them.
    pub(super) fn make(host: &Host, allocation: &str, task: &str, reserves: bool) -> Cgroups {
        let partition = if reserves { "reserve" } else { "share" };
        if only_v2() {
            return Cgroups::make_v2(host, &format!("{partition}.slice"), &format!("{allocation}.{task}.scope"));
        }
        let scope = format!("{allocation}.{task}");
        let mut folders = Vec::new();
        for controller in ["freezer", "cpu", "memory", "cpuset"] {
            let parent = hierarchy(controller).join(host.prefix());
            let folder = match (controller, reserves) {
                ("cpuset", false) => parent.join(partition),
                ("cpuset", true) => parent.join(partition).join(&scope),
                _ => parent.join(&scope),
            };
            let parents: Vec<&Path> =
                folder.ancestors().skip(1).take_while(|above| above.starts_with(&parent)).collect();
            for folder in parents.iter().rev().copied().chain([&*folder]) {
                make(folder);
                // The agent gives a task's own memory nodes, and no CPUs.
                let files: &[&str] =
                    if folder.ends_with(&scope) { &["cpuset.mems"] } else { &["cpuset.mems", "cpuset.cpus"] };
                files.iter().for_each(|file| inherit(folder, file));
            }
            let shared = folder.ends_with(partition).then_some(&*folder);
            host.parents.borrow_mut().extend(shared.into_iter().chain(parents).map(Path::to_owned));
            folders.push(folder);
        }
        Cgroups { folders }
    }

    fn make_v2(host: &Host, partition: &str, scope: &str) -> Cgroups {
        let top = hierarchy("cpu");
        let parent = top.join(format!("{}.slice", host.prefix()));
        let slice = parent.join(partition);
        // systemd takes a controller that no unit of its own needs away from the root cgroup whenever it looks.
        eventually("the controllers are there", || {
            [&top, &parent, &slice]
                .into_iter()
                .all(|folder| {
                    make(folder);
                    fs::write(folder.join("cgroup.subtree_control"), "+cpuset +cpu +io +memory +pids").is_ok()
                })
                .then_some(())
        });
        host.parents.borrow_mut().extend([slice.clone(), parent]);
        let scope = slice.join(scope);
        make(&scope);
        Cgroups { folders: vec![scope] }
    }

    /// The value of the request's `cpuset_cgroup`: the task's cgroup, on v1 that of cpuset.
    pub(super) fn path(&self) -> &str {
        text(self.folders.last().expect("one at least"))
    }

    /// The task's folder in the hierarchy of `controller`.
    pub(super) fn folder(&self, controller: &str) -> Option<&PathBuf> {
        self.folders.iter().find(|folder| folder.starts_with(hierarchy(controller)))
    }

    /// Kills whoever is in it, as the agent does at the end.
    #[track_caller]
    pub(super) fn kill(&self) {
        if only_v2() {
            return write(&self.folders[0], "cgroup.kill", "1");
        }
        let freezer = self.folder("freezer").expect("Nomad has made one");
        write(freezer, "freezer.state", "FROZEN");
        let listed = fs::read_to_string(freezer.join("cgroup.procs")).expect("it is a cgroup");
        for pid in listed.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        write(freezer, "freezer.state", "THAWED");
    }

    /// Removes them, as the agent does once the task was destroyed: nobody may be left in them. That of all tasks without
    /// cores of their own stays.
    #[track_caller]
    pub(super) fn remove(&self) {
        for folder in self.folders.iter().filter(|folder| !folder.ends_with("share")) {
            eventually(format_args!("{} is empty", folder.display()), || {
                (!folder.exists() || remove_below(folder)).then_some(())
            });
        }
    }
}

/// Removes a cgroup, and those below it that nobody is in: the driver's.
fn remove_below(folder: &Path) -> bool {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        remove_below(&entry.path());
    }
    fs::remove_dir(folder).is_ok()
}

fn make(folder: &Path) {
    fs::create_dir_all(folder).unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
}

#[track_caller]
fn write(folder: &Path, file: &str, value: &str) {
    fs::write(folder.join(file), value).unwrap_or_else(|error| panic!("{file} of {}: {error}", folder.display()));
}

fn inherit(folder: &Path, file: &str) {
    if let Ok(value) = fs::read_to_string(folder.parent().expect("a hierarchy").join(file)) {
        fs::write(folder.join(file), value.trim_end()).expect("the parent's own");
    }
}
