//! Publishes events to containerd in their order.
//!
//! ```text
//!   publish ─► queue ─► one call at a time, until it is answered ─► containerd
//! ```
//!
//! Publishing never blocks. containerd may be down for minutes: a call that is not answered within five seconds, or
//! whose connection breaks, is repeated over a new connection for as long as the shim lives. So containerd may get an
//! event twice, but never in another order. When the queue is full, the oldest events are dropped, but never an exit,
//! because there is no other way to learn of it. Exits need no limit: there are no more than processes, and no process
//! starts without containerd.

mod delivery;
mod queue;

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_executor::internal::waits;
use bowline_model::json::handover::bytes;
use bowline_model::{Doing, Error, Kind, Result};
use containerd_shim_protos::shim::event::Envelope;
use jiff::Timestamp;
use protobuf::Message;
use protobuf::well_known_types::any::Any;
use protobuf::well_known_types::timestamp::Timestamp as WireTimestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::timeout;

use delivery::Delivery;
use queue::{Queue, Shared};

/// How many events may wait for containerd.
const LIMIT: usize = 2048;
/// The longest event, in bytes: a ttrpc message has at most 4 MiB, and the envelope needs far less than the rest.
const LONGEST: usize = (4 << 20) - (64 << 10);
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes events to publish. Cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    shared: Arc<Shared>,
    /// Delivers what is published, once that was begun.
    delivery: Option<Rc<tokio::sync::Mutex<Delivery>>>,
}

/// The publisher, as a shim hands it over.
#[derive(Serialize, Deserialize)]
pub struct Handed {
    /// As protobuf encodes them, oldest first.
    events: Vec<HandedEvent>,
    sending: bool,
    dropped: u64,
    delivery: Option<delivery::Handed>,
}

