//! One client's connection: its state, its socket, and its calls.
//!
//! The state is plain data: the open calls, the bytes of an incomplete frame, and what is still to be written. While a
//! client leaves its answers unread, nothing more is read from it, so that it fills its own socket and not the shim.
//! When a client has gone, nobody waits for its calls any more, but what they have begun continues.
//!
//! Must not: know the services.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{ErrorKind, Result};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bowline_executor::internal::{page_release, waits};
use bowline_model::clock::Moment;
use bowline_model::json::handover::{Fd, bytes};
use bowline_model::{Doing as _, Kind};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use protobuf::Message as _;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, timeout};
use ttrpc::get_status;
use ttrpc::proto::{Code, Request, Response};

use super::frame::{self, Frame, Frames, Header, LONGEST};
use super::{Answer, Call, Services, Step};

/// How many bytes a connection's open calls may take, by estimate: 4095 calls, or three of the longest. bowline has one
/// or two calls open. containerd has a single connection, with one call for each process that it waits for and a few
/// more.
const OPEN: usize = 16 << 20;
/// The estimate for one call without its payload, in bytes.
const EACH: usize = 4 << 10;
/// Reading stops once this many bytes are unwritten: the client's socket is full, because the client does not read.
const UNREAD: usize = 64 << 10;
/// How many bytes are read at once. Nearly every request is shorter.
const PIECE: usize = 4 << 10;

/// The state of a connection.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// The bytes of an incomplete frame.
    frames: Frames,
    /// The calls without an answer yet.
    open: Vec<Open>,
    /// The bytes of answers that are still to be written.
    #[serde(with = "bytes")]
    unwritten: Vec<u8>,
}

/// A call without an answer yet, with everything needed to call again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Open {
    /// The number of the call, chosen by the client.
    pub stream: u32,
    pub service: String,
    pub method: String,
    #[serde(with = "bytes")]
    pub payload: Vec<u8>,
    /// When the client's timeout ends, if it has set one.
    pub deadline: Option<Moment>,
    /// The number of what the call has begun, if it now waits for its end.
    pub begun: Option<u64>,
    /// Whether it only waits, so that it can be made again.
    pub only_waits: bool,
}

/// What `inspect --facts` prints of a connection.
#[derive(Debug, Serialize)]
pub struct Outline {
    /// The calls without an answer yet.
    pub open: Vec<OpenCall>,
    /// How many bytes of answers are still to be written.
    pub unwritten_bytes: usize,
}

/// What `inspect --facts` prints of a call without an answer yet.
#[derive(Debug, Serialize)]
pub struct OpenCall {
    /// The number of the call, chosen by the client.
    pub stream: u32,
    pub service: String,
    pub method: String,
    /// When the client's timeout ends, if it has set one.
    pub deadline: Option<Moment>,
    /// The number of what the call has begun, for example an exec, if it now waits for its end.
    pub begun: Option<u64>,
}

impl Facts {
    /// The next call in `bytes`; `None` when all bytes are consumed. Malformed requests are answered with an error.
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
                // A frame kind that requests nothing; the protocol may come to use it.
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
        // Go's server also refuses a number lower than the last. We accept it: a client's threads may overtake each
        // other.
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
        Ok(Some(Open { stream, service, method, payload, deadline, begun: None, only_waits: false }))
    }

    /// Records that a call has begun something with this number.
    fn has_begun(&mut self, stream: u32, number: u64) {
        if let Some(open) = self.open.iter_mut().find(|open| open.stream == stream) {
            (open.begun, open.only_waits) = (Some(number), true);
        }
    }

    /// Records whether a call only waits.
    fn only_waits(&mut self, stream: u32, only_waits: bool) {
        if let Some(open) = self.open.iter_mut().find(|open| open.stream == stream) {
            open.only_waits = only_waits;
        }
    }

    /// Closes a call with this answer.
    pub fn answered(&mut self, stream: u32, answer: Answer<Vec<u8>>) {
        self.open.retain(|open| open.stream != stream);
        self.put(stream, answer);
    }

    /// Queues an answer for writing.
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

    /// Removes the bytes that are written.
    fn written(&mut self, bytes: usize) {
        self.unwritten.drain(..bytes);
        if self.unwritten.is_empty() {
            // An idle connection keeps no memory.
            self.unwritten = Vec::new();
        }
    }

    /// A copy of the connection's state, as it is now.
    fn again(&self) -> Facts {
        Facts { frames: self.frames.clone(), open: self.open.clone(), unwritten: self.unwritten.clone() }
    }

    /// Whether more requests may be read.
    fn takes_more(&self) -> bool {
        self.unwritten.len() < UNREAD
    }

    /// Whether every call is answered and every answer is written.
    fn is_done(&self) -> bool {
        self.open.is_empty() && self.unwritten.is_empty()
    }

    /// The state for debugging, without the contents of requests and answers, which may be secret.
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

    /// The calls without an answer yet.
    pub fn open(&self) -> &[Open] {
        &self.open
    }

    /// The bytes of answers that are still to be written.
    #[cfg(feature = "fuzzing")]
    pub fn unwritten(&self) -> &[u8] {
        &self.unwritten
    }
}

/// A connection, as a shim hands it over.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handed {
    facts: Facts,
    socket: Fd,
}

impl Handed {
    pub fn take(self) -> bowline_model::Result<Connection> {
        let what = || "cannot watch a connection";
        let socket = std::os::unix::net::UnixStream::from(self.socket.take()?);
        let socket = UnixStream::from_std(socket).doing(Kind::Internal, what)?;
        Ok(Connection { facts: self.facts, socket, ends: None })
    }
}

/// The client that makes a call.
pub struct Caller<'c> {
    ends: &'c mut Option<watch::Sender<()>>,
}

