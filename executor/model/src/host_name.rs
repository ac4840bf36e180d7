//! Names on the host: what is named after a task or a sandbox outside its state folder.
//!
//! ```text
//!   /run/bowline    web ─► web               cgroup /bowline/web, unit bowline-web.scope, CNI container "web"
//!   any other       web ─► web.1a.2f3        device and inode of the state folder, so that both can be there
//! ```
//!
//! Ids are unique in one state folder; these names are unique on the host. Records hold them, so a task keeps the
//! names that it was started with. Must not: be used for what is inside the state folder.

use std::path::Path;

use rustix::fs::stat;

/// The state folder whose tasks are named by their ids alone.
pub const DEFAULT: &str = "/run/bowline";

/// What follows an id in names on the host: empty for the default state folder, by whatever path; otherwise the
/// folder's device and inode. Makes no system call for the default path.
pub fn mark(state: &Path) -> String {
    if state == Path::new(DEFAULT) {
        return String::new();
    }
    // A folder that does not exist has no tasks.
    let Ok(own) = stat(state) else { return String::new() };
    let is_default = stat(DEFAULT).is_ok_and(|of| (of.st_dev, of.st_ino) == (own.st_dev, own.st_ino));
    if is_default { String::new() } else { format!(".{:x}.{:x}", own.st_dev, own.st_ino) }
}

/// Whether a name on the host ends as those of a state folder other than the default one do.
pub fn is_marked(name: &str) -> bool {
    let mut parts = name.rsplitn(3, '.');
    let number = |part: Option<&str>| part.is_some_and(|part| u64::from_str_radix(part, 16).is_ok());
    number(parts.next()) && number(parts.next()) && parts.next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_state_folder_is_told_by_device_and_inode_whatever_its_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = dir.path().join("state");
        assert_eq!((mark(Path::new(DEFAULT)), mark(&state)), (String::new(), String::new()));
        std::fs::create_dir(&state).expect("ours");
        std::os::unix::fs::symlink(&state, dir.path().join("link")).expect("ours");
        let own = mark(&state);
        assert!(own.starts_with('.') && own == mark(&dir.path().join("link")) && own != mark(dir.path()), "{own}");
        assert!(is_marked(&format!("web{own}")) && is_marked("a.b.1a.2f3"));
        assert!(!is_marked("web") && !is_marked("web.1a") && !is_marked("web.x.2f3") && !is_marked("1a.2f3"));
    }
}
