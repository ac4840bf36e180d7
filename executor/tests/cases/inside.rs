//! Doing something in a namespace, by a thread that enters it and ends there.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs `work` in the namespace at `path`, of whatever kind it is.
pub(crate) fn inside<T: Send>(path: impl AsRef<Path>, work: impl FnOnce() -> T + Send) -> T {
    let path = path.as_ref();
    let there = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let enter = || {
        move_into_link_name_space(there.as_fd(), None::<LinkNameSpaceType>).expect("it is ours to enter");
        work()
    };
    std::thread::scope(|scope| scope.spawn(enter).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A kernel setting, as this thread's namespaces have it.
pub(crate) fn setting(key: &str) -> String {
    let path = format!("/proc/sys/{}", key.replace('.', "/"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}
