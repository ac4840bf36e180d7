//! Frames at a shim's socket that are out of form, in pieces, too many or never answered for, at bowline's own shim and
//! at containerd's: each gets the code that Go's ttrpc gives it, and everybody else is served.
//!
//! Claims of gigabytes, connections without number, other users: `hostile_clients.rs`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::containerd::{Code, Running, protobuf};
use bowline_tests::harness::{Task, eventually, patience, process_exists, status_lines};
use protobuf::Message as _;
use ttrpc::proto::{Request, Response};

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const DATA: u8 = 3;

/// The largest payload, in bytes.
const LARGEST: usize = 4 << 20;

/// A shim that serves something, to be bothered: bowline's own, or containerd's.
enum Served<'h> {
    Own(Box<Task<'h>>),
    Containerds(Box<Running<'h>>),
}

impl Served<'_> {
    fn socket(&self) -> PathBuf {
        match self {
            Served::Own(task) => task.file("shim.sock"),
            Served::Containerds(running) => running.shim.socket.clone(),
        }
    }

    fn shim(&self) -> i32 {
        match self {
            Served::Own(task) => task.shim_pid(),
            Served::Containerds(running) => running.shim.pid(),
        }
    }

    fn service(&self) -> &'static str {
        match self {
            Served::Own(_) => "bowline.v1.Bowline",
            Served::Containerds(_) => "containerd.task.v2.Task",
        }
    }

    /// A call that is answered at once, and its payload.
    fn quick(&self) -> Vec<u8> {
        match self {
            Served::Own(_) => self.call("Version", b""),
            Served::Containerds(_) => self.call("Connect", b""),
        }
    }

    /// A call that is answered at the task's end.
    fn wait(&self) -> Vec<u8> {
        match self {
            Served::Own(task) => self.call("Wait", &of_text(task.id())),
            Served::Containerds(running) => self.call("Wait", &of_text(&running.id)),
        }
    }

    /// A call whose answer is long, as such answers go.
    fn state(&self) -> Vec<u8> {
        match self {
            Served::Own(task) => self.call("Stats", &of_text(task.id())),
            Served::Containerds(running) => self.call("State", &of_text(&running.id)),
        }
    }

    fn call(&self, method: &str, payload: &[u8]) -> Vec<u8> {
        call(self.service(), method, payload)
    }

    #[track_caller]
    fn serves(&self) {
        match self {
            Served::Own(task) => assert_eq!(task.status(), "running"),
            Served::Containerds(running) => assert_eq!(running.shim.status(&running.id, ""), "RUNNING"),
        }
    }

    fn connect(&self) -> Peer {
        let stream = UnixStream::connect(self.socket()).expect("our own");
        stream.set_read_timeout(Some(patience())).expect("a socket");
        stream.set_write_timeout(Some(patience())).expect("a socket");
        Peer { stream }
    }

    fn end(self) {
        match self {
            Served::Own(task) => drop(task.end()),
            Served::Containerds(running) => running.end(),
        }
    }
}

