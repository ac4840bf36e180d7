//! Checkpoints by criu: which program runs with which arguments, and why it failed.
//!
//! ```text
//!   dump     task ─► images, and beside them what lies outside: `bowline.json`
//!   restore  images ─► criu in the new cgroup ─CLONE_PARENT─► init, stopped
//! ```
//!
//! What a task has from the host is *external*: mounts from its configuration, and the standard
//! streams. criu names these in its images, and gets new ones at a restore. criu leaves cgroups
//! alone: it runs in the right one, and what it restores begins there. Must not: start anything,
//! know a task's state.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::trust;
use bowline_sys::{mountinfo, read_regular_file};
use oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};

/// How long criu may take: a task's memory is written to disk meanwhile.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The file beside the images, with what they lack.
const OUTSIDE: &str = "bowline.json";

/// The most bytes of that file.
const LARGEST: u64 = 1 << 20;

/// The file with init's pid, in the folder of its container: criu may work in one place for all containers.
const PIDFILE: &str = "restored.pid";

/// How many of criu's last errors go into the message.
const LAST_ERRORS: usize = 4;

/// How to make a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// The folder for the images; made if it does not exist.
    pub images: PathBuf,
    /// The folder for criu's log; the images' folder when absent.
    pub work: Option<PathBuf>,
    /// End the task once the checkpoint is made.
    pub exit: bool,
    /// Include open TCP connections (criu's `--tcp-established`).
    pub open_tcp: bool,
    /// Include Unix sockets whose other end is outside.
    pub external_unix_sockets: bool,
    /// Include file locks (criu's `--file-locks`).
    pub file_locks: bool,
    /// Restore these namespaces as empty ones.
    pub empty_namespaces: Vec<String>,
}

/// How to run criu, where this is not as usual.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Criu {
    /// criu's binary: a path, or a name to look up in `PATH`.
    pub program: Option<PathBuf>,
    /// Where criu keeps its log, unless a checkpoint says otherwise; when absent, the folder of the
    /// images, or that of the container that is restored.
    pub work: Option<PathBuf>,
}

/// What a task has from the host, in criu's names.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Outside {
    /// criu's name of each standard stream that comes from outside.
    streams: BTreeMap<i32, String>,
    /// Where in the container something of the host is mounted.
    mounts: Vec<PathBuf>,
    /// The options of the dump, which the restore needs too.
    options: Vec<String>,
}

/// Finds what the task of init `pid` has from the host now.
///
/// # Errors
/// `Unsupported` for what cannot be described to criu.
pub fn outside(pid: i32, spec: &Spec, wanted: &Checkpoint) -> Result<Outside> {
    let refused = |what: &str| Err(Error::new(Kind::Unsupported, format!("a checkpoint of {what} is not supported")));
    if spec.process().as_ref().and_then(oci_spec::runtime::Process::terminal).unwrap_or(false) {
        return refused("a task with a terminal");
    }
    let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
    let joined = namespaces.into_iter().flatten().find(|namespace| namespace.path().is_some());
    if let Some(namespace) = joined {
        return refused(&format!("a task that joins a namespace ({}) of somebody else", namespace.typ()));
    }
    let path = format!("/proc/{pid}/mountinfo");
    let inside = mountinfo::read(&path).doing(Kind::Internal, || format!("cannot read {path}"))?;
    let binds = sources(spec);
    let mounts = inside.iter().map(|mount| &mount.target);
    let mounts = mounts.filter(|target| source_of(&binds, target).is_some()).cloned().collect();
    let mut streams = BTreeMap::new();
    for fd in 0..=2 {
        if let Some(name) = stream(pid, fd, &inside)? {
            streams.insert(fd, name);
        }
    }
    let mut options = Vec::new();
    let flags = [
        (wanted.open_tcp, "--tcp-established"),
        (wanted.external_unix_sockets, "--ext-unix-sk"),
        (wanted.file_locks, "--file-locks"),
    ];
    if !wanted.open_tcp {
        // Without connections to keep, criu needs no firewall tools.
        options.extend(["--network-lock".to_owned(), "skip".to_owned()]);
    }
    options.extend(flags.iter().filter(|(asked, _)| *asked).map(|(_, flag)| (*flag).to_owned()));
    for namespace in &wanted.empty_namespaces {
        if namespace != "network" && namespace != "net" {
            return refused(&format!("an empty namespace of type {namespace}"));
        }
        options.extend(["--empty-ns".to_owned(), "net".to_owned()]);
    }
    Ok(Outside { streams, mounts, options })
}

