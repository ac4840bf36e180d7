//! Reads and checks how the shim was called: flags and environment.
//!
//! containerd writes flags in Go's forms: `-id x`, `-id=x`, `--id x`. The first word that is not a flag ends them, and
//! names the action. Flags are parsed by hand, because an argument parser would take up half of the shim's private
//! memory.

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use bowline_executor::internal::upgrade::READ_FACTS;
use bowline_model::{Doing, Error, Kind, Result};

/// What flags and environment say, for every action.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    /// containerd's namespace, such as `k8s.io`.
    pub namespace: String,
    /// The container; in a group, the container that the shim was started for.
    pub id: String,
    /// containerd's socket as containerd names it: part of the hash in the names of its shims' sockets.
    pub address: String,
    /// containerd's own binary, which can publish events for shims that cannot.
    pub publish_binary: Option<PathBuf>,
    /// The absolute path of the container's bundle.
    pub bundle: PathBuf,
    pub debug: bool,
    /// The address where containerd takes events.
    pub ttrpc_address: Option<String>,
    /// The address of containerd's API.
    pub grpc_address: Option<String>,
    /// Whether shim and tasks share CPU cores with nobody else.
    pub sched_core: bool,
    /// The address of the serving process, such as `unix:///run/containerd/s/…`.
    pub socket: String,
    /// The path of `bowline`, through which the serving process calls systemd.
    pub bowline: PathBuf,
    /// Whether pods leave ports below 1024 to root, and ping.
    pub privileged: Privileged,
}

/// What a pod of the shim's own sandbox leaves to root, by the options of its runtime.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Privileged {
    /// The ports below 1024.
    pub ports: bool,
    /// Ping.
    pub icmp: bool,
}

/// What the shim was called for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Version,
    /// Print the features of this runtime.
    Info,
    /// Start the serving process, or find that of the group.
    Start(Invocation),
    /// Clean up after a dead serving process.
    Delete(Invocation),
    /// Serve the socket behind this fd.
    Serve(Invocation, RawFd),
    /// Go on with what the program before this one has handed over.
    TakeOver(Invocation, HandoverArgs),
    /// Read facts, and say whether this program could take over: asked by the serving process that runs.
    ReadFacts,
}

/// Where a program finds what the one before it has handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoverArgs {
    /// The descriptor of the facts.
    pub facts: RawFd,
    /// Why the program that should have taken over has executed this one again.
    pub refused: Option<String>,
}

/// Flags that need a value: `-id x`, `-id=x`.
const VALUED: [&str; 11] = [
    "namespace",
    "id",
    "address",
    "publish-binary",
    "bundle",
    "socket",
    "debug-socket",
    "bowline",
    LISTENER_FLAG,
    "take-over",
    "refused",
];
/// Flags that are true or false: `-debug`, `-debug=false`.
const SWITCHES: [&str; 6] = ["debug", "v", "version", "info", "privileged-ports", "privileged-icmp"];

/// The flag that gives the serving process the fd of its socket.
pub const LISTENER_FLAG: &str = "listener-fd";

/// Parses the arguments after the program's name, and the environment.
///
/// # Errors
/// `Usage`, naming what is wrong.
pub fn parse(words: Vec<String>, env: impl Fn(&str) -> Option<String>) -> Result<Action> {
    if words.iter().eq([READ_FACTS]) {
        return Ok(Action::ReadFacts);
    }
    let flags = Flags::of(words)?;
    if flags.is_set("v") || flags.is_set("version") {
        return Ok(Action::Version);
    }
    if flags.is_set("info") {
        return Ok(Action::Info);
    }
    let invocation = invocation(&flags, env)?;
    match flags.action.as_deref() {
        Some("start") => Ok(Action::Start(invocation)),
        Some("delete") => Ok(Action::Delete(invocation)),
        Some(other) => Err(usage(format!("action {other:?} is unknown: start, delete, or none to serve"))),
        None if flags.value("take-over").is_some() => {
            let facts = flags.value("take-over").and_then(|fd| fd.parse().ok());
            let facts = facts.ok_or_else(|| usage("-take-over needs the number of an fd".to_owned()))?;
            Ok(Action::TakeOver(invocation, HandoverArgs { facts, refused: flags.value("refused") }))
        }
        None => {
            let fd = flags.value(LISTENER_FLAG).ok_or_else(|| {
                usage("no socket to serve was handed down".to_owned()).hint("`start` does; containerd calls it")
            })?;
            let fd = fd.parse::<RawFd>().ok().filter(|fd| *fd > 2);
            let fd = fd.ok_or_else(|| usage(format!("-{LISTENER_FLAG} needs the number of an fd above 2")))?;
            Ok(Action::Serve(invocation, fd))
        }
    }
}

