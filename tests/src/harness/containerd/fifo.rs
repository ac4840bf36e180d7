//! A task's streams as containerd's client has them: FIFOs, which it may leave and come back to.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use crate::harness::eventually;

const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

pub fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO in the work folder");
}

#[derive(Default)]
struct State {
    read: Mutex<Vec<u8>>,
    ended: AtomicBool,
    paused: AtomicBool,
    leaves: AtomicBool,
}

/// The reading end of a FIFO. Whoever drops it leaves.
pub struct Output {
    path: PathBuf,
    state: Arc<State>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    /// Opens the FIFO's reading end, and reads from now on.
    pub fn open(path: &Path) -> Output {
        Output::start(path, false)
    }

    /// Is there, and reads nothing until [`Output::resume`].
    pub fn open_paused(path: &Path) -> Output {
        Output::start(path, true)
    }

    fn start(path: &Path, paused: bool) -> Output {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag");
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).expect("a FIFO");
        let state = Arc::new(State { paused: AtomicBool::new(paused), ..State::default() });
        let shared = state.clone();
        let reader = std::thread::spawn(move || read(file, &shared));
        Output { path: path.to_owned(), state, reader: Some(reader) }
    }

    /// Reads nothing more, and stays.
    pub fn pause(&self) {
        self.state.paused.store(true, Ordering::SeqCst);
    }

    pub fn resume(&self) {
        self.state.paused.store(false, Ordering::SeqCst);
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.state.read.lock().expect("nobody panics with it").clone()
    }

    pub fn len(&self) -> usize {
        self.state.read.lock().expect("nobody panics with it").len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What has arrived, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Waits until `text` has arrived.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("text", || self.text().contains(text).then_some(()));
        }));
        assert!(found.is_ok(), "{text:?} never came at {}, but {:?}", self.path.display(), self.text());
    }

    /// Whether every writer has gone.
    pub fn has_ended(&self) -> bool {
        self.state.ended.load(Ordering::SeqCst)
    }

    /// All that came until every writer had gone.
    #[track_caller]
    pub fn to_end(&self) -> String {
        eventually(format_args!("the end of {}", self.path.display()), || self.has_ended().then_some(()));
        self.text()
    }

    /// Closes the reading end, and returns all that was read.
    pub fn leave(mut self) -> Vec<u8> {
        self.stop();
        self.bytes()
    }

    fn stop(&mut self) {
        self.state.leaves.store(true, Ordering::SeqCst);
        if let Some(reader) = self.reader.take() {
            reader.join().expect("a reader ends");
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.stop();
    }
}

fn read(mut file: File, state: &State) {
    let mut chunk = vec![0; 64 * 1024];
    while !state.leaves.load(Ordering::SeqCst) {
        if state.paused.load(Ordering::SeqCst) {
            // No event reports this; the test decides when.
            std::thread::sleep(std::time::Duration::from_millis(5));
            continue;
        }
        // Before the first writer has come, a FIFO does not hang up.
        let ready = poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&SOON));
        if ready != Ok(1) {
            continue;
        }
        match file.read(&mut chunk) {
            Ok(0) => {
                state.ended.store(true, Ordering::SeqCst);
                return;
            }
            Ok(length) => state.read.lock().expect("nobody panics with it").extend_from_slice(&chunk[..length]),
            Err(_) => {}
        }
    }
}

/// The writing end of a FIFO. Whoever drops it leaves.
pub struct Input(File);

impl Input {
    /// Opens it as soon as there is a reader.
    #[track_caller]
    pub fn open(path: &Path) -> Input {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag");
        let open = || OpenOptions::new().write(true).custom_flags(flags).open(path).ok();
        let file = eventually(format_args!("a reader of {}", path.display()), open);
        let blocking = rustix::fs::fcntl_getfl(&file).expect("an fd") - OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&file, blocking).expect("an fd");
        Input(file)
    }

    #[track_caller]
    pub fn write(&mut self, text: impl AsRef<[u8]>) {
        self.0.write_all(text.as_ref()).expect("there is a reader");
    }
}
