//! One test's host: a state folder, ids and a marker of its own, and eyes for everything that bowline does to the machine.
//!
//! ```no_run
//! let host = bowline_tests::Host::new();
//! let task = host.task("trap '' TERM; echo ready; while :; do sleep 1; done").start();
//! task.wait_for_line("ready"); // a fact, never a time
//! task.stop(["--grace=200ms"]).assert_killed_by("KILL");
//! drop(host); // asserts that nothing is left
//! ```
//!
//! Everything a test makes has its prefix in its name, so that tests run side
//! by side and what is left can be found: in command lines, environments,
//! cgroups, mounts, sockets and file names.

mod alone;
pub mod bus;
pub mod containerd;
pub mod cri;
mod daemon;
mod elsewhere;
pub mod host_units;
mod kernel;
mod leftovers;
mod limits;
pub mod machine_code;
pub mod metrics;
pub mod nomad;
pub mod oci;
mod process;
mod pty;
mod ran;
mod root;
mod sandbox;
mod screen;
mod storm;
mod systemd;
mod task;
mod trace;
pub mod versions;

pub use daemon::Daemon;
pub use elsewhere::Elsewhere;
pub use kernel::{
    assert_cgroup_is, assert_cgroup_is_below, cgroup_of, child_pids, children_of, disk, fds_of, hierarchies, hierarchy,
    holders_of, is_frozen, lacks, name_of, namespace_of, only_v2, process_exists, set_frozen, status_lines, take_lock,
    unix_sockets, wait_for_its_cgroup,
};
pub use limits::{Limits, weight};
pub use process::Process;
pub use pty::Pty;
pub use ran::Ran;
pub use root::{Root, Tmpfs};
pub use sandbox::{Sandbox, SandboxBuild};
pub use screen::{COLUMNS, ROWS, Screen};
pub use storm::storm;
pub use systemd::{
    Installed, assert_forgotten, assert_no_unit_files, assert_shows, has_systemd, lacks_systemd, show, systemctl,
};
pub use task::{Build, Report, Task, WRITER, touch};
pub use trace::{Trace, calls_of_ours, trace};

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a fact may take to come about, unless a machine is slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// After this long a fact that has not come about is taken for one that never
/// will: PATIENCE, or `BOWLINE_TEST_PATIENCE` where a machine is slow.
pub fn patience() -> Duration {
    let asked = std::env::var("BOWLINE_TEST_PATIENCE").ok().and_then(|seconds| seconds.parse().ok());
    asked.map_or(PATIENCE, Duration::from_secs)
}

/// Whether this machine is so slow that it asks for more patience.
pub fn is_slow() -> bool {
    patience() > PATIENCE
}

/// How many bytes are much: a gigabyte; less where the machine is slow.
pub fn much() -> u64 {
    if is_slow() { 64_000_000 } else { 1_000_000_000 }
}

/// Waits until `fact` gives something.
///
/// The only place of the suite where time passes: for facts that announce
/// themselves by no event, such as a line in a file or a cgroup that goes.
#[track_caller]
pub fn eventually<T>(what: impl std::fmt::Display, mut fact: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        let asked = Instant::now();
        if let Some(found) = fact() {
            return found;
        }
        assert!(started.elapsed() < patience(), "never came about: {what}");
        // A look that takes long, as on an emulated processor, must not keep the fact itself from its time.
        std::thread::sleep(Duration::from_millis(5).max(asked.elapsed()));
    }
}

/// Says that a test was not run, past the test runner's capture, and why; an
/// error in CI, where nothing may be missing.
pub fn skip(reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot be tested here: {reason}");
    skip_version(reason);
}

/// Like [`skip`], for a test of another version of a program than this host's: CI has that one elsewhere.
pub fn skip_version(reason: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    // The runner captures print macros only. A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED {name}: {reason}");
}

/// Whether the shims of this run drop their futures at random and make them again: then an idle one wakes up for that.
pub fn makes_futures_again() -> bool {
    std::env::var_os("BOWLINE_REMADE").is_some()
}

/// One of the binaries under test: in `BOWLINE_BIN_DIR`, or where cargo put it.
pub fn binary(name: &str) -> PathBuf {
    let Some(folder) = std::env::var_os("BOWLINE_BIN_DIR") else { return beside_tests(name) };
    let path = Path::new(&folder).join(name);
    assert!(path.exists(), "{} is missing: build it with `make build`", path.display());
    path
}

