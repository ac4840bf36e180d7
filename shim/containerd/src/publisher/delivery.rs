//! Delivers events to containerd: one call at a time, repeated until it is answered.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use bowline_executor::internal::waits;
use bowline_model::clock::Moment;
use bowline_model::json::handover::{Fd, bytes};
use bowline_model::{Doing as _, Kind};
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::shim::events::ForwardRequest;
use protobuf::Message as _;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;
use ttrpc::proto::{Code, KeyValue, Request, Response, Status};

use super::queue::Shared;
use bowline_protocol::calls::frame::{self, Frame, Frames, Header};

/// How long to wait before a call is repeated: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));

/// The state of the delivery, and its connection.
pub struct Delivery {
    shared: Arc<Shared>,
    address: String,
    containerd: Option<Containerd>,
    /// The connection that the program before this one has handed over, until it is used.
    handed: Option<HandedContainerd>,
    /// When the current attempt times out.
    given_up_at: Option<Moment>,
    /// When to make the next attempt, after one that failed.
    again_at: Option<Moment>,
    /// How long to wait after the next failure.
    pause: Duration,
}

impl Delivery {
    /// Creates the delivery to the containerd at `address`.
    pub fn new(shared: Arc<Shared>, address: String) -> Delivery {
        let (containerd, handed, given_up_at, again_at) = (None, None, None, None);
        Delivery { shared, address, containerd, handed, given_up_at, again_at, pause: PAUSES.0 }
    }

    /// The delivery for the program that is executed in the shim's place.
    pub fn hand_over(&self) -> Handed {
        let containerd = self.containerd.as_ref().map(Containerd::hand_over);
        Handed { containerd, given_up_at: self.given_up_at, again_at: self.again_at, pause: self.pause }
    }

    /// Goes on where the program before this one was.
    pub fn take(&mut self, handed: Handed) {
        let Handed { containerd, given_up_at, again_at, pause } = handed;
        (self.handed, self.given_up_at, self.again_at, self.pause) = (containerd, given_up_at, again_at, pause);
    }

    /// Sends one event after another, forever.
    pub async fn deliver(&mut self) {
        if let Some(handed) = self.handed.take() {
            // Without it the event is sent once more, over another.
            self.containerd = handed.take().ok();
        }
        loop {
            if let Some(then) = self.again_at {
                waits::sleep_until(then).await;
                self.again_at = None;
            }
            let envelope = self.shared.first().await;
            let patience = self.shared.patience;
            let given_up_at = *self.given_up_at.get_or_insert_with(|| Moment::now().after(patience));
            let answer = timeout(given_up_at.to_come(), self.forward(&envelope)).await;
            self.given_up_at = None;
            match outcome(answer.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))) {
                Ok(()) => {}
                Err(Failed::Refused(reason)) => {
                    tracing::error!("event {} is lost: containerd refuses it: {reason}", envelope.topic);
                }
                Err(Failed::Now(reason)) => {
                    tracing::debug!("event {} is not delivered yet: {reason}", envelope.topic);
                    // Drop a connection whose call got no answer; keep one that answered.
                    self.containerd.take_if(|containerd| containerd.asked.is_some());
                    self.again_at = Some(Moment::now().after(self.pause));
                    self.pause = (self.pause * 2).min(PAUSES.1);
                    continue;
                }
            }
            self.pause = PAUSES.0;
            self.shared.finish();
        }
    }

    /// Makes one attempt, over the open connection or a new one.
    async fn forward(&mut self, envelope: &Envelope) -> Result<Status> {
        let containerd = match &mut self.containerd {
            Some(containerd) => containerd,
            none => none.insert(Containerd::connect(&self.address).await?),
        };
        if containerd.asked.is_none() {
            containerd.ask(&request_of(&self.shared, envelope)?)?;
        }
        containerd.answered().await
    }
}

/// Turns the answer of an attempt into its result.
fn outcome(answer: Result<Status>) -> std::result::Result<(), Failed> {
    let status = answer.map_err(|error| Failed::Now(error.to_string()))?;
    match status.code() {
        Code::OK => Ok(()),
        // UNIMPLEMENTED means that this containerd takes no events at all.
        Code::INVALID_ARGUMENT | Code::UNIMPLEMENTED => Err(Failed::Refused(status.message)),
        _ => Err(Failed::Now(status.message)),
    }
}

