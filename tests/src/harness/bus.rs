//! A system bus with a systemd of the test's own: it answers what a closure says, in D-Bus's own bytes. As much of the
//! protocol as bowline needs: <https://dbus.freedesktop.org/doc/dbus-specification.html>.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const SYSTEMD: &str = "org.freedesktop.systemd1";
/// Where units and jobs are.
pub const UNIT: &str = "/org/freedesktop/systemd1/unit/";
const JOB: &str = "/org/freedesktop/systemd1/job/1";

/// What systemd does with a call.
#[derive(Debug, Clone)]
pub enum Reply {
    /// It leaves the bus before it has answered.
    NoReply,
    /// It stays there, and never answers.
    Never,
    /// It refuses, by this name.
    Refused(&'static str),
    /// It answers without a value.
    Nothing,
    /// It answers with an object's path.
    Path(String),
    /// It answers with a job, and says at once that the job is done.
    Job,
    /// It answers with properties, which are all text.
    Properties(Vec<(&'static str, String)>),
}

/// Decides by the method, and by the first text of its body, as often as it is called.
type Answers = dyn FnMut(&str, &str) -> Reply + Send;

/// See the module. Drop it before the host is looked at.
pub struct Bus {
    address: String,
    over: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Bus {
    pub fn at(socket: &Path, answers: impl FnMut(&str, &str) -> Reply + Send + 'static) -> Bus {
        let listener = UnixListener::bind(socket).expect("a short path");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (noted, answers) = (calls.clone(), Arc::new(Mutex::new(Box::new(answers) as Box<Answers>)));
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let serving = std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let (noted, answers) = (noted.clone(), answers.clone());
                // One that broke off has what it wanted.
                std::thread::spawn(move || serve(connection, &noted, &answers).is_ok());
            }
        });
        Bus { address: format!("unix:path={}", socket.display()), over, serving: Some(serving), calls }
    }

    /// The bus's address, as `DBUS_SYSTEM_BUS_ADDRESS` takes it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How often systemd was called by this method.
    pub fn calls(&self, method: &str) -> usize {
        self.calls.lock().expect("nobody panics with it").iter().filter(|call| *call == method).count()
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // It waits for a connection.
        let _ = UnixStream::connect(self.address.trim_start_matches("unix:path="));
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

fn serve(mut stream: UnixStream, calls: &Mutex<Vec<String>>, answers: &Mutex<Box<Answers>>) -> io::Result<()> {
    loop {
        let line = read_line(&mut stream)?;
        let said = match line.trim_start_matches('\0').split(' ').next().unwrap_or_default() {
            "AUTH" => "OK 0123456789abcdef0123456789abcdef\r\n",
            "NEGOTIATE_UNIX_FD" => "AGREE_UNIX_FD\r\n",
            "BEGIN" => break,
            _ => "ERROR\r\n",
        };
        stream.write_all(said.as_bytes())?;
    }
    loop {
        let call = Call::read(&mut stream)?;
        if call.destination != SYSTEMD {
            // The bus's own.
            let body = match call.member.as_str() {
                "Hello" => Body::text(":1.1"),
                "NameHasOwner" => Body::flag(true),
                _ => Body::default(),
            };
            write(&mut stream, 2, &[field(5, "u", &number(call.serial))], &body)?;
            continue;
        }
        calls.lock().expect("nobody panics with it").push(call.member.clone());
        let reply = answers.lock().expect("nobody panics with it")(&call.member, &call.first);
        let to = field(5, "u", &number(call.serial));
        let from = field(7, "s", &text(":1.2"));
        let error = |name: &str| [field(4, "s", &text(name)), to.clone(), from.clone()];
        match reply {
            Reply::NoReply => {
                write(
                    &mut stream,
                    3,
                    &error("org.freedesktop.DBus.Error.NoReply"),
                    &Body::text("it has left the bus"),
                )?;
            }
            Reply::Never => {}
            Reply::Refused(name) => write(&mut stream, 3, &error(name), &Body::text("no"))?,
            Reply::Nothing => write(&mut stream, 2, &[to, from], &Body::default())?,
            Reply::Path(path) => write(&mut stream, 2, &[to, from], &Body::path(&path))?,
            Reply::Properties(all) => write(&mut stream, 2, &[to, from], &Body::properties(&all))?,
            Reply::Job => {
                write(&mut stream, 2, &[to, from.clone()], &Body::path(JOB))?;
                let interface = "org.freedesktop.systemd1.Manager";
                let fields = [
                    field(1, "o", &text("/org/freedesktop/systemd1")),
                    field(2, "s", &text(interface)),
                    field(3, "s", &text("JobRemoved")),
                    from,
                ];
                write(&mut stream, 4, &fields, &Body::job())?;
            }
        }
    }
}

fn read_line(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// A call as it came.
struct Call {
    serial: u32,
    member: String,
    destination: String,
    /// The first value of its body, if that is text.
    first: String,
}

impl Call {
    fn read(stream: &mut UnixStream) -> io::Result<Call> {
        let mut fixed = [0; 16];
        stream.read_exact(&mut fixed)?;
        let at = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (length, serial, fields) = (at(&fixed, 4) as usize, at(&fixed, 8), at(&fixed, 12) as usize);
        let mut rest = vec![0; fields.next_multiple_of(8) + length];
        stream.read_exact(&mut rest)?;
        let (header, body) = rest.split_at(fields.next_multiple_of(8));
        let mut call = Call { serial, member: String::new(), destination: String::new(), first: String::new() };
        let string = |bytes: &[u8], start: usize| {
            let length = at(bytes, start) as usize;
            String::from_utf8_lossy(&bytes[start + 4..start + 4 + length]).into_owned()
        };
        let (mut position, mut signature) = (0, String::new());
        while position < fields {
            let (code, kind) = (header[position], header[position + 2]);
            let value = position + 4;
            position = match kind {
                b's' | b'o' => {
                    let text = string(header, value);
                    let end = value + 4 + text.len() + 1;
                    match code {
                        3 => call.member = text,
                        6 => call.destination = text,
                        _ => {}
                    }
                    end
                }
                b'g' => {
                    let length = usize::from(header[value]);
                    signature = String::from_utf8_lossy(&header[value + 1..value + 1 + length]).into_owned();
                    value + 1 + length + 1
                }
                _ => value + 4,
            }
            .next_multiple_of(8);
        }
        if signature.starts_with('s') {
            call.first = string(body, 0);
        }
        Ok(call)
    }
}

/// A message's body: encoded values, and the signature that names their types.
#[derive(Default)]
struct Body {
    signature: &'static str,
    bytes: Vec<u8>,
}

impl Body {
    fn text(value: &str) -> Body {
        Body { signature: "s", bytes: text(value) }
    }

    fn path(value: &str) -> Body {
        Body { signature: "o", bytes: text(value) }
    }

    fn flag(value: bool) -> Body {
        Body { signature: "b", bytes: number(value.into()) }
    }

    /// The result of a job that is done.
    fn job() -> Body {
        let mut bytes = number(1);
        for value in [JOB, "any", "done"] {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend(text(value));
        }
        Body { signature: "uoss", bytes }
    }

    fn properties(all: &[(&str, String)]) -> Body {
        let mut entries = Vec::new();
        for (name, value) in all {
            entries.resize(entries.len().next_multiple_of(8), 0);
            entries.extend(text(name));
            entries.extend([1, b's', 0]);
            entries.resize(entries.len().next_multiple_of(4), 0);
            entries.extend(text(value));
        }
        let mut bytes = number(u32::try_from(entries.len()).expect("a few"));
        bytes.resize(8, 0);
        bytes.extend(entries);
        Body { signature: "a{sv}", bytes }
    }
}

fn number(value: u32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn text(value: &str) -> Vec<u8> {
    let mut bytes = number(u32::try_from(value.len()).expect("short"));
    bytes.extend(value.as_bytes());
    bytes.push(0);
    bytes
}

/// A field of a header: its code, its type of one letter, its value.
fn field(code: u8, kind: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![code, 1, kind.as_bytes()[0], 0];
    bytes.extend(value);
    bytes
}

fn write(stream: &mut UnixStream, kind: u8, fields: &[Vec<u8>], body: &Body) -> io::Result<()> {
    let mut all = Vec::new();
    let signature = [&[u8::try_from(body.signature.len()).expect("short")], body.signature.as_bytes(), &[0]].concat();
    let signature = (!body.signature.is_empty()).then(|| field(8, "g", &signature));
    for field in fields.iter().chain(&signature) {
        all.resize(all.len().next_multiple_of(8), 0);
        all.extend(field);
    }
    let mut message = vec![b'l', kind, 0, 1];
    message.extend(number(u32::try_from(body.bytes.len()).expect("short")));
    message.extend(number(1));
    message.extend(number(u32::try_from(all.len()).expect("short")));
    message.extend(all);
    message.resize(message.len().next_multiple_of(8), 0);
    message.extend(&body.bytes);
    stream.write_all(&message)
}