/// criu's name of this fd, if it comes from outside the container.
fn stream(pid: i32, fd: i32, inside: &[mountinfo::Mount]) -> Result<Option<String>> {
    let path = format!("/proc/{pid}/fd/{fd}");
    // The program itself has closed it.
    let Ok(link) = fs::read_link(&path) else { return Ok(None) };
    if let Some(name) = link.to_str().filter(|link| link.starts_with("pipe:[")) {
        return Ok(Some(name.to_owned()));
    }
    let info = format!("/proc/{pid}/fdinfo/{fd}");
    let text = fs::read_to_string(&info).doing(Kind::Internal, || format!("cannot read {info}"))?;
    let mount = text.lines().find_map(|line| line.strip_prefix("mnt_id:")).and_then(|id| id.trim().parse().ok());
    let mount: u64 = mount.ok_or_else(|| Error::new(Kind::Internal, format!("{info} lacks a mnt_id")))?;
    if inside.iter().any(|known| known.id == mount) {
        return Ok(None);
    }
    let inode = fs::metadata(&path).doing(Kind::Internal, || format!("cannot look at {path}"))?.ino();
    Ok(Some(format!("file[{mount:x}:{inode:x}]")))
}

/// Where in a container something of the host is mounted, and what.
fn sources(spec: &Spec) -> BTreeMap<PathBuf, PathBuf> {
    // The mounts that mask paths are the container's own: criu finds them there.
    let mut found = BTreeMap::new();
    for mount in spec.mounts().iter().flatten() {
        let options = mount.options().as_deref().unwrap_or_default();
        let bind = mount.typ().as_deref() == Some("bind") || options.iter().any(|o| o == "bind" || o == "rbind");
        if let (true, Some(source)) = (bind, mount.source()) {
            found.insert(mount.destination().clone(), source.clone());
        }
    }
    found
}

/// The host's path of what is at `target`, if it comes from the host.
fn source_of(sources: &BTreeMap<PathBuf, PathBuf>, target: &Path) -> Option<PathBuf> {
    let (place, source) = sources
        .iter()
        .filter(|(place, _)| target.starts_with(place))
        .max_by_key(|(place, _)| place.as_os_str().len())?;
    // Below a bind mount there may be another, with its own name.
    let rest = target.strip_prefix(place).ok()?;
    Some(if rest.as_os_str().is_empty() { source.clone() } else { source.join(rest) })
}

impl Outside {
    /// Writes this to a file beside the images.
    pub fn keep(&self, images: &Path) -> Result<()> {
        let path = images.join(OUTSIDE);
        let what = || format!("cannot write {}", path.display());
        let text = serde_json::to_vec(self).doing(Kind::Internal, what)?;
        trust::write_named(&path, &text).doing(Kind::Internal, what)
    }

    /// Reads what [`keep`](Self::keep) has written.
    ///
    /// # Errors
    /// `BadSpec` if it is no checkpoint of ours.
    pub fn of(images: &Path) -> Result<Outside> {
        let path = images.join(OUTSIDE);
        let what = || format!("{} is no checkpoint of bowline's: cannot read {OUTSIDE}", images.display());
        serde_json::from_slice(&read_regular_file(&path, LARGEST).doing(Kind::BadSpec, what)?)
            .doing(Kind::BadSpec, what)
    }

    /// The fd numbers by which criu gets the streams at a restore, each with its stream.
    pub fn inherited(&self) -> impl Iterator<Item = (i32, i32)> {
        self.distinct().map(|(fd, _)| (fd, FIRST + fd))
    }

    /// Leaves out duplicates: stdout and stderr may be one.
    fn distinct(&self) -> impl Iterator<Item = (i32, &str)> {
        let earlier = |fd: i32, name: &str| self.streams.iter().any(|(other, known)| *other < fd && known == name);
        self.streams.iter().map(|(fd, name)| (*fd, name.as_str())).filter(move |(fd, name)| !earlier(*fd, name))
    }
}

/// The first number that criu inherits.
const FIRST: i32 = 10;

/// criu's arguments for a dump of the task of init `pid`.
///
/// criu thaws what is frozen in the cgroup `frozen` while it looks at a process, and leaves all of it frozen again.
pub fn dump(
    pid: i32,
    root: &Path,
    work: &Path,
    wanted: &Checkpoint,
    outside: &Outside,
    frozen: Option<PathBuf>,
) -> Vec<OsString> {
    let mut args = begin("dump", &wanted.images, work, root);
    args.extend(["--tree".into(), pid.to_string().into()]);
    args.extend(frozen.into_iter().flat_map(|cgroup| ["--freeze-cgroup".into(), cgroup.into()]));
    if !wanted.exit {
        args.push("--leave-running".into());
    }
    for place in &outside.mounts {
        args.extend(["--external".into(), format!("mnt[{0}]:{0}", place.display()).into()]);
    }
    for (_, name) in outside.distinct() {
        // A pipe is `pipe[7]` here and `pipe:[7]` there.
        args.extend(["--external".into(), name.replace(":[", "[").into()]);
    }
    args.extend(outside.options.iter().map(Into::into));
    args
}

