//! The host's journal as a log: an entry for each line, by journald's native protocol.
//!
//! ```text
//!   piece ─► NAME=value lines ─► datagram ─► /run/systemd/journal/socket
//!                  └─ too large for a datagram ─► sealed memfd ─┘
//! ```
//!
//! The protocol is systemd's "Native Journal Protocol"; shared field names are those of Docker's driver. The socket
//! never blocks. While journald is slow the shim waits at most once. After a wait that fails, lines are dropped until
//! an entry is accepted again. Must not: split lines.

use std::fs::File;
use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bowline_error::{Error, Kind, Result};
use bowline_model::log_line::LogStream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, send, sendmsg, socket_with,
};

use super::batch::Batch;

const SOCKET: &str = "/run/systemd/journal/socket";

/// The most bytes of a line that are one entry.
pub const PIECE: usize = 256 * 1024;

/// How long journald may take to make room.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Journal {
    /// The fields that every entry has, encoded.
    fields: Vec<u8>,
    socket: Option<OwnedFd>,
    /// Whether the last wait for journald was in vain.
    is_stuck: bool,
    /// How many of the task's bytes are missing and not noted yet.
    pub lost: u64,
}

impl Journal {
    /// The journal for the task `id` in the state folder `state`.
    pub fn of(id: &str, state: &Path) -> Journal {
        let mut fields = Vec::new();
        let state = state.to_string_lossy();
        let all = [
            ("SYSLOG_IDENTIFIER", id),
            ("CONTAINER_NAME", id),
            ("CONTAINER_ID", id),
            ("BOWLINE_TASK", id),
            ("BOWLINE_STATE", &state),
        ];
        all.iter().for_each(|(name, value)| push(&mut fields, name, value.as_bytes()));
        Journal { fields, socket: None, is_stuck: false, lost: 0 }
    }

    /// Connects to journald.
    ///
    /// # Errors
    /// `Unsupported` where none listens.
    pub fn open(&mut self) -> Result<()> {
        let socket = connected().map_err(|errno| {
            Error::new(Kind::Unsupported, format!("cannot reach the journal at {SOCKET}: {errno}"))
                .in_field("log")
                .hint("see whether systemd-journald runs, or keep the output in files by --log json")
        })?;
        self.socket = Some(socket);
        Ok(())
    }

    /// Sends an entry for each piece of `batch`. Returns how many of the task's bytes were dropped.
    pub fn append(&mut self, stream: LogStream, batch: &Batch) -> u64 {
        for index in 0..batch.pieces() {
            // The note goes first: the missing bytes came before this batch.
            if !(self.note() && self.send(&self.entry(stream, batch.bytes(index, 1))).is_ok()) {
                let dropped = batch.payload(index);
                self.lost += dropped;
                return dropped;
            }
        }
        0
    }

    /// Sends a note of missing bytes, if there are any; false if that fails.
    pub fn note(&mut self) -> bool {
        if self.lost == 0 {
            return true;
        }
        let lost = self.lost.to_string();
        let mut entry = self.fields.clone();
        push(&mut entry, "PRIORITY", b"4");
        push(&mut entry, "BOWLINE_DROPPED", lost.as_bytes());
        push(&mut entry, "MESSAGE", format!("{lost} bytes of output are missing here").as_bytes());
        if self.send(&entry).is_err() {
            return false;
        }
        self.lost = 0;
        true
    }

    fn entry(&self, stream: LogStream, piece: &[u8]) -> Vec<u8> {
        let (text, is_whole) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
        let mut entry = Vec::with_capacity(self.fields.len() + text.len() + 128);
        entry.extend_from_slice(&self.fields);
        // As systemd has it for what services write: informational, and an error (sd-daemon(3)).
        let priority = match stream {
            LogStream::Stdout => "6",
            LogStream::Stderr => "3",
        };
        push(&mut entry, "PRIORITY", priority.as_bytes());
        push(&mut entry, "BOWLINE_STREAM", stream.as_str().as_bytes());
        if !is_whole {
            push(&mut entry, "CONTAINER_PARTIAL_MESSAGE", b"true");
        }
        push(&mut entry, "MESSAGE", text);
        entry
    }

    fn send(&mut self, entry: &[u8]) -> rustix::io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut is_new = false;
        loop {
            let socket = match self.socket.take() {
                Some(socket) => socket,
                None => {
                    is_new = true;
                    connected()?
                }
            };
            let sent = send_on(&socket, entry);
            match sent {
                // journald was replaced: another socket may be there.
                Err(Errno::CONNREFUSED | Errno::NOTCONN | Errno::PIPE | Errno::CONNRESET) if !is_new => continue,
                Err(Errno::AGAIN) if !self.is_stuck => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.is_stuck = left.is_zero() || !has_room(&socket, left);
                    self.socket = Some(socket);
                    continue;
                }
                Err(Errno::INTR) => {
                    self.socket = Some(socket);
                    continue;
                }
                sent => {
                    self.socket = Some(socket);
                    self.is_stuck &= sent.is_err();
                    return sent;
                }
            }
        }
    }
}

/// Adds a field: a line, or, if its value has several, its length and its bytes.
fn push(entry: &mut Vec<u8>, name: &str, value: &[u8]) {
    entry.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value);
    entry.push(b'\n');
}

fn connected() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(SOCKET)?)?;
    Ok(socket)
}

/// Waits until the socket takes a datagram, at most for `time`.
fn has_room(socket: &OwnedFd, time: Duration) -> bool {
    let wait = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    matches!(poll(&mut fds, Some(&wait)), Ok(1..) | Err(Errno::INTR))
}

fn send_on(socket: &OwnedFd, entry: &[u8]) -> rustix::io::Result<()> {
    match send(socket, entry, SendFlags::NOSIGNAL) {
        Err(Errno::MSGSIZE | Errno::NOBUFS) => send_by_file(socket, entry),
        sent => sent.map(drop),
    }
}

/// Sends an entry in a file in memory, which journald takes only if nobody can change it any more.
fn send_by_file(socket: &OwnedFd, entry: &[u8]) -> rustix::io::Result<()> {
    let mut file = File::from(memfd_create("journal-entry", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    let written = file.write_all(entry);
    written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [file.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(&[])], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_several_lines_has_its_length() {
        let mut entry = Vec::new();
        push(&mut entry, "A", b"b");
        push(&mut entry, "C", b"d\ne");
        assert_eq!(entry, b"A=b\nC\n\x03\0\0\0\0\0\0\0d\ne\n");
    }

    #[test]
    fn an_entry_has_the_tasks_fields_and_its_streams_priority() {
        let journal = Journal::of("web", Path::new("/run/bowline"));
        let text = |stream, piece: &[u8]| String::from_utf8(journal.entry(stream, piece)).expect("text");
        let of_task = "SYSLOG_IDENTIFIER=web\nCONTAINER_NAME=web\nCONTAINER_ID=web\nBOWLINE_TASK=web\n\
                       BOWLINE_STATE=/run/bowline\n";
        let whole = format!("{of_task}PRIORITY=6\nBOWLINE_STREAM=stdout\nMESSAGE=ready\n");
        assert_eq!(text(LogStream::Stdout, b"ready\n"), whole);
        let part =
            format!("{of_task}PRIORITY=3\nBOWLINE_STREAM=stderr\nCONTAINER_PARTIAL_MESSAGE=true\nMESSAGE=a par\n");
        assert_eq!(text(LogStream::Stderr, b"a par"), part);
    }
}
