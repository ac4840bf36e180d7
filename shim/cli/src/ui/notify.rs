//! Messages for a service manager, as sd_notify(3) has them: our own, and those of a task.
//!
//! ```text
//!   the task ─ /dev/notify ─► a socket in the task's folder ─► what may pass ─► NOTIFY_SOCKET
//! ```
//!
//! systemd takes a message only from a process of the unit's cgroup, which a task is not in. The task is not trusted: it
//! cannot name the main process, store descriptors, or send more than a few messages at a time. Descriptors that come with a
//! message are dropped by the kernel as it is read, in a thread of its own: to close one may take long.

use std::fs::{Permissions, remove_file, set_permissions};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use bowline_model::folder::Folder;
use bowline_model::{Doing as _, Kind, Result};

/// The most bytes of a message, as for systemd.
const LONGEST: usize = 4096;
/// After a message the next is read: a task that sends more waits.
const PAUSE: Duration = Duration::from_millis(10);
/// How long what a task has sent before its end may take.
const LAST: Duration = Duration::from_secs(1);

/// How long a manager may take to make room for a message of ours.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// The socket in a task's folder.
const SOCKET: &str = "notify";

/// Passes a task's messages on until it is dropped.
pub struct Relay {
    socket: UnixDatagram,
    /// The task's, as it was then.
    folder: Folder,
    is_over: Arc<AtomicBool>,
    done: Receiver<()>,
}

impl Relay {
    /// Begins to pass on to `manager` what is sent to a socket in the task's folder, which every user of the task may write to.
    pub fn begin(folder: &Folder, manager: &SocketAddr) -> Result<Relay> {
        let path = folder.file(SOCKET);
        let what = || format!("cannot make the socket {}", path.display());
        let socket = UnixDatagram::bind(&path).doing(Kind::Internal, what)?;
        set_permissions(&path, Permissions::from_mode(0o666)).doing(Kind::Internal, what)?;
        let (from, to) = (socket.try_clone().doing(Kind::Internal, what)?, manager.clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let (tell, done) = channel();
        let over = is_over.clone();
        let relay = move || {
            pass(&from, &to, &over);
            drop(tell);
        };
        thread::Builder::new().spawn(relay).doing(Kind::Internal, || "cannot start a thread for a task's messages")?;
        Ok(Relay { socket, folder: folder.clone(), is_over, done })
    }

    /// Where the socket is.
    pub fn path(&self) -> String {
        self.folder.file(SOCKET).to_string_lossy().into_owned()
    }
}

impl Drop for Relay {
    /// Passes on what was sent before.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = self.socket.shutdown(Shutdown::Read);
        let _ = self.done.recv_timeout(LAST);
        // A later task of this name has a socket of its own.
        if self.folder.is_still_there() {
            let _ = remove_file(self.folder.file(SOCKET));
        }
    }
}

/// Tells the manager that a task runs, whose init is its main process from now on.
pub fn tell_started(manager: &SocketAddr, init: i32) -> Result<()> {
    let sent = UnixDatagram::unbound().and_then(|own| {
        own.set_write_timeout(Some(TAKEN_WITHIN))?;
        own.send_to_addr(format!("READY=1\nMAINPID={init}").as_bytes(), manager)
    });
    sent.map(drop).doing(Kind::Internal, || "cannot send to the service manager at NOTIFY_SOCKET")
}

fn pass(from: &UnixDatagram, to: &SocketAddr, is_over: &AtomicBool) {
    // A byte more shows that a message is too long.
    let mut message = [0; LONGEST + 1];
    loop {
        let length = match from.recv(&mut message) {
            // There is nothing more, or an empty message, which looks alike.
            Ok(0) if is_over.load(Ordering::Acquire) => match from.set_nonblocking(true) {
                Ok(()) => continue,
                Err(_) => return,
            },
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let passed = what_may_pass(&message[..length]);
        if !passed.is_empty() {
            // A manager that is not there any more misses it.
            let _ = from.send_to_addr(passed.as_bytes(), to);
        }
        if !is_over.load(Ordering::Acquire) {
            thread::sleep(PAUSE);
        }
    }
}

/// The lines of a message that a task may send. One that is too long says nothing.
fn what_may_pass(message: &[u8]) -> String {
    if message.len() > LONGEST {
        return String::new();
    }
    let lines = message.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines.filter(|line| may_pass(line)).collect::<Vec<_>>().join("\n")
}

fn may_pass(line: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match line.split_once('=') {
        Some(("READY" | "RELOADING" | "STOPPING", value)) => value == "1",
        Some(("WATCHDOG", value)) => matches!(value, "1" | "trigger"),
        Some(("ERRNO" | "MONOTONIC_USEC" | "EXTEND_TIMEOUT_USEC", value)) => is_number(value),
        // `systemctl status` prints it.
        Some(("STATUS", value)) => !value.contains(char::is_control),
        Some(_) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_units_own_does_not_pass() {
        let sent =
            b"MAINPID=1\nREADY=1\nFDSTORE=1\nFDNAME=a\nSTATUS=all is well, \xc3\xa9\nNOTIFYACCESS=all\nBARRIER=1\n\
            WATCHDOG=1\nWATCHDOG_USEC=5\nSTATUS=\x1b[2J\nERRNO=-2\nERRNO=2\nSTATUS=\xff\nREADY=2\n\0READY=1\nREADY";
        assert_eq!(what_may_pass(sent), "READY=1\nSTATUS=all is well, \u{e9}\nWATCHDOG=1\nERRNO=2");
        let reload = "RELOADING=1\nMONOTONIC_USEC=77\nEXTEND_TIMEOUT_USEC=9\nSTOPPING=1\nWATCHDOG=trigger";
        assert_eq!(what_may_pass(reload.as_bytes()), reload);
    }

    #[test]
    fn a_message_may_have_4096_bytes() {
        let status = |length: usize| format!("STATUS={}", "x".repeat(length - 7));
        assert_eq!(what_may_pass(status(LONGEST).as_bytes()), status(LONGEST));
        assert_eq!(what_may_pass(status(LONGEST + 1).as_bytes()), "");
    }
}
