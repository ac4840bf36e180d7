//! ttrpc calls to a shim: reads requests from the clients of its socket, writes the answers of a service.
//!
//! ```text
//!   accept ─► server ─► connection: bytes ─► frame ─► open call ─► service
//!                                   bytes ◄─ frame ◄──── answer ◄─────┘
//! ```
//!
//! The state of a connection and its calls is plain data (`connection::Facts`), apart from its socket and its futures.
//! Everything has a limit: a frame, the size of open calls, and what a client leaves unread. Status codes are those of
//! Go's ttrpc. Messages are generated; each service maps method names itself.
//!
//! Must not: know the services.

mod accept;
mod connection;
pub mod frame;
mod server;

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bowline_executor::internal::waits;
use protobuf::Message;
use ttrpc::get_status;
use ttrpc::proto::{Code, Status};

#[cfg(feature = "fuzzing")]
pub use connection::Facts;
pub use connection::{Caller, Outline};
pub use server::{Connections, Door, Handed, Server, door};

/// The result of a call.
pub type Answer<T> = Result<T, Status>;

pub struct Call {
    future: Pin<Box<dyn Future<Output = Step>>>,
    /// Whether it only waits, and can be made again.
    only_waits: bool,
}

impl Call {
    fn new(future: impl Future<Output = Step> + 'static) -> Call {
        Call { future: Box::pin(future), only_waits: false }
    }
}

impl Future for Call {
    type Output = Step;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Step> {
        self.future.as_mut().poll(context)
    }
}

/// One step of a call.
pub enum Step {
    /// The call is over, with this encoded answer.
    Answered(Answer<Vec<u8>>),
    /// The call has started something with this number; the new call waits for its end.
    Begun(u64, Call),
}

/// The services of a shim.
pub trait Services {
    /// Begins a call.
    ///
    /// # Errors
    /// [`unknown_service`], [`unknown_method`], and the errors of [`call`].
    fn call(self: &Rc<Self>, service: &str, method: &str, payload: &[u8]) -> Answer<Call>;

    /// Like [`Self::call`], by a client that the call may concern.
    ///
    /// # Errors
    /// As [`Self::call`].
    fn call_from(
        self: &Rc<Self>,
        caller: &mut Caller<'_>,
        service: &str,
        method: &str,
        payload: &[u8],
    ) -> Answer<Call> {
        let _ = caller;
        self.call(service, method, payload)
    }

    /// Waits again for the end of what a call has begun, under this number, before the shim's program was replaced.
    ///
    /// # Errors
    /// As [`Self::call`].
    fn wait_again(self: &Rc<Self>, service: &str, method: &str, payload: &[u8], begun: u64) -> Answer<Call> {
        let _ = (service, payload, begun);
        Err(unknown_method(method))
    }
}

/// Calls `method` of `service` with the encoded request `payload`.
///
/// # Errors
/// `INVALID_ARGUMENT` when `payload` is not such a request.
pub fn call<S, Q, A>(
    service: &Rc<S>,
    payload: &[u8],
    method: impl AsyncFnOnce(&S, Q) -> Answer<A> + 'static,
) -> Answer<Call>
where
    S: 'static,
    Q: Message,
    A: Message,
{
    let request = asked::<Q>(payload)?;
    let service = service.clone();
    Ok(Call::new(async move { answered(method(&service, request).await) }))
}

/// Decodes a request.
///
/// # Errors
/// `INVALID_ARGUMENT` when `payload` is not such a request.
pub fn asked<Q: Message>(payload: &[u8]) -> Answer<Q> {
    let request = Q::parse_from_bytes(payload);
    request.map_err(|error| get_status(Code::INVALID_ARGUMENT, format!("not a {}: {error}", Q::NAME)))
}

fn answered<A: Message>(answer: Answer<A>) -> Step {
    let encoded = answer.and_then(|answer| answer.write_to_bytes().map_err(|e| get_status(Code::INTERNAL, e)));
    Step::Answered(encoded)
}

/// Like [`call`], for a method in two steps: `begin` starts something and returns its number, `end` waits for it and
/// can be called again.
///
/// # Errors
/// As [`call`].
pub fn begin_and_wait<S, Q, B, A>(
    service: &Rc<S>,
    payload: &[u8],
    begin: impl AsyncFnOnce(&S, Q) -> Answer<(u64, B)> + 'static,
    end: impl AsyncFn(&B) -> Answer<A> + 'static,
) -> Answer<Call>
where
    S: 'static,
    Q: Message,
    B: 'static,
    A: Message,
{
    let request = asked::<Q>(payload)?;
    let service = service.clone();
    Ok(Call::new(async move {
        match begin(&service, request).await {
            Ok((number, begun)) => Step::Begun(number, wait_for(begun, end)),
            Err(status) => Step::Answered(Err(status)),
        }
    }))
}

/// Waits with `end` for the end of what was begun.
pub fn wait_for<B: 'static, A: Message>(begun: B, end: impl AsyncFn(&B) -> Answer<A> + 'static) -> Call {
    let wait = async move { answered(waits::lasting(|| end(&begun)).await) };
    Call { future: Box::pin(wait), only_waits: true }
}

/// Like [`call`], for a method that only waits: it can be called again as long as what it waits for is known.
///
/// # Errors
/// As [`call`].
pub fn wait<S, Q, A>(
    service: &Rc<S>,
    payload: &[u8],
    method: impl AsyncFn(&S, Q) -> Answer<A> + 'static,
) -> Answer<Call>
where
    S: 'static,
    Q: Message + Clone,
    A: Message,
{
    let call = call(service, payload, async move |service: &S, request: Q| {
        waits::lasting(|| method(service, request.clone())).await
    })?;
    Ok(Call { only_waits: true, ..call })
}

/// The error for an unknown service.
pub fn unknown_service(name: &str) -> Status {
    get_status(Code::UNIMPLEMENTED, format!("service {name}"))
}

/// The error for an unknown method.
pub fn unknown_method(name: &str) -> Status {
    get_status(Code::UNIMPLEMENTED, format!("method {name}"))
}
