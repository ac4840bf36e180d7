//! Single threads in a cgroup: on v1 through `tasks`; on v2 in a threaded subtree, where a cgroup
//! has threads of processes that are in a parent.
//!
//! Source: the kernel's admin-guide/cgroup-v2, "Threads".

use std::os::fd::AsFd as _;
use std::path::Path;

use bowline_error::{Doing, Error, Kind, Result, together};
use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;

use crate::destroy::is_threaded;
use crate::layout::Layout;
use crate::path::checked_path;
use crate::tree::{open_dir, write_at};
use crate::v1::TASKS;
use crate::v2;
use crate::version::Version;

impl Layout {
    /// Moves thread `tid`, and no other thread of its process, to `path` in every hierarchy that
    /// has `path`; on a hybrid host in v1's.
    ///
    /// # Errors
    /// `NotFound` when there is no such thread; `Unsupported` on v2 where `path`
    /// is not in the threaded subtree of its process.
    pub fn place_thread(&self, path: &str, tid: i32) -> Result<()> {
        let path = checked_path(path)?;
        if tid <= 0 {
            // Writing a 0 would move the caller.
            return Err(Error::new(Kind::NotFound, format!("{tid} is no thread's id")));
        }
        let mut errors = Vec::new();
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.has(path)) {
            let file = if hierarchy.unified { v2::THREADS } else { TASKS };
            let at = format!("{}/{file}", &path[1..]);
            match write_at(hierarchy.top(), &at, &tid.to_string()) {
                Ok(()) => {}
                // The thread has gone: the other hierarchies would say the same.
                Err(Errno::SRCH) => return Err(Error::new(Kind::NotFound, format!("there is no thread {tid}"))),
                // On a hybrid host the unified hierarchy is for membership alone.
                Err(errno) if hierarchy.unified && self.version == Version::V1 => {
                    tracing::debug!(%errno, tid, path, "a thread stays where it is in the unified hierarchy");
                }
                Err(errno) => {
                    let file = hierarchy.mount().join(at);
                    let kind = if errno == Errno::OPNOTSUPP { Kind::Unsupported } else { Kind::Internal };
                    let error = Error::new(kind, format!("cannot write {tid} to {}: {errno}", file.display()));
                    errors.push(match kind {
                        Kind::Unsupported => error.hint(
                            "on cgroup v2 a thread can be in a threaded cgroup below the one that its process is in",
                        ),
                        _ => error,
                    });
                }
            }
        }
        together(errors)
    }

    /// Makes the cgroup at `path`, unless it exists, for threads of a process that is in its
    /// parent. On v1 every cgroup can hold threads.
    ///
    /// # Errors
    /// `Unsupported` when the parent has handed down controllers that threads cannot share, or the
    /// cgroup has processes.
    pub fn prepare_threaded(&self, path: &str) -> Result<()> {
        let path = checked_path(path)?;
        if self.version == Version::V1 {
            return self.prepare(path);
        }
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if !parent.is_empty() {
            self.prepare(parent)?;
        }
        let what = || format!("cannot make a threaded cgroup {path}");
        for hierarchy in self.hierarchies.iter() {
            let top = hierarchy.top();
            // Not through `prepare`: the parent must not hand down the memory controller, or it
            // could have no threads below it.
            match mkdirat(top, &path[1..], Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno).doing(Kind::Internal, what),
            }
            let dir = open_dir(top, Path::new(&path[1..])).doing(Kind::Internal, what)?;
            if is_threaded(dir.as_fd()) {
                continue;
            }
            write_at(dir.as_fd(), v2::TYPE, "threaded").doing(Kind::Unsupported, what).map_err(|error| {
                error.hint("it must be empty, and its parent hand down no controller of memory, io or huge pages")
            })?;
            for controller in ["+cpu", "+cpuset", "+pids"] {
                if let Err(errno) = write_at(dir.as_fd(), "../cgroup.subtree_control", controller) {
                    tracing::debug!(%errno, controller, path, "not handed down to threads");
                }
            }
        }
        Ok(())
    }
}
