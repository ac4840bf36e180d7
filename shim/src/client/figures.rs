//! Asking a shim for all its figures at once, for whoever asks many and waits
//! for none.
//!
//! Unlike the rest of the client it does not wait for the end of a shim that
//! goes: whoever asks looks again the next time.

use std::io::ErrorKind;
use std::time::Duration;

use bowline_executor::figures::Figures;
use bowline_executor::{Doing, Error, Folder, Kind, Owner, Result};
use tokio::time::timeout;
use ttrpc::context;

use super::connect;
use crate::wire::from_status;
use crate::wire::proto::bowline::Empty;

/// What came of asking a shim.
pub enum Heard {
    /// Its figures.
    Figures(Box<Figures>),
    /// It does not listen yet.
    Starting,
    /// There is none any more.
    Gone,
    /// One lives that gives no answer, for this reason.
    Silent(Error),
}

/// Asks the shim whose folder this is, for no longer than `most`.
pub async fn ask(folder: &Folder, most: Duration) -> Heard {
    let late = || Error::new(Kind::Timeout, format!("no answer within {} ms", most.as_millis()));
    let error = match timeout(most, call(folder, most)).await.unwrap_or_else(|_| Err(Refused::Silent(late()))) {
        Ok(figures) => return Heard::Figures(Box::new(figures)),
        Err(error) => error,
    };
    match (folder.owner(), error) {
        (Ok(Owner::Nobody(_)), _) => Heard::Gone,
        (Err(error), _) if error.kind() == Kind::NotFound => Heard::Gone,
        (Ok(Owner::Shim), Refused::NoSocket) => Heard::Starting,
        (Ok(Owner::Shim), Refused::Silent(error)) | (Err(error), _) => Heard::Silent(error),
    }
}

enum Refused {
    NoSocket,
    Silent(Error),
}

async fn call(folder: &Folder, most: Duration) -> std::result::Result<Figures, Refused> {
    let client = match connect(folder).await {
        Ok(client) => client,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Refused::NoSocket),
        Err(error) => {
            return Err(Refused::Silent(Error::new(Kind::Internal, format!("cannot reach the shim: {error}"))));
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
