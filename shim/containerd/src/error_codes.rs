//! Converts errors to what containerd and its clients expect: gRPC codes, and the prefixes by which Docker finds the
//! reason.

#![deny(clippy::wildcard_enum_match_arm)]

use bowline_model::{Error, Kind};
use ttrpc::proto::{Code, Status};

pub use bowline_protocol::calls::Answer;

/// What a call was doing when the runtime refused it.
#[derive(Debug, Clone, Copy)]
pub enum During {
    Create,
    Start,
    Exec,
}

impl During {
    /// The message prefix; Docker maps the text behind it to its exit codes 126 and 127.
    fn prefix(self) -> &'static str {
        match self {
            During::Create => "OCI runtime create failed: ",
            During::Start => "OCI runtime start failed: ",
            During::Exec => "OCI runtime exec failed: ",
        }
    }

    /// Converts an error of this operation.
    pub fn refused(self, error: &Error) -> Status {
        status(self.prefix(), error)
    }
}

/// Converts an error for containerd.
pub fn refused(error: &Error) -> Status {
    status("", error)
}

fn status(prefix: &str, error: &Error) -> Status {
    let code = match error.kind() {
        Kind::NotFound => Code::NOT_FOUND,
        Kind::AlreadyExists => Code::ALREADY_EXISTS,
        // Not Unimplemented for what is not supported: containerd takes that for a call that is not there, and asks
        // again in another way.
        Kind::WrongState | Kind::Unsupported => Code::FAILED_PRECONDITION,
        Kind::BadSpec | Kind::Usage => Code::INVALID_ARGUMENT,
        Kind::Exhausted => Code::RESOURCE_EXHAUSTED,
        // Not NotFound, which would mean that the container does not exist.
        Kind::CommandNotFound | Kind::NotExecutable => Code::UNKNOWN,
        // Not UNAVAILABLE, which would mean the shim itself.
        Kind::Timeout | Kind::Unavailable => Code::DEADLINE_EXCEEDED,
        Kind::Damaged | Kind::Internal | _ => Code::INTERNAL,
    };
    let hint = error.hint_text().map(|hint| format!(" ({hint})")).unwrap_or_default();
    ttrpc::get_status(code, format!("{prefix}{}{hint}", error.message()))
}
