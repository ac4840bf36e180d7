//! `bowline units`: sends a request to systemd for a shim, which does not talk to systemd itself. Reads the request as
//! JSON from stdin and prints the answer on stdout.
//!
//! Must not: fail, except if it cannot even answer.

use std::io::Read as _;

use bowline_executor::systemd::Request;
use bowline_model::{Doing, Kind, Result};

use crate::ui::print::say;

pub async fn run() -> Result<u8> {
    let answer = match read() {
        Ok(request) => bowline_units::carry_out(request).await,
        Err(error) => Err(error),
    };
    // Read by a shim of the same version.
    say(&serde_json::to_string(&answer).doing(Kind::Internal, || "cannot write JSON")?).map(|()| 0)
}

fn read() -> Result<Request> {
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text).doing(Kind::Internal, || "cannot read stdin")?;
    serde_json::from_slice(&text).doing(Kind::Usage, || "stdin is no request of a shim")
}
