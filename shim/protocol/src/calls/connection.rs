//! One client's connection: what is known of it, its socket, and its calls.
//!
//! What is known is plain data, and says by itself which calls are open, what of a frame has come, and what is still to
//! be written. Nothing more is read while a client leaves its answers unread, so that it fills its own socket and not the
//! shim. When it has gone, nobody waits for its calls any more: what they have begun goes on.
//!
//! Must not: know what is served.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{ErrorKind, Result};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bowline_executor::clock::Moment;
use bowline_executor::pages;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use protobuf::Message as _;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};
use ttrpc::get_status;
use ttrpc::proto::{Code, Request, Response};

use super::frame::{self, Frame, Frames, Header, LONGEST};
use super::{Answer, Call, Services, Step};

/// How much a connection's open calls may take, in bytes, as it is reckoned: 4095 calls, or three of the longest. bowline
/// has one or two open, and containerd, by a single connection, one for each process that it waits for and a few more.
const OPEN: usize = 16 << 20;
/// What one is reckoned to take besides its payload.
const EACH: usize = 4 << 10;
/// Nothing more is read once so much is unwritten, in bytes, as the client's socket is full: it does not read.
const UNREAD: usize = 64 << 10;
/// How much is read at once. Nearly every request is shorter.
const PIECE: usize = 4 << 10;

/// What is known of a connection.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// What has come of a frame that is not whole.
    frames: Frames,
    /// The calls that have no answer yet.
    open: Vec<Open>,
    /// What is still to be written of answers.
    unwritten: Vec<u8>,
}

/// A call that has no answer yet: all that it takes to make it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Open {
    /// Its number, which its client has chosen.
    pub stream: u32,
    /// Of which service it is.
    pub service: String,
    /// What is called.
    pub method: String,
    /// The request, encoded.
    pub payload: Vec<u8>,
    /// When its client's patience ends, if it does.
    pub deadline: Option<Moment>,
    /// The number of what it has begun, if it has and waits for the end of that.
    pub begun: Option<u64>,
}

/// What `inspect --facts` prints of a connection.
#[derive(Debug, Serialize)]
pub struct Outline {
    /// The calls that have no answer yet.
    pub open: Vec<OpenCall>,
    /// How much is still to be written of answers.
    pub unwritten_bytes: usize,
}

/// What it prints of a call that has no answer yet.
#[derive(Debug, Serialize)]
pub struct OpenCall {
    /// Its number, which its client has chosen.
    pub stream: u32,
    /// Of which service it is.
    pub service: String,
    /// What is called.
    pub method: String,
    /// When its client's patience ends, if it does.
    pub deadline: Option<Moment>,
    /// The number of what it has begun, as of an exec, if it waits for the end of that.
    pub begun: Option<u64>,
}

impl Facts {
    /// The next call that these bytes ask for; `None` when all are taken. What is out of form has its answer then.
    pub fn next_call(&mut self, bytes: &mut &[u8]) -> Option<&Open> {
        loop {
            let (header, payload) = match self.frames.next(bytes)? {
                Frame::Whole(header, payload) => (header, payload),
                Frame::TooLong(header) => {
                    let text = format!("message length {} exceeds the maximum of {LONGEST}", header.length);
                    self.put(header.stream, Err(get_status(Code::RESOURCE_EXHAUSTED, text)));
                    continue;
                }
            };
            match self.asked(header, &payload) {
                Ok(Some(open)) => {
                    self.open.push(open);
                    return self.open.last();
                }
                // Of a kind that nobody asks by, which may come to mean something.
                Ok(None) => {}
                Err(status) => self.put(header.stream, Err(status)),
            }
        }
    }

