//! Running a program of the host as a child of our own: hooks, loggers, helpers.
//!
//! ```text
//!   start ─clone─► child: fds, streams, folder ─► execve (its report closes)
//!     └► Started ─► executed ─► ended, or killed at the deadline
//! ```
//!
//! Not by `Command`, whose status the shim's sweep would take. In the shim the sweep reaps the
//! child, and the starter claims its end; a worker or a task's init waits for the child itself. A
//! worker of its own also finds the descendants that have left the program's session.
//! Signals go by pidfd alone. Must not: know what it runs or why, choose an environment.

mod said;
mod started;

pub use said::Said;
pub use started::{Outcome, Started};

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use bowline_cgroup::Entry;
use bowline_error::{Doing, Error, Kind, Result};
use bowline_sys::{self as sys, Cloned, Image};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::set_parent_process_death_signal;

use crate::process::inheritance;
use crate::process::worker::{self, Worker};

/// A program to run, and how to run it.
#[derive(Debug)]
pub struct Program<'a> {
    path: &'a Path,
    argv: Vec<CString>,
    envp: Vec<CString>,
    cwd: &'a Path,
    stdin: Option<OwnedFd>,
    captured: bool,
    fds: Vec<(BorrowedFd<'a>, RawFd)>,
    /// The cgroup that the program joins, and whether this is the root of its own namespace.
    cgroup: Option<(&'a Entry, bool)>,
    bound: bool,
    confined: bool,
    /// The seccomp filter, with its flags, that is loaded right before the program is executed.
    filter: Option<(&'a [u8], u64)>,
}

impl<'a> Program<'a> {
    /// The program at `path`, to be run in `/`, with nothing on its standard streams.
    ///
    /// # Errors
    /// `BadSpec` for a path that is not absolute, or a NUL in a string.
    pub fn new<A, E>(path: &'a Path, argv: A, envp: E) -> Result<Program<'a>>
    where
        A: IntoIterator<Item: AsRef<OsStr>>,
        E: IntoIterator<Item: AsRef<OsStr>>,
    {
        let text = |s: &OsStr| {
            let nul = || format!("cannot run {}: NUL in its arguments or environment", path.display());
            CString::new(s.as_bytes()).map_err(|_| Error::new(Kind::BadSpec, nul()))
        };
        if !path.is_absolute() {
            return Err(Error::new(Kind::BadSpec, format!("cannot run {:?}: it is not absolute", path.display())));
        }
        Ok(Program {
            path,
            argv: argv.into_iter().map(|a| text(a.as_ref())).collect::<Result<_>>()?,
            envp: envp.into_iter().map(|e| text(e.as_ref())).collect::<Result<_>>()?,
            cwd: Path::new("/"),
            stdin: None,
            captured: false,
            fds: Vec::new(),
            cgroup: None,
            bound: false,
            confined: false,
            filter: None,
        })
    }

    /// Runs the program in another folder.
    pub fn in_folder(mut self, cwd: &'a Path) -> Program<'a> {
        self.cwd = cwd;
        self
    }

    /// Lets the program read `bytes`, then the end. They come from a file in memory, so that the
    /// program need not read at all.
    pub fn reading(mut self, bytes: &[u8]) -> Result<Program<'a>> {
        let what = || "cannot make a file in memory";
        let mut file = File::from(memfd_create("stdin", MemfdFlags::CLOEXEC).doing(Kind::Internal, what)?);
        file.write_all(bytes).and_then(|()| file.rewind()).doing(Kind::Internal, what)?;
        self.stdin = Some(file.into());
        Ok(self)
    }

    /// Keeps the beginning and the end of what the program writes to stdout and stderr.
    pub fn captured(mut self) -> Program<'a> {
        self.captured = true;
        self
    }

    /// Gives the program `fd` as that number; 0 to 2 replace its standard streams.
    pub fn with_fd(mut self, fd: BorrowedFd<'a>, number: RawFd) -> Program<'a> {
        self.fds.push((fd, number));
        self
    }

    /// Runs the program in another cgroup; with `namespace`, this cgroup is the root of the
    /// program's own cgroup namespace.
    pub fn entering(mut self, entry: &'a Entry, namespace: bool) -> Program<'a> {
        self.cgroup = Some((entry, namespace));
        self
    }

    /// Kills the program when the thread that starts it ends, in whatever way.
    pub fn bound(mut self) -> Program<'a> {
        self.bound = true;
        self
    }

    /// Leaves the program the limits and the umask of its starter, which are the task's; with `filter`, its own loads
    /// that, for which it needs no right.
    pub fn confined(mut self, filter: Option<(&'a [u8], u64)>) -> Program<'a> {
        self.confined = true;
        self.filter = filter;
        self
    }

    /// Starts the program as a child of the shim or of a worker, which has one thread.
    pub fn start(&self) -> Result<Started> {
        self.start_by(|| sys::clone3(0, None))
    }

    /// Starts the program as a child of a task's init, which may be confined already.
    pub fn start_inside(&self) -> Result<Started> {
        self.start_by(sys::fork)
    }

    fn start_by(&self, clone: impl FnOnce() -> io::Result<Cloned>) -> Result<Started> {
        let path = self.path.display().to_string();
        let what = || format!("cannot start {path}");
        let (report, tell) = pipe_with(PipeFlags::CLOEXEC).doing(Kind::Internal, what)?;
        let output = self.captured.then(|| pipe_with(PipeFlags::CLOEXEC)).transpose().doing(Kind::Internal, what)?;
        let (output, writes) = output.map_or((None, None), |(read, write)| (Some(read), Some(write)));
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .doing(Kind::Internal, || "cannot open /dev/null")?;
        let starter = self.bound.then(rustix::process::getpid);
        match clone().doing(Kind::Internal, what)? {
            Cloned::Child => {
                if starter.is_some_and(|starter| worker::end_with(starter).is_err()) {
                    sys::exit_now(127);
                }
                let floor = self.fds.iter().map(|(_, number)| number + 1).max().unwrap_or(3).max(3);
                let tell = rustix::io::fcntl_dupfd_cloexec(&tell, floor).unwrap_or(tell);
                let error = self.become_it(&null, writes.as_ref(), &tell, floor);
                let _ = sys::write_fd(tell.as_raw_fd(), &serde_json::to_vec(&error).unwrap_or_default());
                sys::exit_now(127)
            }
            Cloned::Parent { pid, pidfd } => Ok(Started { pid, pidfd, path, report, output }),
        }
    }

    /// Runs in the child; returns only with the reason why the program could not be run.
    fn become_it(&self, null: &OwnedFd, writes: Option<&OwnedFd>, tell: &OwnedFd, floor: RawFd) -> Error {
        let out = writes.unwrap_or(null).as_fd();
        let mut fds = vec![(self.stdin.as_ref().unwrap_or(null).as_fd(), 0), (out, 1), (out, 2)];
        fds.extend(&self.fds);
        let in_place = self.enter().and_then(|()| place(&fds, tell, floor)).and_then(|()| {
            sys::default_signals(1..=64);
            if !self.confined {
                begin_afresh()?;
            }
            // A signal to our process group is not meant for the program.
            rustix::process::setsid()?;
            rustix::process::chdir(self.cwd).map_err(io::Error::from)
        });
        let error = match in_place {
            Ok(()) => self.execute(),
            Err(error) => error,
        };
        let kind = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Kind::CommandNotFound,
            Some(libc::EACCES | libc::EPERM | libc::ENOEXEC) => Kind::NotExecutable,
            _ => Kind::Internal,
        };
        Error::new(kind, format!("cannot run {}: {error}", self.path.display()))
    }

    /// After the filter is loaded, which may deny all else, only execve follows.
    fn execute(&self) -> io::Error {
        let image = Image::new(self.c_path(), self.argv.clone(), self.envp.clone());
        let loaded = self.filter.map_or(Ok(None), |(filter, flags)| sys::seccomp_load(filter, flags));
        loaded.err().unwrap_or_else(|| image.execute())
    }

    fn enter(&self) -> io::Result<()> {
        let Some((entry, namespace)) = self.cgroup else { return Ok(()) };
        entry.join()?;
        if namespace { sys::unshare(libc::CLONE_NEWCGROUP) } else { Ok(()) }
    }

    fn c_path(&self) -> CString {
        // A path with a NUL names no file.
        CString::new(self.path.as_os_str().as_bytes()).unwrap_or_default()
    }

    /// Runs the program in a worker, which kills it at the deadline, with all that descends from it: the worker is
    /// the parent of each process that loses its own. The worker's answer has the program's end. `clone` makes the worker.
    ///
    /// # Errors
    /// `Internal` when the worker cannot be started. Its answer: `Timeout` at the deadline; `CommandNotFound` or
    /// `NotExecutable` when the program cannot be run.
    pub fn run_apart(self, clone: worker::Clone, timeout: Duration) -> Result<Apart> {
        let program = self.bound();
        let (given_up, gives_up) = pipe_with(PipeFlags::CLOEXEC).doing(Kind::Internal, || "cannot make a pipe")?;
        let keep: Vec<RawFd> = program.stdin.iter().chain([&given_up]).map(|fd| fd.as_raw_fd()).collect();
        let worker = worker::start_apart("a program", clone, &keep, || {
            // The end of its starter, which closes the pipe, gives the program up too.
            set_parent_process_death_signal(None).doing(Kind::Internal, || "cannot outlive the starter")?;
            let own = Some(rustix::process::getpid());
            rustix::process::set_child_subreaper(own).doing(Kind::Internal, || "cannot become a subreaper")?;
            let outcome = program.start()?.finish_unless(timeout, Some(&given_up));
            if matches!(&outcome, Err(error) if matches!(error.kind(), Kind::Timeout | Kind::WrongState)) {
                started::kill_descendants();
            }
            outcome
        })?;
        Ok(Apart { worker, gives_up })
    }
}

/// A program that runs in a worker of its own.
pub struct Apart {
    worker: Worker<Outcome>,
    /// What is written here has the program killed.
    gives_up: OwnedFd,
}

impl Apart {
    /// Waits for the end of the program. Once `given_up` returns, the program is killed with all that descends from it.
    ///
    /// # Errors
    /// As [`Program::run_apart`]; `WrongState` for a program that was given up.
    pub async fn answer_unless(self, given_up: impl Future<Output = ()>) -> Result<Outcome> {
        let Apart { worker, gives_up } = self;
        let answer = worker.answer();
        tokio::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            () = given_up => {}
        }
        // The worker may have ended.
        let _ = rustix::io::write(&gives_up, &[0]);
        answer.await
    }

    /// Waits for the end of the program in a process that has no loop, and that nobody else reaps children of.
    pub fn answer_blocking(self) -> Result<Outcome> {
        self.worker.answer_blocking()
    }
}

/// Resets, in the calling process, what the shim has changed for itself.
fn begin_afresh() -> io::Result<()> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    for (resource, limit) in inheritance::limits() {
        rustix::process::setrlimit(*resource, *limit)?;
    }
    Ok(())
}

/// Puts each fd at its number, all below `floor`, and leaves nothing else open but `tell`, which is
/// at or above `floor`.
fn place(fds: &[(BorrowedFd<'_>, RawFd)], tell: &OwnedFd, floor: RawFd) -> io::Result<()> {
    // Duplicate the fds out of the way first: a source may be at a number where another fd goes.
    let aside = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, floor);
    let all: Vec<OwnedFd> = fds.iter().map(|(fd, _)| aside(*fd)).collect::<rustix::io::Result<_>>()?;
    for (fd, (_, number)) in all.iter().zip(fds) {
        sys::place_fd(fd.as_fd(), *number)?;
    }
    let mut keep: Vec<RawFd> = fds.iter().map(|(_, number)| *number).collect();
    keep.push(tell.as_raw_fd());
    // `close_all_but` closes them.
    std::mem::forget(all);
    sys::close_all_but(&mut keep);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::said::OUTPUT;
    use super::*;
    use crate::waits::claim::{Claim, End};
    use bowline_sys::Ended;

    const SHELL: &str = "/bin/sh";
    const LONG: Duration = Duration::from_secs(60);
    const NOTHING: [&str; 0] = [];

    /// Runs the program as a task's init does: the tests' threads do not matter there.
    fn run(program: &Program<'_>, timeout: Duration) -> Result<Outcome> {
        program.start_inside().and_then(|started| started.finish_blocking(timeout))
    }

    fn shell(script: &str) -> Program<'static> {
        Program::new(Path::new(SHELL), ["sh", "-c", script], ["A=b"]).expect("plain").captured()
    }

    #[test]
    fn it_has_what_it_was_given_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = tempfile::tempfile().expect("a file");
        let script = "read line; echo $line $A $PWD; echo five >&5; ls /proc/self/fd | tr '\\n' ' '";
        let program = shell(script).in_folder(dir.path()).reading(b"hello\n").expect("read");
        let outcome = run(&program.with_fd(file.as_fd(), 5), LONG).expect("it runs");
        let expected = format!("hello b {}\n0 1 2 3 5 ", dir.path().display());
        assert_eq!((outcome.ended, outcome.output), (Ended::Exited(0), expected));
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("readable");
        assert_eq!(text, "five\n");
    }

    #[test]
    fn fds_may_change_places() {
        let files = [3, 4].map(|_| tempfile::tempfile().expect("a file"));
        let [a, b] = &files;
        let (at_a, at_b) = (b.as_raw_fd(), a.as_raw_fd());
        let script = format!("echo a >/proc/self/fd/{at_a}; echo b >/proc/self/fd/{at_b}");
        let program = shell(&script).with_fd(a.as_fd(), at_a).with_fd(b.as_fd(), at_b);
        run(&program, LONG).expect("it runs").success("it").expect("well");
        for (mut file, expected) in files.into_iter().zip(["a\n", "b\n"]) {
            let mut text = String::new();
            file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("readable");
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn how_it_failed_is_told_with_what_it_said() {
        let outcome = run(&shell("echo no such bridge >&2; exit 3"), LONG).expect("it runs");
        let error = outcome.success("hook x").expect_err("it failed");
        assert_eq!(error.to_string(), "hook x failed: exit code 3: no such bridge");
        let outcome = run(&shell("kill -9 $$"), LONG).expect("it runs");
        assert_eq!(outcome.ended, Ended::Signaled(9));
    }

    #[test]
    fn one_that_cannot_be_run_is_an_error_of_its_own() {
        let missing = Program::new(Path::new("/nowhere/x"), ["x"], NOTHING).expect("plain");
        assert_eq!(run(&missing, LONG).map_err(|e| e.kind()), Err(Kind::CommandNotFound));
        let text = Program::new(Path::new("/etc/passwd"), ["x"], NOTHING).expect("plain");
        assert_eq!(run(&text, LONG).map_err(|e| e.kind()), Err(Kind::NotExecutable));
        let elsewhere = shell("true").in_folder(Path::new("/nowhere"));
        assert_eq!(run(&elsewhere, LONG).map_err(|e| e.kind()), Err(Kind::CommandNotFound));
        assert!(Program::new(Path::new("bin/x"), ["x"], NOTHING).is_err(), "not absolute");
    }

    #[test]
    fn it_is_killed_at_its_deadline_and_a_daemon_of_it_is_not_waited_for() {
        let late = run(&shell("exec sleep 1000"), Duration::from_millis(50));
        assert_eq!(late.map_err(|e| e.kind()), Err(Kind::Timeout));
        let outcome = run(&shell("sleep 3 & echo up"), LONG).expect("it ends");
        assert_eq!(outcome.output, "up\n");
    }

    #[test]
    fn after_its_end_no_more_is_read_than_is_there() {
        // A process that is left running may write faster than anybody reads.
        let ended = || {
            let started = shell("head -c 60000 /dev/zero; printf end").start_inside().expect("it starts");
            poll(&mut [PollFd::new(&started.pidfd, PollFlags::IN)], None).expect("it ends");
            let pipe = started.output.as_ref().expect("captured").try_clone().expect("a copy");
            (started, pipe)
        };
        let assert_rest = |outcome: &Outcome, pipe: &OwnedFd| {
            assert_eq!((outcome.ended, outcome.output.len()), (Ended::Exited(0), OUTPUT + " … ".len()));
            assert!(outcome.output.ends_with("\0\0\0end"));
            assert_eq!(rustix::io::ioctl_fionread(pipe).expect("a pipe"), 0);
        };
        let (started, pipe) = ended();
        assert_rest(&started.finish_blocking(LONG).expect("it ran"), &pipe);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (mut started, pipe) = ended();
            let end = reaped(started.pid);
            assert_rest(&started.finish(&end, LONG).await.expect("it ran"), &pipe);
        });
    }

    /// Waits for the end of the child and reports it as the sweep would.
    fn reaped(pid: i32) -> Claim {
        let claim = Claim::new(pid);
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
        let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        let code = status.expect("ours").expect("ended").1.exit_status().unwrap_or(255);
        claim.reaped(End::now(Ended::Exited(code)));
        claim
    }

    #[test]
    fn in_the_loop_its_end_is_claimed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let started = |script: &str| shell(script).start_inside().expect("it starts");
            let mut one = started("echo all of it; exit 4");
            let ended = reaped(one.pid);
            let outcome = one.finish(&ended, LONG).await.expect("it ran");
            assert_eq!((outcome.ended, &*outcome.output), (Ended::Exited(4), "all of it\n"));
            let mut late = started("exec sleep 1000");
            late.executed().await.expect("it runs");
            let error = late.finish(&Claim::new(late.pid), Duration::from_millis(20)).await.expect_err("late");
            assert_eq!(error.kind(), Kind::Timeout);
            reaped(late.pid);
        });
    }
}
