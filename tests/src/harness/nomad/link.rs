//! The conversation with `nomad-agent`: requests, and their answers as they come.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};

use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::{Value, json};

use crate::harness::{Host, Process, patience, ran};

/// How a call has failed: gRPC's code, its message, and whether another attempt may succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: String,
    pub message: String,
    pub recoverable: Option<bool>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (recoverable: {:?})", self.code, self.message, self.recoverable)
    }
}

impl Refusal {
    fn new(error: &Value) -> Refusal {
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        // Only the first counts.
        let recoverable = error["details"][0]["recoverable"].as_bool();
        Refusal { code: text("code"), message: text("message"), recoverable }
    }

    /// The message has all of `parts`, is one line, and is none of a panic.
    #[track_caller]
    pub fn assert_says(&self, parts: &[&str]) -> &Refusal {
        for part in parts {
            assert!(self.message.contains(part), "the message should have {part:?}: {self}");
        }
        assert!(!self.message.contains("panicked"), "{self}");
        self
    }
}

/// What has come for one request.
#[derive(Default)]
struct Answers {
    items: Vec<Value>,
    end: Option<Result<Value, Refusal>>,
}

#[derive(Default)]
struct Inbox {
    answers: Mutex<HashMap<u64, Answers>>,
    changed: Condvar,
}

pub(super) struct Link {
    process: RefCell<Option<Process>>,
    stdin: RefCell<Option<File>>,
    inbox: Arc<Inbox>,
    next: Cell<u64>,
    transcript: Rc<RefCell<Vec<String>>>,
}

impl Link {
    pub(super) fn start(host: &Host, program: &Path) -> Link {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).expect("two fds");
        let ((theirs, stdin), (answers, stdout)) = (pipe(), pipe());
        let mut agent = host.command(program);
        // A plugin that is killed leaves its socket.
        agent.env("PLUGIN_UNIX_SOCKET_DIR", host.work());
        let process = host.spawn_command_with(agent, theirs, stdout);
        process.read_stderr();
        let inbox = Arc::new(Inbox::default());
        let shared = inbox.clone();
        std::thread::spawn(move || receive(answers, &shared));
        Link {
            process: RefCell::new(Some(process)),
            stdin: RefCell::new(Some(File::from(stdin))),
            inbox,
            next: Cell::new(0),
            transcript: host.transcript.clone(),
        }
    }

    /// Asks, and gives the number of the request.
    pub(super) fn begin(&self, mut asked: Value) -> u64 {
        let id = self.next.get() + 1;
        self.next.set(id);
        asked["id"] = json!(id);
        self.send(&asked);
        id
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&self, asked: Value) -> Result<Value, Refusal> {
        let id = self.begin(asked);
        self.answer(id)
    }

    fn send(&self, line: &Value) {
        self.note("→", line);
        let mut stdin = self.stdin.borrow_mut();
        let stdin = stdin.as_mut().expect("the agent runs");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("the agent runs");
    }

    fn note(&self, arrow: &str, line: &Value) {
        let line = line.to_string();
        self.transcript.borrow_mut().push(format!("{arrow} {}", ran::shortened(line.as_bytes())));
    }

    /// Waits until `found` finds something in the answers to a request.
    #[track_caller]
    fn wait<T>(&self, id: u64, found: impl Fn(&Answers) -> Option<T>) -> T {
        let answers = self.inbox.answers.lock().expect("nobody panics with it");
        let there = |all: &HashMap<u64, Answers>| all.get(&id).and_then(&found);
        let waited = self.inbox.changed.wait_timeout_while(answers, patience(), |all| there(all).is_none());
        let (answers, _) = waited.expect("nobody panics with it");
        there(&answers).unwrap_or_else(|| panic!("no answer to request {id}"))
    }

    /// The answer to a request, once it is there.
    #[track_caller]
    pub(super) fn answer(&self, id: u64) -> Result<Value, Refusal> {
        let end = self.wait(id, |answers| answers.end.clone());
        match &end {
            Ok(value) => self.note(&format!("← {id}"), value),
            Err(refusal) => self.note(&format!("← {id}"), &json!(refusal.to_string())),
        }
        end
    }

    /// Whether the answer is there.
    pub(super) fn is_answered(&self, id: u64) -> bool {
        let answers = self.inbox.answers.lock().expect("nobody panics with it");
        answers.get(&id).is_some_and(|answers| answers.end.is_some())
    }

    /// Closes its stdin and waits for its end: it ends its plugins first.
    pub(super) fn end(&self) {
        self.stdin.borrow_mut().take();
        let process = self.process.borrow_mut().take();
        // After a failure it may be gone, whatever it was about to do.
        if let Some(process) = process.filter(|_| !std::thread::panicking()) {
            process.finish().assert_code(0);
        }
    }

    /// Kills it, as by SIGKILL.
    pub(super) fn kill(&self) {
        drop(self.process.borrow_mut().take());
        self.stdin.borrow_mut().take();
    }
}

/// Reads answers until the agent is gone; whoever waits then has an answer too.
fn receive(from: OwnedFd, inbox: &Inbox) {
    for line in BufReader::new(File::from(from)).lines().map_while(Result::ok) {
        let Ok(mut answer) = serde_json::from_str::<Value>(&line) else { break };
        let id = answer["id"].as_u64().unwrap_or_default();
        let mut all = inbox.answers.lock().expect("nobody panics with it");
        let answers = all.entry(id).or_default();
        if answer["item"].is_object() {
            answers.items.push(answer["item"].take());
        } else if answer["error"].is_object() {
            answers.end = Some(Err(Refusal::new(&answer["error"])));
        } else {
            answers.end = Some(Ok(answer["ok"].take()));
        }
        inbox.changed.notify_all();
    }
}

/// A call whose answers come one by one.
pub struct Stream {
    link: Rc<Link>,
    id: u64,
    taken: Cell<usize>,
}

impl Stream {
    pub(super) fn open(link: Rc<Link>, asked: Value) -> Stream {
        let id = link.begin(asked);
        Stream { link, id, taken: Cell::new(0) }
    }

    /// The next answer, once it is there; `None` after the last.
    #[track_caller]
    pub fn next(&self) -> Option<Value> {
        let at = self.taken.get();
        let found = self.link.wait(self.id, |answers| match answers.items.get(at) {
            Some(item) => Some(Some(item.clone())),
            None => answers.end.is_some().then_some(None),
        });
        if let Some(item) = &found {
            self.link.note(&format!("← {}", self.id), item);
            self.taken.set(at + 1);
        }
        found
    }

    /// Waits for an answer that `fits`; those before it are passed over.
    #[track_caller]
    pub fn wait_for(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let item = self.next().unwrap_or_else(|| panic!("the stream has ended without {what}"));
            if fits(&item) {
                return item;
            }
        }
    }

    /// How it has ended, once it has.
    #[track_caller]
    pub fn end(&self) -> Result<(), Refusal> {
        self.link.answer(self.id).map(|_| ())
    }

    pub fn has_ended(&self) -> bool {
        self.link.is_answered(self.id)
    }

    pub fn send(&self, message: Value) {
        self.link.send(&json!({"id": self.id, "do": "send", "message": message}));
    }

    /// Ends our side of the stream; answers may still come.
    pub fn close(&self) {
        self.link.send(&json!({"id": self.id, "do": "close"}));
    }

    /// Gives up, as a client that goes away.
    pub fn cancel(&self) {
        self.link.send(&json!({"id": self.id, "do": "cancel"}));
    }
}
