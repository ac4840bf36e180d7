//! Parses the options of a runtime, as containerd's configuration contains them.
//!
//! | who | sends |
//! | --- | --- |
//! | Docker, `ctr --runc-…`, CRI for a runtime of type `io.containerd.runc.v2` | `containerd.runc.v1.Options` |
//! | CRI for any other type | `runtimeoptions.v1.Options`: TOML, or the path of a file with TOML |
//! | `ctr run --uidmap` and `--no-pivot` of containerd 1.6 | `containerd.linux.runc.CreateOptions` |
//! | nerdctl, `ctr run` | nothing |
//!
//! An unknown key is an error: if `SystemdCgroups` were silently ignored, no container would be in the cgroups that
//! systemd and the kubelet count.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bowline_executor::{CgroupDriver, Criu, Particulars};
use bowline_model::{Doing, Error, Kind, Result};
use containerd_shim_protos::shim::oci;
use protobuf::well_known_types::any::Any;
use protobuf::{Message, UnknownValueRef};
use rustix::fs::{CWD, Mode, OFlags};
use serde::Deserialize;

#[allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::unwrap_used)]
mod runtimeoptions {
    include!(concat!(env!("OUT_DIR"), "/runtimeoptions.rs"));
}

#[allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::unwrap_used)]
mod runctypes {
    include!(concat!(env!("OUT_DIR"), "/runctypes.rs"));
}

const RUNC: &str = "containerd.runc.v1.Options";
/// Of containerd 1.6's client, for any runtime but runc's.
const RUNC_V1: &str = "containerd.linux.runc.CreateOptions";
const GENERIC: &str = "runtimeoptions.v1.Options";
const CHECKPOINT: &str = "containerd.runc.v1.CheckpointOptions";
/// The longest configuration file, in bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// The options of a container; missing ones have their defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Leave the old root with MS_MOVE and chroot instead of pivot_root.
    pub no_pivot_root: bool,
    /// Keep the session keyring of the process that starts the container.
    pub no_new_keyring: bool,
    /// The cgroup for the shim itself.
    pub shim_cgroup: Option<String>,
    /// The owner of the standard streams until the process owns them.
    pub io_uid: u32,
    /// The group of the standard streams; 0 is unset.
    pub io_gid: u32,
    /// A binary such as runc, for shims that call one.
    pub binary_name: Option<String>,
    /// Where that binary keeps its state.
    pub root: Option<String>,
    /// Whether systemd creates the cgroups; `None` where nothing says so.
    pub systemd_cgroup: Option<bool>,
    /// The path of CRIU's binary, from old containerds.
    pub criu_path: Option<String>,
    /// The images that the container is restored from; containerd repeats them in its request.
    pub criu_image_path: Option<String>,
    /// CRIU's working folder, unless a checkpoint names another.
    pub criu_work_path: Option<String>,
    /// The address of a sandbox's Task API, which containerd calls directly.
    pub task_api_address: Option<String>,
    /// The version of that Task API.
    pub task_api_version: u32,
    /// Whether a pod whose sandbox the shim makes leaves ports below 1024 to root.
    pub privileged_ports: bool,
    /// Whether such a pod leaves ping to root.
    pub privileged_icmp: bool,
}

/// How to make a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// End the container once the checkpoint is made.
    pub exit: bool,
    pub open_tcp: bool,
    /// Include Unix sockets whose other end is outside.
    pub external_unix_sockets: bool,
    pub terminal: bool,
    pub file_locks: bool,
    /// Restore these namespaces as empty ones.
    pub empty_namespaces: Vec<String>,
    /// How cgroups are treated: `soft`, `full`, `strict`.
    pub cgroups_mode: Option<String>,
    /// The folder of the images.
    pub image_path: Option<String>,
    /// The folder for CRIU's log; by default that of the container's options, else that of the images.
    pub work_path: Option<String>,
}

