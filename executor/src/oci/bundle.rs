//! A bundle's configuration, as a manager has written it: read once, and checked for what the rest
//! of the executor takes for granted.
//!
//! Must not: make anything, nor trust what an image holds.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bowline_cgroup::{check_devices, is_v2, remaining};
use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::folder::Folder;
use bowline_model::trust;
use bowline_spec::capability::Capability as Known;
use bowline_spec::common_device_rules;
use bowline_spec::id::TaskId;
use oci_spec::runtime::{
    Capabilities, LinuxCapabilities, LinuxMemory, LinuxResources, LinuxSeccomp, Mount, Process, Spec,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::oci::tolerance;
use crate::oci::tolerance::LARGEST_CONFIG;
use crate::oci::unsupported;
use crate::start::hooks;
use crate::view::inside_root;
use crate::view::rootfs;

/// The name of the configuration file (OCI runtime specification, "Filesystem Bundle").
const CONFIG: &str = "config.json";

/// The folder that a manager's layers are mounted into.
const ROOT: &str = "rootfs";

/// Where the layers of the bundle at `path` are mounted.
pub fn root(path: &Path) -> PathBuf {
    path.join(ROOT)
}

/// The configuration in a bundle.
#[derive(Debug)]
pub struct Configuration {
    pub spec: Spec,
    /// Its seccomp profile, which `spec` lacks.
    pub seccomp: Option<LinuxSeccomp>,
    /// What of it has no effect.
    pub notes: Vec<String>,
}

/// Reads the configuration in the bundle at `path`.
///
/// # Errors
/// `NotFound` without a bundle or configuration; `BadSpec` for an invalid configuration, or for a
/// bundle that is a symlink, which could lead elsewhere by the next look.
pub fn read(path: &Path) -> Result<Configuration> {
    let (text, file) = text(path)?;
    of_bundle(path, &text, &file)
}

/// Like [`read`], from the copy in `folder` that the first call has made there: the bundle may change, or go, while its
/// container runs.
///
/// # Errors
/// Also `Internal` where the copy cannot be written or read.
pub fn read_once(path: &Path, folder: &Folder) -> Result<Configuration> {
    let copy = folder.file(CONFIG);
    match trust::read(&copy) {
        Ok(text) => of_bundle(path, &text, &copy),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (text, file) = text(path)?;
            folder.write_text(CONFIG, &text)?;
            of_bundle(path, &text, &file)
        }
        Err(error) => Err(error).doing(Kind::Internal, || format!("cannot read {}", copy.display())),
    }
}

/// Like [`read_once`], of the configuration in `file`, for the bundle at `path`.
///
/// # Errors
/// As [`read_once`].
pub fn read_once_from(file: &Path, path: &Path, folder: &Folder) -> Result<Configuration> {
    let what = || format!("cannot read {}", file.display());
    let text = bowline_sys::read_regular_file(file, LARGEST_CONFIG).doing(Kind::NotFound, what)?;
    folder.write_text(CONFIG, &text)?;
    of_bundle(path, &text, file)
}

/// Keeps the configuration of a task from a description in its `folder`, where its hooks look for it: they find the root by
/// it. Does nothing for a task without hooks.
///
/// # Errors
/// `Internal` where it cannot be written.
pub fn keep_for_hooks(spec: &Spec, folder: &Folder) -> Result<()> {
    if spec.hooks().is_none() {
        return Ok(());
    }
    let text = serde_json::to_vec(spec).doing(Kind::Internal, || "cannot write a configuration as JSON")?;
    folder.write_text(CONFIG, &text)
}

/// Whether `folder` has the copy that [`read_once`] makes.
pub fn has_copy(folder: &Folder) -> bool {
    folder.file(CONFIG).exists()
}

/// The limits of the copy that [`read_once`] has made in `folder`, without the types of the whole configuration, which the
/// command line need not have.
///
/// # Errors
/// `NotFound` without a copy; as [`read_once`].
pub fn kept_limits(folder: &Folder) -> Result<LinuxResources> {
    #[derive(Deserialize)]
    struct Config {
        linux: Linux,
    }
    #[derive(Deserialize)]
    struct Linux {
        resources: Option<LinuxResources>,
    }
    let (text, copy) = kept(folder)?;
    let config: Config = serde_json::from_slice(&text).doing(Kind::Damaged, || format!("{}", copy.display()))?;
    Ok(limits(config.linux.resources.unwrap_or_default()))
}

