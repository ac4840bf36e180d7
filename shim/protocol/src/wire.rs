//! The one place that turns errors into wire codes and back.

#![deny(clippy::wildcard_enum_match_arm)]

use bowline_executor::{Doing, Error, Kind};
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

/// Encodes an answer that is JSON in a message.
///
/// # Errors
/// `Internal` for a value that JSON cannot represent.
pub fn json<T: serde::Serialize>(value: &T) -> Result<String, Status> {
    let text = serde_json::to_string(value).doing(Kind::Internal, || "cannot write an answer as JSON");
    text.map_err(|error| to_status(&error))
}

/// Encodes an error for a client: gRPC code and text for any client, kind and hint in the details for our own.
pub fn to_status(error: &Error) -> Status {
    let code = match error.kind() {
        Kind::NotFound => Code::NOT_FOUND,
        Kind::AlreadyExists => Code::ALREADY_EXISTS,
        Kind::WrongState => Code::FAILED_PRECONDITION,
        Kind::BadSpec | Kind::Usage => Code::INVALID_ARGUMENT,
        Kind::CommandNotFound => Code::NOT_FOUND,
        Kind::NotExecutable => Code::PERMISSION_DENIED,
        Kind::Unsupported => Code::UNIMPLEMENTED,
        Kind::Timeout => Code::DEADLINE_EXCEEDED,
        Kind::Damaged => Code::DATA_LOSS,
        Kind::Unavailable => Code::UNAVAILABLE,
        Kind::Internal => Code::INTERNAL,
    };
    let mut status = ttrpc::get_status(code, error.message());
    let detail = ErrorDetail {
        kind: serde_json::to_string(&error.kind()).unwrap_or_default(),
        hint: error.hint_text().unwrap_or_default().to_owned(),
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
    let kind = serde_json::from_str(&detail.kind).unwrap_or(Kind::Internal);
    let error = Error::new(kind, status.message.clone());
    Some(if detail.hint.is_empty() { error } else { error.hint(detail.hint) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_text_and_hint_survive_the_wire() {
        let kinds = [
            Kind::NotFound,
            Kind::AlreadyExists,
            Kind::WrongState,
            Kind::BadSpec,
            Kind::CommandNotFound,
            Kind::NotExecutable,
            Kind::Unsupported,
            Kind::Timeout,
            Kind::Unavailable,
            Kind::Usage,
            Kind::Damaged,
            Kind::Internal,
        ];
        for kind in kinds {
            let error = Error::new(kind, "cannot do it").hint("do that");
            assert_eq!(from_status(&ttrpc::Error::RpcStatus(to_status(&error))), Some(error));
        }
    }
}