/// The options in TOML, under the names in containerd's configuration.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "PascalCase")]
struct Toml {
    no_pivot_root: bool,
    no_new_keyring: bool,
    shim_cgroup: String,
    io_uid: u32,
    io_gid: u32,
    binary_name: String,
    root: String,
    systemd_cgroup: Option<bool>,
    criu_path: String,
    criu_image_path: String,
    criu_work_path: String,
    task_api_address: String,
    task_api_version: u32,
    enable_unprivileged_ports: Option<bool>,
    #[serde(rename = "EnableUnprivilegedICMP")]
    enable_unprivileged_icmp: Option<bool>,
    /// Keys of the generic form, which containerd leaves in the body.
    #[serde(rename = "TypeUrl")]
    _type_url: String,
    #[serde(rename = "ConfigPath")]
    _config_path: String,
    #[serde(rename = "ConfigBody")]
    _config_body: String,
}

/// The name of a type without the host that may precede it.
fn name_of(type_url: &str) -> &str {
    type_url.rsplit_once('/').map_or(type_url, |(_, name)| name)
}

/// Whether [`Options::parse`] knows the type of `any`.
pub fn is_known(any: &Any) -> bool {
    [RUNC, RUNC_V1, GENERIC].contains(&name_of(&any.type_url))
}

/// Whether these options name a file that contains the actual options.
#[cfg(feature = "fuzzing")]
pub fn names_file(any: &Any) -> bool {
    name_of(&any.type_url) == GENERIC
        && decode::<runtimeoptions::Options>(any).is_ok_and(|options| !options.config_path.is_empty())
}

impl Options {
    /// Parses the options of a container. `None` or an empty type gives the defaults.
    ///
    /// # Errors
    /// `BadSpec` for an unknown type or key, naming it, and for what cannot be decoded or read.
    pub fn parse(any: Option<&Any>) -> Result<Options> {
        let Some(any) = any.filter(|any| !any.type_url.is_empty()) else { return Ok(Options::default()) };
        match name_of(&any.type_url) {
            RUNC => Ok(Options::of_runc(decode(any)?)),
            RUNC_V1 => Ok(Options::of_runc_v1(decode(any)?)),
            GENERIC => Options::of_generic(decode(any)?),
            _ => Err(unknown(any, "options", &format!("{RUNC} or {GENERIC}"))),
        }
    }

    /// What creates the cgroup. Where the options say that systemd does not, `cgroupsPath` is a path even if it looks
    /// like a unit; where they say nothing, its form decides.
    pub fn driver(&self) -> CgroupDriver {
        match self.systemd_cgroup {
            Some(true) => CgroupDriver::Systemd,
            Some(false) => CgroupDriver::Literal,
            None => CgroupDriver::Auto,
        }
    }

    /// The executor settings that differ from the default.
    ///
    /// # Errors
    /// `Unsupported`, naming the option, for `NoPivotRoot`: a process that may call chroot can escape from it.
    pub fn particulars(&self) -> Result<Particulars> {
        if self.no_pivot_root {
            return Err(Error::new(Kind::Unsupported, "the option NoPivotRoot is not supported")
                .hint("leave it out: a host whose root is its initramfs is to switch to another root first"));
        }
        let path = |text: &Option<String>| text.as_ref().map(PathBuf::from);
        Ok(Particulars {
            keeps_keyring: self.no_new_keyring,
            // Ignore IoUid: a process owns its streams itself, as a process of runc does in the end.
            stream_group: Some(self.io_gid).filter(|gid| *gid != 0),
            criu: Criu { program: path(&self.criu_path), work: path(&self.criu_work_path) },
        })
    }

    fn of_runc(sent: oci::Options) -> Options {
        Options {
            no_pivot_root: sent.no_pivot_root,
            no_new_keyring: sent.no_new_keyring,
            criu_path: criu_path(&sent),
            shim_cgroup: text(sent.shim_cgroup),
            io_uid: sent.io_uid,
            io_gid: sent.io_gid,
            binary_name: text(sent.binary_name),
            root: text(sent.root),
            // The wire has no form of its own for false.
            systemd_cgroup: Some(sent.systemd_cgroup),
            criu_image_path: text(sent.criu_image_path),
            criu_work_path: text(sent.criu_work_path),
            task_api_address: text(sent.task_api_address),
            task_api_version: sent.task_api_version,
            ..Options::default()
        }
    }

