//! Which drop-in of a unit is a leftover of an older version of bowline.
//!
//! Older versions limited a unit by a file below `/etc/systemd/system/UNIT.d` or
//! `/run/systemd/system/UNIT.d`. Such a file is ours if its name says so and it
//! does nothing but limit and count: whatever else somebody has put into a file
//! of that name stays.

/// What a drop-in of ours sets. Source: systemd.resource-control(5).
const SETTINGS: [&str; 7] =
    ["CPUAccounting", "CPUQuota", "CPUQuotaPeriodSec", "MemoryAccounting", "MemoryHigh", "MemoryLimit", "MemoryMax"];

/// The sections in which it does.
const SECTIONS: [&str; 2] = ["[Service]", "[Slice]"];

/// Whether a drop-in of this name and content is one of an older version:
/// `50-bowline.conf`, `bowline-cpu.conf`.
pub fn is_of_older_version(name: &str, text: &str) -> bool {
    let stem = name.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('-');
    let is_ours = stem.strip_prefix("bowline").is_some_and(|rest| rest.starts_with(['.', '-', '_']));
    let limits = |line: &str| match line.split_once('=') {
        Some((setting, value)) => SETTINGS.contains(&setting.trim_end()) && !value.ends_with('\\'),
        None => line.is_empty() || line.starts_with(['#', ';']) || SECTIONS.contains(&line),
    };
    is_ours && name.ends_with(".conf") && text.lines().map(str::trim).all(limits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_limits_and_has_our_name_is_ours() {
        let limits = "# Made by bowline.\n\n[Service]\nCPUQuota=25%\nMemoryMax = 200M\nCPUAccounting=yes\n";
        for name in ["bowline.conf", "50-bowline.conf", "12-bowline-cpu.conf", "bowline_limits.conf"] {
            assert!(is_of_older_version(name, limits), "{name}");
        }
        for name in ["50-CPUQuota.conf", "bowlines.conf", "50-bowline", "bowline.conf.bak", "my-bowline.conf"] {
            assert!(!is_of_older_version(name, limits), "{name}");
        }
        for text in [
            "[Unit]\nAfter=bowline.service",
            "[Service]\nExecStart=",
            "[Service]\nCPUQuota=5%\nUser=x",
            "CPUQuota=5%\\\nx",
            "[Service]\nCPUQuota",
        ] {
            assert!(!is_of_older_version("50-bowline.conf", text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(name in "\\PC{0,20}", text in "\\PC*") {
            let _ = is_of_older_version(&name, &text);
        }
    }
}
