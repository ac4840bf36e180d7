//! What a service manager has for a task's command: a socket for the messages of sd_notify(3), and variables.
//!
//! ```text
//!   Launch ─► Service ─ lay_on ─► the configuration: one more mount
//!                            └──► the command's variables, which no other process of the task has
//! ```
//!
//! Must not: listen at the socket, which is its caller's.

use std::path::PathBuf;
use std::process;

use oci_spec::runtime::{Mount, Spec};

use crate::view::rootfs::has_own_dev;

/// Where the command finds the socket: in a `/dev` of the task's own nothing is made that stays.
const NOTIFY: &str = "/dev/notify";

/// What a service manager has for a task's command.
#[derive(Debug, Clone, Default)]
pub struct Service {
    /// A datagram socket in the task's folder, which the command finds by its variable `NOTIFY_SOCKET`.
    pub notify_socket: Option<PathBuf>,
    /// Variables of the command, as `KEY=value`. `LISTEN_PID` and `WATCHDOG_PID` get the pid of the command.
    pub env: Vec<String>,
}

/// Variables with the pid of the process for which a manager has set the others (sd_listen_fds(3), sd_watchdog_enabled(3)).
pub const PIDS: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];

/// How many sockets to listen at this process has, from descriptor 3 on: `LISTEN_FDS`, if it is for this process.
pub fn sockets_for_us() -> u32 {
    let variable = |name: &str| std::env::var(name).ok();
    let is_for_us = || variable("LISTEN_PID").is_some_and(|pid| pid == process::id().to_string());
    variable("LISTEN_FDS").filter(|_| is_for_us()).and_then(|number| number.parse().ok()).unwrap_or_default()
}

impl Service {
    /// Adds the mount of the socket to `spec`, on top of all others, or a note why not. Returns the variables of the command.
    pub(crate) fn lay_on(&self, spec: &mut Spec, notes: &mut Vec<String>) -> Vec<String> {
        let mut variables = self.env.clone();
        let Some(socket) = &self.notify_socket else { return variables };
        if !has_own_dev(spec) {
            notes.push("NOTIFY_SOCKET has no effect: the task's /dev is not its own".to_owned());
            return variables;
        }
        let options = ["bind", "ro", "nosuid", "nodev", "noexec", "rprivate"].map(str::to_owned).to_vec();
        let mut mount = Mount::default();
        mount.set_destination(NOTIFY.into()).set_typ(Some("bind".to_owned()));
        mount.set_source(Some(socket.clone())).set_options(Some(options));
        spec.mounts_mut().get_or_insert_default().push(mount);
        variables.push(format!("NOTIFY_SOCKET={NOTIFY}"));
        variables
    }
}
