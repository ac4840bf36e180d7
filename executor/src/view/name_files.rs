//! A task's own `/etc/hostname`, `/etc/hosts` and `/etc/resolv.conf`, as Docker writes them.
//!
//! ```text
//!   description, host, interfaces ─► files in the task's folder ─ lay_on ─► binds below the task's own mounts, read-only
//! ```
//!
//! They are files of the host, so the task must not write them: it could fill the disk. Must not: change the root, which
//! `mount_points` looks at.

use std::fs::{File, Permissions};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::record::Connected;
use bowline_spec::address::Cidr;
use bowline_spec::names::{HOSTNAME, HOSTS, LOCALHOST, RESOLV_CONF, host_line, names_loopback_alone, own_line};
use bowline_spec::{Namespace, Task};
use bowline_sys as sys;
use oci_spec::runtime::{Mount, Spec};

use crate::oci::host;
use crate::view::mount_points::MountPoints;
use crate::view::namespaces;

/// Where a task that has no other address finds itself by its name, as Debian has it: 127.0.0.1 stays `localhost`.
const ITSELF: &str = "127.0.1.1";

/// The most bytes of a file of the host's that are copied.
const LARGEST: u64 = 4 << 20;

/// The options of these mounts.
const OPTIONS: [&str; 6] = ["bind", "rprivate", "ro", "nosuid", "nodev", "noexec"];

/// The files of one task.
#[derive(Debug, Default)]
pub struct NameFiles {
    /// Which there are, by their paths inside.
    inside: Vec<&'static str>,
    /// What their mounts need of the root.
    pub mount_points: MountPoints,
}

/// What the files of a task depend on.
pub struct About<'a> {
    /// The description, with the namespaces that the task joins.
    pub task: &'a Task,
    /// The host name in the UTS namespace that the task joins, if it is known.
    pub shared_name: Option<&'a str>,
    /// The interfaces of the task's network.
    pub interfaces: &'a [Connected],
}

impl NameFiles {
    /// Writes the files into the task's `folder`; `spec` is its configuration, `id` its id.
    ///
    /// # Errors
    /// `BadSpec` for a `host-gateway` that the network lacks; `Internal` for a file that cannot be written.
    pub fn write(about: &About<'_>, id: &str, spec: &Spec, folder: &Path) -> Result<NameFiles> {
        let mut inside = about.task.name_files();
        if inside.is_empty() {
            return Ok(NameFiles::default());
        }
        let id = host::default_hostname(id);
        let of_host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (name, is_hosts) = match about.task.namespaces.uts() {
            Namespace::Private => match about.task.own_hostname(&id) {
                Some(own) => (Some(own.to_owned()), false),
                None => (Some(of_host()), true),
            },
            Namespace::Host => (Some(of_host()), true),
            Namespace::Path(_) => (about.shared_name.map(str::to_owned), false),
        };
        // The host's own file has the host's name.
        let own_name = name.as_deref().filter(|_| !is_hosts || about.has_own_network());
        if name.is_none() {
            inside.retain(|path| *path != HOSTNAME);
        }
        let mount_points = match &about.task.rootfs {
            Some(root) => {
                let own: Vec<&Path> = about.task.mounts.iter().map(|mount| &*mount.destination).collect();
                let wanted = inside.clone();
                let found = MountPoints::find(root, about.task.ephemeral.is_some(), &own, &mut inside);
                about.check_asked(&wanted, &inside, &found.notes)?;
                found
            }
            None => MountPoints::default(),
        };
        let owner = namespaces::host_ids(spec, 0, 0);
        for path in &inside {
            let text = match *path {
                HOSTNAME => format!("{}\n", name.as_deref().unwrap_or_default()),
                HOSTS => about.hosts(own_name)?,
                _ => about.resolv_conf(),
            };
            write(&source(folder, path), &text, owner)?;
        }
        Ok(NameFiles { inside, mount_points })
    }

    /// Adds the mounts of the files that are in the task's `folder` to `spec`, before the `own` last ones.
    pub fn lay_on(&self, spec: &mut Spec, own: usize, folder: &Path) {
        if self.inside.is_empty() {
            return;
        }
        let mounts = spec.mounts_mut().get_or_insert_default();
        // What shows a file of the host's in this place is covered anyway.
        mounts.retain(|mount| !self.inside.iter().any(|path| mount.destination() == Path::new(path)));
        let at = mounts.len().saturating_sub(own);
        mounts.splice(at..at, self.inside.iter().map(|path| bind(Path::new(path), source(folder, path))));
    }
}

