//! `containerd-shim-bowline-v1 start`, byte by byte: what containerd of each version says to it, by no protocol's code
//! of ours, and what serves from then on.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::harness::{Host, Ran, binary, eventually, process_exists, status_lines};

pub const SHIM: &str = "containerd-shim-bowline-v1";
/// The type of runc's options.
pub const RUNC_OPTIONS: &str = "containerd.runc.v1.Options";
/// The type of those that CRI sends to a runtime that it does not know.
pub const GENERIC_OPTIONS: &str = "runtimeoptions.v1.Options";

/// A field of a protobuf message: bytes or text.
pub fn field(number: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [vec![number << 3 | 2], varint(value.len()), value.to_vec()].concat()
}

/// A field of a protobuf message: a number.
pub fn number(number: u8, value: u32) -> Vec<u8> {
    [vec![number << 3], varint(value as usize)].concat()
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

pub fn any(type_url: &str, value: Vec<u8>) -> Vec<u8> {
    [field(1, type_url), field(2, value)].concat()
}

/// The options that CRI sends, of this TOML.
pub fn toml(body: &str) -> Vec<u8> {
    any(GENERIC_OPTIONS, field(3, body))
}

/// One container, as containerd has it.
pub struct Container<'h> {
    host: &'h Host,
    pub id: String,
    pub bundle: PathBuf,
    /// The namespace that the container has in containerd.
    pub namespace: String,
    /// The folder for its socket; by default containerd's own.
    pub sockets: Option<PathBuf>,
}

/// What `start` was given besides.
#[derive(Default)]
pub struct StartInput<'a> {
    pub stdin: Vec<u8>,
    pub env: Vec<(&'a str, &'a str)>,
    /// Flags that come before the word `start`.
    pub flags: Vec<&'a str>,
}

impl<'h> Container<'h> {
    /// Makes a bundle's folder without a `config.json`.
    pub fn new(host: &'h Host) -> Container<'h> {
        let id = host.new_id();
        let bundle = host.work().join(&id);
        fs::create_dir(&bundle).expect("the work folder is writable");
        Container { host, id, bundle, namespace: "default".to_owned(), sockets: None }
    }

    pub fn configured(self, config: &str) -> Container<'h> {
        fs::write(self.bundle.join("config.json"), config).expect("ours");
        self
    }

    pub fn in_group(self, group: &str) -> Container<'h> {
        let config = format!(r#"{{"annotations": {{"io.kubernetes.cri.sandbox-id": "{group}"}}}}"#);
        self.configured(&config)
    }

    /// The command, as containerd runs it.
    pub fn command(&self, said: &StartInput<'_>) -> Command {
        let mut command = self.host.command(binary(SHIM));
        let stdin = self.host.file("stdin", "");
        fs::write(&stdin, &said.stdin).expect("ours");
        command.args(["-namespace", &self.namespace, "-address", &self.address(), "-publish-binary", "/bin/false"]);
        command.args(["-id", &self.id]).args(&said.flags).arg("start");
        command.current_dir(&self.bundle).stdin(File::open(stdin).expect("it was written"));
        command.env("TTRPC_ADDRESS", self.address() + ".ttrpc").env("GOMAXPROCS", "2").envs(said.env.iter().copied());
        command
    }

    /// containerd's; of each host another, so that tests do not share groups.
    pub fn address(&self) -> String {
        format!("/run/{}.sock", self.host.prefix())
    }

    /// Runs it to its end.
    pub fn start(&self, said: StartInput<'_>) -> Ran {
        run(self.command(&said))
    }

    /// Bootstrap parameters, as containerd 2.3 sends them.
    pub fn bootstrap(&self, extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut params = [field(1, &self.id), field(2, &self.namespace), field(5, "/new.ttrpc")].concat();
        for extension in extensions {
            params.extend(field(8, field(1, extension)));
        }
        if let Some(sockets) = &self.sockets {
            params.extend(field(9, sockets.to_str().expect("ASCII")));
        }
        params
    }

