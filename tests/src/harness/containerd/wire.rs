//! ttrpc's frames, and a client that sends what it is told: any service by name, several calls at a time, broken
//! frames too. The generated client knows version 3 of the task service alone, and no bad manners.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::marker::PhantomData;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use protobuf::Message;
use ttrpc::proto::{Code, KeyValue, Request, Response};

use crate::harness::patience;

const REQUEST: u8 = 1;
pub(super) const RESPONSE: u8 = 2;

/// One frame: whose call, what kind, and its content.
pub(super) struct Frame {
    pub(super) stream: u32,
    pub(super) kind: u8,
    pub(super) content: Vec<u8>,
}

pub(super) fn read_frame(mut from: &UnixStream) -> io::Result<Frame> {
    let mut header = [0; 10];
    from.read_exact(&mut header)?;
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let mut content = vec![0; number(0) as usize];
    from.read_exact(&mut content)?;
    Ok(Frame { stream: number(4), kind: header[8], content })
}

pub(super) fn write_frame(mut to: &UnixStream, stream: u32, kind: u8, content: &[u8]) -> io::Result<()> {
    to.write_all(&frame(stream, kind, content))
}

fn frame(stream: u32, kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("a small message");
    let mut frame = Vec::with_capacity(10 + content.len());
    frame.extend(length.to_be_bytes());
    frame.extend(stream.to_be_bytes());
    frame.extend([kind, 0]);
    frame.extend(content);
    frame
}

/// Answers the call of `stream` with `message`.
pub(super) fn answer(to: &UnixStream, stream: u32, message: &impl Message) -> io::Result<()> {
    let payload = message.write_to_bytes().expect("a whole message");
    let response = Response { payload, ..Default::default() };
    write_frame(to, stream, RESPONSE, &response.write_to_bytes().expect("a whole message"))
}

/// Why a call failed: its gRPC code and text. A connection that ends is `UNAVAILABLE`, as containerd takes it; an
/// answer that does not come `DEADLINE_EXCEEDED`.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

type Answer = Result<Vec<u8>, Failure>;
type Waiting = Arc<Mutex<HashMap<u32, Sender<Answer>>>>;

/// A connection to a shim; its clones share it.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    namespace: String,
}

struct Connection {
    stream: UnixStream,
    writer: Mutex<()>,
    waiting: Waiting,
    next: AtomicU32,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // An error means that the other side has gone before.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A call that was sent.
pub struct Pending<R> {
    answer: Receiver<Answer>,
    what: String,
    kind: PhantomData<R>,
}

impl Client {
    /// Connects to the socket `path`.
    pub fn connect(path: &Path, namespace: &str) -> io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        let waiting = Waiting::default();
        let (reader, asked) = (stream.try_clone()?, waiting.clone());
        std::thread::spawn(move || {
            while let Ok(frame) = read_frame(&reader) {
                let waiter = asked.lock().expect("nobody panics with it").remove(&frame.stream);
                if let (Some(waiter), RESPONSE) = (waiter, frame.kind) {
                    // An error means that nobody waits any more.
                    let _ = waiter.send(read_answer(&frame.content));
                }
            }
            asked.lock().expect("nobody panics with it").clear();
        });
        let connection = Connection { stream, writer: Mutex::new(()), waiting, next: AtomicU32::new(1) };
        Ok(Client { connection: Arc::new(connection), namespace: namespace.to_owned() })
    }

    /// Sends a call, whose caller has so much patience; 0 is any.
    pub fn send<R: Message>(
        &self,
        service: &str,
        method: &str,
        message: &impl Message,
        patience: Duration,
    ) -> Pending<R> {
        self.send_by(service, method, message, patience, |stream, content| {
            write_frame(&self.connection.stream, stream, REQUEST, content)
        })
    }

    /// Sends a call in two parts, and does this between them.
    pub fn send_in_two<R: Message>(
        &self,
        service: &str,
        method: &str,
        message: &impl Message,
        between: impl FnOnce(),
    ) -> Pending<R> {
        self.send_by(service, method, message, Duration::ZERO, |stream, content| {
            let frame = frame(stream, REQUEST, content);
            let (first, rest) = frame.split_at(frame.len() / 2);
            self.send_raw(first)?;
            between();
            self.send_raw(rest)
        })
    }

    fn send_by<R: Message>(
        &self,
        service: &str,
        method: &str,
        message: &impl Message,
        patience: Duration,
        write: impl FnOnce(u32, &[u8]) -> io::Result<()>,
    ) -> Pending<R> {
        let header = KeyValue {
            key: "containerd-namespace-ttrpc".to_owned(),
            value: self.namespace.clone(),
            ..Default::default()
        };
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: message.write_to_bytes().expect("a whole message"),
            metadata: vec![header],
            timeout_nano: i64::try_from(patience.as_nanos()).expect("not for ever"),
            ..Default::default()
        };
        let stream = self.connection.next.fetch_add(2, Ordering::Relaxed);
        let (sender, answer) = channel();
        let waiting = || self.connection.waiting.lock().expect("nobody panics with it");
        waiting().insert(stream, sender);
        let content = request.write_to_bytes().expect("a whole message");
        let sent = {
            let _turn = self.connection.writer.lock().expect("nobody panics with it");
            write(stream, &content)
        };
        if sent.is_err() {
            waiting().remove(&stream);
        }
        Pending { answer, what: method.to_owned(), kind: PhantomData }
    }

    /// Sends bytes as they are.
    pub fn send_raw(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.connection.stream).write_all(bytes)
    }

    /// Waits until the other side has closed the connection.
    pub fn wait_for_hangup(&self) {
        super::super::eventually("the end of the connection", || self.has_ended().then_some(()));
    }

    /// Whether the other side has closed the connection.
    pub fn has_ended(&self) -> bool {
        let mut byte = [0];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let got = rustix::net::recv(&self.connection.stream, &mut byte, flags);
        matches!(got, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET))
    }
}

impl<R: Message> Pending<R> {
    /// Its answer, as soon as there is one.
    #[track_caller]
    pub fn wait(self) -> Result<R, Failure> {
        let patience = patience();
        self.wait_for(patience).unwrap_or_else(|| {
            let message = format!("no answer to {} within {patience:?}", self.what);
            Err(Failure { code: Code::DEADLINE_EXCEEDED, message })
        })
    }

    /// Its answer, if it comes within `time`.
    pub fn wait_for(&self, time: Duration) -> Option<Result<R, Failure>> {
        let answer = match self.answer.recv_timeout(time) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure { code: Code::UNAVAILABLE, message: "the connection has ended".to_owned() })
            }
        };
        Some(answer.map(|payload| R::parse_from_bytes(&payload).expect("the answer's type")))
    }
}

fn read_answer(content: &[u8]) -> Answer {
    let response = Response::parse_from_bytes(content).expect("a response");
    let status = response.status.unwrap_or_default();
    match status.code.enum_value_or_default() {
        Code::OK => Ok(response.payload),
        code => Err(Failure { code, message: status.message }),
    }
}