/// Has `act` bother a shim of each kind, which serves on and leaves nothing.
fn each_is_served(act: impl Fn(&Served<'_>)) {
    let host = Host::new();
    let containerd = host.containerd();
    let task = Served::Own(Box::new(host.task("exec sleep 1000").start()));
    let container = Served::Containerds(Box::new(containerd.run("sleep 1000")));
    for served in [task, container] {
        act(&served);
        served.serves();
        served.end();
    }
}

/// A message with this text as its first field.
fn of_text(text: &str) -> Vec<u8> {
    [&[0x0a, text.len() as u8], text.as_bytes()].concat()
}

fn call(service: &str, method: &str, payload: &[u8]) -> Vec<u8> {
    let request =
        Request { service: service.into(), method: method.into(), payload: payload.into(), ..Default::default() };
    request.write_to_bytes().expect("a whole message")
}

fn header(length: usize, stream: u32, kind: u8, flags: u8) -> Vec<u8> {
    let length = u32::try_from(length).expect("it is said in four bytes");
    [&length.to_be_bytes()[..], &stream.to_be_bytes(), &[kind, flags]].concat()
}

fn frame(stream: u32, kind: u8, flags: u8, content: &[u8]) -> Vec<u8> {
    [header(content.len(), stream, kind, flags), content.to_vec()].concat()
}

fn request(stream: u32, content: &[u8]) -> Vec<u8> {
    frame(stream, REQUEST, 0, content)
}

/// A raw connection to a shim, which can send invalid frames.
struct Peer {
    stream: UnixStream,
}

impl Peer {
    #[track_caller]
    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the shim takes it");
    }

    /// The next answer: whose, and its code and text.
    #[track_caller]
    fn answer(&mut self) -> (u32, Code, String) {
        let mut head = [0; 10];
        self.stream.read_exact(&mut head).expect("an answer");
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let mut content = vec![0; number(0) as usize];
        self.stream.read_exact(&mut content).expect("a whole answer");
        assert_eq!(head[8], RESPONSE);
        let status = Response::parse_from_bytes(&content).expect("a response").status.unwrap_or_default();
        (number(4), status.code.enum_value_or_default(), status.message)
    }

    /// The next answer is `stream`'s, with this code.
    #[track_caller]
    fn is_answered(&mut self, stream: u32, code: Code) -> String {
        let (whose, told, text) = self.answer();
        assert_eq!((whose, told), (stream, code), "{text}");
        text
    }

    /// The next answer has this code: whose it is.
    #[track_caller]
    fn is_answered_any(&mut self, code: Code) -> u32 {
        let (whose, told, text) = self.answer();
        assert_eq!(told, code, "{text}");
        whose
    }

    /// The next call is served, though what was before it was not.
    #[track_caller]
    fn is_served(&mut self, served: &Served<'_>, stream: u32) {
        self.send(&request(stream, &served.quick()));
        self.is_answered(stream, Code::OK);
    }
}

#[test]
fn a_frame_that_is_too_large_is_refused_and_the_next_served() {
    each_is_served(|served| {
        let mut peer = served.connect();
        for (stream, length) in [(1, LARGEST + 1), (3, LARGEST + (1 << 20)), (5, 20 << 20)] {
            peer.send(&header(length, stream, REQUEST, 0));
            peer.send(&vec![b'x'; length]);
            peer.is_answered(stream, Code::RESOURCE_EXHAUSTED);
        }
        // The largest is taken: it is no request.
        peer.send(&request(7, &[0xff; LARGEST]));
        peer.is_answered(7, Code::INVALID_ARGUMENT);
        peer.is_served(served, 9);
    });
}

#[test]
fn a_service_or_a_method_that_there_is_not_is_unimplemented() {
    each_is_served(|served| {
        let mut peer = served.connect();
        let names = ["nobodys.Service", "", "containerd.task.v1.Task", "bowline.v1.bowline", "x\u{0}y"];
        for (index, service) in names.into_iter().enumerate() {
            let stream = 1 + 2 * index as u32;
            peer.send(&request(stream, &call(service, "Version", b"")));
            let text = peer.is_answered(stream, Code::UNIMPLEMENTED);
            assert_eq!(text, format!("service {service}"));
        }
        for (index, method) in ["Nothing", "", "version", "connect"].into_iter().enumerate() {
            let stream = 101 + 2 * index as u32;
            peer.send(&request(stream, &served.call(method, b"")));
            let text = peer.is_answered(stream, Code::UNIMPLEMENTED);
            assert_eq!(text, format!("method {method}"));
        }
        peer.is_served(served, 201);
    });
}

#[test]
fn a_request_that_is_no_message_is_an_invalid_argument() {
    each_is_served(|served| {
        let mut peer = served.connect();
        peer.send(&request(1, &[0xff; 5]));
        peer.is_answered(1, Code::INVALID_ARGUMENT);
        // It is one, and its payload is none.
        peer.send(&request(3, &served.call("Wait", &[0xff; 5])));
        peer.is_answered(3, Code::INVALID_ARGUMENT);
        peer.send(&request(5, &served.call("Wait", &[0x0a, 200, b'x'])));
        peer.is_answered(5, Code::INVALID_ARGUMENT);
        peer.is_served(served, 7);
    });
}

