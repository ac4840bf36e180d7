//! The end of containerd that shims send their events to: it keeps them in order, and can be away or hang.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use containerd_shim_protos::events::task as api;
use containerd_shim_protos::shim::events::ForwardRequest;
use protobuf::Message;
use protobuf::well_known_types::any::Any;
use protobuf::well_known_types::empty::Empty;
use protobuf::well_known_types::timestamp::Timestamp;
use ttrpc::proto::Request;

use super::wire::{answer, read_frame};
use crate::harness::eventually;

/// One event: its topic, and the task or exec that it is about.
#[derive(Debug, Clone, Default)]
pub struct Event {
    /// Such as `/tasks/exit`.
    pub topic: String,
    /// The namespace of the envelope.
    pub namespace: String,
    pub id: String,
    /// The exec; empty for init.
    pub exec: String,
    /// The process, where the event tells.
    pub pid: u32,
    /// The exit status, where the event tells.
    pub status: u32,
    /// When it ended, where the event tells.
    pub exited_at: Option<Timestamp>,
    pub content: Any,
}

impl Event {
    fn read(request: ForwardRequest) -> Event {
        let envelope = request.envelope.unwrap_or_default();
        let content = envelope.event.unwrap_or_default();
        let event = Event {
            topic: envelope.topic,
            namespace: envelope.namespace,
            content: content.clone(),
            ..Default::default()
        };
        let kind = content.type_url.rsplit('/').next().unwrap_or_default();
        match kind.strip_prefix("containerd.events.").unwrap_or_else(|| panic!("an event of type {kind:?}")) {
            "TaskCreate" => {
                let m: api::TaskCreate = parse(&content);
                Event { id: m.container_id, pid: m.pid, ..event }
            }
            "TaskStart" => {
                let m: api::TaskStart = parse(&content);
                Event { id: m.container_id, pid: m.pid, ..event }
            }
            "TaskExit" => {
                let m: api::TaskExit = parse(&content);
                let exec = if m.id == m.container_id { String::new() } else { m.id };
                let exited_at = m.exited_at.into_option();
                Event { id: m.container_id, exec, pid: m.pid, status: m.exit_status, exited_at, ..event }
            }
            "TaskDelete" => {
                let m: api::TaskDelete = parse(&content);
                let exec = if m.id == m.container_id { String::new() } else { m.id };
                let exited_at = m.exited_at.into_option();
                Event { id: m.container_id, exec, pid: m.pid, status: m.exit_status, exited_at, ..event }
            }
            "TaskOOM" => Event { id: parse::<api::TaskOOM>(&content).container_id, ..event },
            "TaskExecAdded" => {
                let m: api::TaskExecAdded = parse(&content);
                Event { id: m.container_id, exec: m.exec_id, ..event }
            }
            "TaskExecStarted" => {
                let m: api::TaskExecStarted = parse(&content);
                Event { id: m.container_id, exec: m.exec_id, pid: m.pid, ..event }
            }
            "TaskPaused" => Event { id: parse::<api::TaskPaused>(&content).container_id, ..event },
            "TaskResumed" => Event { id: parse::<api::TaskResumed>(&content).container_id, ..event },
            "TaskCheckpointed" => Event { id: parse::<api::TaskCheckpointed>(&content).container_id, ..event },
            other => panic!("an event of type {other}"),
        }
    }

    /// `create`, `exit`, or of an exec `exit e1`: topic and exec in short.
    pub fn short(&self) -> String {
        let name = self.topic.strip_prefix("/tasks/").unwrap_or(&self.topic);
        format!("{name} {}", self.exec).trim_end().to_owned()
    }
}

fn parse<M: Message>(content: &Any) -> M {
    M::parse_from_bytes(&content.value).expect("what its type says")
}

#[derive(Default)]
struct Shared {
    events: Mutex<Vec<Event>>,
    connections: Mutex<Vec<UnixStream>>,
    hanging: Mutex<bool>,
    goes_on: Condvar,
}