impl<'c> Caller<'c> {
    /// Who waits for the client's end is in `ends`, which goes with the connection.
    pub fn new(ends: &'c mut Option<watch::Sender<()>>) -> Caller<'c> {
        Caller { ends }
    }

    /// A channel whose other end is dropped once the client has gone, or the connection is closed.
    pub fn until_gone(&mut self) -> watch::Receiver<()> {
        self.ends.get_or_insert_with(|| watch::Sender::new(())).subscribe()
    }
}

/// A client's connection. When it is dropped, the memory that its requests took is given back.
pub struct Connection {
    pub facts: Facts,
    socket: UnixStream,
    /// Dropped with the connection; made for the first who waits for that.
    ends: Option<watch::Sender<()>>,
}

impl Connection {
    pub fn new(socket: UnixStream) -> Connection {
        Connection { facts: Facts::default(), socket, ends: None }
    }

    /// The connection for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        Handed { facts: self.facts.again(), socket: Fd::of(&self.socket) }
    }

    /// Writes pending answers, as far as the client reads them.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while !self.facts.unwritten.is_empty() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(context, &self.facts.unwritten))?;
            self.facts.written(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads what has come; fails if the client has gone.
    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_read(context, into))?;
        Poll::Ready(if into.filled().is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        page_release::left();
    }
}

/// Serves a connection, and holds the futures of its calls.
pub struct Serving<S> {
    connection: Rc<RefCell<Connection>>,
    services: Rc<S>,
    calls: FuturesUnordered<Awaited>,
}

/// What to do after polling a connection.
enum Next {
    /// Every call is answered, and no more are taken.
    Over,
    /// The buffer was full, so more requests may be waiting.
    Others,
}

impl<S: Services> Serving<S> {
    pub fn new(connection: Rc<RefCell<Connection>>, services: Rc<S>) -> Serving<S> {
        let calls = FuturesUnordered::new();
        // Those that the program before this one has taken.
        let mut refused = Vec::new();
        for open in connection.borrow().facts.open() {
            let (service, method, payload) = (&open.service, &open.method, &open.payload);
            let call = match open.begun {
                Some(number) => services.wait_again(service, method, payload, number),
                None => services.call(service, method, payload),
            };
            let deadline = open.deadline.map(|deadline| Box::pin(sleep(deadline.to_come())));
            match call {
                Ok(call) => calls.push(Awaited(Some(Waiting { stream: open.stream, call, deadline }))),
                Err(status) => refused.push((open.stream, status)),
            }
        }
        for (stream, status) in refused {
            connection.borrow_mut().facts.answered(stream, Err(status));
        }
        Serving { connection, services, calls }
    }

    /// Serves the connection until the client has gone or, once `leaving` is true, until all open calls are answered
    /// and the client has had so long to go first.
    pub async fn serve(&mut self, mut leaving: watch::Receiver<bool>, linger: Duration) {
        tokio::select! {
            biased;
            _ = self.until_over(false) => return,
            _ = leaving.wait_for(|leaving| *leaving) => {}
        }
        // An error means that the client has gone: nobody is left to answer.
        if self.until_over(true).await.is_ok() && !linger.is_zero() {
            let _ = timeout(linger, poll_fn(|context| self.poll_gone(context))).await;
        }
    }

    /// Ready once the client has gone. Requests that come before are lost, as they would be after it.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut piece = [MaybeUninit::uninit(); PIECE];
        loop {
            let mut piece = ReadBuf::uninit(&mut piece);
            if ready!(self.connection.borrow_mut().poll_read(context, &mut piece)).is_err() {
                return Poll::Ready(());
            }
        }
    }

    /// Serves until the client has gone, which is an error, or, if `leaving`, until every call is answered.
    async fn until_over(&mut self, leaving: bool) -> Result<()> {
        while let Next::Others = poll_fn(|context| self.poll(context, leaving)).await? {
            // Let the new calls, and what answers them, run.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>, leaving: bool) -> Poll<Result<Next>> {
        loop {
            while let Poll::Ready(Some((mut waiting, step))) = self.calls.poll_next_unpin(context) {
                let facts = &mut self.connection.borrow_mut().facts;
                waits::stepped();
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
            if !leaving && (waits::is_closed() || !connection.facts.takes_more()) {
                return Poll::Pending;
            }
            let mut piece = [MaybeUninit::uninit(); PIECE];
            let mut piece = ReadBuf::uninit(&mut piece);
            ready!(connection.poll_read(context, &mut piece))?;
            let mut bytes = piece.filled();
            // A leaving shim takes no requests; the client learns that from the closed connection.
            while !leaving && let Some(open) = connection.facts.next_call(&mut bytes) {
                let (stream, deadline) = (open.stream, open.deadline.map(|deadline| sleep(deadline.to_come())));
                let mut caller = Caller::new(&mut connection.ends);
                match self.services.call_from(&mut caller, &open.service, &open.method, &open.payload) {
                    Ok(call) => {
                        connection.facts.only_waits(stream, call.only_waits);
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

/// A call in progress, at most until its deadline.
struct Waiting {
    stream: u32,
    call: Call,
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Waits for the next step of a call; returns the call too, so that it can continue.
struct Awaited(Option<Waiting>);

impl Future for Awaited {
    type Output = (Waiting, Step);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut waiting) = self.0.take() else { return Poll::Pending };
        if let Poll::Ready(step) = waiting.call.poll_unpin(context) {
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

    /// The numbers of the calls that `bytes` open.
    fn opened(facts: &mut Facts, mut bytes: &[u8]) -> Vec<u32> {
        std::iter::from_fn(|| facts.next_call(&mut bytes).map(|open| open.stream)).collect()
    }

    /// The answers so far: call number and code.
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