/// Puts limits that have changed into that copy, if it is there. Returns the copy as it was.
///
/// # Errors
/// As [`kept_limits`], or when it cannot be written.
pub fn keep_limits(folder: &Folder, changes: &LinuxResources) -> Result<Option<Vec<u8>>> {
    let (text, copy) = match kept(folder) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        kept => kept?,
    };
    let damaged = || format!("cannot change {}", copy.display());
    let mut config: Value = serde_json::from_slice(&text).doing(Kind::Damaged, damaged)?;
    let mut changes = changes.clone();
    if is_v2() {
        let before = kept_limits(folder)?;
        with_swap_as_before(*before.memory(), &mut changes);
        if let (Some(files), Some(kept)) = (before.unified(), config.pointer_mut("/linux/resources/unified")) {
            *kept = json!(remaining(files, &changes)?);
        }
    }
    let changes = serde_json::to_value(changes).doing(Kind::Internal, damaged)?;
    merge(&mut config, json!({ "linux": { "resources": changes } }));
    folder.write_text(CONFIG, config.to_string().as_bytes()).map(|()| Some(text))
}

/// Takes back what [`keep_limits`] has changed, as far as the disk takes it.
pub fn put_back(folder: &Folder, copy: &[u8]) {
    if let Err(error) = folder.write_text(CONFIG, copy) {
        tracing::error!(%error, "the copy of a configuration has limits that are not in effect");
    }
}

/// On v2 swap has a limit of its own, which stays where that of memory alone changes: here it is in the sum of both.
fn with_swap_as_before(before: Option<LinuxMemory>, changes: &mut LinuxResources) {
    let beyond = before.and_then(|before| before.swap()?.checked_sub(before.limit()?)).filter(|beyond| *beyond >= 0);
    if let (Some(mut memory), Some(beyond)) = (*changes.memory(), beyond)
        && let (Some(limit @ 0..), None) = (memory.limit(), memory.swap())
    {
        memory.set_swap(Some(limit.saturating_add(beyond)));
        changes.set_memory(Some(memory));
    }
}

fn kept(folder: &Folder) -> Result<(Vec<u8>, PathBuf)> {
    let copy = folder.file(CONFIG);
    let text = trust::read(&copy).map_err(|error| {
        let kind = if error.kind() == io::ErrorKind::NotFound { Kind::NotFound } else { Kind::Internal };
        Error::new(kind, format!("cannot read {}: {error}", copy.display()))
    })?;
    Ok((text, copy))
}

/// Puts what `changes` has in the place of what is there, in objects field by field.
fn merge(value: &mut Value, changes: Value) {
    match (value, changes) {
        (Value::Object(fields), Value::Object(changes)) => {
            changes.into_iter().for_each(|(field, change)| merge(fields.entry(field).or_insert(Value::Null), change));
        }
        (value, change) => *value = change,
    }
}

fn of_bundle(path: &Path, text: &[u8], file: &Path) -> Result<Configuration> {
    let mut configuration = parse(text, file)?;
    lead_inside(&mut configuration.spec, path);
    Ok(configuration)
}

/// Takes the root filesystem's own path off destinations that begin with it: some managers name the place on the host.
/// So does runc.
fn lead_inside(spec: &mut Spec, bundle: &Path) {
    let Some(root) = spec.root().as_ref().map(|root| bundle.join(root.path())) else { return };
    for mount in spec.mounts_mut().iter_mut().flatten().filter(|_| root != Path::new("/")) {
        if let Ok(inside) = mount.destination().strip_prefix(&root) {
            let inside = Path::new("/").join(inside);
            mount.set_destination(inside);
        }
    }
}