    fn of_runc_v1(sent: runctypes::CreateOptions) -> Options {
        Options {
            no_pivot_root: sent.no_pivot_root,
            no_new_keyring: sent.no_new_keyring,
            shim_cgroup: text(sent.shim_cgroup),
            io_uid: sent.io_uid,
            io_gid: sent.io_gid,
            criu_image_path: text(sent.criu_image_path),
            criu_work_path: text(sent.criu_work_path),
            ..Options::default()
        }
    }

    fn of_generic(sent: runtimeoptions::Options) -> Result<Options> {
        let not_text = |whence: &str| Error::new(Kind::BadSpec, format!("the options {whence} are not text"));
        if !sent.config_path.is_empty() {
            let whence = format!("in {}", sent.config_path);
            let body = String::from_utf8(file(Path::new(&sent.config_path))?);
            return Options::of_toml(&body.map_err(|_| not_text(&whence))?, &whence);
        }
        let whence = "in containerd's configuration";
        Options::of_toml(&String::from_utf8(sent.config_body).map_err(|_| not_text(whence))?, whence)
    }

    pub(super) fn of_toml(body: &str, whence: &str) -> Result<Options> {
        let read: Toml = toml::from_str(body).map_err(|error| {
            let line = error.span().map_or(String::new(), |span| {
                let line = body.get(..span.start).map_or(1, |before| before.matches('\n').count() + 1);
                format!(", line {line}")
            });
            let why = error.message().to_owned();
            Error::new(Kind::BadSpec, format!("cannot read the options {whence}{line}: {why}"))
                .hint("the names are those of runc's options, such as SystemdCgroup")
        })?;
        Ok(Options {
            no_pivot_root: read.no_pivot_root,
            no_new_keyring: read.no_new_keyring,
            shim_cgroup: text(read.shim_cgroup),
            io_uid: read.io_uid,
            io_gid: read.io_gid,
            binary_name: text(read.binary_name),
            root: text(read.root),
            systemd_cgroup: read.systemd_cgroup,
            criu_path: text(read.criu_path),
            criu_image_path: text(read.criu_image_path),
            criu_work_path: text(read.criu_work_path),
            task_api_address: text(read.task_api_address),
            task_api_version: read.task_api_version,
            privileged_ports: read.enable_unprivileged_ports == Some(false),
            privileged_icmp: read.enable_unprivileged_icmp == Some(false),
        })
    }
}

impl CheckpointOptions {
    /// Parses the options of a checkpoint. `None` or an empty type gives the defaults.
    ///
    /// # Errors
    /// `BadSpec` for another type, naming it, and for what cannot be decoded.
    pub fn parse(any: Option<&Any>) -> Result<CheckpointOptions> {
        let Some(any) = any.filter(|any| !any.type_url.is_empty()) else { return Ok(CheckpointOptions::default()) };
        if name_of(&any.type_url) != CHECKPOINT {
            return Err(unknown(any, "checkpoint options", CHECKPOINT));
        }
        let sent: oci::CheckpointOptions = decode(any)?;
        Ok(CheckpointOptions {
            exit: sent.exit,
            open_tcp: sent.open_tcp,
            external_unix_sockets: sent.external_unix_sockets,
            terminal: sent.terminal,
            file_locks: sent.file_locks,
            empty_namespaces: sent.empty_namespaces,
            cgroups_mode: text(sent.cgroups_mode),
            image_path: text(sent.image_path),
            work_path: text(sent.work_path),
        })
    }
}

fn text(sent: String) -> Option<String> {
    Some(sent).filter(|text| !text.is_empty())
}

fn decode<M: Message>(any: &Any) -> Result<M> {
    M::parse_from_bytes(&any.value).doing(Kind::BadSpec, || format!("cannot decode options of type {}", any.type_url))
}

fn unknown(any: &Any, what: &str, known: &str) -> Error {
    Error::new(Kind::BadSpec, format!("{what} of type {:?} are unknown", any.type_url)).hint(format!("send {known}"))
}