/// Whether the binaries under test are debug ones: those check each fd, can take what the kernel has for absent, and are ten
/// times as large.
pub fn is_debug() -> bool {
    const DEBUG: u64 = 20_000_000;
    fs::metadata(binary("bowline-shim")).expect("it is there").len() >= DEBUG
}

/// A program that cargo has built with the tests, wherever the binaries under test are.
#[track_caller]
pub fn beside_tests(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folders = test.ancestors().skip(1).take(2);
    let path = folders.map(|folder| folder.join(name)).find(|path| path.exists());
    path.unwrap_or_else(|| panic!("{name} is missing: build it with `make debug`"))
}

/// Copies a binary under test to `to`.
#[track_caller]
pub fn copy_binary(name: &str, to: &Path) {
    copy_program(&binary(name), to);
}

/// Copies what will be executed. By another program: what another case starts
/// meanwhile would have the file open for writing, and it could not be executed.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().expect("coreutils");
    assert!(copied.success(), "cannot copy {} to {}", from.display(), to.display());
}

/// Writes a program, such as a script. By another program, as [`copy_program`] does.
#[track_caller]
pub fn write_program(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut writer = shell.spawn().expect("a shell");
    writer.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    assert!(writer.wait().expect("a child").success(), "cannot write {}", path.display());
}

pub struct Host {
    dir: TempDir,
    prefix: String,
    next: Cell<u32>,
    /// Ids of tasks that ran, whose folders may stay until `rm`.
    ran: Rc<RefCell<Vec<String>>>,
    /// Ids of sandboxes that were made.
    sandboxes: Rc<RefCell<Vec<String>>>,
    transcript: Rc<RefCell<Vec<String>>>,
    checked: Cell<bool>,
    /// What a part of the harness takes down before the test ends.
    at_end: RefCell<Vec<Box<dyn FnOnce()>>>,
    /// Folders that are removed in the end, once they are empty: nobody else does.
    parents: RefCell<Vec<PathBuf>>,
    /// Paths with another name that must not be there in the end.
    must_go: RefCell<Vec<PathBuf>>,
    /// Last, so that all of the above is gone by the time another case runs.
    _turn: alone::Turn,
}

impl Host {
    /// A host of which nothing is known yet.
    ///
    /// Without root the whole test binary ends here, with a visible skip.
    #[allow(clippy::new_without_default, reason = "a test says what it does")]
    pub fn new() -> Host {
        Host::at_turn(alone::Turn::beside_others())
    }

    /// A host on which no other case runs meanwhile: for one that measures time or the whole machine.
    pub fn alone() -> Host {
        Host::at_turn(alone::Turn::alone())
    }

    fn at_turn(turn: alone::Turn) -> Host {
        if !rustix::process::geteuid().is_root() {
            skip("namespaces and cgroups need root");
            std::process::exit(0);
        }
        let dir = tempfile::Builder::new().prefix("bl-").rand_bytes(6).tempdir_in("/tmp").expect("a folder in /tmp");
        // A user namespace's root must be able to pass.
        let _ = rustix::fs::chmod(dir.path(), rustix::fs::Mode::from_raw_mode(0o755));
        let prefix = dir.path().file_name().and_then(OsStr::to_str).expect("ASCII").to_owned();
        fs::create_dir(dir.path().join("w")).expect("a work folder");
        Host {
            dir,
            prefix,
            next: Cell::new(0),
            ran: Rc::default(),
            sandboxes: Rc::default(),
            transcript: Rc::default(),
            checked: Cell::new(false),
            at_end: RefCell::default(),
            parents: RefCell::default(),
            must_go: RefCell::default(),
            _turn: turn,
        }
    }

