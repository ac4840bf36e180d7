//! The SELinux label of what a new filesystem holds (`linux.mountLabel`).
//!
//! Works as in runc: binds keep the labels of what they show; procfs, sysfs and cgroups have those of the policy,
//! and take no others; a message queue's filesystem takes a label for its root alone; all others take it as an
//! option.

use std::borrow::Cow;
use std::os::fd::BorrowedFd;

use bowline_error::{Doing, Kind, Result};
use oci_spec::runtime::Spec;
use rustix::fs::{XattrFlags, setxattr};

use super::stage;

/// The option that gives everything in a filesystem one label (mount(8)).
pub const CONTEXT: &str = "context";

type Data = [(String, Option<String>)];

fn of(spec: &Spec) -> Option<&str> {
    let label = spec.linux().as_ref().and_then(|linux| linux.mount_label().as_deref());
    label.filter(|label| !label.is_empty())
}

/// The options `data` of a new filesystem of this kind, with the label that `spec` has for it, unless `data` has
/// one already.
pub fn within<'a>(spec: &Spec, kind: &str, data: &'a Data) -> Cow<'a, Data> {
    let takes = !matches!(kind, "proc" | "sysfs" | "mqueue" | "cgroup" | "cgroup2");
    match of(spec).filter(|_| takes && !data.iter().any(|(key, _)| key == CONTEXT)) {
        Some(label) => {
            let label = (CONTEXT.to_owned(), Some(label.to_owned()));
            Cow::Owned(data.iter().cloned().chain([label]).collect())
        }
        None => Cow::Borrowed(data),
    }
}

/// Labels the root of a new filesystem that does not take the label as an option.
pub fn put(spec: &Spec, kind: &str, tree: BorrowedFd<'_>) -> Result<()> {
    let Some(label) = of(spec).filter(|_| kind == "mqueue") else { return Ok(()) };
    // The tree is only an O_PATH fd; the host's procfs is still visible.
    setxattr(stage::at(tree), "security.selinux", label.as_bytes(), XattrFlags::empty())
        .doing(Kind::Unsupported, || format!("cannot give it the label {label}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_new_filesystem_has_the_label_but_those_that_cannot() {
        let spec = |label: &str| -> Spec {
            serde_json::from_str(&format!(r#"{{"ociVersion":"1.2.0","linux":{{"mountLabel":"{label}"}}}}"#))
                .expect("a configuration")
        };
        let option = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
        let given = [option("size", "64m")];
        let label = option(CONTEXT, "u:r:t:s0:c1,c2");
        for kind in ["tmpfs", "devpts", "overlay"] {
            assert_eq!(*within(&spec("u:r:t:s0:c1,c2"), kind, &given), [given[0].clone(), label.clone()]);
            assert_eq!(*within(&spec(""), kind, &given), given);
            let own = [option(CONTEXT, "x")];
            assert_eq!(*within(&spec("u:r:t:s0:c1,c2"), kind, &own), own, "that of the mount itself");
        }
        for kind in ["proc", "sysfs", "mqueue", "cgroup", "cgroup2"] {
            assert_eq!(*within(&spec("u:r:t:s0"), kind, &given), given, "{kind}");
        }
    }
}