/// criu's arguments for a restore into the container of a folder. The restored processes stay
/// stopped, so that they can be started later.
pub fn restore(
    images: &Path,
    work: &Path,
    [bundle, root]: [&Path; 2],
    spec: &Spec,
    outside: &Outside,
) -> Result<Vec<OsString>> {
    let mut args = begin("restore", images, work, root);
    args.extend(["--restore-detached", "--restore-sibling", "--leave-stopped", "--pidfile"].map(Into::into));
    args.push(bundle.join(PIDFILE).into());
    let sources = sources(spec);
    for place in &outside.mounts {
        let source = source_of(&sources, place).ok_or_else(|| {
            let message = format!("the checkpoint has a mount at {} that the configuration lacks", place.display());
            Error::new(Kind::BadSpec, message)
        })?;
        args.extend(["--external".into(), format!("mnt[{}]:{}", place.display(), source.display()).into()]);
    }
    for (fd, name) in outside.distinct() {
        args.extend(["--inherit-fd".into(), format!("fd[{}]:{name}", FIRST + fd).into()]);
    }
    args.extend(outside.options.iter().map(Into::into));
    Ok(args)
}

fn begin(verb: &str, images: &Path, work: &Path, root: &Path) -> Vec<OsString> {
    let log = log_name(verb);
    let mut args: Vec<OsString> =
        ["criu", verb, "-v4", "--manage-cgroups=ignore", "--log-file", &log].map(Into::into).into();
    for (name, path) in [("--images-dir", images), ("--work-dir", work), ("--root", root)] {
        args.extend([name.into(), path.into()]);
    }
    args
}

fn log_name(verb: &str) -> String {
    format!("{verb}.log")
}

/// The pid of a restored init, from the file that criu has written.
pub fn restored(bundle: &Path) -> Result<i32> {
    let path = bundle.join(PIDFILE);
    let what = || format!("cannot read {}", path.display());
    fs::read_to_string(&path).doing(Kind::Internal, what)?.trim().parse().doing(Kind::Internal, what)
}

impl Criu {
    /// Finds the criu binary.
    ///
    /// # Errors
    /// `Unsupported` if there is none.
    pub fn find(&self) -> Result<PathBuf> {
        let wanted = self.program.as_deref().unwrap_or(Path::new("criu"));
        let none = |message: String| Error::new(Kind::Unsupported, message).hint("install criu 4 or later");
        if wanted.is_absolute() {
            let found = wanted.is_file().then(|| wanted.to_owned());
            return found.ok_or_else(|| none(format!("checkpoints need criu, and {} is no file", wanted.display())));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            std::env::split_paths(&path).map(|folder| folder.join(wanted)).find(|p| p.is_absolute() && p.is_file());
        found.ok_or_else(|| none(format!("checkpoints need {}, which is not in PATH", wanted.display())))
    }
}

/// Why criu failed: its last errors, and where the rest is.
pub fn failure(verb: &str, work: &Path, said: &str) -> String {
    let path = work.join(log_name(verb));
    let log = fs::read(&path).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default();
    let told = last_errors(&log).or_else(|| last_errors(said)).unwrap_or_else(|| said.trim().to_owned());
    format!("criu {verb} failed: {told} (its log: {})", path.display())
}

/// The last errors in criu's log.
pub fn last_errors(log: &str) -> Option<String> {
    let errors: Vec<&str> = log
        .lines()
        .filter_map(|line| line.split_once("Error ("))
        .filter_map(|(_, e)| e.split_once("): "))
        .map(|(_, e)| e.trim())
        .collect();
    (!errors.is_empty()).then(|| errors[errors.len().saturating_sub(LAST_ERRORS)..].join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_errors_of_a_log_are_told_without_their_places() {
        let log = "(00.1) Error (a.c:1): one\n(00.2) Warn (b.c:2): two\n(00.3) Error (c.c:3): mnt: three\n";
        assert_eq!(last_errors(log).as_deref(), Some("one; mnt: three"));
        assert_eq!(last_errors("Looks good.\n"), None);
    }

    #[test]
    fn streams_that_are_one_are_inherited_once() {
        let same = "file[1:2]".to_owned();
        let outside = Outside {
            streams: [(0, "pipe:[3]".to_owned()), (1, same.clone()), (2, same)].into(),
            ..Outside::default()
        };
        assert_eq!(outside.inherited().collect::<Vec<_>>(), [(0, 10), (1, 11)]);
    }

    #[test]
    fn what_is_below_a_bind_comes_from_below_its_source() {
        let sources = [("/a".into(), "/x".into()), ("/a/b".into(), "/y".into())].into();
        assert_eq!(source_of(&sources, Path::new("/a/b/c")), Some("/y/c".into()));
        assert_eq!(source_of(&sources, Path::new("/a")), Some("/x".into()));
        assert_eq!(source_of(&sources, Path::new("/ab")), None);
    }
}