/// The cgroup that the configuration in the bundle at `path` asks for, if it asks for one and can
/// be read. Does without the types of the whole configuration, which programs that only clean up
/// need not have.
pub fn cgroup_asked_for(path: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Config {
        linux: Linux,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Linux {
        cgroups_path: String,
    }
    let (text, _) = text(path).ok()?;
    serde_json::from_slice::<Config>(&text).ok().map(|config| config.linux.cgroups_path)
}

/// The text of a bundle's configuration, and the path of its file.
fn text(path: &Path) -> Result<(Vec<u8>, PathBuf)> {
    let what = || format!("cannot use the bundle {}", path.display());
    if !fs::symlink_metadata(path).doing(Kind::NotFound, what)?.is_dir() {
        return Err(Error::new(Kind::BadSpec, format!("the bundle {} is not a folder", path.display())));
    }
    let file = path.join(CONFIG);
    let what = || format!("cannot read {}", file.display());
    let opened = fs::File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&file);
    let mut text = Vec::new();
    opened.doing(Kind::NotFound, what)?.take(LARGEST_CONFIG + 1).read_to_end(&mut text).doing(Kind::BadSpec, what)?;
    if text.len() as u64 > LARGEST_CONFIG {
        return Err(Error::new(Kind::BadSpec, format!("{} is larger than {LARGEST_CONFIG} bytes", file.display())));
    }
    Ok((text, file))
}

/// Parses and checks the text of a configuration, which is in `file`.
///
/// # Errors
/// `BadSpec` for an invalid configuration.
pub fn parse(text: &[u8], file: &Path) -> Result<Configuration> {
    tolerance::spec(text).and_then(checked).map_err(|error| error.within(file.display()))
}

fn checked((mut spec, note): (Spec, Option<String>)) -> Result<Configuration> {
    let mut notes = Vec::from_iter(note);
    let missing = |what: &str| Error::new(Kind::BadSpec, format!("{what}: missing"));
    check_version(spec.version())?;
    check_process(spec.process().as_ref().ok_or_else(|| missing("process"))?)?;
    hooks::check(&spec)?;
    let root = spec.root().as_ref().ok_or_else(|| missing("root"))?;
    if root.path().as_os_str().is_empty() {
        return Err(missing("root.path"));
    }
    if spec.linux().is_none() {
        return Err(missing("linux").hint("only containers of Linux can be run"));
    }
    for mount in spec.mounts().iter().flatten() {
        for option in rootfs::read_mount_options(mount)?.ignored {
            let at = mount.destination().display();
            let note =
                format!("mount {at}: {option} has no effect: it is an option of a filesystem, and a bind makes none");
            tracing::warn!("{note}");
            notes.push(note);
        }
    }
    leave_out_empty_paths(&mut spec);
    supply_dev(&mut spec);
    // Before ours are put beside them.
    if let Some(resources) = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref()) {
        check_devices(resources)?;
        unsupported::check_page_sizes(resources)?;
    }
    let seccomp = spec.linux_mut().as_mut().and_then(|linux| {
        let resources = linux.resources().clone().unwrap_or_default();
        linux.set_resources(Some(with_common_devices(limits(resources))));
        let seccomp = linux.seccomp().clone();
        // The filter is compiled from here; the spec would only carry it along.
        linux.set_seccomp(None);
        seccomp
    });
    Ok(Configuration { spec, seccomp, notes })
}

/// Leaves out paths that are empty, as runc does: they would be the root.
fn leave_out_empty_paths(spec: &mut Spec) {
    let Some(linux) = spec.linux_mut() else { return };
    let set = |paths: &Option<Vec<String>>| {
        paths.as_ref().map(|paths| paths.iter().filter(|path| !path.is_empty()).cloned().collect::<Vec<_>>())
    };
    let (masked, readonly) = (set(linux.masked_paths()), set(linux.readonly_paths()));
    linux.set_masked_paths(masked).set_readonly_paths(readonly);
}

/// Every container has some devices, as the specification says: where nothing is mounted at `/dev`, they get a tmpfs, as
/// managers mount one, and nothing is made in the image.
fn supply_dev(spec: &mut Spec) {
    if spec.mounts().iter().flatten().any(|mount| inside_root::is_at(mount.destination(), "dev")) {
        return;
    }
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    let mut dev = Mount::default();
    dev.set_destination("/dev".into());
    dev.set_typ(Some("tmpfs".to_owned())).set_source(Some("tmpfs".into()));
    dev.set_options(Some(["nosuid", "strictatime", "mode=755", "size=65536k"].map(str::to_owned).to_vec()));
    mounts.insert(0, dev);
    spec.set_mounts(Some(mounts));
}