/// The field `criu_path`, which containerd 2 removed.
fn criu_path(sent: &oci::Options) -> Option<String> {
    const FIELD: u32 = 8;
    let unknown = sent.special_fields.unknown_fields();
    let path = unknown.iter().find_map(|(number, value)| match value {
        UnknownValueRef::LengthDelimited(bytes) if number == FIELD => String::from_utf8(bytes.to_vec()).ok(),
        _ => None,
    });
    path.and_then(text)
}

/// Reads a regular file of limited length; never blocks, whatever the path leads to.
fn file(path: &Path) -> Result<Vec<u8>> {
    let what = || format!("cannot read the options in {}", path.display());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::openat(CWD, path, flags, Mode::empty()).doing(Kind::BadSpec, what)?);
    let found = file.metadata().doing(Kind::BadSpec, what)?;
    if !found.is_file() || found.len() > LONGEST_FILE {
        let why = if found.is_file() { "it is too long" } else { "it is not a file" };
        return Err(Error::new(Kind::BadSpec, format!("{}: {why}", what())));
    }
    let mut body = Vec::new();
    file.take(LONGEST_FILE).read_to_end(&mut body).doing(Kind::BadSpec, what)?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(type_url: &str, message: &impl Message) -> Any {
        Any { type_url: type_url.to_owned(), value: message.write_to_bytes().unwrap(), ..Any::default() }
    }

    fn toml(body: &str) -> Result<Options> {
        let sent = runtimeoptions::Options { config_body: body.into(), ..runtimeoptions::Options::default() };
        Options::parse(Some(&any(GENERIC, &sent)))
    }

    fn full() -> Options {
        Options {
            no_pivot_root: true,
            no_new_keyring: true,
            shim_cgroup: Some("/shims".to_owned()),
            io_uid: 1,
            io_gid: 2,
            binary_name: Some("crun".to_owned()),
            root: Some("/run/r".to_owned()),
            systemd_cgroup: Some(true),
            criu_path: Some("/c".to_owned()),
            criu_image_path: Some("/i".to_owned()),
            criu_work_path: Some("/w".to_owned()),
            task_api_address: Some("ttrpc+unix:///s".to_owned()),
            task_api_version: 3,
            ..Options::default()
        }
    }

    #[test]
    fn runc_s_options_are_read_whole_with_a_host_or_without() {
        let mut sent = oci::Options {
            no_pivot_root: true,
            no_new_keyring: true,
            shim_cgroup: "/shims".to_owned(),
            io_uid: 1,
            io_gid: 2,
            binary_name: "crun".to_owned(),
            root: "/run/r".to_owned(),
            systemd_cgroup: true,
            criu_image_path: "/i".to_owned(),
            criu_work_path: "/w".to_owned(),
            task_api_address: "ttrpc+unix:///s".to_owned(),
            task_api_version: 3,
            ..oci::Options::default()
        };
        sent.special_fields.mut_unknown_fields().add_length_delimited(8, b"/c".to_vec());
        for type_url in [RUNC, "types.containerd.io/containerd.runc.v1.Options"] {
            assert_eq!(Options::parse(Some(&any(type_url, &sent))), Ok(full()), "{type_url}");
        }
    }

    #[test]
    fn toml_has_the_same_by_go_s_names() {
        let body = "NoPivotRoot = true\nNoNewKeyring = true\nShimCgroup = \"/shims\"\nIoUid = 1\nIoGid = 2\n\
            BinaryName = \"crun\"\nRoot = \"/run/r\"\nSystemdCgroup = true\nCriuPath = \"/c\"\n\
            CriuImagePath = \"/i\"\nCriuWorkPath = \"/w\"\nTaskApiAddress = \"ttrpc+unix:///s\"\nTaskApiVersion = 3\n\
            TypeUrl = \"io.containerd.bowline.v1.options\"\n";
        assert_eq!(toml(body), Ok(full()));
        assert_eq!(toml(""), Ok(Options::default()));
    }

    #[test]
    fn toml_may_be_in_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("o.toml");
        let sent = runtimeoptions::Options { config_path: path.display().to_string(), ..Default::default() };
        let parsed = || Options::parse(Some(&any(GENERIC, &sent)));
        let missing = parsed().expect_err("there is no file");
        assert!(missing.message().contains("o.toml"), "{missing}");
        std::fs::write(&path, "SystemdCgroup = true").unwrap();
        assert_eq!(parsed().map(|options| options.systemd_cgroup), Ok(Some(true)));
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(parsed().map_err(|e| e.kind()), Err(Kind::BadSpec));
    }

    #[test]
    fn a_key_that_is_not_known_is_named() {
        let error = toml("Root = \"/r\"\nSystemdCgroups = true").expect_err("a typo");
        assert_eq!(error.kind(), Kind::BadSpec);
        assert!(error.message().contains("SystemdCgroups") && error.message().contains("line 2"), "{error}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("SystemdCgroup")));
        for bad in ["SystemdCgroup = \"true\"", "SystemdCgroup", "IoUid = -1"] {
            assert_eq!(toml(bad).map_err(|e| e.kind()), Err(Kind::BadSpec), "{bad}");
        }
    }

    #[test]
    fn a_type_that_is_not_known_is_named() {
        let sent = any("io.example/Own", &oci::Options::default());
        let error = Options::parse(Some(&sent)).expect_err("nobody knows it");
        assert_eq!(error.kind(), Kind::BadSpec);
        assert!(error.message().contains("io.example/Own"), "{error}");
        assert!(!is_known(&sent) && is_known(&any("x/containerd.runc.v1.Options", &oci::Options::default())));
        let broken = Any { type_url: RUNC.to_owned(), value: vec![0xff], ..Any::default() };
        assert_eq!(Options::parse(Some(&broken)).map_err(|e| e.kind()), Err(Kind::BadSpec));
        let of_checkpoint = any(CHECKPOINT, &oci::CheckpointOptions::default());
        assert_eq!(Options::parse(Some(&of_checkpoint)).map_err(|e| e.kind()), Err(Kind::BadSpec));
    }

    #[test]
    fn what_a_pod_leaves_to_root_is_switched_by_containerd_s_own_names() {
        let of = |body: &str| toml(body).map(|options| (options.privileged_ports, options.privileged_icmp)).unwrap();
        assert_eq!(of("SystemdCgroup = true"), (false, false));
        assert_eq!(of("EnableUnprivilegedPorts = false\nEnableUnprivilegedICMP = true"), (true, false));
        assert_eq!(of("EnableUnprivilegedICMP = false"), (false, true));
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(Options::parse(None), Ok(Options::default()));
        assert_eq!(Options::parse(Some(&Any::default())), Ok(Options::default()));
        assert_eq!(CheckpointOptions::parse(None), Ok(CheckpointOptions::default()));
    }

    #[test]
    fn a_checkpoint_s_options_are_read() {
        let sent = oci::CheckpointOptions {
            exit: true,
            empty_namespaces: vec!["network".to_owned()],
            image_path: "/i".to_owned(),
            ..oci::CheckpointOptions::default()
        };
        let read = CheckpointOptions::parse(Some(&any(CHECKPOINT, &sent))).unwrap();
        assert!(read.exit && !read.open_tcp);
        assert_eq!((read.empty_namespaces, read.image_path), (vec!["network".to_owned()], Some("/i".to_owned())));
        assert!(CheckpointOptions::parse(Some(&any(RUNC, &oci::Options::default()))).is_err());
    }

    #[test]
    fn options_say_who_makes_the_cgroup_or_leave_it_to_its_path() {
        let runc = |systemd_cgroup| {
            let sent = oci::Options { systemd_cgroup, ..oci::Options::default() };
            Options::parse(Some(&any(RUNC, &sent))).map(|options| options.driver())
        };
        assert_eq!([runc(true), runc(false)], [Ok(CgroupDriver::Systemd), Ok(CgroupDriver::Literal)]);
        assert_eq!(toml("SystemdCgroup = false").map(|options| options.driver()), Ok(CgroupDriver::Literal));
        // containerd 1.6 passes no key on.
        assert_eq!(toml("").map(|options| options.driver()), Ok(CgroupDriver::Auto));
        assert_eq!(Options::default().driver(), CgroupDriver::Auto);
    }
}