fn invocation(flags: &Flags, env: impl Fn(&str) -> Option<String>) -> Result<Invocation> {
    let variable = |name: &str| env(name).filter(|value| !value.is_empty());
    let grpc_address = variable("GRPC_ADDRESS");
    let namespace = flags.value("namespace").or_else(|| variable("NAMESPACE"));
    let here = || std::env::current_dir().doing(Kind::Usage, || "the working folder, which is the bundle, is gone");
    let bundle = match flags.value("bundle").map(PathBuf::from) {
        Some(bundle) if bundle.is_absolute() => bundle,
        Some(bundle) => here()?.join(bundle),
        None => here()?,
    };
    Ok(Invocation {
        namespace: identifier("namespace", namespace)?,
        id: identifier("id", flags.value("id"))?,
        address: flags.value("address").or_else(|| grpc_address.clone()).unwrap_or_default(),
        publish_binary: flags.value("publish-binary").map(PathBuf::from),
        bundle,
        debug: flags.is_set("debug"),
        ttrpc_address: variable("TTRPC_ADDRESS"),
        grpc_address,
        sched_core: variable("SCHED_CORE").is_some(),
        socket: flags.value("socket").unwrap_or_default(),
        bowline: flags.value("bowline").map(PathBuf::from).unwrap_or_default(),
        privileged: Privileged { ports: flags.is_set("privileged-ports"), icmp: flags.is_set("privileged-icmp") },
    })
}

impl Invocation {
    /// The arguments of a process that serves `socket`, whose fd is `listener`, with the help of `bowline`.
    pub fn to_serve(&self, socket: &str, listener: RawFd, bowline: &Path) -> Vec<String> {
        let mut words = Vec::new();
        let mut flag = |name: &str, value: &str| {
            if !value.is_empty() {
                words.extend([format!("-{name}"), value.to_owned()]);
            }
        };
        let text = |path: &Path| path.to_string_lossy().into_owned();
        flag("namespace", &self.namespace);
        flag("id", &self.id);
        flag("address", &self.address);
        flag("publish-binary", &self.publish_binary.as_deref().map(text).unwrap_or_default());
        flag("bundle", &text(&self.bundle));
        flag("socket", socket);
        flag("bowline", &text(bowline));
        flag(LISTENER_FLAG, &listener.to_string());
        let switches = [
            (self.debug, "-debug"),
            (self.privileged.ports, "-privileged-ports"),
            (self.privileged.icmp, "-privileged-icmp"),
        ];
        words.extend(switches.into_iter().filter(|(set, _)| *set).map(|(_, switch)| switch.to_owned()));
        words
    }
}

/// Flags and action as typed.
#[derive(Debug, Default)]
struct Flags {
    valued: Vec<(String, String)>,
    switches: Vec<(String, bool)>,
    action: Option<String>,
}

impl Flags {
    fn of(words: Vec<String>) -> Result<Flags> {
        let mut flags = Flags::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if word == "--" {
                flags.action = words.next();
                break;
            }
            let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).filter(|flag| !flag.is_empty());
            let Some(flag) = flag else {
                flags.action = Some(word);
                break;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            if VALUED.contains(&name) {
                let value = value.or_else(|| words.next());
                let value = value.ok_or_else(|| usage(format!("flag -{name} needs a value")))?;
                flags.valued.push((name.to_owned(), value));
            } else if SWITCHES.contains(&name) {
                let value = value.as_deref().unwrap_or("true");
                let value =
                    value.parse().map_err(|_| usage(format!("flag -{name} is true or false, not {value:?}")))?;
                flags.switches.push((name.to_owned(), value));
            } else {
                return Err(usage(format!("flag {word:?} is unknown")));
            }
        }
        match words.next() {
            Some(more) => Err(usage(format!("{more:?} after the action: flags stand before it"))),
            None => Ok(flags),
        }
    }

    /// The value of a flag; the last one if it is repeated.
    fn value(&self, name: &str) -> Option<String> {
        let value = self.valued.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        value.filter(|value| !value.is_empty())
    }

    fn is_set(&self, name: &str) -> bool {
        self.switches.iter().rev().find(|(n, _)| n == name).is_some_and(|(_, set)| *set)
    }
}

/// Checks containerd's rule for names: at most 76 characters; letters and digits, with single dots, dashes or
/// underscores between them. Such a name is safe as part of a path.
fn identifier(what: &str, value: Option<String>) -> Result<String> {
    const LONGEST: usize = 76;
    let value = value.ok_or_else(|| usage(format!("flag -{what} is missing")))?;
    let parts = value.split(['.', '_', '-']);
    let fine = parts.into_iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()));
    if !fine || value.len() > LONGEST {
        return Err(usage(format!(
            "{what} {value:?} is none: up to {LONGEST} letters and digits, single . _ - between them"
        )));
    }
    Ok(value)
}

