//! One of the two FIFOs that Nomad makes for a task's output, and its reader, which may come and go.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, mknodat, open};

use crate::harness::eventually;

pub struct Fifo {
    path: PathBuf,
    reader: Option<Reader>,
    text: Arc<Mutex<Vec<u8>>>,
}

struct Reader {
    leaves: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn leave(self) {
        self.leaves.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic");
    }
}

impl Fifo {
    /// Makes one that nobody reads.
    pub(super) fn make(path: PathBuf) -> Fifo {
        let mode = Mode::from_raw_mode(0o600);
        mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).expect("the folder is writable");
        Fifo { path, reader: None, text: Arc::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads on where a writer has left, without a moment in which nobody reads.
    pub(super) fn read_on(&mut self) {
        if let Some(before) = self.reader.take() {
            self.read();
            before.leave();
        }
    }

    /// Begins to read, as a new process of Nomad's does.
    pub fn read(&mut self) {
        self.stop_reading();
        // Without waiting for who writes. That nobody has written yet is no end: see pipe_poll in the kernel.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let end = open(&self.path, flags, Mode::empty()).expect("it is there");
        let leaves = Arc::new(AtomicBool::new(false));
        let (told, text) = (leaves.clone(), self.text.clone());
        let thread = std::thread::spawn(move || read(end, &told, &text));
        self.reader = Some(Reader { leaves, thread });
    }

    /// The reader goes away, whatever there is to read.
    pub fn stop_reading(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.leave();
        }
    }

    /// Whether its reader has left, as it has read to the end.
    pub(super) fn is_left(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.thread.is_finished())
    }

    /// What was read so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().expect("nobody panics with it")).into_owned()
    }

    /// How many bytes were read so far.
    pub fn length(&self) -> usize {
        self.text.lock().expect("nobody panics with it").len()
    }

    /// Waits until `text` was read.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        eventually(format_args!("{text:?} in {}, where {:?} is", self.path.display(), self.said()), || {
            self.said().contains(text).then_some(())
        });
    }

    /// All that was written, once nobody can write any more.
    #[track_caller]
    pub fn all(&self) -> String {
        let reader = self.reader.as_ref().expect("somebody reads");
        eventually(format_args!("the end of {}", self.path.display()), || reader.thread.is_finished().then_some(()));
        self.said()
    }
}

fn read(end: OwnedFd, leaves: &AtomicBool, text: &Mutex<Vec<u8>>) {
    const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let mut end = File::from(end);
    let mut chunk = vec![0; 64 * 1024];
    while !leaves.load(Ordering::Relaxed) {
        if poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&LOOK)) != Ok(1) {
            continue;
        }
        match end.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => text.lock().expect("nobody panics with it").extend_from_slice(&chunk[..length]),
            // Somebody else was there first.
            Err(_) => {}
        }
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        self.stop_reading();
    }
}
