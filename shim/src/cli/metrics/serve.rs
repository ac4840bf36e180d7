//! Metrics over HTTP/1.1, for a few clients at a time, none of them trusted.
//!
//! ```text
//!   accept, with room ─► request, with a time limit ─► scrape ─► answer ─► the next
//! ```
//!
//! hyper speaks the protocol; here is what it is allowed: how many connections,
//! how large a head, how long for what. Must not: read a body.

use std::convert::Infallible;
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
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::families;
use super::gather::Gatherer;
use super::listen::{Connection, Listener};
use super::negotiate;

/// How many connections there are at a time; who comes then waits.
const CONNECTIONS: usize = 32;

/// How large the head of a request may be, in bytes: hyper's least.
const HEAD: usize = 8192;

/// How long a client may take for that, from the connection or the answer before
/// on. Who scrapes every 15 seconds keeps its connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a connection lasts: who does not read its answer, or never leaves,
/// makes room for another.
const LONGEST: Duration = Duration::from_secs(60);

/// How long an answer that is under way may take then, and at the end.
const LAST: Duration = Duration::from_secs(3);

/// How long nobody is let in when there are no files left for a connection.
const NO_ROOM: Duration = Duration::from_millis(100);

/// Serves until `ended` says so.
pub async fn serve(listener: Listener, gatherer: Arc<Gatherer>, ended: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut over = ended.clone();
    loop {
        let next = async {
            let turn = room.clone().acquire_owned().await;
            (turn, listener.accept().await)
        };
        let (turn, connection) = tokio::select! {
            next = next => next,
            _ = over.wait_for(|over| *over) => break,
        };
        match connection {
            Ok(connection) => {
                let (gatherer, ended) = (gatherer.clone(), ended.clone());
                tokio::spawn(async move {
                    converse(connection, gatherer, ended).await;
                    drop(turn);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection");
                sleep(NO_ROOM).await;
            }
        }
    }
    drop(listener);
    // All that are left are told to go, each for so long.
    let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
    let _ = timeout(2 * LAST, room.acquire_many(all)).await;
}

/// One connection, to its end.
async fn converse(connection: Box<dyn Connection>, gatherer: Arc<Gatherer>, mut ended: watch::Receiver<bool>) {
    let service = service_fn(move |request| {
        let gatherer = gatherer.clone();
        async move { Ok::<_, Infallible>(answer(&request, &gatherer).await) }
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(connection), service);
    tokio::pin!(conversation);
    tokio::select! {
        // An error is the client's: it broke off, was too slow, or speaks no HTTP.
        _ = conversation.as_mut() => return,
        () = sleep(LONGEST) => {}
        _ = ended.wait_for(|over| *over) => {}
    }
    conversation.as_mut().graceful_shutdown();
    let _ = timeout(LAST, conversation).await;
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
    // Several headers are one list.
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
