//! `bowline metrics`, as a scraper sees it, and its text taken apart.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::{Host, Process, Ran, binary, eventually, patience};

/// A running `bowline metrics`, which listens for scrapes.
pub struct Exporter {
    process: Process,
    place: String,
}

pub trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Header fields by their names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// Samples by their names with labels, as they are written.
#[derive(Debug)]
pub struct Samples(pub BTreeMap<String, String>);

impl Host {
    /// `bowline metrics ARGS`, once it listens.
    #[track_caller]
    pub fn exporter<const N: usize>(&self, args: [&str; N]) -> Exporter {
        Exporter::of(self.spawn(["metrics"].into_iter().chain(args)))
    }

    /// Like [`Self::exporter`], with a limit of open files.
    #[track_caller]
    pub fn exporter_with_files<const N: usize>(&self, files: u32, args: [&str; N]) -> Exporter {
        let mut command = self.command("/bin/sh");
        command.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]).arg(binary("bowline"));
        command.arg("metrics").args(args);
        let process = self.spawn_command(command);
        process.read_stdout();
        process.read_stderr();
        Exporter::of(process)
    }

    /// What `bowline metrics --once` prints.
    #[track_caller]
    pub fn metrics(&self) -> Samples {
        let ran = self.bowline(["metrics", "--once"]);
        ran.assert_code(0);
        Samples::of(&ran.out())
    }

    /// Like [`Self::metrics`], with containerd's state folder `state`.
    #[track_caller]
    pub fn metrics_with(&self, state: &Path) -> Samples {
        let ran = self.bowline(["metrics", "--once", "--containerd", state.to_str().expect("ASCII")]);
        ran.assert_code(0);
        Samples::of(&ran.out())
    }

    /// A state folder of the stand-in for containerd, which keeps its bundles elsewhere.
    pub fn containerd_state(&self) -> PathBuf {
        let state = self.work().join("state-of-containerd");
        fs::create_dir(&state).expect("the work folder is writable");
        fs::create_dir_all(self.work().join("b")).expect("the work folder is writable");
        symlink("../b", state.join("io.containerd.runtime.v2.task")).expect("it is ours");
        state
    }
}

impl Exporter {
    #[track_caller]
    fn of(process: Process) -> Exporter {
        let place = eventually("bowline metrics listens", || {
            let said = process.said();
            Some(said.split_once('\n')?.0.strip_prefix("listening at ")?.to_owned())
        });
        Exporter { process, place }
    }

    /// Where it says that it listens.
    pub fn place(&self) -> &str {
        &self.place
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    #[track_caller]
    pub fn connect(&self) -> Box<dyn Connection> {
        if let Some(path) = self.place.strip_prefix("unix:") {
            let stream = UnixStream::connect(path).expect("it listens");
            stream.set_read_timeout(Some(patience())).expect("a socket");
            return Box::new(stream);
        }
        let address = self.place.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics"));
        let stream = TcpStream::connect(address.expect("an address")).expect("it listens");
        stream.set_read_timeout(Some(patience())).expect("a socket");
        Box::new(stream)
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, headers: &str) -> Answer {
        ask(&mut *self.connect(), method, path, headers)
    }

    #[track_caller]
    pub fn scrape(&self) -> Samples {
        let answer = self.ask("GET", "/metrics", "");
        assert_eq!(answer.status, 200, "{answer:?}");
        Samples::of(&answer.body)
    }

    /// It ends by this signal, with the code 0.
    #[track_caller]
    pub fn end(self, signal: rustix::process::Signal) -> Ran {
        self.process.signal(signal);
        let ran = self.process.finish();
        ran.assert_code(0);
        ran
    }
}

/// One request on a connection that may be used again.
#[track_caller]
pub fn ask(connection: &mut dyn Connection, method: &str, path: &str, headers: &str) -> Answer {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    connection.write_all(request.as_bytes()).expect("it reads");
    read_answer(connection, method == "HEAD")
}

#[track_caller]
pub fn read_answer(connection: &mut dyn Connection, headless: bool) -> Answer {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte).unwrap_or_else(|error| panic!("it broke off: {error}: {head:?}"));
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let fields = lines.filter_map(|line| line.split_once(": "));
    let headers: BTreeMap<String, String> = fields.map(|(k, v)| (k.to_lowercase(), v.to_owned())).collect();
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; if headless { 0 } else { length }];
    connection.read_exact(&mut body).expect("the whole body");
    Answer { status, headers, body: String::from_utf8(body).expect("text") }
}

impl Samples {
    /// Those of a text; each is there once.
    #[track_caller]
    pub fn of(text: &str) -> Samples {
        let mut all = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            assert!(all.insert(series.to_owned(), value.to_owned()).is_none(), "twice: {line}");
        }
        Samples(all)
    }

    /// The value of a series, if it is there.
    pub fn get(&self, series: &str) -> Option<f64> {
        self.0.get(series)?.parse().ok()
    }

    /// The value of a series.
    #[track_caller]
    pub fn value(&self, series: &str) -> f64 {
        self.get(series).unwrap_or_else(|| panic!("no {series} among {:#?}", self.0))
    }

    /// The value of a series of a task that is in no sandbox; `more` are more labels.
    #[track_caller]
    pub fn of_task(&self, name: &str, task: &str, more: &str) -> f64 {
        self.value(&format!("bowline_task_{name}{{task=\"{task}\",sandbox=\"\",namespace=\"\"{more}}}"))
    }

    /// The value of a series of one of bowline's shims.
    #[track_caller]
    pub fn of_shim(&self, name: &str, shim: &str) -> f64 {
        self.value(&format!("bowline_shim_{name}{{shim=\"{shim}\",namespace=\"\"}}"))
    }

    /// The value of a series of one of containerd's tasks, in its namespace and sandbox.
    #[track_caller]
    pub fn of_containerds(&self, name: &str, task: &str, (sandbox, namespace): (&str, &str), more: &str) -> f64 {
        let labels = format!("task=\"{task}\",sandbox=\"{sandbox}\",namespace=\"{namespace}\"{more}");
        self.value(&format!("bowline_task_{name}{{{labels}}}"))
    }

    /// All series that contain `text`.
    pub fn with(&self, text: &str) -> Vec<&str> {
        self.0.keys().filter(|series| series.contains(text)).map(String::as_str).collect()
    }
}

/// promtool, where it is: in the `PATH`; beside the binaries, as in the virtual machine; or where `scripts/need test`
/// has put it, beside the folder of the binaries.
pub fn promtool() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let binary = binary("bowline");
    let folder = binary.parent().expect("a folder");
    let target = folder.parent().expect("a folder");
    let others = [folder.to_owned(), target.join("tools/bin")];
    std::env::split_paths(&paths).chain(others).map(|folder| folder.join("promtool")).find(|path| path.exists())
}
