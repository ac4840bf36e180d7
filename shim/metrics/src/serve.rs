//! Serves metrics over HTTP/1.1 to a few untrusted clients at a time.
//!
//! ```text
//!   accept ─► client_limit ─► request, with a time limit ─► scrape ─► answer, with one ─► the next
//! ```
//!
//! hyper speaks the protocol; this module sets the limits: connections, size of a request's head, timeouts. The house
//! decides who must leave. Must not: read a body.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bowline_executor::{Error, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, getrlimit};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::client_limit::{House, Phase, Seat, Seated};
use super::families;
use super::gatherer::Gatherer;
use super::listen::{Connection, Listener};
use super::negotiate;

/// How many connections are open at a time; one more replaces the client that has waited longest.
const CONNECTIONS: usize = 32;

/// At most one in this many of the files that we may open is a connection: the rest are for gathering.
const SHARE: u64 = 4;

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

/// How long to accept nobody when no file is left for a connection.
const NO_ROOM: Duration = Duration::from_millis(100);

/// Serves until `ended` is true.
pub async fn serve(listener: Listener, gatherer: Arc<Gatherer>, ended: watch::Receiver<bool>) {
    let house = House::new(room(), [PATIENCE, READING]);
    let mut over = ended.clone();
    loop {
        let connection = tokio::select! {
            connection = listener.accept() => connection,
            _ = over.wait_for(|over| *over) => break,
        };
        match connection {
            Ok(connection) => {
                let seat = tokio::select! {
                    seat = house.admit() => seat,
                    _ = over.wait_for(|over| *over) => break,
                };
                tokio::spawn(converse(connection, gatherer.clone(), ended.clone(), seat));
                // When many clients connect at once, this lets requests that have come be read, and clients that were
                // shown out leave, before the next one is accepted.
                yield_now().await;
            }
            // The client has gone already.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Most likely no file is left: a client that is shown out frees one.
                if house.show_out() {
                    yield_now().await;
                } else {
                    tracing::warn!(%error, "cannot take a connection");
                    sleep(NO_ROOM).await;
                }
            }
        }
    }
    drop(listener);
    // Every remaining client has been asked to leave and has its own timeout.
    let _ = timeout(2 * LAST, house.empty()).await;
}

/// How many connections may be open.
fn room() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / SHARE).unwrap_or(CONNECTIONS).clamp(1, CONNECTIONS)
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
            let response = answer(&request, &gatherer).await;
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

async fn answer(request: &Request<Incoming>, gatherer: &Gatherer) -> Response<Full<Bytes>> {
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
    match scrape(gatherer, form).await {
        Ok(text) => typed(StatusCode::OK, form.media_type(), text),
        Err(error) => {
            tracing::error!(%error, "nothing can be gathered");
            say(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n"))
        }
    }
}

async fn scrape(gatherer: &Gatherer, form: super::text::Form) -> std::result::Result<String, Error> {
    let scrape: Result<_> = gatherer.scrape().await;
    Ok(families::of(&*scrape?).render(form))
}

fn say(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", text.to_owned())
}

fn typed(status: StatusCode, media: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
