//! A scraper beside clients that send many requests at a time on many connections, and come back when they are shown out.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bowline_tests::Host;
use bowline_tests::harness::metrics::ask;
use bowline_tests::harness::{eventually, is_slow};

/// The requests that a client sends at a time, and how often.
const AT_A_TIME: usize = 20;
const EVERY: Duration = Duration::from_millis(10);

/// Asks without end on `count` connections, until `over`; counts how often it has on all.
fn crowd(address: &str, count: usize, rounds: &AtomicUsize, over: &AtomicBool) {
    let connect = || {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nonblocking(true).ok().map(|()| stream)
    };
    let requests = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(AT_A_TIME);
    let mut clients: Vec<Option<TcpStream>> = (0..count).map(|_| connect()).collect();
    let mut read = vec![0; 1 << 16];
    while !over.load(Ordering::Relaxed) {
        for client in &mut clients {
            let is_full = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
            let goes_on = client.as_mut().is_some_and(|stream| {
                stream.write(requests.as_bytes()).as_ref().map_or_else(is_full, |_| true)
                    && loop {
                        match stream.read(&mut read) {
                            Ok(0) => break false,
                            Ok(_) => {}
                            Err(error) => break is_full(&error),
                        }
                    }
            });
            if !goes_on {
                *client = connect();
            }
        }
        rounds.fetch_add(1, Ordering::Relaxed);
        // The load, not a wait for anything.
        thread::sleep(EVERY);
    }
}

#[test]
fn a_scrape_beside_clients_that_ask_without_end_is_answered() {
    let host = Host::alone();
    let exporter = host.exporter(["--listen", "127.0.0.1:0"]);
    let place = exporter.place();
    let address = place.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).expect("an address");
    for count in [33, 330] {
        let (rounds, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| crowd(address, count, &rounds, &over));
            eventually("they have asked", || (rounds.load(Ordering::Relaxed) > 20).then_some(()));
            let mut slowest = Duration::ZERO;
            let mut unanswered = 0;
            for _ in 0..20 {
                let asked = Instant::now();
                let mut connection = exporter.connect();
                let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
                let mut answer = Vec::new();
                // A reset after the whole answer is none.
                let _ = connection.write_all(request).and_then(|()| connection.read_to_end(&mut answer));
                unanswered += usize::from(!answer.starts_with(b"HTTP/1.1 200"));
                slowest = slowest.max(asked.elapsed());
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(unanswered, 0, "of 20, beside {count}");
            assert!(is_slow() || slowest < Duration::from_secs(2), "{slowest:?} beside {count}");
        });
    }
}

#[test]
fn a_client_that_has_not_asked_yet_outstays_those_that_have_had_answers() {
    let host = Host::alone();
    let exporter = host.exporter(["--listen", "127.0.0.1:0"]);
    let mut early = exporter.connect();
    // With it they have all places.
    let mut others: Vec<_> = (0..31).map(|_| exporter.connect()).collect();
    for other in &mut others {
        assert_eq!(ask(&mut **other, "GET", "/metrics", "").status, 200);
    }
    exporter.scrape();
    assert_eq!(ask(&mut *early, "GET", "/metrics", "").status, 200);
}
