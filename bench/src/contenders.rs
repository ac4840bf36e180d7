//! Everybody who is measured, on one root filesystem with one configuration,
//! and the removal of all that they leave.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bowline_executor::internal::{compile_filter, configure};
use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::{Format, Namespace, Task};
use serde_json::Value;
use tempfile::TempDir;

use crate::floor::{self, Duty, Floor};
use crate::peers::{Bundle, Peer};
use crate::shim::Shims;
use crate::table::{COLUMNS, CRUN, RUNC};

/// One task, as each takes it.
pub struct Job {
    /// For bowline: the description, as JSON.
    pub description: String,
    /// For the peers: the OCI configuration that bowline makes of it.
    pub spec: Value,
    /// The command alone.
    pub command: Vec<&'static str>,
}

/// See the module. Fields are dropped in their order: who made something
/// before what it was made in.
pub struct Contenders {
    /// The bare floor: the kernel alone, without the duties of a runtime.
    pub floor: Floor,
    /// The kernel alone, with the work that no runtime can leave out.
    pub duty: Floor,
    pub shims: Shims,
    peers: [Option<Peer>; 2],
    cgroups: Cgroups,
    root: PathBuf,
    bin: PathBuf,
    state: TempDir,
    _work: TempDir,
}

impl Contenders {
    /// Everybody who is installed, the peers if they are wanted; bowline's
    /// binaries are in `bin`. All that is made has `name` in its own.
    pub fn new(bin: &Path, name: &str, peers: bool) -> Result<Contenders> {
        let shim = bin.join(SHIM);
        if !shim.is_file() {
            return Err(Error::new(Kind::Usage, format!("cannot find {}", shim.display()))
                .hint("`make build` makes it; --bin says where it is"));
        }
        let folder = |parent: &str| {
            let made = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(parent);
            made.doing(Kind::Internal, || format!("cannot create a folder in {parent}"))
        };
        let (work, state) = (folder("/tmp")?, folder(in_memory())?);
        let root = work.path().join("root");
        make_root(&root)?;
        let installed = work.path().join("bin");
        install(bin, &installed)?;
        let cgroups = Cgroups(name.to_owned());
        let floor = Floor::start(work.path(), &root, name, None)?;
        let what = || Error::new(Kind::Internal, "the default of a task is to have no seccomp filter");
        let filter = compile_filter(&bowline_spec::parse("command = 'x'", Format::Toml)?)?.ok_or_else(what)?;
        let duty = Duty { filter: &filter, state: state.path() };
        let duty = Floor::start(work.path(), &root, &cgroups.of_duty(), Some(&duty))?;
        let shims = Shims::new(installed.join(SHIM), state.path().join("s"), name)?;
        let peer = |peer| if peers { Peer::find(peer, state.path(), name) } else { Ok(None) };
        let peers = [peer("crun")?, peer("runc")?];
        Ok(Contenders { floor, duty, shims, peers, cgroups, root, bin: installed, state, _work: work })
    }

    /// The folder of bowline's binaries.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// What everything that is made has in its name.
    pub fn name(&self) -> &str {
        &self.cgroups.0
    }

    /// The root filesystem of all tasks.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of everybody's state.
    pub fn state(&self) -> &Path {
        self.state.path()
    }

    /// The peer of a column, if it is one and is installed.
    pub fn peer(&mut self, column: usize) -> Option<&mut Peer> {
        match column {
            CRUN => self.peers[0].as_mut(),
            RUNC => self.peers[1].as_mut(),
            _ => None,
        }
    }