/// Refuses a configuration of another major version, which would be misread. runc takes one without a version.
fn check_version(version: &str) -> Result<()> {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = core.split('.').collect();
    let why = match parts.as_slice() {
        _ if version.is_empty() => return Ok(()),
        [major, minor, patch] if [major, minor, patch].into_iter().all(|part| number(part)) => {
            if *major == "1" {
                return Ok(());
            }
            "only configurations of version 1 can be run"
        }
        _ => "it is not a version like 1.2.0",
    };
    Err(Error::new(Kind::BadSpec, format!("ociVersion: {version:?}: {why}")))
}

/// Device rules list what a container may use beyond the devices common to all containers, and what not. What no rule
/// speaks of is denied. Ours come last: the last rule that fits a device counts.
fn with_common_devices(mut resources: LinuxResources) -> LinuxResources {
    let mut rules = resources.devices().clone().unwrap_or_default();
    // Managers list most of them as well, and on v1 each rule is a write. A denial may follow them.
    let last_denial = rules.iter().rposition(|rule| !rule.allow()).map_or(0, |at| at + 1);
    let missing: Vec<_> =
        common_device_rules().into_iter().filter(|rule| !rules[last_denial..].contains(rule)).collect();
    rules.extend(missing);
    resources.set_devices(Some(rules));
    resources
}

/// Limits as a manager means them: those that are 0 or empty are no limits. Kubernetes and Docker
/// send them so, and runc takes them so. The number of processes alone may be 0, from version 1.3 on.
pub fn limits(mut resources: LinuxResources) -> LinuxResources {
    if let Some(mut cpu) = resources.cpu().clone() {
        cpu.set_shares(cpu.shares().filter(|shares| *shares != 0));
        cpu.set_quota(cpu.quota().filter(|quota| *quota != 0));
        cpu.set_period(cpu.period().filter(|period| *period != 0));
        cpu.set_cpus(cpu.cpus().clone().filter(|cpus| !cpus.is_empty()));
        cpu.set_mems(cpu.mems().clone().filter(|mems| !mems.is_empty()));
        resources.set_cpu(Some(cpu));
    }
    if let Some(mut memory) = *resources.memory() {
        memory.set_limit(memory.limit().filter(|limit| *limit != 0));
        memory.set_swap(memory.swap().filter(|swap| *swap != 0));
        if memory.limit() == Some(-1) && memory.swap().is_none() {
            // Memory without a limit cannot be part of a sum with one.
            memory.set_swap(Some(-1));
        }
        memory.set_reservation(memory.reservation().filter(|reservation| *reservation != 0));
        // Docker's -1, as an unsigned number.
        memory.set_swappiness(memory.swappiness().filter(|swappiness| *swappiness != u64::MAX));
        resources.set_memory(Some(memory));
    }
    if let Some(mut io) = resources.block_io().clone() {
        io.set_weight(io.weight().filter(|weight| *weight != 0));
        resources.set_block_io(Some(io));
    }
    resources
}

/// Checks what every process must have.
///
/// # Errors
/// `BadSpec` naming the field.
pub fn check_process(process: &Process) -> Result<()> {
    let bad = |reason: String| Err(Error::new(Kind::BadSpec, reason));
    if process.args().as_ref().and_then(|args| args.first()).is_none_or(String::is_empty) {
        return bad("process.args: the command to run is empty".to_owned());
    }
    if !process.cwd().is_absolute() {
        return bad(format!("process.cwd: {:?} is not absolute", process.cwd().display().to_string()));
    }
    for (name, all) in [("args", process.args()), ("env", process.env())] {
        // The kernel would take what is before it.
        if let Some(index) = all.iter().flatten().position(|text| text.contains('\0')) {
            return bad(format!("process.{name}[{index}]: it contains a NUL byte"));
        }
    }
    let is_variable = |text: &str| text.find('=').is_some_and(|at| at > 0);
    if let Some(text) = process.env().iter().flatten().find(|text| !is_variable(text)) {
        return bad(format!("process.env: {text:?} is not NAME=value"));
    }
    let user = process.user();
    let ids = [("uid", user.uid()), ("gid", user.gid())].into_iter();
    let more = user.additional_gids().iter().flatten().map(|gid| ("additionalGids", *gid));
    if let Some((name, id)) = ids.chain(more).find(|(_, id)| i32::try_from(*id).is_err()) {
        return bad(format!("process.user.{name}: {id} is not 0 to {}", i32::MAX));
    }
    process.capabilities().as_ref().map_or(Ok(()), check_capabilities)
}

