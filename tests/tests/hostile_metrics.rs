//! `bowline metrics` among clients that are slow, silent or do not read: root's scrape is answered all the same.

use std::io::Write as _;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::is_slow;
use bowline_tests::harness::metrics::{Connection, Exporter};
use rustix::process::Signal;

/// How many clients there are: far more than there is room for.
const CLIENTS: usize = 500;

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
    host.assert_nothing_left();
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
    host.assert_nothing_left();
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
    host.assert_nothing_left();
}

#[test]
fn a_client_that_scrapes_again_keeps_its_connection_until_it_is_needed() {
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
    host.assert_nothing_left();
}
