//! The one place that turns errors into wire codes and back.

#![deny(clippy::wildcard_enum_match_arm)]

use bowline_model::{Doing, Error, Kind};
use protobuf::Message as _;
use ttrpc::proto::{Code, Status};

/// The generated messages and services of `bowline.v1`.
#[allow(missing_docs, unsafe_code, nonstandard_style, unused, clippy::all, clippy::unwrap_used)]
pub mod proto {
    pub mod bowline {
        include!(concat!(env!("OUT_DIR"), "/bowline.rs"));
    }
    pub mod bowline_ttrpc {
        include!(concat!(env!("OUT_DIR"), "/bowline_ttrpc.rs"));
    }
}

use proto::bowline::ErrorDetail;

/// The full name of the service.
pub const NAME: &str = "bowline.v1.Bowline";

/// How much of the service a shim of this version serves. Grows by one with each release that adds a call, a field or a
/// meaning; a shim from before it was counted serves 0.
pub const REVISION: u32 = 9;

/// The revision that a client must find at least: a call that came later is refused by a shim that does not know it.
pub const NEEDED: u32 = 1;

/// The revision of a shim that takes secrets.
pub const TAKES_SECRETS: u32 = 4;

/// The revision of a shim that answers a detached exec once it runs.
pub const DETACHES: u32 = 5;

/// The revision of a shim that removes a task at its end.
pub const REMOVES: u32 = 7;

/// The revision of a shim that stops a task with the process that asked for it.
pub const ENDS_WITH: u32 = 8;

/// The revision of a shim that hands on what a service manager has for a command.
pub const SERVES_UNITS: u32 = 9;

/// Encodes an answer that is JSON in a message.
///
/// # Errors
/// `Internal` for a value that JSON cannot represent.
pub fn json<T: serde::Serialize>(value: &T) -> Result<String, Status> {
    let text = serde_json::to_string(value).doing(Kind::Internal, || "cannot write an answer as JSON");
    text.map_err(|error| to_status(&error))
}

/// Encodes an error for a client: gRPC code and text for any client, kind, field and hint in the details for our own.
pub fn to_status(error: &Error) -> Status {
    let code = match error.kind() {
        Kind::NotFound => Code::NOT_FOUND,
        Kind::AlreadyExists => Code::ALREADY_EXISTS,
        Kind::WrongState => Code::FAILED_PRECONDITION,
        Kind::BadSpec | Kind::Usage => Code::INVALID_ARGUMENT,
        Kind::CommandNotFound => Code::NOT_FOUND,
        Kind::NotExecutable => Code::PERMISSION_DENIED,
        Kind::Unsupported => Code::UNIMPLEMENTED,
        Kind::Exhausted => Code::RESOURCE_EXHAUSTED,
        Kind::Timeout => Code::DEADLINE_EXCEEDED,
        Kind::Damaged => Code::DATA_LOSS,
        Kind::Unavailable => Code::UNAVAILABLE,
        Kind::Internal | _ => Code::INTERNAL,
    };
    let mut status = ttrpc::get_status(code, error.message());
    let detail = ErrorDetail {
        kind: serde_json::to_string(&error.kind()).unwrap_or_default(),
        hint: error.hint_text().unwrap_or_default().to_owned(),
        field: error.field().unwrap_or_default().to_owned(),
        ..ErrorDetail::default()
    };
    if let Ok(value) = detail.write_to_bytes() {
        let mut any = ttrpc::proto::Any::new();
        any.type_url = "bowline.v1.ErrorDetail".to_owned();
        any.value = value;
        status.details.push(any);
    }
    status
}

/// Decodes an error that a shim sent; `None` when the connection itself failed.
pub fn from_status(error: &ttrpc::Error) -> Option<Error> {
    // All other variants are errors of the connection.
    let ttrpc::Error::RpcStatus(status) = error else { return None };
    let detail = status.details.iter().find(|any| any.type_url == "bowline.v1.ErrorDetail");
    let detail = detail.and_then(|any| ErrorDetail::parse_from_bytes(&any.value).ok()).unwrap_or_default();
    // A call that this shim does not know, for example, is refused without a detail.
    let kind = serde_json::from_str(&detail.kind).unwrap_or_else(|_| kind_of(status.code()));
    let mut error = Error::new(kind, status.message.clone());
    if !detail.field.is_empty() {
        error = error.about(detail.field);
    }
    if !detail.hint.is_empty() {
        error = error.hint(detail.hint);
    }
    Some(error)
}

/// Whether a shim has answered that it does not know the call, as one of an older version does.
pub fn is_unknown_call(error: &ttrpc::Error) -> bool {
    // Our own errors have details.
    matches!(error, ttrpc::Error::RpcStatus(status) if status.code() == Code::UNIMPLEMENTED && status.details.is_empty())
}

/// What a code alone tells.
#[allow(clippy::wildcard_enum_match_arm, reason = "the rest are the codes that no error of ours becomes")]
fn kind_of(code: Code) -> Kind {
    match code {
        Code::UNIMPLEMENTED => Kind::Unsupported,
        Code::UNAVAILABLE => Kind::Unavailable,
        Code::RESOURCE_EXHAUSTED => Kind::Exhausted,
        Code::INVALID_ARGUMENT => Kind::Usage,
        _ => Kind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_a_shim_does_not_know_is_unsupported() {
        let status = ttrpc::get_status(Code::UNIMPLEMENTED, "method Teleport");
        let told = ttrpc::Error::RpcStatus(status);
        assert!(is_unknown_call(&told));
        let error = from_status(&told).expect("it was refused");
        assert_eq!((error.kind(), error.message()), (Kind::Unsupported, "method Teleport"));
        let ours = ttrpc::Error::RpcStatus(to_status(&Error::new(Kind::Unsupported, "no such facility")));
        assert!(!is_unknown_call(&ours));
    }

    #[test]
    fn kind_text_field_and_hint_survive_the_wire() {
        let kinds = [
            Kind::NotFound,
            Kind::AlreadyExists,
            Kind::WrongState,
            Kind::BadSpec,
            Kind::CommandNotFound,
            Kind::NotExecutable,
            Kind::Unsupported,
            Kind::Exhausted,
            Kind::Timeout,
            Kind::Unavailable,
            Kind::Usage,
            Kind::Damaged,
            Kind::Internal,
        ];
        for kind in kinds {
            let error = Error::new(kind, "cannot do it").in_field("pids").hint("do that");
            assert_eq!(from_status(&ttrpc::Error::RpcStatus(to_status(&error))), Some(error));
        }
    }
}