/// Checks what the kernel demands of sets of capabilities (capset(2)), which it would refuse only as the program starts.
fn check_capabilities(sets: &LinuxCapabilities) -> Result<()> {
    let none = Capabilities::new();
    for (name, set, within, of) in [
        ("effective", sets.effective(), "permitted", sets.permitted()),
        ("inheritable", sets.inheritable(), "bounding", sets.bounding()),
    ] {
        let of = of.as_ref().unwrap_or(&none);
        if let Some(beyond) = set.iter().flatten().find(|capability| !of.contains(capability)) {
            let beyond = Known::of_oci(beyond);
            let message =
                format!("process.capabilities.{name}: {beyond} is not in {within} too: operation not permitted");
            return Err(Error::new(Kind::BadSpec, message).hint(format!("add it to process.capabilities.{within}")));
        }
    }
    Ok(())
}

/// The cgroup path in the configuration, if any.
pub fn asked_cgroup(spec: &Spec) -> Option<&str> {
    let path = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().as_ref());
    path.and_then(|path| path.to_str()).filter(|path| !path.is_empty())
}

/// The path of the container's cgroup: below the top of each hierarchy if the configured path is
/// relative, and by the container's id if there is none.
pub fn cgroup_path(asked: Option<&str>, id: &TaskId) -> String {
    match asked {
        // As runc takes it: without empty parts, and `.`.
        Some(path) => {
            let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
            format!("/{}", parts.join("/"))
        }
        None => format!("/{id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(config: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join(CONFIG), config).expect("written");
        dir
    }

    const GOOD: &str = r#"{"ociVersion":"1.0.2","process":{"user":{"uid":0,"gid":0},"args":["sh"],"cwd":"/"},
        "root":{"path":"rootfs"},"linux":{"namespaces":[{"type":"mount"}],
        "seccomp":{"defaultAction":"SCMP_ACT_ALLOW"}}}"#;

    #[test]
    fn a_profile_is_taken_out() {
        let Configuration { spec, seccomp, .. } = read(bundle(GOOD).path()).expect("good");
        assert!(seccomp.is_some());
        assert!(spec.linux().as_ref().is_some_and(|linux| linux.seccomp().is_none()));
    }

    #[test]
    fn what_is_no_configuration_is_said_with_its_file() {
        for bad in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"ociVersion":"1.0.2"}"#,
            &GOOD.replace("\"mount\"", "\"mounts\""),
            &GOOD.replace("[\"sh\"]", "[]"),
            &GOOD.replace("\"/\"", "\"tmp\""),
        ] {
            let error = read(bundle(bad).path()).expect_err(bad);
            assert_eq!(error.kind(), Kind::BadSpec, "{bad}: {error}");
            assert!(error.to_string().contains(CONFIG), "{error}");
        }
        let none = tempfile::tempdir().expect("a folder");
        assert_eq!(read(none.path()).expect_err("empty").kind(), Kind::NotFound);
    }

    #[test]
    fn a_configuration_of_another_version_is_refused() {
        for good in ["", "1.0.0", "1.0.0-rc5-dev", "1.0.2-dev", "1.3.0+x", "1.99.0"] {
            assert_eq!(check_version(good).map_err(|e| e.to_string()), Ok(()), "{good}");
        }
        for bad in ["2.0.0", "0.5.0", "1.0", "1", "v1.0.0", "1.0.0.0", "1.x.0", "1..0", "-", "one"] {
            let error = check_version(bad).expect_err(bad);
            assert!(error.to_string().contains("ociVersion"), "{error}");
        }
    }

    #[test]
    fn a_symlink_is_no_bundle() {
        let dir = bundle(GOOD);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).expect("made");
        assert_eq!(read(&link).expect_err("a symlink").kind(), Kind::BadSpec);
    }

    #[test]
    fn a_cgroup_is_always_below_the_top() {
        let mut spec = read(bundle(GOOD).path()).expect("good").spec;
        let id: TaskId = "web".parse().expect("an id");
        assert_eq!(cgroup_path(asked_cgroup(&spec), &id), "/web");
        for (said, meant) in [("/k8s/web", "/k8s/web"), ("k8s/./web//", "/k8s/web"), ("", "/web"), ("/", "/")] {
            if let Some(linux) = spec.linux_mut() {
                linux.set_cgroups_path(Some(said.into()));
            }
            assert_eq!(cgroup_path(asked_cgroup(&spec), &id), meant);
        }
    }
}