#[test]
fn streams_are_unimplemented() {
    const CLOSED: u8 = 1;
    const OPEN: u8 = 2;
    const NO_DATA: u8 = 4;
    each_is_served(|served| {
        let mut peer = served.connect();
        for (stream, flags) in [(1, OPEN), (3, CLOSED)] {
            peer.send(&frame(stream, REQUEST, flags, &served.quick()));
            peer.is_answered(stream, Code::UNIMPLEMENTED);
            peer.send(&frame(stream, DATA, 0, b"data"));
            peer.is_answered(stream, Code::UNIMPLEMENTED);
        }
        peer.send(&frame(5, DATA, CLOSED | NO_DATA, b""));
        peer.is_answered(5, Code::UNIMPLEMENTED);
        // No answer to what may come to mean something, nor to an answer.
        for kind in [0, RESPONSE, 4, 255] {
            peer.send(&frame(7, kind, 0, &served.quick()));
        }
        peer.is_served(served, 9);
    });
}

#[test]
fn a_number_that_is_even_or_in_use_is_an_invalid_argument() {
    each_is_served(|served| {
        let mut peer = served.connect();
        for stream in [0, 2, u32::MAX - 1] {
            peer.send(&request(stream, &served.quick()));
            peer.is_answered(stream, Code::INVALID_ARGUMENT);
        }
        peer.send(&request(5, &served.wait()));
        peer.send(&request(5, &served.quick()));
        peer.is_answered(5, Code::INVALID_ARGUMENT);
        // Whoever sends from several threads may be overtaken by itself: a lower number is as good, and one that is free
        // again.
        for stream in [3, 3, u32::MAX, 1] {
            peer.is_served(served, stream);
        }
    });
}

#[test]
fn frames_in_pieces_and_frames_together_are_served() {
    each_is_served(|served| {
        let mut peer = served.connect();
        let both = [request(1, &served.quick()), request(3, &served.state())].concat();
        for byte in &both {
            peer.send(std::slice::from_ref(byte));
        }
        let mut answered = [peer.answer(), peer.answer()];
        answered.sort_by_key(|(stream, ..)| *stream);
        assert_eq!(answered.map(|(stream, code, _)| (stream, code)), [(1, Code::OK), (3, Code::OK)]);
        // A hundred in one piece, and half of one more.
        let many: Vec<u8> = (0..100).flat_map(|index| request(5 + 2 * index, &served.quick())).collect();
        let last = request(205, &served.quick());
        let (half, rest) = last.split_at(last.len() / 2);
        peer.send(&[&many[..], half].concat());
        let mut streams: Vec<u32> = (0..100).map(|_| peer.answer().0).collect();
        streams.sort_unstable();
        assert_eq!(streams, (0..100).map(|index| 5 + 2 * index).collect::<Vec<_>>());
        served.serves();
        peer.send(rest);
        peer.is_answered(205, Code::OK);
    });
}

#[test]
fn half_a_frame_and_a_hangup_disturb_nobody() {
    each_is_served(|served| {
        let whole = request(1, &served.wait());
        for end in [1, 9, 10, 11, whole.len() - 1, whole.len()] {
            served.connect().send(&whole[..end]);
        }
        for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 64], &[0; 10_000]] {
            served.connect().send(garbage);
            served.serves();
        }
    });
}

/// A process's own memory, in kB.
fn memory(pid: i32) -> u64 {
    let line = status_lines(pid, &["RssAnon"]);
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Sends requests until the shim reads no more of them, at most `most`: how many.
fn pipeline(peer: &mut Peer, content: &[u8], most: u32) -> u32 {
    peer.stream.set_nonblocking(true).expect("a socket");
    let mut sent = 0;
    while sent < most {
        let frame = request(1 + 2 * sent, content);
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match peer.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                // The shim has had a whole second, and has read nothing.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let writable = rustix::event::PollFlags::OUT;
                    let mut fds = [rustix::event::PollFd::new(&peer.stream, writable)];
                    let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
                    if rustix::event::poll(&mut fds, Some(&second)).expect("a socket") == 0 {
                        peer.stream.set_nonblocking(false).expect("a socket");
                        return sent;
                    }
                }
                Err(error) => panic!("the shim hangs up: {error}"),
            }
        }
        sent += 1;
    }
    peer.stream.set_nonblocking(false).expect("a socket");
    sent
}

