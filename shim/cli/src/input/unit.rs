//! What a failed command says of the systemd unit that it is part of.

use std::path::Path;

use bowline_executor::internal::{UnitSetting, unit_settings};
use bowline_model::folder::StateDir;
use bowline_model::{Error, Kind};

/// The copies of our binaries: see ARCHITECTURE.md.
const PROGRAMS: &str = "/var/lib/bowline";

/// `error` with a hint at the settings of the unit under which nothing works, if there are any.
pub fn hinted(error: Error, state: &Path) -> Error {
    if !matches!(error.kind(), Kind::Internal | Kind::Unsupported) {
        return error;
    }
    let state =
        std::path::absolute(state).map_or_else(|_| state.to_owned(), |state| StateDir::new(state).path().to_owned());
    let hints: Vec<String> = unit_settings(&[&state, Path::new(PROGRAMS)]).into_iter().map(hint).collect();
    if hints.is_empty() { error } else { error.hint(hints.join("; ")) }
}

fn hint(setting: UnitSetting) -> String {
    let never = |name: &str| format!("no task runs under its unit's `{name}`");
    match setting {
        UnitSetting::PrivateDevices => never("PrivateDevices="),
        UnitSetting::ProtectControlGroups => never("ProtectControlGroups="),
        UnitSetting::RestrictNamespaces => never("RestrictNamespaces="),
        UnitSetting::PrivateUsers => never("PrivateUsers="),
        UnitSetting::CapabilityBoundingSet => never("CapabilityBoundingSet="),
        UnitSetting::ProtectSystem => {
            "its unit's `ProtectSystem=strict` needs `ReadWritePaths=/run /var/lib`".to_owned()
        }
    }
}