    /// containerd, as far as a shim sees it.
    pub fn containerd(&self) -> containerd::Containerd<'_> {
        self.own_parents();
        containerd::Containerd::new(self)
    }

    /// A containerd of the test's own, where containerd is installed: else the test says so and is over.
    pub fn daemon(&self) -> Option<Daemon<'_>> {
        self.daemon_of(&self.prefix, None)
    }

    /// Like [`Self::daemon`], with this namespace, and with Kubernetes' services if they have settings.
    pub(crate) fn daemon_of(&self, namespace: &str, kubernetes: Option<&str>) -> Option<Daemon<'_>> {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&paths).any(|folder| folder.join("containerd").exists()) {
            self.not_here("containerd is not installed (`make test` does)");
            return None;
        }
        self.own_parents();
        Some(Daemon::start(self, namespace, kubernetes))
    }

    /// The test is over, as it cannot be run on this host: says why.
    pub(crate) fn not_here(&self, reason: &str) {
        self.checked.set(true);
        skip(reason);
    }

    /// Whether containerd's own shim is tested, which fails here: says why, and the test is over.
    pub fn reference_fails(&self, why: &str) -> bool {
        if containerd::is_reference() {
            self.checked.set(true);
            let name = std::thread::current().name().unwrap_or("test").to_owned();
            // Past the runner's capture, as a skip is.
            let _ = writeln!(std::io::stderr().lock(), "REFERENCE FAILS {name}: {why}");
        }
        containerd::is_reference()
    }

    /// Skips a test that checks its own requirements.
    pub fn not_tested(&self, reason: &str) {
        self.not_here(reason);
    }

    /// Does this before it is looked for what is left.
    pub(crate) fn at_end(&self, then: impl FnOnce() + 'static) {
        self.at_end.borrow_mut().push(Box::new(then));
    }

    /// Keeps something until the end.
    pub(crate) fn keep(&self, thing: impl Sized + 'static) {
        self.at_end(move || drop(thing));
    }

    /// Managers leave the parents of cgroups and of runc's state: in the end they are removed if nothing is in them.
    fn own_parents(&self) {
        let mut parents = self.parents.borrow_mut();
        parents.extend(hierarchies().into_iter().map(|(_, mount)| mount.join(&self.prefix)));
        parents.push(Path::new("/run/containerd/runc").join(&self.prefix));
    }

    /// In the end there must be nothing with this in its name, which something else has made up.
    pub(crate) fn must_go_by_name(&self, name: &str) {
        self.ran.borrow_mut().push(name.to_owned());
    }

    /// In the end there must be nothing at `path`.
    pub(crate) fn must_go(&self, path: impl Into<PathBuf>) {
        self.must_go.borrow_mut().push(path.into());
    }

    fn end(&self) {
        let things = std::mem::take(&mut *self.at_end.borrow_mut());
        things.into_iter().for_each(|then| then());
    }

    /// What everything of this test has in its name.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The state folder; bowline makes it.
    pub fn state(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// What a task or a sandbox of this host's state folder is called outside it: by its id and the state folder, which
    /// is made for that.
    #[track_caller]
    pub fn named(&self, id: &str) -> String {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.state()).expect("ours");
        let state = fs::metadata(self.state()).expect("it is there");
        format!("{id}.{:x}.{:x}", state.dev(), state.ino())
    }

    /// A folder for what the test itself needs; goes with the host.
    pub fn work(&self) -> PathBuf {
        self.dir.path().join("w")
    }

    /// An id that no other task has.
    pub fn new_id(&self) -> String {
        self.next.set(self.next.get() + 1);
        format!("{}-{}", self.prefix, self.next.get())
    }

    /// Writes a file in the work folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.work().join(name);
        fs::write(&path, text).expect("the work folder is writable");
        path
    }

    /// A command with this host's marker and state folder, on which every signal has its default effect.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = if kernel::ignores_signals() {
            // A background job of a shell without job control ignores SIGINT, and so would all that it starts.
            let mut env = Command::new("env");
            env.arg("--default-signal").arg(program);
            env
        } else {
            Command::new(program)
        };
        command.env("BOWLINE_TEST", &self.prefix).env("BOWLINE_STATE", self.state());
        command
    }

    /// Starts `bowline` with `args`; both streams are read from the start.
    pub fn spawn<I: IntoIterator<Item: AsRef<OsStr>>>(&self, args: I) -> Process {
        let process = self.spawn_unread(args);
        process.read_stdout();
        process.read_stderr();
        process
    }

    /// Starts `bowline` with `args`; its output is read once the test says so.
    pub fn spawn_unread<I: IntoIterator<Item: AsRef<OsStr>>>(&self, args: I) -> Process {
        let mut command = self.command(binary("bowline"));
        command.args(args);
        self.spawn_command(command)
    }

    /// Starts any command; its output is read once the test says so.
    pub fn spawn_command(&self, mut command: Command) -> Process {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Process::spawn(command, self.transcript.clone())
    }

    /// Starts any command with these for stdin and stdout.
    pub fn spawn_command_with(&self, mut command: Command, stdin: OwnedFd, stdout: OwnedFd) -> Process {
        command.stdin(stdin).stdout(stdout);
        Process::spawn(command, self.transcript.clone())
    }

    /// Starts `bowline` with `args` in a terminal of its own.
    pub fn in_terminal<I: IntoIterator<Item: AsRef<OsStr>>>(&self, args: I) -> Pty {
        let mut command = self.command(binary("bowline"));
        command.args(args);
        Pty::run(self, &command)
    }

    /// Starts any command in a terminal of its own.
    pub fn command_in_terminal(&self, command: &Command) -> Pty {
        Pty::run(self, command)
    }

    /// Runs `bowline` with `args` to its end.
    pub fn bowline<I: IntoIterator<Item: AsRef<OsStr>>>(&self, args: I) -> Ran {
        self.spawn(args).finish()
    }

    /// Runs `bowline` with `args` where, on v1, nobody can be moved to the top of the freezer hierarchy: who is frozen
    /// with a parent of its cgroup cannot be ended there.
    pub fn bowline_that_frees_nobody(&self, args: &[&str]) -> Ran {
        if only_v2() {
            return self.bowline(args);
        }
        let top = hierarchy("freezer").join("cgroup.procs");
        let script = format!("mount --bind /dev/full {} && exec \"$@\"", top.display());
        let mut command = self.command("unshare");
        command.args(["--mount", "--propagation=private", "/bin/sh", "-c", &script, "sh"]);
        command.arg(binary("bowline")).args(args);
        self.execute(command)
    }

    /// Runs any command to its end.
    pub fn execute(&self, command: Command) -> Ran {
        self.spawn_command(command).finish()
    }

    /// A task that runs `script` in a shell, with the host view as its root.
    pub fn task(&self, script: &str) -> Build<'_> {
        self.task_of(["/bin/sh", "-c", script])
    }

    /// A task that runs `command`.
    pub fn task_of<const N: usize>(&self, command: [&str; N]) -> Build<'_> {
        Build::new(self, command.map(str::to_owned).to_vec())
    }

    /// A task of exactly this description.
    pub fn described(&self, toml: &str) -> Build<'_> {
        Build::new(self, Vec::new()).toml(toml)
    }

    /// A sandbox, which tasks join by `in_sandbox`.
    pub fn sandbox(&self) -> SandboxBuild<'_> {
        SandboxBuild::new(self)
    }

    /// The task `id`, which something else has launched.
    pub fn adopt(&self, id: impl Into<String>) -> Task<'_> {
        let id = id.into();
        self.ran.borrow_mut().push(id.clone());
        Task::new(self, id)
    }

    /// The sandbox `id`, which something else has made.
    pub fn adopt_sandbox(&self, id: &str) -> Sandbox<'_> {
        self.sandboxes.borrow_mut().push(id.to_owned());
        Sandbox::new(self, id.to_owned())
    }

    /// A root filesystem of busybox alone.
    pub fn busybox_root(&self) -> Root {
        Root::busybox(self.work().join(format!("root-{}", self.new_id())))
    }

    /// A cgroup in every hierarchy that is none of bowline's.
    pub fn elsewhere(&self, name: &str) -> Elsewhere {
        Elsewhere::make(self, name)
    }

    /// The cgroup at `path`, which something else makes.
    pub fn cgroup(&self, path: &str) -> Elsewhere {
        Elsewhere::at(self, path)
    }

    /// An empty filesystem with these mount options, until it is dropped.
    pub fn tmpfs(&self, name: &str, options: &str) -> Tmpfs {
        Tmpfs::mount(self.work().join(name), options)
    }

    /// An empty folder on a disk, which `/tmp` need not be on, until the end; none where `/var/tmp` is in memory too: the
    /// test says so and is over.
    pub fn on_disk(&self) -> Option<PathBuf> {
        /// The type of a tmpfs in statfs(2), from include/uapi/linux/magic.h.
        const IN_MEMORY: u32 = 0x0102_1994;
        let folder =
            tempfile::Builder::new().prefix(&self.prefix).tempdir_in("/var/tmp").expect("a folder in /var/tmp");
        let path = folder.path().to_owned();
        if rustix::fs::statfs(&path).expect("it was made").f_type as u32 == IN_MEMORY {
            self.not_here("/var/tmp is on no disk");
            return None;
        }
        self.keep(folder);
        Some(path)
    }

    /// What of this test is on the machine now, a line each: `process …`,
    /// `cgroup …`, `mount …`, `socket …`, `file …`, `state …`.
    pub fn all_of_it(&self) -> Vec<String> {
        leftovers::find(&self.names(), self.dir.path(), &self.state())
    }

    /// Removes what ran and sandboxes, then compares with how it was before: no process, no
    /// cgroup, no mount, no network namespace, no socket, no file of this test.
    /// Every test ends with it, as the host is dropped.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        self.checked.set(true);
        for id in self.ran.borrow().iter().filter(|id| self.state().join(id).exists()) {
            self.bowline(["rm", id]).assert_code(0);
        }
        // Those whose members still run are not removed, as no task is that runs.
        for id in self.sandboxes.borrow().iter().filter(|id| self.state().join(id).exists()) {
            self.bowline(["sandbox", "rm", id]).assert_code(0);
        }
        self.assert_nothing_left_without_rm();
    }

    /// Asserts that nothing is left, without removing anything first.
    #[track_caller]
    pub fn assert_nothing_left_without_rm(&self) {
        self.checked.set(true);
        self.end();
        let names = self.names();
        let mut left = Vec::new();
        let started = Instant::now();
        let clean = eventually("an answer", || {
            for parent in self.parents.borrow().iter() {
                // An error means that it was never there, or that something is left in it.
                let _ = fs::remove_dir(parent);
            }
            left = leftovers::find(&names, self.dir.path(), &self.state());
            let there = self.must_go.borrow().iter().filter(|path| path.exists()).cloned().collect::<Vec<_>>();
            left.extend(there.iter().map(|path| format!("file {}", path.display())));
            let over = started.elapsed() > patience() / 3;
            (left.is_empty() || over).then_some(left.is_empty())
        });
        assert!(clean, "left behind:\n  {}", left.join("\n  "));
    }

    /// What marks things of this test: its prefix, and ids that bowline made up.
    fn names(&self) -> Vec<String> {
        let (ran, sandboxes) = (self.ran.borrow(), self.sandboxes.borrow());
        let made_up = ran.iter().chain(sandboxes.iter()).filter(|id| !id.starts_with(&self.prefix)).cloned();
        let names: Vec<String> = std::iter::once(self.prefix.clone()).chain(made_up).collect();
        leftovers::with_units(names)
    }

    /// Everything that helps to understand a failure.
    fn diagnosis(&self) -> String {
        let mut text = String::from("\n=== commands\n");
        for line in self.transcript.borrow().iter() {
            text += line;
            text.push('\n');
        }
        for folder in fs::read_dir(self.state()).into_iter().flatten().flatten() {
            for name in ["task.json", "sandbox.json", "exit.json", "shim.log"] {
                let path = folder.path().join(name);
                if let Ok(content) = fs::read_to_string(&path) {
                    text += &format!("=== {}\n{}\n", path.display(), ran::shortened(content.as_bytes()));
                }
            }
        }
        text += "=== left\n";
        for thing in leftovers::find(&self.names(), self.dir.path(), &self.state()) {
            text += &format!("  {thing}\n");
        }
        text
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Host {
    /// Asserts that nothing is left, unless the test did so, and removes what a failed test has left.
    fn drop(&mut self) {
        let failure = match (std::thread::panicking(), self.checked.get()) {
            (true, _) => None,
            (false, true) => return,
            (false, false) => match catch_unwind(AssertUnwindSafe(|| self.assert_nothing_left())) {
                Ok(()) => return,
                Err(failure) => Some(failure),
            },
        };
        let diagnosis = self.diagnosis();
        #[allow(clippy::print_stderr, reason = "for the test runner to show with the failure")]
        {
            eprintln!("{diagnosis}");
        }
        leftovers::clean_up(&self.names(), self.path(), &self.must_go.borrow());
        self.end();
        if let Some(failure) = failure {
            resume_unwind(failure);
        }
    }
}