#[test]
fn a_client_that_reads_no_answers_is_not_read_from() {
    each_is_served(|served| {
        let shim = served.shim();
        served.serves();
        let before = memory(shim);
        let mut peer = served.connect();
        let sent = pipeline(&mut peer, &served.state(), 50_000);
        served.serves();
        let after = memory(shim);
        assert!(after < before + 4_000, "{before} kB became {after} by {sent} requests");
        assert!(sent < 50_000, "the shim keeps answers without end");
        // As soon as it reads, it is answered; what the shim did not read is still there.
        for _ in 0..sent {
            assert_eq!(peer.answer().1, Code::OK);
        }
        drop(peer);
        served.serves();
    });
}

#[test]
fn calls_without_number_are_refused_and_others_are_served() {
    const CALLS: u32 = 10_000;
    each_is_served(|served| {
        let shim = served.shim();
        served.serves();
        let before = memory(shim);
        let mut peer = served.connect();
        let mut writer = Peer { stream: peer.stream.try_clone().expect("an fd") };
        let mut calls: Vec<u8> = (0..CALLS).flat_map(|index| request(1 + 2 * index, &served.wait())).collect();
        let last = 1 + 2 * CALLS;
        calls.extend(request(last, &served.quick()));
        let refused = std::thread::scope(|scope| {
            // Refusals are to be read meanwhile: who does not is not read from.
            scope.spawn(move || writer.send(&calls));
            (0..).find(|_| peer.is_answered_any(Code::RESOURCE_EXHAUSTED) == last).expect("the last is refused too")
        });
        assert!((1000..9000).contains(&refused), "{refused} are refused");
        served.serves();
        let after = memory(shim);
        assert!(after < before + 16_000, "{before} kB became {after}");
        drop(peer);
        eventually("what they took is given back", || (memory(shim) < before + 1_000).then_some(()));
    });
}

#[test]
fn a_client_that_reads_nothing_does_not_keep_a_shim() {
    let host = Host::new();
    let task = Served::Own(Box::new(host.task("exec sleep 1000").start()));
    let shim = task.shim();
    let mut peer = task.connect();
    pipeline(&mut peer, &task.state(), 50_000);
    task.end();
    eventually("the shim has left", || (!process_exists(shim)).then_some(()));
    drop(peer);
}

#[test]
fn a_shim_that_is_told_to_leave_answers_before_it_does() {
    const ROUNDS: usize = 200;
    let host = Host::new();
    if host.reference_fails("it may leave before it has answered") {
        return;
    }
    let containerd = host.containerd();
    let bundle = containerd.bundle();
    for round in 0..ROUNDS {
        let shim = containerd.start(&bundle);
        let pid = shim.pid();
        shim.shutdown("").unwrap_or_else(|failure| panic!("round {round}: {failure:?}"));
        // Otherwise the shim would wait a while for us to hang up.
        drop(shim);
        eventually("the shim ends", || (!process_exists(pid)).then_some(()));
    }
}

#[test]
fn a_call_is_over_at_its_deadline() {
    each_is_served(|served| {
        let mut peer = served.connect();
        let mut waits = |stream: u32, nanoseconds: i64| {
            let mut wait = Request::parse_from_bytes(&served.wait()).expect("it was written");
            wait.timeout_nano = nanoseconds;
            peer.send(&request(stream, &wait.write_to_bytes().expect("a whole message")));
            peer.is_answered(stream, Code::DEADLINE_EXCEEDED);
        };
        waits(1, Duration::from_millis(20).as_nanos() as i64);
        // It has come before the call did.
        waits(3, -1);
        peer.is_served(served, 5);
    });
}
