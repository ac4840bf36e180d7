//! Parses what containerd sends through stdin, and encodes the reply.
//!
//! | containerd | stdin of `start` | reply |
//! | --- | --- | --- |
//! | up to 2.2 | an `Any` with the options, or nothing | the address |
//! | from 2.3 on | `BootstrapParams`, the options among its extensions | `BootstrapResult`, version 3 |
//!
//! 1.7 to 2.2 make the same call, and 1.7 accepts no version above 2: every containerd takes the plain address for
//! version 2.

use std::io::Read;
use std::path::PathBuf;

use bowline_model::{Doing, Error, Kind, Result};
use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult, LogLevel};
use protobuf::well_known_types::any::Any;
use protobuf::{Enum as _, Message as _};

use super::invocation::Invocation;
use super::options;

/// The most that we read from stdin, in bytes.
const MOST: u64 = 10 << 20;
/// The version of the Task API in a `BootstrapResult`.
const VERSION: i32 = 3;

/// The form of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The address as plain text, as containerd up to 2.2 expects it.
    Plain,
    Bootstrap,
}

/// What containerd sent through stdin.
#[derive(Debug, PartialEq)]
pub struct Given {
    /// The form of the reply that containerd expects.
    pub form: Form,
    /// The runtime's options, if any.
    pub options: Option<Any>,
    /// The folder for sockets, if not the default one.
    pub socket_dir: Option<PathBuf>,
}

/// Reads all of `input`.
///
/// # Errors
/// `Usage` when it is too long.
pub fn read(input: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = input.take(MOST + 1).read_to_end(&mut bytes);
    match read.doing(Kind::Internal, || "cannot read stdin")? {
        length if length as u64 > MOST => {
            Err(Error::new(Kind::Usage, format!("stdin has more than {} MiB", MOST >> 20)))
        }
        _ => Ok(bytes),
    }
}

/// Parses `bytes` as bootstrap parameters or options. The values of bootstrap parameters override those in
/// `invocation`.
///
/// # Errors
/// `Usage` when `bytes` are neither.
pub fn parse(bytes: &[u8], invocation: &mut Invocation) -> Result<Given> {
    let ours =
        |params: &BootstrapParams| params.instance_id == invocation.id && params.namespace == invocation.namespace;
    // `Any` and `BootstrapParams` both begin with a text as field 1. These are parameters only if they name our
    // container.
    if let Some(params) = BootstrapParams::parse_from_bytes(bytes).ok().filter(ours) {
        return Ok(bootstrap(params, invocation));
    }
    let options = any(bytes)?;
    Ok(Given { form: Form::Plain, options, socket_dir: None })
}

/// Parses an `Any`; `None` for an empty one.
///
/// # Errors
/// `Usage` when `bytes` are not an `Any`.
pub fn any(bytes: &[u8]) -> Result<Option<Any>> {
    let what = || "stdin has neither options nor bootstrap parameters for this container";
    let any = Any::parse_from_bytes(bytes).doing(Kind::Usage, what)?;
    if any.type_url.is_empty() && !any.value.is_empty() {
        return Err(Error::new(Kind::Usage, format!("{}: no type is named", what())));
    }
    Ok(Some(any).filter(|any| !any.type_url.is_empty()))
}

fn bootstrap(params: BootstrapParams, invocation: &mut Invocation) -> Given {
    let replace = |value: String, of: &mut Option<String>| {
        if !value.is_empty() {
            *of = Some(value);
        }
    };
    replace(params.containerd_ttrpc_address, &mut invocation.ttrpc_address);
    replace(params.containerd_grpc_address.clone(), &mut invocation.grpc_address);
    if invocation.address.is_empty() {
        invocation.address = params.containerd_grpc_address;
    }
    if !params.containerd_binary.is_empty() {
        invocation.publish_binary = Some(params.containerd_binary.into());
    }
    // A lower level is more verbose.
    invocation.debug |= params.log_level.value() <= LogLevel::LOG_LEVEL_DEBUG.value();
    // Ignore extensions that are not our options.
    let values = params.extensions.into_iter().filter_map(|extension| extension.value.into_option());
    let options = values.into_iter().find(options::is_known);
    let socket_dir = params.socket_dir.filter(|dir| !dir.is_empty()).map(PathBuf::from);
    Given { form: Form::Bootstrap, options, socket_dir }
}

