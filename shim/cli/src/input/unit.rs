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
    let settings = unit_settings(&[&state, Path::new(PROGRAMS)]);
    if settings.is_empty() {
        return error;
    }
    let own = error.hint_text().map(str::to_owned);
    let hints: Vec<String> = own.into_iter().chain(settings.into_iter().map(|setting| hint(setting, &state))).collect();
    error.hint(hints.join("; "))
}

fn hint(setting: UnitSetting, state: &Path) -> String {
    let never = |name: &str| format!("remove `{name}` from the unit: no task can run with it");
    match setting {
        UnitSetting::PrivateDevices => never("PrivateDevices="),
        UnitSetting::ProtectControlGroups => never("ProtectControlGroups="),
        UnitSetting::RestrictNamespaces => never("RestrictNamespaces="),
        UnitSetting::PrivateUsers => never("PrivateUsers="),
        UnitSetting::CapabilityBoundingSet => never("CapabilityBoundingSet="),
        UnitSetting::ProtectSystem => {
            let above =
                [state, Path::new(PROGRAMS)].map(|folder| folder.parent().unwrap_or(folder).display().to_string());
            format!("the unit's `ProtectSystem=strict` needs `ReadWritePaths={}`", above.join(" "))
        }
    }
}