fn bind(inside: &Path, source: PathBuf) -> Mount {
    let mut mount = Mount::default();
    let options = OPTIONS.map(str::to_owned).to_vec();
    mount.set_destination(inside.into()).set_typ(Some("bind".into())).set_source(Some(source));
    mount.set_options(Some(options));
    mount
}

/// Where the file of a task is that is seen at `inside`.
fn source(folder: &Path, inside: &str) -> PathBuf {
    folder.join(inside.rsplit('/').next().unwrap_or(inside))
}

/// Writes a file that everybody may read, whatever umask the shim was started with.
fn write(path: &Path, text: &str, (uid, gid): (u32, u32)) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let mut file = File::options().write(true).create(true).truncate(true).open(path).doing(Kind::Internal, what)?;
    file.write_all(text.as_bytes()).doing(Kind::Internal, what)?;
    file.set_permissions(Permissions::from_mode(0o644)).doing(Kind::Internal, what)?;
    if (uid, gid) == (0, 0) {
        return Ok(());
    }
    fchown(&file, Some(uid), Some(gid)).doing(Kind::Internal, what)
}

impl About<'_> {
    /// Checks that what the description asks for by name is in one of the files that can be had.
    fn check_asked(&self, wanted: &[&str], had: &[&str], notes: &[String]) -> Result<()> {
        let names = &self.task.names;
        let asked = [(HOSTS, !names.hosts.is_empty(), "names.hosts"), (RESOLV_CONF, names.has_resolver(), "names")];
        match asked.iter().find(|(path, is_asked, _)| *is_asked && wanted.contains(path) && !had.contains(path)) {
            Some((.., field)) => {
                let why = if notes.is_empty() { "the root has no /etc".to_owned() } else { notes.join("; ") };
                Err(Error::new(Kind::BadSpec, why).in_field(*field))
            }
            None => Ok(()),
        }
    }

    fn has_own_network(&self) -> bool {
        *self.task.namespaces.network() != Namespace::Host
    }

    fn hosts(&self, own_name: Option<&str>) -> Result<String> {
        let (addresses, gateways) = addresses(self.interfaces);
        let mut text = match self.has_own_network() {
            true => LOCALHOST.to_owned(),
            false => text_of(Path::new(HOSTS)).map_or_else(|| LOCALHOST.to_owned(), |text| text + "\n"),
        };
        for (index, extra) in self.task.names.hosts.iter().enumerate() {
            let none = || {
                let message = "this network has no gateway to the host; write an address";
                Error::new(Kind::BadSpec, message).in_field(format!("names.hosts[{index}]"))
            };
            match extra.address {
                Some(address) => text += &host_line(address, &extra.name),
                None if !self.has_own_network() => text += &host_line("127.0.0.1", &extra.name),
                None if gateways.is_empty() => return Err(none()),
                None => text.extend(gateways.iter().map(|gateway| host_line(gateway, &extra.name))),
            }
        }
        if let Some(name) = own_name {
            match addresses.is_empty() {
                true => text += &own_line(ITSELF, name),
                false => text.extend(addresses.iter().map(|address| own_line(address, name))),
            }
        }
        Ok(text)
    }

    fn resolv_conf(&self) -> String {
        let own = self.has_own_network();
        // An untrusted task learns nothing of the host's.
        let is_open = self.task.profile.is_none();
        let mut of_host = is_open.then(|| text_of(Path::new(RESOLV_CONF))).flatten().unwrap_or_default();
        if own && names_loopback_alone(&of_host) {
            of_host = text_of(Path::new(host::UPSTREAM)).unwrap_or(of_host);
        }
        self.task.names.resolv_conf(&of_host, own)
    }
}

/// The text of a file of the host's, if everybody may read it.
fn text_of(path: &Path) -> Option<String> {
    let read = || {
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let about = file.metadata()?;
        let is_open = about.is_file() && about.mode() & 0o004 != 0;
        is_open.then(|| sys::read_of_length(&file, about.len(), LARGEST)).transpose()
    };
    let bytes = read().inspect_err(|error| tracing::warn!(%error, "{} is not copied", path.display())).ok()??;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The addresses of `interfaces`, and of their gateways, as plugins have made them (CNI's result).
fn addresses(interfaces: &[Connected]) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let (mut own, mut gateways) = (Vec::new(), Vec::new());
    for ip in interfaces.iter().filter_map(|one| one.result.get("ips")?.as_array()).flatten() {
        let text = |key: &str| ip.get(key).and_then(serde_json::Value::as_str);
        own.extend(text("address").and_then(|text| text.parse::<Cidr>().ok()).map(|cidr| cidr.address()));
        gateways.extend(text("gateway").and_then(|text| text.parse::<IpAddr>().ok()));
    }
    (own, gateways)
}
