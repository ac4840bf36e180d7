//! A person's terminal, with a command in it: what is typed, what is seen, and
//! how the terminal is set.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::{Host, Process, Ran, eventually};

/// A terminal in which a command runs, as its controlling terminal.
pub struct Pty {
    master: File,
    /// Kept open, so that what was written last can be read after the end.
    slave: OwnedFd,
    seen: Arc<Mutex<Vec<u8>>>,
    /// Reads what is shown, until `closing` is closed.
    reader: JoinHandle<()>,
    closing: OwnedFd,
    /// How it was set before the command ran.
    original: String,
    process: Process,
}

impl Pty {
    /// Runs `command` in a new terminal of 24 by 80; its stderr stays apart.
    pub(super) fn run(host: &Host, command: &Command) -> Pty {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("ours");
        unlockpt(&master).expect("ours");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).expect("its other end");
        resize(&master, 24, 80);
        let original = settings(&slave);
        // setsid makes it the controlling one, and becomes the command itself.
        let mut wrapped = host.command("setsid");
        wrapped.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(key, value),
                None => wrapped.env_remove(key),
            };
        }
        let end = || slave.try_clone().expect("an fd");
        let process = host.spawn_command_with(wrapped, end(), end());
        process.read_stderr();
        let master = File::from(master);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut read, shared) = (master.try_clone().expect("an fd"), seen.clone());
        let (closed, closing) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let reader = std::thread::spawn(move || {
            let mut chunk = vec![0; 64 * 1024];
            loop {
                let mut ready = [PollFd::new(&read, PollFlags::IN), PollFd::new(&closed, PollFlags::IN)];
                poll(&mut ready, None).expect("it may be watched");
                if !ready[1].revents().is_empty() {
                    return;
                }
                let Ok(length @ 1..) = read.read(&mut chunk) else { return };
                shared.lock().expect("nobody panics with it").extend_from_slice(&chunk[..length]);
            }
        });
        Pty { master, slave, seen, reader, closing, original, process }
    }

    /// Closes it under the command, as an ssh that breaks off does.
    pub fn hang_up(self) -> Process {
        drop(self.closing);
        self.reader.join().expect("it reads no more");
        self.process
    }

    pub fn type_keys(&self, keys: &str) {
        (&self.master).write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// All that was shown so far, with `\r\n` as `\n`.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().expect("nobody panics with it")).replace("\r\n", "\n")
    }

    /// Waits until it has shown `text`.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        self.wait_until(text, |seen| seen.contains(text));
    }

    /// Waits until what it has shown is as `what` says.
    #[track_caller]
    pub fn wait_until(&self, what: &str, test: impl Fn(&str) -> bool) {
        eventually(Awaited { text: what, on: self }, || test(&self.seen()).then_some(()));
    }

    /// Waits until keys are passed on raw.
    #[track_caller]
    pub fn wait_until_raw(&self) {
        let raw = |modes: &Termios| !modes.local_modes.contains(rustix::termios::LocalModes::ICANON);
        eventually("the terminal is raw", || raw(&self.modes()).then_some(()));
    }

    pub fn modes(&self) -> Termios {
        tcgetattr(&self.slave).expect("a terminal")
    }

    /// Whether it is set as it was before the command ran.
    pub fn is_restored(&self) -> bool {
        settings(&self.slave) == self.original
    }

    /// Gives its window another size.
    pub fn resize(&self, rows: u16, columns: u16) {
        resize(&self.master, rows, columns);
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Waits for the command's end; its stdout is what the terminal showed.
    #[track_caller]
    pub fn finish(self) -> Ran {
        let Pty { master, slave, seen, process, .. } = self;
        let mut ran = process.finish();
        // Once nobody has it open, its reader comes to an end, having read all.
        drop(slave);
        eventually("the terminal is closed", || (Arc::strong_count(&seen) == 1).then_some(()));
        drop(master);
        let shown = seen.lock().expect("nobody panics with it").clone();
        ran.stdout = String::from_utf8_lossy(&shown).replace("\r\n", "\n").into_bytes();
        ran
    }
}

/// Text that a terminal is to show, and what it shows instead once nobody waits any more.
struct Awaited<'a> {
    text: &'a str,
    on: &'a Pty,
}

impl fmt::Display for Awaited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on the terminal, which shows {:?}", self.text, self.on.seen())
    }
}

fn settings(fd: impl AsFd) -> String {
    format!("{:?}", tcgetattr(fd).expect("a terminal"))
}

fn resize(fd: impl AsFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(fd, size).expect("a terminal");
}
