//! What a service manager has given this process for its command: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3).
//!
//! Each variable counts only where it is for this process, and not for one that started it. Without them nothing is done.

use std::env;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::SocketAddr;

use bowline_executor::internal::{is_handed_down, sockets_for_us};
use bowline_model::{Error, Kind, Result};
use bowline_protocol::wire::proto::bowline::Service as Request;
use bowline_spec::Task;

use crate::ui::notify::Relay;

/// Whose command systemd has started (systemd.exec(5), since 248): whatever else has the variables of a unit is not asked.
const STARTED: &str = "SYSTEMD_EXEC_PID";

/// What this process has of a service manager.
#[derive(Default)]
pub struct Service {
    /// The manager's socket for messages.
    pub manager: Option<SocketAddr>,
    /// How many sockets there are, from descriptor 3 on.
    pub sockets: u32,
}

impl Service {
    /// What the environment says.
    ///
    /// # Errors
    /// `Usage` where a descriptor that it names is not open.
    pub fn of_environment() -> Result<Service> {
        let sockets = sockets_for_us();
        let missing = (3..).take(sockets as usize).find(|fd| !is_handed_down(*fd));
        if let Some(fd) = missing {
            return Err(Error::new(Kind::Usage, format!("LISTEN_FDS: descriptor {fd} is not open")));
        }
        Ok(Service { manager: manager(), sockets })
    }

    /// Whether the messages of `task` are relayed: not where its description names a socket of its own.
    pub fn relays_for(&self, task: &Task) -> Option<&SocketAddr> {
        self.manager.as_ref().filter(|_| !task.env.contains_key("NOTIFY_SOCKET"))
    }

    /// The part of a launch; `None` without a service manager.
    pub fn request(&self, relay: Option<&Relay>) -> Option<Request> {
        let mut names = Vec::new();
        if self.sockets > 0 {
            names.extend(["LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID"]);
        }
        if relay.is_some() && is_ours("WATCHDOG_PID") {
            names.extend(["WATCHDOG_USEC", "WATCHDOG_PID"]);
        }
        if relay.is_none() && names.is_empty() {
            return None;
        }
        let variable = |name: &str| env::var(name).ok().map(|value| format!("{name}={value}"));
        let notify_socket = relay.map(Relay::path).unwrap_or_default();
        Some(Request { notify_socket, env: names.into_iter().filter_map(variable).collect(), ..Request::default() })
    }
}

/// Whether a variable has the pid of this process.
fn is_ours(variable: &str) -> bool {
    env::var(variable).is_ok_and(|pid| pid == std::process::id().to_string())
}

/// The socket of the service manager that has started this process.
fn manager() -> Option<SocketAddr> {
    let address = env::var_os("NOTIFY_SOCKET")?;
    if env::var_os(STARTED).is_some() && !is_ours(STARTED) {
        return None;
    }
    match address.as_bytes() {
        [b'/', ..] => SocketAddr::from_pathname(address).ok(),
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        _ => None,
    }
}
