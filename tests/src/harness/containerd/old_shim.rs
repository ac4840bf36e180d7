//! A shim of a version that knows none of the calls that came later.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use protobuf::Message as _;
use ttrpc::proto::{Code, Request, Response};

use super::wire::{RESPONSE, read_frame, write_frame};

/// Listens at the place of a socket, which comes back when this is dropped.
pub struct OldShim {
    socket: PathBuf,
    aside: PathBuf,
    listener: UnixListener,
    serves: Option<JoinHandle<()>>,
}

impl OldShim {
    /// Takes the place of the socket at `socket`, and refuses each call as one that it does not know.
    pub fn in_place_of(socket: &Path) -> OldShim {
        let aside = socket.with_extension("aside");
        fs::rename(socket, &aside).expect("there is a socket");
        let listener = UnixListener::bind(socket).expect("a free path");
        let accepts = listener.try_clone().expect("an fd");
        let serves = std::thread::spawn(move || {
            while let Ok((stream, _)) = accepts.accept() {
                refuse(&stream);
            }
        });
        OldShim { socket: socket.to_owned(), aside, listener, serves: Some(serves) }
    }
}

/// Refuses each call of a connection.
fn refuse(stream: &UnixStream) {
    while let Ok(frame) = read_frame(stream) {
        let request = Request::parse_from_bytes(&frame.content).expect("a request");
        let status = ttrpc::get_status(Code::UNIMPLEMENTED, format!("method {}", request.method));
        let response = Response { status: Some(status).into(), ..Default::default() };
        let response = response.write_to_bytes().expect("a whole message");
        if write_frame(stream, frame.stream, RESPONSE, &response).is_err() {
            return;
        }
    }
}

impl Drop for OldShim {
    fn drop(&mut self) {
        // Wakes the thread, which ends then.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let _ = self.serves.take().map(JoinHandle::join);
        let _ = fs::rename(&self.aside, &self.socket);
    }
}