/// The server. It serves until it is stopped.
pub struct Events {
    path: PathBuf,
    shared: Arc<Shared>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl Events {
    /// Those that come to the socket at `path`, once there is one: see [`Events::come_back`].
    pub(super) fn at(path: &Path) -> Events {
        Events { path: path.to_owned(), shared: Arc::default(), listening: Mutex::default() }
    }

    /// Goes away: no socket, no connection.
    pub fn stop(&self) {
        self.go_on();
        let Some(thread) = self.listening.lock().expect("nobody panics with it").take() else { return };
        // Without the file nobody else gets in; this wakes the thread, which sees that the file has gone.
        let waker = UnixStream::connect(&self.path);
        fs::remove_file(&self.path).expect("the socket");
        drop(waker);
        thread.join().expect("the listener ends");
        for connection in self.shared.connections.lock().expect("nobody panics with it").drain(..) {
            // An error means that the other side has gone before.
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Comes back at the same socket.
    pub fn come_back(&self) {
        let listener = UnixListener::bind(&self.path).expect("a free path");
        let (path, shared) = (self.path.clone(), self.shared.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The last one that connects is the one that stops us: it waits until it may be taken down.
                if stopped(&stream, &path) {
                    return;
                }
                let kept = stream.try_clone().expect("an fd");
                shared.connections.lock().expect("nobody panics with it").push(kept);
                let shared = shared.clone();
                std::thread::spawn(move || serve(&stream, &shared));
            }
        });
        *self.listening.lock().expect("nobody panics with it") = Some(thread);
    }

    /// Is there, but takes and answers nothing.
    pub fn hang(&self) {
        *self.shared.hanging.lock().expect("nobody panics with it") = true;
    }

    pub fn go_on(&self) {
        *self.shared.hanging.lock().expect("nobody panics with it") = false;
        self.shared.goes_on.notify_all();
    }

    pub fn all(&self) -> Vec<Event> {
        self.shared.events.lock().expect("nobody panics with it").clone()
    }

    /// Those of a container, in short: see [`Event::short`].
    pub fn of(&self, id: &str) -> Vec<String> {
        self.all().iter().filter(|event| event.id == id).map(Event::short).collect()
    }

    /// The first event of a container that reads like this in short, as soon as it is here.
    #[track_caller]
    pub fn wait_for(&self, id: &str, short: &str) -> Event {
        let what = format!("event {short:?} of {id}");
        let mut seen = Vec::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(&what, || {
                seen = self.of(id);
                self.all().into_iter().find(|event| event.id == id && event.short() == short)
            })
        }));
        found.unwrap_or_else(|_| panic!("never came: {what}; there were {seen:?}"))
    }
}

/// Whether this connection is that of [`Events::stop`]: the file goes while it is up.
fn stopped(stream: &UnixStream, path: &Path) -> bool {
    let ours = rustix::net::sockopt::socket_peercred(stream).map(|peer| peer.pid.as_raw_nonzero().get());
    if ours != Ok(i32::try_from(std::process::id()).expect("a pid")) {
        return false;
    }
    eventually("the socket's file goes", || (!path.exists()).then_some(()));
    true
}

fn serve(stream: &UnixStream, shared: &Shared) {
    while let Ok(frame) = read_frame(stream) {
        let mut hanging = shared.hanging.lock().expect("nobody panics with it");
        while *hanging {
            hanging = shared.goes_on.wait(hanging).expect("nobody panics with it");
        }
        drop(hanging);
        let request = Request::parse_from_bytes(&frame.content).expect("a request");
        let asked = (request.service.as_str(), request.method.as_str());
        assert_eq!(asked, ("containerd.services.events.ttrpc.v1.Events", "Forward"));
        let forwarded = ForwardRequest::parse_from_bytes(&request.payload).expect("an envelope");
        let event = Event::read(forwarded);
        // Answered first: whoever hung up before the answer sends it again.
        if answer(stream, frame.stream, &Empty::new()).is_err() {
            return;
        }
        shared.events.lock().expect("nobody panics with it").push(event);
    }
}
