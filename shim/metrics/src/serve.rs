//! Serves metrics over HTTP/1.1 to a few untrusted clients at a time.
//!
//! ```text
//!   accept ─► queue ─► client_limit ─► request, with a time limit ─► scrape ─► answer, with one ─► the next
//! ```
//!
//! hyper speaks the protocol; this module sets the limits: connections, size of a request's head, timeouts. The house
//! decides who must leave. Must not: read a body.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, getrlimit};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::client_limit::{House, Phase, Seat, Seated, WELCOME_IN_A_CROWD};
use super::gatherer::Gatherer;
use super::listen::{Client, Connection, Listener};
use super::negotiate;
use super::queue::Queue;

/// How many connections are open at a time; one more replaces the client that has waited longest.
const CONNECTIONS: usize = 32;

/// At most one in this many of the files that we may open is such a connection: the rest are for gathering.
const SHARE: u64 = 4;

/// How many more clients wait for a place, at most; with few files, clients wait unaccepted.
const QUEUE: usize = 512;

/// At most one in this many of the files beyond the first ones is a client that waits.
const QUEUE_SHARE: u64 = 2;
const FIRST_FILES: u64 = 128;

/// The limit on the head of a request, in bytes: the lowest that hyper supports.
const HEAD: usize = 8192;

/// Timeout for a whole request, counted from the connection or the previous answer. A client that scrapes every 15
/// seconds keeps its connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// Timeout for reading a whole answer.
const READING: Duration = Duration::from_secs(10);

/// The longest time that a connection may last, so that others get their turn.
const LONGEST: Duration = Duration::from_secs(60);

/// How much longer an answer in progress may take after that, or when the server ends.
const LAST: Duration = Duration::from_secs(3);

/// The answer to a client when no place is free.
const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 32\r\n\r\n\
      this user has too many requests\n";

/// How long to accept nobody when no file is left for a connection.
const NO_ROOM: Duration = Duration::from_millis(100);

/// Serves until `ended` is true.
pub async fn serve(listener: Listener, gatherer: Arc<Gatherer>, ended: watch::Receiver<bool>) {
    let (room, queue) = room();
    let house = House::new(room, [PATIENCE, READING]);
    let mut queue = Queue::new(queue);
    let mut over = ended.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if !queue.is_full() => Some(accepted),
            () = house.changed(), if !queue.is_empty() => None,
            // By then one that has not asked may be shown out.
            () = sleep(WELCOME_IN_A_CROWD), if !queue.is_empty() => None,
            _ = over.wait_for(|over| *over) => break,
        };
        match accepted {
            None => {}
            Some(Ok(client)) => {
                if let Err(client) = queue.push(client.uid, client) {
                    refuse(client).await;
                    let_others_run().await;
                    continue;
                }
            }
            // The client has gone already.
            Some(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
            Some(Err(error)) => {
                // Most likely no file is left: a client that is shown out frees one.
                if house.show_out() {
                    yield_now().await;
                } else {
                    tracing::warn!(%error, "cannot take a connection");
                    sleep(NO_ROOM).await;
                }
            }
        }
        while let Some((client, seat)) = queue.next(|uid| house.admit(uid)) {
            tokio::spawn(converse(client.connection, gatherer.clone(), ended.clone(), seat));
            if house.is_full() {
                // Before the next one has somebody shown out, requests that have come are read.
                yield_now().await;
            }
        }
        house.set_queue(!queue.is_empty());
    }
    drop((listener, queue));
    // Every remaining client has been asked to leave and has its own timeout.
    let _ = timeout(2 * LAST, house.empty()).await;
}

/// How many connections may be open, and how many more clients may wait.
fn room() -> (usize, usize) {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let queue = files.saturating_sub(FIRST_FILES) / QUEUE_SHARE;
    let at_most = |share, most| usize::try_from(share).unwrap_or(most).min(most);
    (at_most(files / SHARE, CONNECTIONS).max(1), at_most(queue, QUEUE))
}

/// Lets each task that can go on do so once. `yield_now` would wait until the event loop has looked for new events as
/// well, which it does rarely while there is much to do.
async fn let_others_run() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sends a client away. Does not wait for it: so short an answer fits into what the kernel keeps for a new connection.
async fn refuse(mut client: Client) {
    tokio::select! {
        biased;
        _ = client.connection.write_all(REFUSAL) => {}
        () = std::future::ready(()) => {}
    }
}

/// Serves one connection to its end.
async fn converse(
    connection: Box<dyn Connection>,
    gatherer: Arc<Gatherer>,
    mut ended: watch::Receiver<bool>,
    seat: Seat,
) {
    let seat = Arc::new(seat);
    let asker = seat.clone();
    let service = service_fn(move |request| {
        let (gatherer, seat) = (gatherer.clone(), asker.clone());
        async move {
            seat.enter(Phase::Gathering);
            if seat.is_out() {
                // It has asked again in the moment in which it had to leave: it is dropped at once.
                std::future::pending::<()>().await;
            }
            let mut response = answer(&request, &gatherer).await;
            if seat.is_last() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            seat.enter(Phase::Answering);
            Ok::<_, Infallible>(response)
        }
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(Seated { connection, seat: seat.clone() }), service);
    tokio::pin!(conversation);
    tokio::select! {
        // An error is the client's fault: it broke off, was too slow, or speaks no HTTP.
        _ = conversation.as_mut() => return,
        () = seat.over() => return,
        () = sleep(LONGEST) => {}
        _ = ended.wait_for(|over| *over) => {}
    }
    conversation.as_mut().graceful_shutdown();
    tokio::select! {
        _ = timeout(LAST, conversation) => {}
        () = seat.over() => {}
    }
}

async fn answer(request: &Request<Incoming>, gatherer: &Arc<Gatherer>) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        return say(StatusCode::NOT_FOUND, "there is nothing but /metrics\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = say(StatusCode::METHOD_NOT_ALLOWED, "metrics can only be read\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    // Several `Accept` headers form one list.
    let accepts = request.headers().get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let accept = accepts.collect::<Vec<_>>().join(",");
    let form = negotiate::form(Some(&accept));
    match gatherer.scrape().await {
        Ok(gathered) => typed(StatusCode::OK, form.media_type(), gathered.text(form)),
        Err(error) => {
            tracing::error!(%error, "nothing can be gathered");
            say(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n"))
        }
    }
}

fn say(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", text.to_owned().into())
}

fn typed(status: StatusCode, media: &'static str, text: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
