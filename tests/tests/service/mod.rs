//! What a service manager gives a command: a socket for messages, sockets to listen at, a watchdog. Here the manager is the
//! test; in `units` it is systemd.

mod notify;
mod sockets;
mod start;
mod units;

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::time::Duration;

use bowline_tests::Host;
use bowline_tests::harness::{Build, Process, Task};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use tempfile::TempDir;

/// A function of a task's script that sends each of its arguments to the manager, and says why it cannot.
pub const SAY: &str = r#"say() { perl -MIO::Socket -e '
    $to = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Peer => $ENV{NOTIFY_SOCKET}) or die "connect: $!\n";
    for (@ARGV) { defined $to->send($_) or die "send: $!\n" }' -- "$@" 2>&1; }; "#;

/// A manager that listens.
pub struct Manager {
    socket: UnixDatagram,
    address: String,
    /// Not the test's own, where a socket counts as left behind.
    _folder: TempDir,
}

impl Manager {
    /// At a path.
    pub fn new() -> Manager {
        let folder = TempDir::with_prefix("manager-").expect("a folder");
        let path = folder.path().join("notify");
        Manager::at(&SocketAddr::from_pathname(&path).expect("short"), path.display().to_string(), folder)
    }

    /// At a name of the network namespace.
    pub fn abstract_one() -> Manager {
        let folder = TempDir::with_prefix("manager-").expect("a folder");
        let name = folder.path().display().to_string();
        Manager::at(&SocketAddr::from_abstract_name(&name).expect("short"), format!("@{name}"), folder)
    }

    fn at(address: &SocketAddr, text: String, folder: TempDir) -> Manager {
        let socket = UnixDatagram::bind_addr(address).expect("nobody has it");
        sockopt::set_socket_passcred(&socket, true).expect("a socket of ours");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket of ours");
        Manager { socket, address: text, _folder: folder }
    }

    /// Its command, as systemd starts it.
    pub fn asks(&self, mut command: Command) -> Command {
        command.env("NOTIFY_SOCKET", &self.address).env_remove("SYSTEMD_EXEC_PID");
        command
    }

    /// `bowline run` as its command.
    pub fn runs<'h>(&self, host: &'h Host, build: &Build<'h>) -> (Task<'h>, Process) {
        let client = host.spawn_command(self.asks(build.command("run")));
        client.read_stdout();
        client.read_stderr();
        (host.adopt(build.id()), client)
    }

    /// The next message, and who has sent it.
    #[track_caller]
    pub fn hears(&self) -> (String, i32) {
        let mut text = vec![0; 8192];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let read = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut text)], &mut with, RecvFlags::empty());
        text.truncate(read.expect("a message").bytes);
        let sender = with.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid.as_raw_pid()),
            _ => None,
        });
        (String::from_utf8(text).expect("text"), sender.expect("credentials"))
    }

    /// It has got no other message.
    #[track_caller]
    pub fn hears_nothing_more(&self) {
        self.socket.set_nonblocking(true).expect("a socket of ours");
        let heard = self.socket.recv(&mut [0; 8192]);
        assert_eq!(heard.expect_err("a message").kind(), std::io::ErrorKind::WouldBlock);
    }
}
