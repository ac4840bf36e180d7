//! gRPC's client side, as far as a runtime of Kubernetes' is asked: one request, one answer, as HTTP/2 on a Unix
//! socket. Each call has a connection of its own: daemons come and go.

use std::fmt::Display;
use std::path::Path;

use bytes::Bytes;
use http::{HeaderMap, Request};
use protobuf::{Enum as _, Message};
use tokio::net::UnixStream;

use crate::harness::containerd::{Code, Failure};
use crate::harness::patience;

/// Of a message: whether it is compressed, and its length.
const HEAD: usize = 5;

/// Asks; `method` is a service and its method. Where no answer comes, the test fails.
#[track_caller]
pub(super) fn call<A: Message>(socket: &Path, method: &str, request: &impl Message) -> Result<A, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a loop of events");
    let asked = async { tokio::time::timeout(patience(), ask(socket, method, request)).await };
    let answer = runtime.block_on(asked).unwrap_or_else(|_| panic!("no answer to {method} within {:?}", patience()));
    answer.map(|message| A::parse_from_bytes(&message).expect("the answer's type"))
}

async fn ask(socket: &Path, method: &str, request: &impl Message) -> Result<Vec<u8>, Failure> {
    let stream = UnixStream::connect(socket).await.map_err(broken)?;
    let (requests, connection) = h2::client::handshake(stream).await.map_err(broken)?;
    // It ends with the loop.
    tokio::spawn(connection);
    let head = Request::post(format!("http://localhost/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a method's name");
    let mut requests = requests.ready().await.map_err(broken)?;
    let (response, mut body) = requests.send_request(head, false).map_err(broken)?;
    body.send_data(framed(request), true).map_err(broken)?;
    let (head, mut body) = response.await.map_err(broken)?.into_parts();
    // A refusal may come without a body, its status in the head.
    status(&head.headers)?;
    let mut answer = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(broken)?;
        body.flow_control().release_capacity(data.len()).map_err(broken)?;
        answer.extend_from_slice(&data);
    }
    status(&body.trailers().await.map_err(broken)?.unwrap_or_default())?;
    assert!(answer.len() >= HEAD, "an answer to {method} of {} bytes", answer.len());
    Ok(answer.split_off(HEAD))
}

/// A message as it is sent.
fn framed(message: &impl Message) -> Bytes {
    let body = message.write_to_bytes().expect("a whole message");
    let length = u32::try_from(body.len()).expect("a small message");
    [&[0][..], &length.to_be_bytes(), &body].concat().into()
}

/// What a status says against a call, if it says so.
fn status(headers: &HeaderMap) -> Result<(), Failure> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let code = text("grpc-status").map(|code| code.parse().expect("a number"));
    match code.map(|code| Code::from_i32(code).unwrap_or(Code::UNKNOWN)) {
        None | Some(Code::OK) => Ok(()),
        Some(code) => Err(Failure { code, message: text("grpc-message").unwrap_or_default() }),
    }
}

fn broken(error: impl Display) -> Failure {
    Failure { code: Code::UNAVAILABLE, message: error.to_string() }
}