    fn asked(&self, header: Header, payload: &[u8]) -> Answer<Option<Open>> {
        let stream = header.stream;
        if stream.is_multiple_of(2) {
            return Err(get_status(Code::INVALID_ARGUMENT, "a client's stream id must be odd"));
        }
        if header.kind == frame::DATA || header.kind == frame::REQUEST && header.flags & frame::STREAMS != 0 {
            return Err(get_status(Code::UNIMPLEMENTED, "streams"));
        }
        if header.kind != frame::REQUEST {
            return Ok(None);
        }
        // Go's refuses one that is lower than the last, too. But a client's threads may overtake each other.
        if self.open.iter().any(|open| open.stream == stream) {
            return Err(get_status(Code::INVALID_ARGUMENT, format!("stream id {stream} is in use")));
        }
        let taken: usize = self.open.iter().map(|open| EACH + open.payload.len()).sum();
        if taken + EACH + payload.len() > OPEN {
            return Err(get_status(Code::RESOURCE_EXHAUSTED, "too many calls are open"));
        }
        let request = Request::parse_from_bytes(payload);
        let request = request.map_err(|error| get_status(Code::INVALID_ARGUMENT, format!("not a Request: {error}")))?;
        let deadline = match u64::try_from(request.timeout_nano) {
            Ok(0) => None,
            Ok(nanoseconds) => Some(Moment::now().after(Duration::from_nanos(nanoseconds))),
            Err(_) => return Err(get_status(Code::DEADLINE_EXCEEDED, "timeout")),
        };
        let Request { service, method, payload, .. } = request;
        Ok(Some(Open { stream, service, method, payload, deadline, begun: None }))
    }

    /// A call has begun what has this number.
    fn has_begun(&mut self, stream: u32, number: u64) {
        if let Some(open) = self.open.iter_mut().find(|open| open.stream == stream) {
            open.begun = Some(number);
        }
    }

    /// A call has come to this: it is no longer open.
    pub fn answered(&mut self, stream: u32, answer: Answer<Vec<u8>>) {
        self.open.retain(|open| open.stream != stream);
        self.put(stream, answer);
    }

    /// Has an answer written.
    fn put(&mut self, stream: u32, answer: Answer<Vec<u8>>) {
        let response = match answer {
            Ok(payload) => Response { payload, ..Response::default() },
            Err(status) => Response { status: Some(status).into(), ..Response::default() },
        };
        if !frame::put(&mut self.unwritten, stream, frame::RESPONSE, &response) {
            let status = get_status(Code::RESOURCE_EXHAUSTED, format!("the answer has more than {LONGEST} bytes"));
            let response = Response { status: Some(status).into(), ..Response::default() };
            frame::put(&mut self.unwritten, stream, frame::RESPONSE, &response);
        }
    }

    /// So much of the answers is written.
    fn written(&mut self, bytes: usize) {
        self.unwritten.drain(..bytes);
        if self.unwritten.is_empty() {
            // A connection that idles keeps no room.
            self.unwritten = Vec::new();
        }
    }

    /// Whether more may be asked for.
    fn takes_more(&self) -> bool {
        self.unwritten.len() < UNREAD
    }

    /// Whether everything is answered, and the answers are written.
    fn is_done(&self) -> bool {
        self.open.is_empty() && self.unwritten.is_empty()
    }

    /// For whoever debugs a shim: all but what was asked and answered itself, which may be secret.
    pub fn outline(&self) -> Outline {
        let call = |open: &Open| OpenCall {
            stream: open.stream,
            service: open.service.clone(),
            method: open.method.clone(),
            deadline: open.deadline,
            begun: open.begun,
        };
        Outline { open: self.open.iter().map(call).collect(), unwritten_bytes: self.unwritten.len() }
    }

    /// The calls that have no answer yet.
    pub fn open(&self) -> &[Open] {
        &self.open
    }

    /// What is still to be written of answers.
    #[cfg(feature = "fuzzing")]
    pub fn unwritten(&self) -> &[u8] {
        &self.unwritten
    }
}

/// A client's connection: what it has asked for took memory, which is given back when it has gone.
pub struct Connection {
    /// What is known of it.
    pub facts: Facts,
    socket: UnixStream,
}

impl Connection {
    /// One that was just accepted.
    pub fn new(socket: UnixStream) -> Connection {
        Connection { facts: Facts::default(), socket }
    }

    /// Writes what is still to be written of answers, as far as the client reads it.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while !self.facts.unwritten.is_empty() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(context, &self.facts.unwritten))?;
            self.facts.written(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads what has come; nothing more comes from a client that has gone.
    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_read(context, into))?;
        Poll::Ready(if into.filled().is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        pages::left();
    }
}

