//! A command that runs: its output is read, or not, as the test wants.

use std::cell::RefCell;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use super::{Ran, eventually, patience};

type Pipe = Box<dyn Read + Send>;
type OnEnd = Box<dyn FnOnce(&Ran)>;

/// One stream of a process.
enum Stream {
    /// Nobody reads the pipe, so the process blocks once it is full.
    Unread(Pipe),
    /// It is read as it comes, to its end.
    Read { text: Arc<Mutex<Vec<u8>>>, reader: JoinHandle<()> },
    /// There is no pipe, or the test has closed its end.
    Closed,
}

impl Stream {
    fn read(&mut self) {
        match std::mem::replace(self, Stream::Closed) {
            Stream::Unread(mut pipe) => {
                let text = Arc::new(Mutex::new(Vec::new()));
                let shared = text.clone();
                let reader = std::thread::spawn(move || {
                    let mut chunk = vec![0; 64 * 1024];
                    while let Ok(length @ 1..) = pipe.read(&mut chunk) {
                        shared.lock().expect("nobody panics with it").extend_from_slice(&chunk[..length]);
                    }
                });
                *self = Stream::Read { text, reader };
            }
            other => *self = other,
        }
    }

    fn so_far(&self) -> Vec<u8> {
        match self {
            Stream::Read { text, .. } => text.lock().expect("nobody panics with it").clone(),
            Stream::Unread(_) | Stream::Closed => Vec::new(),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Stream::Read { reader, .. } => reader.is_finished(),
            Stream::Closed => true,
            Stream::Unread(_) => false,
        }
    }
}

/// A command that runs; killed if the test ends before it.
pub struct Process {
    child: Child,
    command: String,
    stdout: RefCell<Stream>,
    stderr: RefCell<Stream>,
    transcript: Rc<RefCell<Vec<String>>>,
    on_end: Option<OnEnd>,
}

impl Process {
    pub(super) fn spawn(mut command: Command, transcript: Rc<RefCell<Vec<String>>>) -> Process {
        let text = line(&command);
        command.stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {text}: {error}"));
        let stdout = child.stdout.take().map_or(Stream::Closed, |pipe| Stream::Unread(Box::new(pipe)));
        let stderr = child.stderr.take().map_or(Stream::Closed, |pipe| Stream::Unread(Box::new(pipe)));
        Process {
            child,
            command: text,
            stdout: RefCell::new(stdout),
            stderr: RefCell::new(stderr),
            transcript,
            on_end: None,
        }
    }

    pub(super) fn on_end(mut self, then: impl FnOnce(&Ran) + 'static) -> Process {
        self.on_end = Some(Box::new(then));
        self
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().expect("a pid")
    }

    /// Begins to read its stdout.
    pub fn read_stdout(&self) {
        self.stdout.borrow_mut().read();
    }

    /// Begins to read its stderr.
    pub fn read_stderr(&self) {
        self.stderr.borrow_mut().read();
    }

    /// Its stdout has no reader from now on. Only before it is read.
    pub fn close_stdout(&self) {
        *self.stdout.borrow_mut() = Stream::Closed;
    }

    /// Waits until its stdout contains `text`.
    #[track_caller]
    pub fn wait_for_out(&self, text: &str) {
        self.wait_for(&self.stdout, text);
    }

    /// What it has written to its stdout by now.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.stdout.borrow().so_far()).into_owned()
    }

    /// Whether its stdout contains `text` by now.
    pub fn has_said(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.stdout.borrow().so_far()).contains(text)
    }

    /// Waits until its stderr contains `text`.
    #[track_caller]
    pub fn wait_for_err(&self, text: &str) {
        self.wait_for(&self.stderr, text);
    }

    #[track_caller]
    fn wait_for(&self, stream: &RefCell<Stream>, text: &str) {
        stream.borrow_mut().read();
        eventually(format_args!("{text:?} in the output of `{}`", self.command), || {
            String::from_utf8_lossy(&stream.borrow().so_far()).contains(text).then_some(())
        });
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child that was not waited for");
    }

    /// Signals the process group that it leads.
    pub fn signal_group(&self, signal: Signal) {
        kill_process_group(Pid::from_child(&self.child), signal).expect("a child that was not waited for");
    }

    /// Reads what is not read yet and waits for its end.
    #[track_caller]
    pub fn finish(self) -> Ran {
        self.finish_within(patience())
    }

    /// As [`Process::finish`], for a command that has much to do: it may take as long as `most`.
    #[track_caller]
    pub fn finish_within(mut self, most: Duration) -> Ran {
        self.read_stdout();
        self.read_stderr();
        let ended = self.ended(most);
        let code = ended.then(|| self.child.wait().expect("a child").code());
        let over = |process: &Process| process.stdout.borrow().is_over() && process.stderr.borrow().is_over();
        if ended {
            let what = format!("the end of the output of `{}`, which has exited: who holds it open?", self.command);
            eventually(what, || over(&self).then_some(()));
        }
        let ran = Ran {
            command: self.command.clone(),
            code: code.flatten(),
            stdout: self.stdout.borrow().so_far(),
            stderr: self.stderr.borrow().so_far(),
        };
        self.transcript.borrow_mut().push(ran.to_string());
        assert!(ended, "still running after {most:?}\n{ran}");
        if let Some(then) = self.on_end.take() {
            then(&ran);
        }
        ran
    }

    /// Waits for its end; false if that does not come.
    fn ended(&self, most: Duration) -> bool {
        let pidfd = match pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) {
            // `is_running` has collected it.
            Err(rustix::io::Errno::SRCH) => return true,
            pidfd => pidfd.expect("a child"),
        };
        let deadline = Timespec { tv_sec: most.as_secs().try_into().expect("small"), tv_nsec: 0 };
        loop {
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&deadline)) {
                Err(rustix::io::Errno::INTR) => {}
                answer => return answer == Ok(1),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().chars().take(500).collect::<String>()).collect();
    words.join(" ")
}
