//! `bowline metrics`: reports the figures of all tasks, sandboxes and tracked units to Prometheus and compatible
//! programs.
//!
//! ```text
//!   args ─► listen ─► serve ─► gather, from all shims ─► families ─► text
//!                       │        └ containerd: from those that its bundles name
//!                       ├ client_limit: who is connected, and who has to go; queue: who waits for a place
//!                       └ negotiate: which form
//! ```
//!
//! Shims are asked only when a client scrapes. Must not: keep what was gathered for a later scrape.

pub mod args;
pub mod bundles;
mod client_limit;
mod containerd;
#[cfg(test)]
mod documented;
mod families;
mod gather;
mod gatherer;
mod listen;
mod negotiate;
mod queue;
mod serve;
mod text;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bowline_executor::internal::report_signal;
use bowline_model::folder::StateDir;
use bowline_model::{Doing, Kind, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::sync::watch;

use self::args::MetricsArgs;
use self::bundles::Containerd;
use self::gatherer::Gatherer;
use self::text::Form;

/// Runs `bowline metrics`: serves until SIGTERM or SIGINT, or prints the metrics once with `say`.
pub async fn run(state: &StateDir, args: MetricsArgs, say: fn(&str) -> Result<()>) -> Result<u8> {
    let gatherer = Arc::new(Gatherer::new(state, Containerd::at(args.containerd)?));
    if args.once {
        let text = gatherer.scrape().await?.text(Form::Text);
        return say(String::from_utf8_lossy(&text).trim_end_matches('\n')).map(|()| 0);
    }
    let asked = signals()?;
    let listener = listen::listen(state, args.listen, args.allow_remote)?;
    say(&format!("listening at {}", listener.place()))?;
    let (end, ended) = watch::channel(false);
    tokio::spawn(async move {
        // Treat an error like a signal: nothing else would end the server.
        let _ = asked.readable().await;
        end.send_replace(true);
    });
    serve::serve(listener, gatherer, ended).await;
    Ok(0)
}

/// Returns a stream that is readable once SIGTERM or SIGINT has come.
fn signals() -> Result<tokio::net::UnixStream> {
    let what = || "cannot watch for signals";
    let (receive, send) = UnixStream::pair().doing(Kind::Internal, what)?;
    receive.set_nonblocking(true).doing(Kind::Internal, what)?;
    let send = Arc::new(OwnedFd::from(send));
    for number in [SIGTERM, SIGINT] {
        report_signal(number, send.clone()).doing(Kind::Internal, what)?;
    }
    tokio::net::UnixStream::from_std(receive).doing(Kind::Internal, what)
}