/// A connection that is served, and what waits for the answers to its calls.
pub struct Serving<S> {
    connection: Rc<RefCell<Connection>>,
    services: Rc<S>,
    calls: FuturesUnordered<Awaited>,
}

/// What comes after a look at a connection.
enum Next {
    /// All is answered, and nothing more is taken.
    Over,
    /// There may be any number of requests behind those that were begun.
    Others,
}

impl<S: Services> Serving<S> {
    /// Serves a connection by these.
    pub fn new(connection: Rc<RefCell<Connection>>, services: Rc<S>) -> Serving<S> {
        Serving { connection, services, calls: FuturesUnordered::new() }
    }

    /// Serves it until its client has gone; once `leaving` says so, until all calls that are open are answered.
    pub async fn serve(&mut self, mut leaving: watch::Receiver<bool>) {
        tokio::select! {
            biased;
            _ = self.until_over(false) => return,
            _ = leaving.wait_for(|leaving| *leaving) => {}
        }
        // An error means that nobody is there who could be answered.
        let _ = self.until_over(true).await;
    }

    /// An error when the client has gone. Without one, everything is answered; that is so when the shim leaves alone.
    async fn until_over(&mut self, leaving: bool) -> Result<()> {
        while let Next::Others = poll_fn(|context| self.poll(context, leaving)).await? {
            // What was asked for has its turn, and whoever answers it.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>, leaving: bool) -> Poll<Result<Next>> {
        loop {
            while let Poll::Ready(Some((mut waiting, step))) = self.calls.poll_next_unpin(context) {
                let facts = &mut self.connection.borrow_mut().facts;
                match step {
                    Step::Answered(answer) => facts.answered(waiting.stream, answer),
                    Step::Begun(number, wait) => {
                        facts.has_begun(waiting.stream, number);
                        waiting.call = wait;
                        self.calls.push(Awaited(Some(waiting)));
                    }
                }
            }
            let connection = &mut *self.connection.borrow_mut();
            if let Poll::Ready(Err(error)) = connection.poll_write(context) {
                return Poll::Ready(Err(error));
            }
            if leaving && connection.facts.is_done() {
                return Poll::Ready(Ok(Next::Over));
            }
            if !leaving && !connection.facts.takes_more() {
                return Poll::Pending;
            }
            let mut piece = [MaybeUninit::uninit(); PIECE];
            let mut piece = ReadBuf::uninit(&mut piece);
            ready!(connection.poll_read(context, &mut piece))?;
            let mut bytes = piece.filled();
            // Whoever asks a shim that leaves is told by the end of the connection.
            while !leaving && let Some(open) = connection.facts.next_call(&mut bytes) {
                let (stream, deadline) = (open.stream, open.deadline.map(|deadline| sleep(deadline.to_come())));
                match self.services.call(&open.service, &open.method, &open.payload) {
                    Ok(call) => {
                        self.calls.push(Awaited(Some(Waiting { stream, call, deadline: deadline.map(Box::pin) })))
                    }
                    Err(status) => connection.facts.answered(stream, Err(status)),
                }
            }
            if piece.remaining() == 0 {
                return Poll::Ready(Ok(Next::Others));
            }
        }
    }
}

/// A call that goes on, at most until its deadline.
struct Waiting {
    stream: u32,
    call: Call,
    deadline: Option<Pin<Box<Sleep>>>,
}

/// What it comes to next; with it, what may go on.
struct Awaited(Option<Waiting>);

impl Future for Awaited {
    type Output = (Waiting, Step);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut waiting) = self.0.take() else { return Poll::Pending };
        if let Poll::Ready(step) = waiting.call.as_mut().poll(context) {
            return Poll::Ready((waiting, step));
        }
        if waiting.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready()) {
            return Poll::Ready((waiting, Step::Answered(Err(get_status(Code::DEADLINE_EXCEEDED, "timeout")))));
        }
        self.0 = Some(waiting);
        Poll::Pending
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request(stream: u32, service: &str, payload: &[u8]) -> Vec<u8> {
        let request = Request { service: service.into(), payload: payload.into(), ..Request::default() };
        let mut bytes = Vec::new();
        assert!(frame::put(&mut bytes, stream, frame::REQUEST, &request));
        bytes
    }

    /// The numbers of the calls that these bytes open.
    fn opened(facts: &mut Facts, mut bytes: &[u8]) -> Vec<u32> {
        std::iter::from_fn(|| facts.next_call(&mut bytes).map(|open| open.stream)).collect()
    }

    /// What is answered so far: whose, and the code.
    fn answers(facts: &mut Facts) -> Vec<(u32, Code)> {
        let bytes = std::mem::take(&mut facts.unwritten);
        let (mut frames, mut bytes) = (Frames::default(), &bytes[..]);
        let frames = std::iter::from_fn(|| frames.next(&mut bytes));
        let answer = |frame: Frame| {
            let Frame::Whole(header, payload) = frame else { panic!("too long") };
            assert_eq!(header.kind, frame::RESPONSE);
            let status = Response::parse_from_bytes(&payload).unwrap().status.unwrap_or_default();
            (header.stream, status.code())
        };
        frames.map(answer).collect()
    }

    #[test]
    fn a_call_is_open_until_it_is_answered() {
        let mut facts = Facts::default();
        assert_eq!(opened(&mut facts, &[request(1, "a", b"x"), request(3, "b", b"")].concat()), [1, 3]);
        assert_eq!((facts.open[0].service.as_str(), &facts.open[0].payload[..]), ("a", &b"x"[..]));
        facts.answered(1, Ok(b"y".to_vec()));
        assert_eq!(facts.open.iter().map(|open| open.stream).collect::<Vec<_>>(), [3]);
        assert!(!facts.is_done());
        facts.answered(3, Err(get_status(Code::NOT_FOUND, "")));
        assert_eq!(answers(&mut facts), [(1, Code::OK), (3, Code::NOT_FOUND)]);
        assert!(facts.is_done());
    }

    #[test]
    fn a_number_in_use_is_refused_and_whose_it_is_stays_open() {
        let mut facts = Facts::default();
        assert_eq!(
            opened(&mut facts, &[request(5, "a", b""), request(5, "b", b""), request(4, "c", b"")].concat()),
            [5]
        );
        assert_eq!(answers(&mut facts), [(5, Code::INVALID_ARGUMENT), (4, Code::INVALID_ARGUMENT)]);
        assert_eq!(facts.open[0].service, "a");
        facts.answered(5, Ok(Vec::new()));
        assert_eq!(opened(&mut facts, &request(5, "b", b"")), [5]);
    }

    #[test]
    fn open_calls_take_no_more_than_they_may() {
        let mut facts = Facts::default();
        let long = |stream| request(stream, "a", &[0; LONGEST - 100]);
        assert_eq!(opened(&mut facts, &[1, 3, 5, 7].map(long).concat()), [1, 3, 5]);
        assert_eq!(answers(&mut facts), [(7, Code::RESOURCE_EXHAUSTED)]);
        facts.answered(3, Ok(Vec::new()));
        assert_eq!(opened(&mut facts, &long(9)), [9]);

        let mut facts = Facts::default();
        let small: Vec<u8> = (0..6000).flat_map(|index| request(1 + 2 * index, "a", b"")).collect();
        let open = opened(&mut facts, &small).len();
        assert!((4000..4096).contains(&open), "{open}");
        assert!(!facts.takes_more(), "nothing more is read before these refusals are");
        assert_eq!(answers(&mut facts).len(), 6000 - open);
    }

    #[test]
    fn an_answer_that_is_too_long_is_an_error() {
        let mut facts = Facts::default();
        facts.answered(1, Ok(vec![0; LONGEST]));
        assert_eq!(answers(&mut facts), [(1, Code::RESOURCE_EXHAUSTED)]);
    }

    #[test]
    fn what_is_written_is_written_once() {
        let mut facts = Facts::default();
        facts.answered(1, Ok(b"x".to_vec()));
        facts.answered(3, Ok(b"y".to_vec()));
        let all = facts.unwritten.clone();
        facts.written(5);
        assert_eq!(facts.unwritten, all[5..]);
        facts.written(all.len() - 5);
        assert_eq!(facts.unwritten.capacity(), 0);
    }
}
