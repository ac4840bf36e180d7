//! `--security-opt`, `--ulimit` and `--label`: single words of docker's, and the fields that they are.

use std::str::FromStr;

use bowline_spec::rlimit::{Resource, Rlimit};
use bowline_spec::values::Ceiling;
use bowline_spec::{Invalid, Seccomp};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecurityOpt {
    Seccomp(Seccomp),
    /// The name of an AppArmor profile, or `unconfined`.
    Apparmor(String),
    /// Whether set-user-ID programs are powerless.
    NoNewPrivileges(bool),
}

impl FromStr for SecurityOpt {
    type Err = String;

    fn from_str(text: &str) -> Result<SecurityOpt, String> {
        let (key, value) = text.split_once(['=', ':']).map_or((text, None), |(key, value)| (key, Some(value)));
        match (key, value.filter(|value| !value.is_empty())) {
            ("seccomp", Some("builtin")) => Ok(SecurityOpt::Seccomp(Seccomp::Default)),
            ("seccomp", Some(profile)) => seccomp(profile).map(SecurityOpt::Seccomp),
            ("apparmor", Some(profile)) => Ok(SecurityOpt::Apparmor(profile.to_owned())),
            ("no-new-privileges", None | Some("true")) if !text.ends_with(['=', ':']) => {
                Ok(SecurityOpt::NoNewPrivileges(true))
            }
            ("no-new-privileges", Some("false")) => Ok(SecurityOpt::NoNewPrivileges(false)),
            _ => Err(format!(
                "{text:?} is none of seccomp=native, seccomp=unconfined, seccomp=PROFILE.json, apparmor=PROFILE and no-new-privileges[=false]"
            )),
        }
    }
}

/// A filter by its name, or by the path of a file, which may begin in the working directory.
fn seccomp(profile: &str) -> Result<Seccomp, String> {
    match profile {
        "default" => Ok(Seccomp::Default),
        "native" => Ok(Seccomp::Native),
        "unconfined" => Ok(Seccomp::Unconfined),
        path => std::path::absolute(path).map(Seccomp::File).map_err(|error| format!("{path}: {error}")),
    }
}

/// Parses `--ulimit NAME=SOFT[:HARD]`; `-1` and `unlimited` are none.
pub fn ulimit(text: &str) -> Result<(Resource, Rlimit), String> {
    let (name, limits) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=SOFT[:HARD], as nofile=1024"))?;
    let (soft, hard) = limits.split_once(':').unwrap_or((limits, limits));
    let limit = |text: &str| match text {
        "-1" => Ok(Ceiling::Unlimited),
        text => text.parse().map_err(|wrong: Invalid| wrong.to_string()),
    };
    let name = name.parse().map_err(|wrong: Invalid| wrong.to_string())?;
    Ok((name, Rlimit { soft: limit(soft)?, hard: limit(hard)? }))
}

/// Parses `--label KEY[=value]`.
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').unwrap_or((text, "")) {
        ("", _) => Err(format!("{text:?} has no key; write KEY=value")),
        (key, value) => Ok((key.to_owned(), value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_docker_s_are_read() {
        let read = |text: &str| text.parse::<SecurityOpt>();
        assert_eq!(read("seccomp=native"), Ok(SecurityOpt::Seccomp(Seccomp::Native)));
        assert_eq!(read("seccomp=unconfined"), Ok(SecurityOpt::Seccomp(Seccomp::Unconfined)));
        assert_eq!(read("seccomp:/a.json"), Ok(SecurityOpt::Seccomp(Seccomp::File("/a.json".into()))));
        assert_eq!(read("apparmor=web"), Ok(SecurityOpt::Apparmor("web".into())));
        assert_eq!(read("no-new-privileges"), Ok(SecurityOpt::NoNewPrivileges(true)));
        assert_eq!(read("no-new-privileges:false"), Ok(SecurityOpt::NoNewPrivileges(false)));
        for bad in
            ["", "seccomp", "seccomp=", "apparmor", "label=disable", "no-new-privileges=maybe", "no-new-privileges="]
        {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_ulimit_has_one_value_or_two() {
        let both = |soft, hard| Rlimit { soft, hard };
        let read = |text: &str| ulimit(text).map(|(name, limit)| (name.name(), limit));
        assert_eq!(read("nofile=1024"), Ok(("nofile", both(Ceiling::At(1024), Ceiling::At(1024)))));
        assert_eq!(read("core=0:-1"), Ok(("core", both(Ceiling::At(0), Ceiling::Unlimited))));
        for bad in ["", "nofile", "nofile=", "nofile=x", "nofile=1:2:3", "files=1", "=1", "nofile=-2"] {
            assert!(ulimit(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn labels_are_read() {
        assert_eq!(label("a"), Ok(("a".into(), String::new())));
        assert_eq!(label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(label("").is_err() && label("=b").is_err());
    }
}
