//! The way of events to containerd: one call at a time, until it is answered.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use containerd_shim_protos::shim::events::ForwardRequest;
use protobuf::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use ttrpc::proto::{Code, KeyValue, Request, Response, Status};

use super::Shared;
use crate::calls::frame::{self, Frame, Frames, Header};

/// How long to wait before a call is made again: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));

/// Sends one event after the other, without end.
pub async fn deliver(shared: Arc<Shared>, address: String) {
    let mut containerd = None;
    loop {
        let request = ForwardRequest { envelope: Some(shared.first().await).into(), ..ForwardRequest::default() };
        let mut pause = PAUSES.0;
        while let Err(reason) = forward(&mut containerd, &address, &shared, &request).await {
            let topic = &request.envelope.topic;
            if let Failed::Refused(reason) = reason {
                tracing::error!("event {topic} is lost: containerd refuses it: {reason}");
                break;
            }
            tracing::debug!("event {topic} is not delivered yet: {reason}");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        shared.finish();
    }
}

/// Why an event is not delivered.
enum Failed {
    /// containerd will never take it.
    Refused(String),
    /// It may take it later.
    Now(String),
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failed::Refused(reason) | Failed::Now(reason) => f.write_str(reason),
        }
    }
}

/// One attempt, over the connection that there is or a new one.
async fn forward(
    containerd: &mut Option<Containerd>,
    address: &str,
    shared: &Shared,
    request: &ForwardRequest,
) -> std::result::Result<(), Failed> {
    let answer = timeout(shared.patience, async {
        let mut connected = match containerd.take() {
            Some(connected) => connected,
            None => Containerd::connect(address).await?,
        };
        let status = connected.call(request_of(shared, request)?).await?;
        // It answers: the connection is as good as before.
        *containerd = Some(connected);
        Ok(status)
    });
    let answer = answer.await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    let status = answer.map_err(|error: Error| Failed::Now(error.to_string()))?;
    match status.code() {
        Code::OK => Ok(()),
        // The second: it does not take events at all.
        Code::INVALID_ARGUMENT | Code::UNIMPLEMENTED => Err(Failed::Refused(status.message)),
        _ => Err(Failed::Now(status.message)),
    }
}

fn request_of(shared: &Shared, request: &ForwardRequest) -> Result<Request> {
    let namespace = KeyValue {
        key: "containerd-namespace-ttrpc".to_owned(),
        value: shared.namespace.clone(),
        ..KeyValue::default()
    };
    Ok(Request {
        service: "containerd.services.events.ttrpc.v1.Events".to_owned(),
        method: "Forward".to_owned(),
        payload: request.write_to_bytes()?,
        timeout_nano: shared.patience.as_nanos().try_into().unwrap_or(i64::MAX),
        metadata: vec![namespace],
        ..Request::default()
    })
}

/// A connection to containerd.
struct Containerd {
    socket: UnixStream,
    /// The number of the last call.
    stream: u32,
}

impl Containerd {
    /// Never blocks: a socket with too many waiting refuses.
    async fn connect(address: &str) -> Result<Containerd> {
        Ok(Containerd { socket: UnixStream::connect(address).await?, stream: u32::MAX })
    }

    /// Makes one call, and waits for its status.
    async fn call(&mut self, request: Request) -> Result<Status> {
        // Odd, as a client's are.
        self.stream = self.stream.wrapping_add(2);
        let mut bytes = Vec::new();
        if !frame::put(&mut bytes, self.stream, frame::REQUEST, &request) {
            return Err(Error::new(ErrorKind::FileTooLarge, "it is too long for a message"));
        }
        self.socket.write_all(&bytes).await?;
        let mut frames = Frames::default();
        let mut piece = [0; 256];
        loop {
            let length = self.socket.read(&mut piece).await?;
            if length == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let mut bytes = &piece[..length];
            while let Some(frame) = frames.next(&mut bytes) {
                if let Frame::Whole(Header { stream, kind: frame::RESPONSE, .. }, payload) = frame
                    && stream == self.stream
                {
                    return Ok(Response::parse_from_bytes(&payload)?.status.unwrap_or_default());
                }
            }
        }
    }
}