/// Encodes the reply, which is all that is written to stdout.
///
/// # Errors
/// `Internal` when it cannot be encoded.
pub fn reply(form: Form, address: &str) -> Result<Vec<u8>> {
    match form {
        Form::Plain => Ok(address.as_bytes().to_vec()),
        Form::Bootstrap => {
            let result = BootstrapResult {
                version: VERSION,
                address: address.to_owned(),
                protocol: "ttrpc".to_owned(),
                ..BootstrapResult::default()
            };
            result.write_to_bytes().doing(Kind::Internal, || "cannot encode the reply")
        }
    }
}

#[cfg(test)]
mod tests {
    use containerd_shim_protos::bootstrap_api::Extension;
    use protobuf::EnumOrUnknown;

    use super::*;

    fn invocation() -> Invocation {
        Invocation {
            namespace: "n".to_owned(),
            id: "i".to_owned(),
            address: "/run/c.sock".to_owned(),
            ttrpc_address: Some("/run/c.sock.ttrpc".to_owned()),
            ..Invocation::default()
        }
    }

    fn any_of(type_url: &str) -> Any {
        Any { type_url: type_url.to_owned(), value: vec![0x48, 1], ..Any::default() }
    }

    fn params() -> BootstrapParams {
        let extension = |type_url| Extension { value: Some(any_of(type_url)).into(), ..Extension::default() };
        BootstrapParams {
            instance_id: "i".to_owned(),
            namespace: "n".to_owned(),
            log_level: EnumOrUnknown::from_i32(-5),
            containerd_ttrpc_address: "/new.ttrpc".to_owned(),
            extensions: vec![extension("somebody/else.v1.Thing"), extension("containerd.runc.v1.Options")],
            socket_dir: Some("/run/short".to_owned()),
            ..BootstrapParams::default()
        }
    }

    fn parse_of(bytes: &[u8]) -> (Result<Given>, Invocation) {
        let mut invocation = invocation();
        (parse(bytes, &mut invocation), invocation)
    }

    #[test]
    fn bootstrap_parameters_are_known_by_whom_they_name() {
        let (given, invocation) = parse_of(&params().write_to_bytes().unwrap());
        let given = given.unwrap();
        assert_eq!(given.form, Form::Bootstrap);
        assert_eq!(given.options.map(|any| any.type_url).as_deref(), Some("containerd.runc.v1.Options"));
        assert_eq!(given.socket_dir, Some(PathBuf::from("/run/short")));
        assert_eq!(invocation.ttrpc_address.as_deref(), Some("/new.ttrpc"));
        assert_eq!(invocation.address, "/run/c.sock");
        assert!(invocation.debug);
    }

    #[test]
    fn those_of_another_container_are_not_taken_for_ours() {
        for (id, namespace) in [("other", "n"), ("i", "other")] {
            let params = BootstrapParams { instance_id: id.into(), namespace: namespace.into(), ..params() };
            let (given, untouched) = parse_of(&params.write_to_bytes().unwrap());
            // They may also parse as an `Any` of an unknown type.
            assert!(given.is_err() || given.is_ok_and(|given| given.form == Form::Plain), "{id}");
            assert_eq!(untouched, invocation());
        }
    }

    #[test]
    fn options_come_alone_or_not_at_all() {
        let (given, untouched) = parse_of(&any_of("containerd.runc.v1.Options").write_to_bytes().unwrap());
        let given = given.unwrap();
        assert_eq!((given.form, given.options.is_some()), (Form::Plain, true));
        assert_eq!(untouched, invocation());
        let (given, _) = parse_of(b"");
        assert_eq!(given, Ok(Given { form: Form::Plain, options: None, socket_dir: None }));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for garbage in [&b"\xff\xff\xff"[..], b"unix://", b"{\"id\":1}", b"\x12\x01x"] {
            let (given, _) = parse_of(garbage);
            assert_eq!(given.map_err(|e| e.kind()), Err(Kind::Usage), "{garbage:?}");
        }
        assert!(read(std::io::repeat(0)).is_err());
    }

    #[test]
    fn the_reply_is_in_the_form_that_was_asked_for() {
        assert_eq!(reply(Form::Plain, "unix:///s").unwrap(), b"unix:///s");
        let result = BootstrapResult::parse_from_bytes(&reply(Form::Bootstrap, "unix:///s").unwrap()).unwrap();
        assert_eq!((result.version, result.address.as_str(), result.protocol.as_str()), (3, "unix:///s", "ttrpc"));
    }
}
