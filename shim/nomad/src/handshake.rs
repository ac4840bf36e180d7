//! What go-plugin's host and its plugin tell each other before the first call: the environment, a socket, one line.
//!
//! Source: hashicorp/go-plugin, `docs/guide-plugin-write-non-go.md` and `server.go`.

use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use bowline_executor::internal::listen_privately;
use bowline_model::{Doing, Error, Kind, Result};
use rustix::fs::Gid;
use tempfile::NamedTempFile;

/// Tells a plugin that a plugin's host has started it; no secret.
const COOKIE: (&str, &str) =
    ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255");

/// The version of the handshake itself, and that of Nomad's plugins.
const CORE: u32 = 1;
const PROTOCOL: u32 = 2;

/// What the host asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The folder for the socket.
    folder: PathBuf,
    /// The group that may connect, by name or number.
    group: Option<String>,
    /// Whether the host would like several connections in one, which we do not have.
    multiplex: bool,
}

impl Handshake {
    /// Reads the environment.
    ///
    /// # Errors
    /// What a person who has started the plugin by hand should know, or what the host asks for and we do not have.
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> std::result::Result<Handshake, String> {
        let set = |name: &str| get(name).filter(|value| !value.is_empty());
        if set(COOKIE.0).as_deref() != Some(COOKIE.1) {
            return Err("this is a plugin of Nomad's, which a Nomad agent starts; it is of no use by itself\n\
                 hint: copy it into the agent's plugin_dir, and add plugin \"nomad-driver-bowline\" {} to its \
                 configuration"
                .to_owned());
        }
        let offered = set("PLUGIN_PROTOCOL_VERSIONS").unwrap_or_else(|| PROTOCOL.to_string());
        if !offered.split(',').any(|version| version.trim() == PROTOCOL.to_string()) {
            return Err(format!(
                "the host speaks version {offered} of Nomad's plugins, and this plugin speaks {PROTOCOL}"
            ));
        }
        if set("PLUGIN_CLIENT_CERT").is_some() {
            return Err(
                "the host asks for TLS (PLUGIN_CLIENT_CERT), which this plugin does not have; Nomad needs none"
                    .to_owned(),
            );
        }
        Ok(Handshake {
            folder: set("PLUGIN_UNIX_SOCKET_DIR").map_or_else(std::env::temp_dir, PathBuf::from),
            group: set("PLUGIN_UNIX_SOCKET_GROUP"),
            multiplex: set("PLUGIN_MULTIPLEX_GRPC").is_some(),
        })
    }

    /// Listens at a new socket, which only this user can reach, and the group that the host names. It is removed when the
    /// result is dropped.
    ///
    /// # Errors
    /// `Internal` when the folder takes no socket, `Usage` for a group that does not exist.
    pub fn listen(&self) -> Result<NamedTempFile<UnixListener>> {
        let what = || format!("cannot listen in {}", self.folder.display());
        let listen = |path: &Path| listen_privately(path).map_err(io::Error::from);
        let listener = tempfile::Builder::new().prefix("plugin").make_in(&self.folder, listen);
        let listener = listener.doing(Kind::Internal, what)?;
        if let Some(group) = &self.group {
            share(listener.path(), group)?;
        }
        listener.as_file().set_nonblocking(true).doing(Kind::Internal, what)?;
        Ok(listener)
    }

    /// The line by which the host learns where to connect.
    fn line(&self, socket: &Path) -> String {
        let multiplexed = if self.multiplex { "|false" } else { "" };
        format!("{CORE}|{PROTOCOL}|unix|{}|grpc|{multiplexed}\n", socket.display())
    }

    /// Tells the host where to connect.
    ///
    /// # Errors
    /// When the host reads no more.
    pub fn tell(&self, socket: &Path) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(self.line(socket).as_bytes())?;
        stdout.flush()
    }
}

/// Lets the members of `group` connect.
fn share(socket: &Path, group: &str) -> Result<()> {
    let what = || format!("cannot give {} to the group {group}", socket.display());
    let gid = match group.parse() {
        Ok(gid) => gid,
        Err(_) => {
            let groups = std::fs::read("/etc/group").doing(Kind::Internal, what)?;
            let groups = String::from_utf8_lossy(&groups);
            let of_group = |line: &str| line.strip_prefix(group)?.strip_prefix(':')?.split(':').nth(1)?.parse().ok();
            let found = groups.lines().find_map(of_group);
            found.ok_or_else(|| Error::new(Kind::Usage, format!("{}: there is no such group", what())))?
        }
    };
    rustix::fs::chown(socket, None, Some(Gid::from_raw(gid))).doing(Kind::Internal, what)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o660)).doing(Kind::Internal, what)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn with<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn whoever_is_no_host_is_told_how_to_become_one() {
        for set in [&[][..], &[("NOMAD_PLUGIN_MAGIC_COOKIE", "x")]] {
            let refusal = Handshake::from_environment(with(set)).unwrap_err();
            assert!(refusal.contains("plugin_dir"), "{refusal}");
        }
    }

    #[test]
    fn a_host_that_speaks_otherwise_is_refused() {
        for (name, value, why) in
            [("PLUGIN_PROTOCOL_VERSIONS", "1,3", "1,3"), ("PLUGIN_CLIENT_CERT", "-----BEGIN", "TLS")]
        {
            let refusal = Handshake::from_environment(with(&[COOKIE, (name, value)])).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
        }
        assert!(Handshake::from_environment(with(&[COOKIE, ("PLUGIN_PROTOCOL_VERSIONS", "1, 2")])).is_ok());
    }

    #[test]
    fn the_line_has_six_fields_and_a_seventh_for_who_would_multiplex() {
        let line = |more: &[(&str, &str)]| {
            let all: Vec<(&str, &str)> = [COOKIE].into_iter().chain(more.iter().copied()).collect();
            Handshake::from_environment(with(&all)).unwrap().line(Path::new("/tmp/plugin1"))
        };
        assert_eq!(line(&[]), "1|2|unix|/tmp/plugin1|grpc|\n");
        assert_eq!(line(&[("PLUGIN_MULTIPLEX_GRPC", "true")]), "1|2|unix|/tmp/plugin1|grpc||false\n");
    }

    #[test]
    fn the_socket_is_there_for_as_long_as_it_is_listened_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let set = [COOKIE, ("PLUGIN_UNIX_SOCKET_DIR", path)];
        let handshake = Handshake::from_environment(with(&set)).unwrap();
        let listener = handshake.listen().unwrap();
        let socket = listener.path().to_owned();
        assert!(socket.starts_with(folder.path()) && std::os::unix::net::UnixStream::connect(&socket).is_ok());
        drop(listener);
        assert!(!socket.exists());
        let grouped = Handshake { group: Some("no such group".to_owned()), ..handshake };
        assert_eq!(grouped.listen().unwrap_err().kind(), Kind::Usage);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
