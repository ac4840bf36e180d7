//! `bowline metrics` among clients that are slow, silent, do not read or ask without end: root's scrape is answered all
//! the same.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::metrics::{Connection, Exporter};
use bowline_tests::harness::{Process, is_slow};
use rustix::process::Signal;

/// How many clients there are: far more than there is room for.
const CLIENTS: usize = 500;

/// An unprivileged process of many connections that ask without end, at the address or path $ARGV[0]: $ARGV[1] of them;
/// with $ARGV[2], each comes back once it has its answer, else once it is closed. Says so when it has its first answer.
const FLOOD: &str = r#"
use IO::Socket::INET; use IO::Socket::UNIX;
$SIG{PIPE} = 'IGNORE'; $| = 1;
my ($place, $count, $comes_back) = @ARGV;
my $request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
my $all = $request x ($comes_back ? 1 : 100);
my (@sockets, @sent);
while (1) {
    for my $i (0 .. $count - 1) {
        if (!$sockets[$i]) {
            my $unix = $place =~ m{^/};
            my $s = $unix ? IO::Socket::UNIX->new(Peer => $place) : IO::Socket::INET->new(PeerAddr => $place);
            $s or next;
            $s->blocking(0);
            ($sockets[$i], $sent[$i]) = ($s, 0);
        }
        my ($s, $gone) = ($sockets[$i], 0);
        if (!$comes_back || !$sent[$i]) {
            my $wrote = syswrite($s, $all, length($all) - $sent[$i], $sent[$i]);
            $gone = !defined $wrote && !$!{EAGAIN};
            $sent[$i] += $wrote // 0;
            $sent[$i] = 0 if !$comes_back && $sent[$i] == length($all);
        }
        my $read = sysread($s, my $answer, 1 << 16);
        $gone ||= defined $read ? !$read || $comes_back : !$!{EAGAIN};
        if ($read && !$said) { $said = print "answered\n"; }
        if ($gone) { close($s); undef $sockets[$i]; }
    }
}
"#;

const NOBODY: u32 = 65534;

/// That process, once it has an answer.
fn flood(host: &Host, place: &str, count: usize, comes_back: bool) -> Process {
    flood_of(NOBODY, host, place, count, comes_back)
}

fn flood_of(uid: u32, host: &Host, place: &str, count: usize, comes_back: bool) -> Process {
    let mut perl = host.command("perl");
    perl.args(["-MErrno", "-e", FLOOD, place, &count.to_string()]).args(comes_back.then_some("1"));
    perl.uid(uid).gid(uid);
    let flood = host.spawn_command(perl);
    flood.wait_for_out("answered");
    flood
}

/// A scrape is answered soon.
#[track_caller]
fn assert_scrapes(exporter: &Exporter) {
    let asked = Instant::now();
    exporter.scrape();
    assert!(is_slow() || asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

/// Clients that say nothing, and clients that have begun a request.
fn slow_clients(exporter: &Exporter) -> Vec<Box<dyn Connection>> {
    let begins = |number: usize| if number.is_multiple_of(2) { &b""[..] } else { b"GET /metrics HTTP/1.1\r\nX: " };
    let client = |number| {
        let mut client = exporter.connect();
        // It may be dropped already, for those behind it.
        let _ = client.write_all(begins(number));
        client
    };
    (0..CLIENTS).map(client).collect()
}

/// Each of those that send anything sends another byte; whoever was dropped comes back.
fn go_on(exporter: &Exporter, clients: &mut [Box<dyn Connection>]) {
    for client in clients.iter_mut().skip(1).step_by(2) {
        if client.write_all(b"x").is_err() {
            *client = exporter.connect();
        }
    }
}

#[test]
fn slow_clients_keep_nobody_from_scraping() {
    let host = Host::alone();
    for place in ["127.0.0.1:0", "[::1]:0"] {
        let exporter = host.exporter(["--listen", place]);
        let mut clients = slow_clients(&exporter);
        for _ in 0..3 {
            assert_scrapes(&exporter);
            go_on(&exporter, &mut clients);
        }
        assert_scrapes(&exporter);
        exporter.end(Signal::TERM);
        drop(clients);
    }
}

#[test]
fn clients_that_do_not_read_keep_nobody_from_scraping() {
    let host = Host::alone();
    let exporter = host.exporter([]);
    // More answers than the kernel keeps for them.
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let mut client = exporter.connect();
            let _ = client.write_all(&request);
            client
        })
        .collect();
    assert_scrapes(&exporter);
    assert_scrapes(&exporter);
    exporter.end(Signal::TERM);
    drop(clients);
}

#[test]
fn clients_that_ask_without_end_keep_nobody_from_scraping() {
    let host = Host::alone();
    let exporter = host.exporter(["--listen", "127.0.0.1:0"]);
    let address = exporter.place().trim_start_matches("http://").trim_end_matches("/metrics");
    for (count, comes_back) in [(33, false), (330, false), (33, true), (330, true)] {
        let _flood = flood(&host, address, count, comes_back);
        (0..20).for_each(|_| assert_scrapes(&exporter));
    }
    exporter.end(Signal::TERM);
}

#[test]
fn a_user_of_the_socket_leaves_half_of_the_places_to_others() {
    let host = Host::alone();
    let exporter = host.exporter(["--listen", &format!("unix:{}", host.work().join("socket").display())]);
    let path = exporter.place().trim_start_matches("unix:");
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("it is ours");
    // More than may even wait.
    for (count, comes_back) in [(33, false), (330, true), (900, false)] {
        let _flood = flood(&host, path, count, comes_back);
        (0..20).for_each(|_| assert_scrapes(&exporter));
    }
    exporter.end(Signal::TERM);
}

#[test]
fn several_users_of_the_socket_keep_nobody_from_scraping() {
    let host = Host::alone();
    let exporter = host.exporter(["--listen", &format!("unix:{}", host.work().join("socket").display())]);
    let path = exporter.place().trim_start_matches("unix:");
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("it is ours");
    for (users, count, comes_back) in [(2, 200, false), (2, 200, true), (4, 150, true)] {
        let _floods: Vec<_> = (0..users).map(|user| flood_of(NOBODY - user, &host, path, count, comes_back)).collect();
        (0..20).for_each(|_| assert_scrapes(&exporter));
    }
    exporter.end(Signal::TERM);
}

#[test]
fn few_open_files_are_enough() {
    let host = Host::alone();
    for files in [24, 40, 100] {
        let exporter = host.exporter_with_files(files, ["--listen", "127.0.0.1:0"]);
        let mut clients = slow_clients(&exporter);
        assert_scrapes(&exporter);
        go_on(&exporter, &mut clients);
        assert_scrapes(&exporter);
        exporter.end(Signal::TERM);
    }
}

#[test]
fn a_client_keeps_its_connection_until_others_need_it() {
    let host = Host::new();
    let exporter = host.exporter(["--listen", "127.0.0.1:0"]);
    let mut kept = exporter.connect();
    for _ in 0..3 {
        let answer = bowline_tests::harness::metrics::ask(&mut *kept, "GET", "/metrics", "");
        assert_eq!(answer.status, 200);
    }
    let clients = slow_clients(&exporter);
    let mut rest = Vec::new();
    // Closed or reset: it had waited longest.
    let _ = kept.read_to_end(&mut rest);
    assert!(rest.is_empty());
    exporter.scrape();
    exporter.end(Signal::INT);
    drop(clients);
}