/// Why an event is not delivered.
enum Failed {
    /// containerd will never take it.
    Refused(String),
    /// containerd may take it later.
    Now(String),
}

fn request_of(shared: &Shared, envelope: &Envelope) -> Result<Request> {
    let forward = ForwardRequest { envelope: Some(envelope.clone()).into(), ..ForwardRequest::default() };
    let namespace = KeyValue {
        key: "containerd-namespace-ttrpc".to_owned(),
        value: shared.namespace.clone(),
        ..KeyValue::default()
    };
    Ok(Request {
        service: "containerd.services.events.ttrpc.v1.Events".to_owned(),
        method: "Forward".to_owned(),
        payload: forward.write_to_bytes()?,
        timeout_nano: shared.patience.as_nanos().try_into().unwrap_or(i64::MAX),
        metadata: vec![namespace],
        ..Request::default()
    })
}

/// The delivery, as a shim hands it over.
#[derive(Serialize, Deserialize)]
pub struct Handed {
    containerd: Option<HandedContainerd>,
    given_up_at: Option<Moment>,
    again_at: Option<Moment>,
    pause: Duration,
}

#[derive(Serialize, Deserialize)]
struct HandedContainerd {
    socket: Fd,
    stream: u32,
    asked: Option<u32>,
    #[serde(with = "bytes")]
    unwritten: Vec<u8>,
    frames: Frames,
}

impl HandedContainerd {
    fn take(self) -> bowline_executor::Result<Containerd> {
        let HandedContainerd { socket, stream, asked, unwritten, frames } = self;
        let socket = std::os::unix::net::UnixStream::from(socket.take()?);
        let socket = UnixStream::from_std(socket).doing(Kind::Internal, || "cannot watch the way to containerd")?;
        Ok(Containerd { socket, stream, asked, unwritten, frames })
    }
}

struct Containerd {
    socket: UnixStream,
    /// The number of the last call.
    stream: u32,
    /// The number of the call that has no answer yet.
    asked: Option<u32>,
    /// The bytes of that call that are still to be written.
    unwritten: Vec<u8>,
    /// The bytes of an incomplete frame.
    frames: Frames,
}

impl Containerd {
    /// Connects without blocking: a socket with a full backlog refuses.
    async fn connect(address: &str) -> Result<Containerd> {
        let socket = UnixStream::connect(address).await?;
        Ok(Containerd { socket, stream: u32::MAX, asked: None, unwritten: Vec::new(), frames: Frames::default() })
    }

    fn hand_over(&self) -> HandedContainerd {
        let Containerd { socket, stream, asked, unwritten, frames } = self;
        let (unwritten, frames) = (unwritten.clone(), frames.clone());
        HandedContainerd { socket: Fd::of(socket), stream: *stream, asked: *asked, unwritten, frames }
    }

    fn ask(&mut self, request: &Request) -> Result<()> {
        // A client's numbers are odd.
        self.stream = self.stream.wrapping_add(2);
        if !frame::put(&mut self.unwritten, self.stream, frame::REQUEST, request) {
            return Err(Error::new(ErrorKind::FileTooLarge, "it is too long for a message"));
        }
        self.asked = Some(self.stream);
        Ok(())
    }

    /// Waits for the status of the current call.
    async fn answered(&mut self) -> Result<Status> {
        while !self.unwritten.is_empty() {
            let written = self.socket.write(&self.unwritten).await?;
            self.unwritten.drain(..written);
        }
        let mut piece = [0; 256];
        loop {
            let length = self.socket.read(&mut piece).await?;
            if length == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let mut bytes = &piece[..length];
            while let Some(frame) = self.frames.next(&mut bytes) {
                if let Frame::Whole(Header { stream, kind: frame::RESPONSE, .. }, payload) = frame
                    && self.asked == Some(stream)
                {
                    self.asked = None;
                    return Ok(Response::parse_from_bytes(&payload)?.status.unwrap_or_default());
                }
            }
        }
    }
}