fn usage(what: String) -> Error {
    Error::new(Kind::Usage, what).hint("containerd calls it: -namespace NAME -id NAME -address SOCKET start|delete")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Action> {
        parse_with(line, &[])
    }

    fn parse_with(line: &str, env: &[(&str, &str)]) -> Result<Action> {
        let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        parse(line.split_whitespace().map(str::to_owned).collect(), env)
    }

    fn message(line: &str) -> String {
        let error = parse_line(line).expect_err(line);
        assert_eq!(error.kind(), Kind::Usage, "{line}");
        error.to_string()
    }

    #[test]
    fn flags_are_go_s_in_every_form() {
        let forms = [
            "-namespace k8s.io -id=c1 --address /run/c.sock -publish-binary /bin/c -bundle /b -debug start",
            "--namespace=k8s.io --id c1 -address=/run/c.sock --publish-binary=/bin/c -bundle=/b -debug=true -- start",
        ];
        for form in forms {
            let Ok(Action::Start(invocation)) = parse_line(form) else { panic!("{form}") };
            let expected = Invocation {
                namespace: "k8s.io".to_owned(),
                id: "c1".to_owned(),
                address: "/run/c.sock".to_owned(),
                publish_binary: Some(PathBuf::from("/bin/c")),
                bundle: PathBuf::from("/b"),
                debug: true,
                ..Invocation::default()
            };
            assert_eq!(invocation, expected, "{form}");
        }
    }

    #[test]
    fn the_bundle_is_the_working_folder_unless_it_is_named() {
        let here = std::env::current_dir().unwrap();
        for (line, bundle) in
            [("", here.clone()), ("-bundle b", here.join("b")), ("-bundle= ", here), ("-bundle /b", "/b".into())]
        {
            let Ok(Action::Delete(invocation)) = parse_line(&format!("-namespace n -id i {line} delete")) else {
                panic!("{line}")
            };
            assert_eq!(invocation.bundle, bundle, "{line}");
        }
    }

    #[test]
    fn the_environment_has_what_the_flags_leave_out() {
        let env = [
            ("TTRPC_ADDRESS", "/run/c.sock.ttrpc"),
            ("GRPC_ADDRESS", "/run/c.sock"),
            ("NAMESPACE", "moby"),
            ("SCHED_CORE", "1"),
            ("MAX_SHIM_VERSION", "2"),
        ];
        let Ok(Action::Start(invocation)) = parse_with("-id i start", &env) else { panic!("it is complete") };
        assert_eq!(invocation.namespace, "moby");
        assert_eq!(invocation.address, "/run/c.sock");
        assert_eq!(invocation.ttrpc_address.as_deref(), Some("/run/c.sock.ttrpc"));
        assert!(invocation.sched_core);
    }

    #[test]
    fn version_and_info_need_nothing_else() {
        for line in ["-v", "--version", "-v -info", "-id x -v start"] {
            assert_eq!(parse_line(line), Ok(Action::Version), "{line}");
        }
        assert_eq!(parse_line("-info"), Ok(Action::Info));
        assert!(parse_line("-v=false start").is_err());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        assert!(message("-namespace n -id i -nonsense start").contains("\"-nonsense\""));
        assert!(message("-namespace n -id i strat").contains("\"strat\""));
        assert!(message("-namespace n -id i start -debug").contains("\"-debug\""));
        assert!(message("-namespace n -id").contains("-id"));
        assert!(message("-namespace n start").contains("-id is missing"));
        assert!(message("-id i start").contains("-namespace is missing"));
        assert!(message("-namespace n -id i -debug=maybe start").contains("maybe"));
        assert!(message("-namespace n -id i").contains("socket"));
        assert!(message("-namespace n -id i -listener-fd 1").contains("fd"));
    }

    #[test]
    fn a_name_that_could_leave_its_folder_is_refused() {
        let fine = ["a", "A1", "k8s.io", "a-b_c.d", "0123456789abcdef"];
        let bad = ["..", "a/b", "a..b", "../x", ".a", "a.", "-", "a--b", "ä", "a b", "a\0b"];
        for id in fine {
            assert_eq!(identifier("id", Some(id.to_owned())).as_deref(), Ok(id));
        }
        let long = "x".repeat(77);
        for id in bad.into_iter().chain([long.as_str()]) {
            assert!(identifier("id", Some(id.to_owned())).is_err(), "{id:?}");
            assert!(identifier("namespace", Some(id.to_owned())).is_err(), "{id:?}");
        }
    }

    #[test]
    fn the_serving_process_is_called_with_what_start_was() {
        let line = "-namespace n -id i -address /run/c.sock -publish-binary /bin/c -bundle /b -debug start";
        let Ok(Action::Start(started)) = parse_line(line) else { panic!("it is complete") };
        let started = Invocation { privileged: Privileged { ports: true, icmp: true }, ..started };
        let words = started.to_serve("unix:///run/containerd/s/x", 10, Path::new("/bin/bowline"));
        let served = parse(words, |_| None);
        let (socket, bowline) = ("unix:///run/containerd/s/x".to_owned(), PathBuf::from("/bin/bowline"));
        let expected = Invocation { socket, bowline, ..started };
        assert_eq!(served, Ok(Action::Serve(expected, 10)));
    }
}