#[derive(Serialize, Deserialize)]
struct HandedEvent(#[serde(with = "bytes")] Vec<u8>);

/// What `inspect --facts` prints of the publisher.
#[derive(Debug, Serialize)]
pub struct Outline {
    address: Option<String>,
    /// The topics of waiting events, oldest first.
    waiting: Vec<String>,
    /// Whether the oldest is being sent.
    sending: bool,
    /// How many events are lost.
    dropped: u64,
}

impl Publisher {
    /// The waiting events, for debugging.
    pub fn outline(&self) -> Outline {
        let queue = self.shared.queue();
        Outline {
            address: self.shared.address.clone(),
            waiting: queue.events.iter().map(|event| event.topic.clone()).collect(),
            sending: queue.sending,
            dropped: queue.dropped,
        }
    }

    /// Publishes to the containerd at `address`, a socket's path with or without `unix://`. Without an address events
    /// are dropped: the alternative, a run of containerd's own binary for each event, would need a process that this
    /// shim has to start and reap.
    pub fn new(address: Option<&str>, namespace: &str) -> Publisher {
        let (publisher, delivery) = Publisher::with(address, namespace, LIMIT, PATIENCE);
        let delivery = delivery.map(|delivery| Rc::new(tokio::sync::Mutex::new(delivery)));
        Publisher { delivery, ..publisher }
    }

    /// Begins to deliver what is published; call it within a `LocalSet`.
    pub fn begin(&self) {
        let Some(delivery) = self.delivery.clone() else {
            return tracing::warn!("events are lost: containerd has not said where it takes them (TTRPC_ADDRESS)");
        };
        waits::begin(move || {
            let delivery = delivery.clone();
            async move { delivery.lock().await.deliver().await }
        });
    }

    /// What is not delivered, for the program that is executed in the shim's place. Called while the shim is at rest.
    ///
    /// # Errors
    /// `Internal` when an event cannot be written down.
    pub fn hand_over(&self) -> Result<Handed> {
        let queue = self.shared.queue();
        let events = queue.events.iter().map(|event| event.write_to_bytes().map(HandedEvent));
        let delivery = self.delivery.as_ref().and_then(|delivery| Some(delivery.try_lock().ok()?.hand_over()));
        Ok(Handed {
            events: events.collect::<protobuf::Result<_>>().doing(Kind::Internal, || "cannot write an event")?,
            sending: queue.sending,
            dropped: queue.dropped,
            delivery,
        })
    }

    /// Goes on with what the program before this one has handed over, before anything is published.
    ///
    /// # Errors
    /// `Damaged` when an event cannot be read.
    pub fn take(&self, handed: Handed) -> Result<()> {
        let event = |event: HandedEvent| Envelope::parse_from_bytes(&event.0);
        let events = handed.events.into_iter().map(event).collect::<protobuf::Result<_>>();
        let events = events.doing(Kind::Damaged, || "cannot read an event")?;
        *self.shared.queue() = Queue { events, sending: handed.sending, dropped: handed.dropped };
        if let (Some(delivery), Some(handed)) = (&self.delivery, handed.delivery)
            && let Ok(mut delivery) = delivery.try_lock()
        {
            delivery.take(handed);
        }
        Ok(())
    }

    fn with(address: Option<&str>, namespace: &str, limit: usize, patience: Duration) -> (Publisher, Option<Delivery>) {
        let address = address.map(|address| address.trim_start_matches("unix://").to_owned());
        let shared = Arc::new(Shared {
            namespace: namespace.to_owned(),
            address: address.filter(|address| !address.is_empty()),
            limit,
            patience,
            queue: Mutex::default(),
            added: Notify::new(),
            emptied: Notify::new(),
        });
        let delivery = shared.address.clone().map(|address| Delivery::new(shared.clone(), address));
        (Publisher { shared, delivery: None }, delivery)
    }

    /// Publishes `event`, a message of `containerd.events`, with the current time.
    pub fn publish<E: Message>(&self, topic: &str, event: E) {
        if self.shared.address.is_none() {
            return;
        }
        match envelope(&self.shared.namespace, topic, &event) {
            Ok(envelope) => self.shared.add(envelope),
            Err(error) => tracing::error!("event {topic} is lost: {error}"),
        }
    }

    /// Waits until containerd has taken all events, for at most `within`. Returns whether it has.
    pub async fn drained(&self, within: Duration) -> bool {
        let empty = async {
            loop {
                // Subscribe before looking, so that no change in between is missed.
                let emptied = self.shared.emptied.notified();
                if self.shared.queue().events.is_empty() {
                    return;
                }
                emptied.await;
            }
        };
        timeout(within, empty).await.is_ok()
    }
}

fn envelope(namespace: &str, topic: &str, event: &impl Message) -> Result<Envelope> {
    let now = Timestamp::now();
    let timestamp =
        WireTimestamp { seconds: now.as_second(), nanos: now.subsec_nanosecond(), ..WireTimestamp::default() };
    let value = event.write_to_bytes().doing(Kind::Internal, || "cannot encode it")?;
    if value.len() > LONGEST {
        // The event could never be sent, and would block all later ones.
        return Err(Error::new(Kind::Internal, format!("it has {} bytes, {LONGEST} at most", value.len())));
    }
    let event = Any { type_url: type_of(event), value, ..Any::default() };
    Ok(Envelope {
        timestamp: Some(timestamp).into(),
        namespace: namespace.to_owned(),
        topic: topic.to_owned(),
        event: Some(event).into(),
        ..Envelope::default()
    })
}

/// The name of an event's type. Not taken from the message's descriptor, which would load the whole protocol into
/// memory.
fn type_of<E: Message>(_: &E) -> String {
    format!("containerd.events.{}", E::NAME)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use async_trait::async_trait;
    use containerd_shim_protos::events::task::{TaskExit, TaskOOM, TaskStart};
    use containerd_shim_protos::shim::events::ForwardRequest;
    use containerd_shim_protos::shim_async::{Events, create_events};
    use protobuf::well_known_types::empty::Empty;
    use tokio::net::UnixListener;
    use ttrpc::Code;
    use ttrpc::r#async::{Server, TtrpcContext, transport::Listener};

    use super::queue::is_exit;
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// A fake containerd that takes events.
    #[derive(Default)]
    struct Taker {
        taken: Mutex<Vec<Envelope>>,
        /// Answers with these errors instead of taking the event.
        refused: Mutex<Vec<Code>>,
        /// How many calls get no answer.
        silent: Mutex<usize>,
        arrived: Notify,
    }

    #[async_trait]
    impl Events for Taker {
        async fn forward(&self, context: &TtrpcContext, request: ForwardRequest) -> ttrpc::Result<Empty> {
            assert_eq!(context.metadata["containerd-namespace-ttrpc"], ["k8s.io"]);
            let refused = self.refused.lock().unwrap().pop();
            if let Some(code) = refused {
                return Err(ttrpc::Error::RpcStatus(ttrpc::get_status(code, "no")));
            }
            let silent = std::mem::take(&mut *self.silent.lock().unwrap());
            if silent > 0 {
                *self.silent.lock().unwrap() = silent - 1;
                self.arrived.notify_one();
                return std::future::pending().await;
            }
            self.taken.lock().unwrap().push(request.envelope.unwrap());
            self.arrived.notify_one();
            Ok(Empty::new())
        }
    }

    impl Taker {
        async fn serve(self: &Arc<Self>, path: &Path) -> Server {
            let _ = std::fs::remove_file(path);
            let listener = Listener::from(UnixListener::bind(path).unwrap());
            let mut server = Server::new().add_listener(listener).register_service(create_events(self.clone()));
            server.start().await.unwrap();
            server
        }

        /// The pid in each event, in the order of arrival.
        fn pids(&self) -> Vec<u32> {
            let taken = self.taken.lock().unwrap();
            taken.iter().map(|envelope| TaskExit::parse_from_bytes(&envelope.event.value).unwrap().pid).collect()
        }

        async fn until_taken(&self, count: usize) {
            let taken = async {
                while self.taken.lock().unwrap().len() < count {
                    self.arrived.notified().await;
                }
            };
            timeout(SOON, taken).await.expect("they arrive");
        }
    }

    struct Host {
        _folder: tempfile::TempDir,
        path: PathBuf,
        taker: Arc<Taker>,
    }

    impl Host {
        fn new() -> Host {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s");
            Host { _folder: folder, path, taker: Arc::default() }
        }

        fn publisher(&self, limit: usize, patience: Duration) -> Publisher {
            let address = format!("unix://{}", self.path.display());
            let (publisher, delivery) = Publisher::with(Some(&address), "k8s.io", limit, patience);
            let mut delivery = delivery.expect("it has an address");
            tokio::spawn(async move { delivery.deliver().await });
            publisher
        }
    }

    fn exit(pid: u32) -> TaskExit {
        TaskExit { pid, ..TaskExit::default() }
    }

    #[tokio::test]
    async fn an_event_arrives_as_containerd_reads_it() {
        let host = Host::new();
        let _server = host.taker.serve(&host.path).await;
        let publisher = host.publisher(LIMIT, PATIENCE);
        publisher.publish("/tasks/start", TaskStart { pid: 7, ..TaskStart::default() });
        assert!(publisher.drained(SOON).await);
        let taken = host.taker.taken.lock().unwrap();
        let envelope = &taken[0];
        assert_eq!((envelope.namespace.as_str(), envelope.topic.as_str()), ("k8s.io", "/tasks/start"));
        assert_eq!(envelope.event.type_url, "containerd.events.TaskStart");
        assert_eq!(TaskStart::parse_from_bytes(&envelope.event.value).unwrap().pid, 7);
        let sent = Timestamp::new(envelope.timestamp.seconds, envelope.timestamp.nanos).unwrap();
        assert!(Timestamp::now().duration_since(sent).as_secs() < 60);
    }

    #[tokio::test]
    async fn the_names_of_types_are_those_of_the_protocol() {
        use protobuf::MessageFull as _;
        assert_eq!(type_of(&TaskExit::new()), TaskExit::descriptor().full_name());
        assert_eq!(type_of(&TaskOOM::new()), TaskOOM::descriptor().full_name());
    }

    #[tokio::test]
    async fn the_order_is_kept_when_containerd_goes_and_comes_back() {
        let host = Host::new();
        let publisher = host.publisher(LIMIT, PATIENCE);
        // containerd is not up yet.
        (0..3).for_each(|pid| publisher.publish("/tasks/exit", exit(pid)));
        assert!(!publisher.drained(Duration::from_millis(20)).await);
        let mut server = host.taker.serve(&host.path).await;
        host.taker.until_taken(3).await;
        server.shutdown().await.unwrap();
        drop(server);
        (3..6).for_each(|pid| publisher.publish("/tasks/exit", exit(pid)));
        assert!(!publisher.drained(Duration::from_millis(20)).await);
        let _server = host.taker.serve(&host.path).await;
        assert!(publisher.drained(SOON).await);
        assert_eq!(host.taker.pids(), [0, 1, 2, 3, 4, 5]);
    }

    #[tokio::test]
    async fn a_call_that_gets_no_answer_is_made_again() {
        let host = Host::new();
        *host.taker.silent.lock().unwrap() = 2;
        let _server = host.taker.serve(&host.path).await;
        let publisher = host.publisher(LIMIT, Duration::from_millis(50));
        (0..3).for_each(|pid| publisher.publish("/tasks/exit", exit(pid)));
        assert!(publisher.drained(SOON).await);
        assert_eq!(host.taker.pids(), [0, 1, 2]);
    }

    #[tokio::test]
    async fn a_socket_that_nobody_accepts_at_is_waited_for_without_blocking() {
        let host = Host::new();
        let listener = std::os::unix::net::UnixListener::bind(&host.path).unwrap();
        let publisher = host.publisher(LIMIT, Duration::from_millis(50));
        publisher.publish("/tasks/exit", exit(1));
        assert!(!publisher.drained(Duration::from_millis(200)).await);
        drop(listener);
        let _server = host.taker.serve(&host.path).await;
        assert!(publisher.drained(SOON).await);
        assert_eq!(host.taker.pids(), [1]);
    }

    #[tokio::test]
    async fn what_containerd_can_never_take_holds_nobody_up() {
        let host = Host::new();
        *host.taker.refused.lock().unwrap() = vec![Code::UNIMPLEMENTED, Code::INVALID_ARGUMENT, Code::UNAVAILABLE];
        let _server = host.taker.serve(&host.path).await;
        let publisher = host.publisher(LIMIT, PATIENCE);
        (0..3).for_each(|pid| publisher.publish("/tasks/exit", exit(pid)));
        assert!(publisher.drained(SOON).await);
        // The first call is tried again and then refused for good, as is the second.
        assert_eq!(host.taker.pids(), [2]);
    }

    #[tokio::test]
    async fn an_event_that_no_message_has_room_for_holds_nobody_up() {
        let host = Host::new();
        let _server = host.taker.serve(&host.path).await;
        let publisher = host.publisher(LIMIT, PATIENCE);
        for length in [LONGEST - 100, LONGEST + (1 << 20)] {
            let container_id = "x".repeat(length);
            publisher.publish("/tasks/exit", TaskExit { container_id, ..exit(0) });
        }
        publisher.publish("/tasks/exit", exit(1));
        assert!(publisher.drained(SOON).await);
        assert_eq!(host.taker.pids(), [0, 1]);
    }

    #[tokio::test]
    async fn a_full_queue_loses_the_oldest_and_never_an_exit() {
        let host = Host::new();
        let publisher = host.publisher(4, PATIENCE);
        let start = |pid| TaskStart { pid, ..TaskStart::default() };
        publisher.publish("/tasks/exit", exit(0));
        (1..4).for_each(|pid| publisher.publish("/tasks/start", start(pid)));
        (4..9).for_each(|pid| publisher.publish("/tasks/exit", exit(pid)));
        publisher.publish("/tasks/start", start(9));
        {
            let queue = publisher.shared.queue();
            let kept: Vec<bool> = queue.events.iter().map(is_exit).collect();
            assert_eq!(kept, [true; 6]);
            assert_eq!(queue.dropped, 4);
        }
        let _server = host.taker.serve(&host.path).await;
        assert!(publisher.drained(SOON).await);
        assert_eq!(host.taker.taken.lock().unwrap().len(), 6);
    }

    #[tokio::test]
    async fn without_an_address_nothing_is_kept() {
        for address in [None, Some(""), Some("unix://")] {
            let publisher = Publisher::new(address, "k8s.io");
            publisher.publish("/tasks/exit", exit(1));
            assert!(publisher.drained(Duration::ZERO).await, "{address:?}");
        }
    }
}
