//! gRPC's client side, as far as containerd and Nomad's driver are asked: a request
//! and its answer, or a stream of answers, as HTTP/2 on a Unix socket.
//!
//! One thread; what arrives is read while somebody waits for an answer. Must
//! not: know what is said.

use std::path::Path;

use bowline_model::{Doing, Error, Kind, Result};
use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request};
use protobuf::Message;
use tokio::net::UnixStream;

/// Of a message: whether it is compressed, and its length.
const HEAD: usize = 5;

pub struct Grpc {
    requests: SendRequest<Bytes>,
    header: Option<(&'static str, String)>,
}

/// Answers that come one by one.
pub struct Answers {
    // The head of a stream comes with its first message.
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    buffer: BytesMut,
}

impl Grpc {
    /// Connects to the socket; each request has this header. Within a runtime.
    pub async fn connect(socket: &Path, header: Option<(&'static str, String)>) -> Result<Grpc> {
        let what = || format!("cannot connect to {}", socket.display());
        let stream = UnixStream::connect(socket).await.doing(Kind::Internal, what)?;
        let (requests, connection) = h2::client::handshake(stream).await.doing(Kind::Internal, what)?;
        // Its end is seen by whoever waits for an answer.
        tokio::spawn(connection);
        Ok(Grpc { requests, header })
    }

    /// Asks, for answers; `method` is a service and its method.
    pub async fn stream(&self, method: &str, request: &impl Message) -> Result<Answers> {
        let what = || format!("cannot ask for {method}");
        let mut head = Request::post(format!("http://localhost/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some((name, value)) = &self.header {
            head = head.header(*name, value);
        }
        let head = head.body(()).doing(Kind::Internal, what)?;
        let message = framed(request).doing(Kind::Internal, what)?;
        let mut requests = self.requests.clone().ready().await.doing(Kind::Internal, what)?;
        let (response, mut body) = requests.send_request(head, false).doing(Kind::Internal, what)?;
        body.send_data(message, true).doing(Kind::Internal, what)?;
        Ok(Answers { response: Some(response), body: None, buffer: BytesMut::new() })
    }

    /// Sends one request, and returns its only answer.
    pub async fn call<A: Message>(&self, method: &str, request: &impl Message) -> Result<A> {
        let what = || format!("{method} failed");
        let mut answers = self.stream(method, request).await?;
        let nothing = || Error::new(Kind::Internal, format!("there is no answer to {method}"));
        let answer = answers.next().await.doing(Kind::Internal, what)?.ok_or_else(nothing)?;
        // The status comes last.
        answers.next::<A>().await.doing(Kind::Internal, what)?;
        Ok(answer)
    }
}

impl Answers {
    /// The next one; `None` after the last.
    pub async fn next<A: Message>(&mut self) -> Result<Option<A>> {
        let what = || "cannot read an answer";
        let refused = |why| Error::new(Kind::Internal, format!("the answer is an error: {why}"));
        if let Some(response) = self.response.take() {
            let (head, body) = response.await.doing(Kind::Internal, what)?.into_parts();
            // A refusal may come without a body, its status in the head.
            status(&head.headers).map_err(refused)?;
            self.body = Some(body);
        }
        let Some(body) = &mut self.body else { return Ok(None) };
        loop {
            if let Some(message) = take(&mut self.buffer) {
                return A::parse_from_bytes(&message).map(Some).doing(Kind::Internal, what);
            }
            let Some(data) = body.data().await else {
                let trailers = body.trailers().await.doing(Kind::Internal, what)?;
                return status(&trailers.unwrap_or_default()).map(|()| None).map_err(refused);
            };
            let data = data.doing(Kind::Internal, what)?;
            body.flow_control().release_capacity(data.len()).doing(Kind::Internal, what)?;
            self.buffer.extend_from_slice(&data);
        }
    }
}

/// A message as it is sent.
fn framed(message: &impl Message) -> protobuf::Result<Bytes> {
    let body = message.write_to_bytes()?;
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    Ok([&[0][..], &length.to_be_bytes(), &body].concat().into())
}

/// Takes the first message, once it is there as a whole.
fn take(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = buffer.get(1..HEAD)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    if buffer.len() < HEAD + length {
        return None;
    }
    let mut message = buffer.split_to(HEAD + length).freeze();
    Some(message.split_off(HEAD))
}

/// What a status says against a call, if it says so.
fn status(headers: &HeaderMap) -> std::result::Result<(), String> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    match text("grpc-status") {
        Some(code) if code != "0" => {
            Err(format!("{} (code {code})", text("grpc-message").unwrap_or_else(|| "it does not say why".to_owned())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containerd::proto::OfTask;

    #[test]
    fn messages_are_taken_whole_and_one_by_one() {
        let message = OfTask { container_id: "a".to_owned(), ..OfTask::default() };
        let sent = framed(&message).expect("it can be written");
        assert_eq!(sent[..], [0, 0, 0, 0, 3, 10, 1, b'a']);
        let mut buffer = BytesMut::new();
        for byte in sent.iter().chain(&sent[..7]) {
            assert_eq!(take(&mut buffer.clone()).is_some(), buffer.len() >= sent.len());
            buffer.extend_from_slice(&[*byte]);
        }
        assert_eq!(take(&mut buffer).as_deref(), Some(&sent[HEAD..]));
        assert_eq!((take(&mut buffer), buffer.len()), (None, 7));
    }

    #[test]
    fn a_status_of_zero_or_none_is_success() {
        let mut headers = HeaderMap::new();
        assert_eq!(status(&headers), Ok(()));
        headers.insert("grpc-status", "0".parse().expect("a value"));
        assert_eq!(status(&headers), Ok(()));
        headers.insert("grpc-status", "5".parse().expect("a value"));
        headers.insert("grpc-message", "no such task".parse().expect("a value"));
        assert_eq!(status(&headers), Err("no such task (code 5)".to_owned()));
    }
}
