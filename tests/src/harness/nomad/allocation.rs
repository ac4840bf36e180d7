//! What Nomad makes before it starts a task: the folders of the allocation, FIFOs for the task's output, its cgroups.

use std::fs;
use std::path::{Path, PathBuf};

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
            let mut parents = vec![hierarchy(controller).join(host.prefix())];
            if controller == "cpuset" {
                parents.push(parents[0].join(partition));
            }
            let scope = parents.last().expect("one at least").join(&scope);
            for folder in parents.iter().chain([&scope]) {
                make(folder);
                // The agent gives the task's own memory nodes, and no CPUs.
                let files: &[&str] = if *folder == scope { &["cpuset.mems"] } else { &["cpuset.mems", "cpuset.cpus"] };
                files.iter().for_each(|file| inherit(folder, file));
            }
            host.parents.borrow_mut().extend(parents.into_iter().rev());
            folders.push(scope);
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
    pub(super) fn kill(&self) {
        for folder in &self.folders {
            // On v1 the agent freezes, signals and thaws; cases that ask for that do it themselves.
            let _ = fs::write(folder.join("cgroup.kill"), "1");
        }
    }

    /// Removes them, as the agent does once the task was destroyed: nobody may be left in them.
    #[track_caller]
    pub(super) fn remove(&self) {
        for folder in &self.folders {
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

fn inherit(folder: &Path, file: &str) {
    if let Ok(value) = fs::read_to_string(folder.parent().expect("a hierarchy").join(file)) {
        fs::write(folder.join(file), value.trim_end()).expect("the parent's own");
    }
}
