//! The one place that turns errors into gRPC codes, and says which of them another attempt may get past.

#![deny(clippy::wildcard_enum_match_arm)]

use std::borrow::Cow;

use bowline_model::{Error, Kind};
use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};

use crate::proto::structs::RecoverableError;

/// Nomad looks for this text where it asks whether a driver knows a task (`ErrTaskNotFound` in plugins/drivers).
const NOT_FOUND: &str = "task not found for given id";

/// What Nomad takes for an error that another attempt may get past.
const RECOVERABLE: &str = "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError";

/// The most bytes of a message: the agent keeps it with the task's events.
const LONGEST: usize = 4096;

/// `google.rpc.Status`, which carries the details of an error.
#[derive(Clone, PartialEq, prost::Message)]
struct Details {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// The answer to a call about a task that this driver does not have.
pub fn unknown(task_id: &str) -> Status {
    Status::not_found(format!("{NOT_FOUND}: {:?}", shortened(task_id)))
}

/// The answer to a call that failed.
pub fn of(error: &Error) -> Status {
    let code = match error.kind() {
        Kind::NotFound | Kind::CommandNotFound => Code::NotFound,
        Kind::AlreadyExists => Code::AlreadyExists,
        Kind::WrongState => Code::FailedPrecondition,
        Kind::BadSpec | Kind::Usage => Code::InvalidArgument,
        Kind::NotExecutable => Code::PermissionDenied,
        Kind::Unsupported => Code::Unimplemented,
        Kind::Exhausted => Code::ResourceExhausted,
        Kind::Timeout => Code::DeadlineExceeded,
        Kind::Damaged => Code::DataLoss,
        // With `Unavailable` the agent takes the plugin itself for dead.
        Kind::Unavailable | Kind::Internal | _ => Code::Internal,
    };
    Status::new(code, text(error))
}

/// The answer to a start that failed: what the host caused may be over when it is tried again.
pub fn of_start(error: &Error) -> Status {
    let again = matches!(
        error.kind(),
        Kind::Internal | Kind::Unavailable | Kind::Timeout | Kind::AlreadyExists | Kind::WrongState | Kind::Exhausted
    );
    if again { recoverable(text(error)) } else { of(error) }
}

fn recoverable(message: String) -> Status {
    let value = RecoverableError { recoverable: true }.encode_to_vec();
    let detail = Any { type_url: RECOVERABLE.to_owned(), value };
    let code = Code::FailedPrecondition;
    let details = Details { code: code.into(), message: message.clone(), details: vec![detail] };
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// The message with its hint, which a person reads in the task's events.
fn text(error: &Error) -> String {
    let message = shortened(error.message());
    match error.hint_text() {
        Some(hint) => format!("{message}; hint: {}", shortened(hint)),
        None => message.into_owned(),
    }
}

/// At most [`LONGEST`] bytes of what may have come from a job as long as that wanted.
fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST {
        return text.into();
    }
    let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end]).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_has_caused_may_be_tried_again() {
        let status = of_start(&Error::new(Kind::Internal, "cannot make it").hint("free the disk"));
        assert_eq!(
            (status.code(), status.message()),
            (Code::FailedPrecondition, "cannot make it; hint: free the disk")
        );
        let details = Details::decode(status.details()).unwrap();
        assert_eq!((details.details.len(), details.details[0].type_url.as_str()), (1, RECOVERABLE));
        assert_eq!(
            RecoverableError::decode(&*details.details[0].value).unwrap(),
            RecoverableError { recoverable: true }
        );
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let status = of(&Error::new(Kind::Usage, "é".repeat(LONGEST)).hint("x".repeat(LONGEST + 1)));
        assert!(status.message().len() < 2 * LONGEST + 20 && status.message().contains("é…; hint: x"), "{status}");
        assert!(unknown(&"x".repeat(10_000_000)).message().len() < LONGEST + 60);
    }

    #[test]
    fn what_the_job_has_caused_may_not() {
        let status = of_start(&Error::new(Kind::BadSpec, "command: is empty"));
        assert_eq!((status.code(), status.details().len()), (Code::InvalidArgument, 0));
    }

    #[test]
    fn a_task_that_is_not_there_is_called_as_nomad_calls_it() {
        let status = unknown("a/web/1");
        assert_eq!((status.code(), status.message()), (Code::NotFound, "task not found for given id: \"a/web/1\""));
    }
}