    /// The peers that are not here.
    pub fn missing(&self) -> Vec<&'static str> {
        [CRUN, RUNC].into_iter().zip(&self.peers).filter(|(_, peer)| peer.is_none()).map(|(c, _)| COLUMNS[c]).collect()
    }

    /// What the peers that are installed say of their versions.
    pub fn versions(&self) -> Vec<String> {
        self.peers.iter().flatten().map(Peer::version).collect()
    }

    /// A task that runs `command` with this seccomp setting, and a network
    /// namespace of its own, which is the dearest of them.
    pub fn job(&self, command: &[&'static str], seccomp: &str) -> Result<Job> {
        self.job_by(command, |task| {
            task.seccomp = Some(seccomp.parse()?);
            Ok(())
        })
    }

    /// A task that may have so many processes, with the default filter.
    pub fn job_of(&self, processes: usize, command: &[&'static str]) -> Result<Job> {
        self.job_by(command, |task| {
            task.pids = Some(processes.to_string().parse()?);
            Ok(())
        })
    }

    fn job_by(&self, command: &[&'static str], change: impl FnOnce(&mut Task) -> Result<()>) -> Result<Job> {
        let mut task = self.task(command)?;
        task.namespaces.network = Some(Namespace::Private);
        change(&mut task)?;
        let spec = serde_json::to_value(configure(&task, "bench")?);
        let spec = spec.doing(Kind::Internal, || "cannot write a configuration as JSON")?;
        Ok(Job { description: described(&task)?, spec, command: command.to_vec() })
    }

    /// The description of the same task below bowline's own init, as JSON.
    pub fn job_with_init(&self, command: &[&'static str], seccomp: &str) -> Result<String> {
        let mut task = self.task(command)?;
        task.namespaces.network = Some(Namespace::Private);
        task.seccomp = Some(seccomp.parse()?);
        task.init = Some(true);
        described(&task)
    }

    /// A member of a sandbox that runs `command`, with the default filter; as JSON.
    pub fn member(&self, command: &[&'static str]) -> Result<String> {
        described(&self.task(command)?)
    }

    fn task(&self, command: &[&'static str]) -> Result<Task> {
        let (program, args) = command.split_first().unwrap_or((&"", &[]));
        let mut task = bowline_spec::parse("command = 'x'", Format::Toml)?;
        task.command = (*program).to_owned();
        task.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        task.rootfs = Some(self.root.clone());
        Ok(task)
    }

    /// The peers' bundles of a job, by column.
    pub fn bundles(&mut self, name: &str, job: &Job) -> Result<Bundles> {
        let mut bundle = |column| self.peer(column).map(|p| p.bundle(name, &job.spec, &job.command)).transpose();
        Ok(Bundles([bundle(CRUN)?, bundle(RUNC)?]))
    }
}

fn described(task: &Task) -> Result<String> {
    serde_json::to_string(task).doing(Kind::Internal, || "cannot write a description as JSON")
}

/// One bundle for each peer.
pub struct Bundles([Option<Bundle>; 2]);

impl Bundles {
    /// The bundle of the peer in this column, if it is measured.
    pub fn of(&self, column: usize) -> Option<&Bundle> {
        match column {
            CRUN => self.0[0].as_ref(),
            RUNC => self.0[1].as_ref(),
            _ => None,
        }
    }

    /// Like [`Bundles::of`], but gives the bundle away.
    pub fn into_column(self, column: usize) -> Option<Bundle> {
        let [crun, runc] = self.0;
        match column {
            CRUN => crun,
            RUNC => runc,
            _ => None,
        }
    }
}

/// Where everybody's state is: /run, as is the default of each, but on a host
/// whose /run is on disk, as no installed system's is.
pub fn in_memory() -> &'static str {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let memory = |folder: &&str| rustix::fs::statfs(*folder).is_ok_and(|stat| stat.f_type == TMPFS_MAGIC);
    ["/run", "/dev/shm"].into_iter().find(memory).unwrap_or("/run")
}

const SHIM: &str = "bowline-shim";
const BINARIES: [&str; 6] =
    ["bowline", SHIM, "bowline-init", "bowline-oci", "containerd-shim-bowline-v1", "nomad-driver-bowline"];

/// The floor's shim, by the name that containerd looks for. Not in memory, where some hosts execute nothing.
pub const FLOOR_SHIM: &str = "containerd-shim-floor-v1";

/// Copies bowline's binaries, those that there are, as an installation does: what a linker has written is in the page
/// cache by single pages, and takes a process that runs it longer to map.
fn install(from: &Path, to: &Path) -> Result<()> {
    let what = || format!("cannot copy bowline's binaries to {}", to.display());
    fs::create_dir(to).doing(Kind::Internal, what)?;
    for name in BINARIES.iter().filter(|name| from.join(name).is_file()) {
        fs::copy(from.join(name), to.join(name)).doing(Kind::Internal, what)?;
    }
    floor::place(&to.join(FLOOR_SHIM))
}

/// A root filesystem of a static busybox alone.
fn make_root(root: &Path) -> Result<()> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).is_file());
    let busybox = busybox.ok_or_else(|| {
        Error::new(Kind::Unsupported, "cannot find busybox for a root filesystem").hint("install busybox-static")
    })?;
    let what = || format!("cannot fill the root filesystem {}", root.display());
    for folder in ["", "bin", "dev", "etc", "proc", "root", "sys", "tmp"] {
        fs::create_dir(root.join(folder)).doing(Kind::Internal, what)?;
    }
    fs::copy(busybox, root.join("bin/busybox")).doing(Kind::Internal, what)?;
    for applet in ["sleep", "true"] {
        symlink("busybox", root.join("bin").join(applet)).doing(Kind::Internal, what)?;
    }
    Ok(())
}

/// The cgroup, in every hierarchy, that all but bowline's and those of the duty floor are made in. The latter's have one
/// of their own beside it, as deep as bowline's.
struct Cgroups(String);

impl Cgroups {
    fn of_duty(&self) -> String {
        format!("{}-duty", self.0)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let hierarchies = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let target = fields.next()?;
            fields.next()?.starts_with("cgroup").then_some(target)
        });
        for hierarchy in hierarchies {
            for name in [&self.0, &self.of_duty()] {
                remove_cgroup(&Path::new(hierarchy).join(name));
            }
        }
    }
}

/// Removes a cgroup with those below it; a busy one stays, and is seen.
fn remove_cgroup(path: &Path) {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    for folder in folders {
        remove_cgroup(&folder);
    }
    let _ = fs::remove_dir(path);
}