    /// Where containerd 1 reads the address.
    pub fn address_file(&self) -> PathBuf {
        self.bundle.join("address")
    }

    /// It failed, said so, and has left nothing.
    #[track_caller]
    pub fn assert_refused(&self, ran: &Ran, parts: &[&str]) {
        ran.assert_code(1);
        assert!(ran.stdout.is_empty(), "no reply\n{ran}");
        assert!(ran.err().starts_with("containerd-shim-bowline-v1: "), "{ran}");
        for part in parts {
            assert!(ran.err().contains(part), "the message should have {part:?}\n{ran}");
        }
        assert!(!self.address_file().is_file(), "an address of nobody");
        assert!(serving(self.host).is_empty(), "somebody serves");
        let left = fs::read_dir(&self.bundle).expect("ours").flatten().map(|entry| entry.file_name());
        let left: Vec<_> = left.filter(|name| name != "config.json" && name != "address").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Runs a command of the shim's binary to its end.
pub fn run(mut command: Command) -> Ran {
    // What serves must not have them: this waits for their end.
    let output = command.output().expect("it is there");
    Ran { command: SHIM.to_owned(), code: output.status.code(), stdout: output.stdout, stderr: output.stderr }
}

/// A plain reply: the path of the socket.
#[track_caller]
pub fn socket(ran: &Ran) -> PathBuf {
    ran.assert_code(0);
    assert!(ran.stderr.is_empty(), "containerd reads it as part of the reply\n{ran}");
    let path = ran.out().strip_prefix("unix://").map(PathBuf::from).unwrap_or_else(|| panic!("no address\n{ran}"));
    UnixStream::connect(&path).unwrap_or_else(|error| panic!("{error}\n{ran}"));
    path
}

/// The words of a process's command line.
pub fn arguments(pid: i32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// What serves on this host: every process with a socket of this test's.
pub fn serving(host: &Host) -> Vec<i32> {
    let pids = fs::read_dir("/proc").expect("procfs").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let ours = |pid: &i32| {
        let words = arguments(*pid);
        words.iter().any(|word| word == "-listener-fd") && words.iter().any(|word| word.contains(host.prefix()))
    };
    pids.filter(ours).collect()
}

#[track_caller]
pub fn only(host: &Host) -> i32 {
    serving_all(host, 1)[0]
}

/// All that serve, which are so many. One that was just started has no command
/// line for a moment.
#[track_caller]
pub fn serving_all(host: &Host, count: usize) -> Vec<i32> {
    let all = eventually("somebody serves", || Some(serving(host)).filter(|all| all.len() >= count));
    assert_eq!(all.len(), count, "{all:?} serve");
    all
}

/// Kills it, as nobody should.
pub fn kill(pid: i32) {
    let pidfd = pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()).expect("it runs");
    pidfd_send_signal(&pidfd, Signal::KILL).expect("root may");
    eventually("its end", || (!process_exists(pid)).then_some(()));
}

/// Asks `pid` to end, once it listens to that.
pub fn terminate(pid: i32) {
    eventually("it handles SIGTERM", || {
        let caught = status_lines(pid, &["SigCgt"]);
        let caught = u64::from_str_radix(caught.split_whitespace().last()?, 16).ok()?;
        (caught & 1 << (Signal::TERM.as_raw() - 1) != 0).then_some(())
    });
    // Its handler is there a moment before what it tells: one may be lost.
    let pidfd = pidfd_open(Pid::from_raw(pid).expect("a pid"), PidfdFlags::empty()).expect("it runs");
    eventually("its end", || {
        let _ = pidfd_send_signal(&pidfd, Signal::TERM);
        (!process_exists(pid)).then_some(())
    });
}

/// Ends what serves, which removes its socket.
pub fn end(host: &Host, socket: &Path) {
    terminate(only(host));
    assert!(!socket.exists(), "{} is left", socket.display());
}

/// The environment that a process was started with.
pub fn environment(pid: i32) -> Vec<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    environ.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}
