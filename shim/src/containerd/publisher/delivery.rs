//! The way of events to containerd: one call at a time, until it is answered.

use std::sync::Arc;
use std::time::Duration;

use containerd_shim_protos::shim::events::ForwardRequest;
use containerd_shim_protos::shim_async::EventsClient;
use tokio::net::UnixStream;
use tokio::time::sleep;
use ttrpc::Code;
use ttrpc::r#async::Client;
use ttrpc::r#async::transport::Socket;
use ttrpc::context::{Context, with_duration};

use super::Shared;

/// How long to wait before a call is made again: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));

/// Sends one event after the other, without end.
pub async fn deliver(shared: Arc<Shared>, address: String) {
    let mut client = None;
    loop {
        let request = ForwardRequest { envelope: Some(shared.first().await).into(), ..ForwardRequest::default() };
        let mut pause = PAUSES.0;
        while let Err(reason) = forward(&mut client, &address, &shared, &request).await {
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
    client: &mut Option<EventsClient>,
    address: &str,
    shared: &Shared,
    request: &ForwardRequest,
) -> std::result::Result<(), Failed> {
    let connected = match client.take() {
        Some(connected) => connected,
        None => {
            // Never blocks: a socket with too many waiting refuses.
            let stream = UnixStream::connect(address).await.map_err(|error| Failed::Now(error.to_string()))?;
            EventsClient::new(Client::new(Socket::from(stream)))
        }
    };
    match connected.forward(context(shared), request).await {
        Ok(_) => {
            *client = Some(connected);
            Ok(())
        }
        Err(ttrpc::Error::RpcStatus(status)) => {
            // It answers: the connection is as good as before.
            *client = Some(connected);
            match status.code() {
                // The second: it does not take events at all.
                Code::INVALID_ARGUMENT | Code::UNIMPLEMENTED => Err(Failed::Refused(status.message)),
                _ => Err(Failed::Now(status.message)),
            }
        }
        Err(error) => Err(Failed::Now(error.to_string())),
    }
}

fn context(shared: &Shared) -> Context {
    let mut context = with_duration(shared.patience);
    context.add("containerd-namespace-ttrpc".to_owned(), shared.namespace.clone());
    context
}
