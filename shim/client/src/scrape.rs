//! Asks a shim for all its figures at once, for a caller that asks many shims and waits for none.
//!
//! Unlike the rest of the client it does not wait for a leaving shim to end, because the caller asks again the next
//! time.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use bowline_model::folder::Folder;
use bowline_model::folder::Owner;
use bowline_model::stats::figures::Figures;
use bowline_model::{Doing, Error, Kind, Result};
use tokio::time::timeout;
use ttrpc::context;

use crate::connection::connect_at;
use bowline_protocol::wire::from_status;
use bowline_protocol::wire::proto::bowline::Empty;

/// The result of asking a shim.
pub enum Heard {
    Figures(Box<Figures>),
    /// The shim does not listen yet.
    Starting,
    /// There is no shim any more.
    Gone,
    /// The shim lives but gives no answer, for this reason.
    Silent(Error),
}

/// Asks the shim of `folder`, for at most `most`.
pub async fn ask(folder: &Folder, most: Duration) -> Heard {
    let error = match call(&folder.socket(), most).await {
        Ok(figures) => return Heard::Figures(Box::new(figures)),
        Err(error) => error,
    };
    match (folder.owner(), error) {
        (Ok(Owner::Nobody(_)), _) => Heard::Gone,
        (Err(error), _) if error.kind() == Kind::NotFound => Heard::Gone,
        (Ok(Owner::Shim), Refused::NoSocket) => Heard::Starting,
        // The shim of a task that has ended is about to exit.
        (Ok(Owner::Shim), _) if matches!(folder.exit(), Ok(Some(_))) => Heard::Gone,
        (Ok(Owner::Shim), Refused::NoShim(error) | Refused::Silent(error)) | (Err(error), _) => Heard::Silent(error),
    }
}

/// Asks a shim by its socket alone, for at most `most`. The socket exists from before the shim starts until it has
/// left.
pub async fn ask_at(socket: &Path, most: Duration) -> Heard {
    match call(socket, most).await {
        Ok(figures) => Heard::Figures(Box::new(figures)),
        Err(Refused::NoSocket | Refused::NoShim(_)) => Heard::Gone,
        Err(Refused::Silent(error)) => Heard::Silent(error),
    }
}

enum Refused {
    NoSocket,
    /// A socket exists, but nobody listens at it.
    NoShim(Error),
    Silent(Error),
}

async fn call(socket: &Path, most: Duration) -> std::result::Result<Figures, Refused> {
    let late = || Error::new(Kind::Timeout, format!("no answer within {} ms", most.as_millis()));
    timeout(most, patiently(socket, most)).await.unwrap_or_else(|_| Err(Refused::Silent(late())))
}

async fn patiently(socket: &Path, most: Duration) -> std::result::Result<Figures, Refused> {
    let client = match connect_at(socket).await {
        Ok(client) => client,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Refused::NoSocket),
        Err(error) => {
            let failed = Error::new(Kind::Internal, format!("cannot reach the shim: {error}"));
            return Err(match error.kind() {
                ErrorKind::ConnectionRefused => Refused::NoShim(failed),
                _ => Refused::Silent(failed),
            });
        }
    };
    let context = context::with_duration(most);
    let answer = client.figures(context, &Empty::default()).await;
    let answer: Result<Figures> = match answer {
        Ok(answer) => serde_json::from_str(&answer.figures).doing(Kind::Internal, || "the shim's figures are damaged"),
        Err(error) => {
            Err(from_status(&error)
                .unwrap_or_else(|| Error::new(Kind::Internal, format!("the shim broke off: {error}"))))
        }
    };
    answer.map_err(Refused::Silent)
}
