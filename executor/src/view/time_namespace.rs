//! A container's own time namespace: its clocks are ahead of the host's, or behind them (time_namespaces(7)).

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::fd::AsFd as _;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys as sys;
use oci_spec::runtime::{LinuxTimeOffset, Spec};

use crate::view::namespaces::Namespaces;

/// The clocks that have an offset.
const CLOCKS: [&str; 2] = ["boottime", "monotonic"];

/// Checks the offsets, if the configuration has any.
///
/// # Errors
/// `BadSpec` for another clock's, or without a new time namespace: they would be the host's.
pub fn check(spec: &Spec) -> Result<()> {
    let Some(linux) = spec.linux() else { return Ok(()) };
    let is_set =
        |offset: &LinuxTimeOffset| [offset.secs().unwrap_or(0), offset.nanosecs().unwrap_or(0).into()] != [0, 0];
    let mut offsets = linux.time_offsets().iter().flatten().filter(|(_, offset)| is_set(offset)).peekable();
    if offsets.peek().is_none() {
        return Ok(());
    }
    if let Some((clock, _)) = offsets.find(|(clock, _)| !CLOCKS.contains(&clock.as_str())) {
        let message = format!("linux.timeOffsets: {clock:?} is no clock that can have an offset");
        return Err(Error::new(Kind::BadSpec, message).hint(format!("the clocks are {}", CLOCKS.join(" and "))));
    }
    if !Namespaces::of(spec)?.is_new(sys::CLONE_NEWTIME) {
        let message = "linux.timeOffsets: without a new time namespace they would be of somebody else's";
        return Err(Error::new(Kind::BadSpec, message).hint("add a namespace of type time, without a path"));
    }
    Ok(())
}

/// Moves the calling process into a new time namespace with the offsets of the configuration. `/proc` is the host's.
pub fn enter_new(spec: &Spec) -> Result<()> {
    let what = || "cannot make a time namespace";
    // This is for children; the process enters it once the offsets are set, which they cannot be later.
    sys::unshare(sys::CLONE_NEWTIME).doing(Kind::Unsupported, what)?;
    let mut text = String::new();
    for (clock, offset) in spec.linux().iter().filter_map(|linux| linux.time_offsets().as_ref()).flatten() {
        let (seconds, nanoseconds) = (offset.secs().unwrap_or(0), offset.nanosecs().unwrap_or(0));
        // Writing to a string never fails.
        let _ = writeln!(text, "{clock} {seconds} {nanoseconds}");
    }
    if !text.is_empty() {
        let what = || format!("linux.timeOffsets: cannot set {:?}", text.trim_end());
        fs::write("/proc/self/timens_offsets", &text).doing(Kind::BadSpec, what)?;
    }
    let namespace = File::open("/proc/self/ns/time_for_children").doing(Kind::Internal, what)?;
    sys::setns(namespace.as_fd(), sys::CLONE_NEWTIME).doing(Kind::Internal, what)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(namespaces: &Value, offsets: &Value) -> Result<()> {
        let linux = json!({ "namespaces": namespaces, "timeOffsets": offsets });
        check(&serde_json::from_value(json!({ "ociVersion": "1.2.0", "linux": linux })).expect("a configuration"))
    }

    #[test]
    fn offsets_are_of_clocks_in_a_new_namespace() {
        let (new, joined) = (json!([{ "type": "time" }]), json!([{ "type": "time", "path": "/proc/1/ns/time" }]));
        let offset = json!({ "secs": -1, "nanosecs": 5 });
        let both = json!({ "monotonic": offset, "boottime": offset });
        assert_eq!(checked(&new, &both), Ok(()));
        assert_eq!(checked(&joined, &json!({})), Ok(()));
        for (namespaces, offsets) in [(&joined, &both), (&json!([]), &both), (&new, &json!({ "realtime": offset }))] {
            let refused = checked(namespaces, offsets).expect_err("it is refused");
            assert_eq!(refused.kind(), Kind::BadSpec, "{namespaces} {offsets}");
        }
    }
}
