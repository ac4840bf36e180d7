//! Fuzz targets for what containerd sends, as functions of bytes: see `fuzzing` of `shim/cli`.

use bowline_executor::fuzzing;
use containerd_shim_protos::api::{
    CheckpointTaskRequest, CreateTaskRequest, ExecProcessRequest, KillRequest, UpdateTaskRequest,
};
use containerd_shim_protos::sandbox_api::CreateSandboxRequest;
use protobuf::Message;
use protobuf::well_known_types::any::Any;

use super::invocation::{Invocation, Privileged};
use super::options::{CheckpointOptions, Options};
use super::sandbox::Wanted;
use super::{bootstrap, service};

/// Decodes the request of a containerd method and parses it as the method does.
pub fn call(method: &str, payload: &[u8]) {
    match method {
        "Create" => with(payload, |request: CreateTaskRequest| {
            let _ = service::checked(&request.id);
            options(request.options.as_ref());
        }),
        "Checkpoint" => with(payload, |request: CheckpointTaskRequest| {
            let _ = CheckpointOptions::parse(request.options.as_ref());
        }),
        "Exec" => with(payload, |request: ExecProcessRequest| {
            let _ = service::checked(&request.exec_id);
            fuzzing::process(request.spec.as_ref().map(|any| any.value.as_slice()).unwrap_or_default());
        }),
        "Update" => with(payload, |request: UpdateTaskRequest| {
            fuzzing::resources(request.resources.as_ref().map(|any| any.value.as_slice()).unwrap_or_default());
        }),
        "Kill" => with(payload, |request: KillRequest| drop(service::checked(&request.id))),
        "CreateSandbox" => with(payload, |mut request: CreateSandboxRequest| {
            request.bundle_path.clear();
            let _ = Wanted::of(&request, Privileged::default());
        }),
        _ => {}
    }
}

fn with<M: Message>(payload: &[u8], read: impl FnOnce(M)) {
    if let Ok(request) = M::parse_from_bytes(payload) {
        read(request);
    }
}

/// Parses the stdin of `start`: options, or bootstrap parameters. Text is also parsed as TOML options.
pub fn start(data: &[u8]) {
    let mut invocation = Invocation { id: "a".to_owned(), namespace: "default".to_owned(), ..Invocation::default() };
    if let Ok(given) = bootstrap::parse(data, &mut invocation) {
        options(given.options.as_ref());
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Options::of_toml(text, "in a test");
    }
}

fn options(any: Option<&Any>) {
    // Do not open files: the path may name any device of this machine.
    if any.is_none_or(|any| !super::options::names_file(any)) {
        let options = Options::parse(any);
        let _ = options.map(|options| drop(options.particulars()));
    }
    let _ = CheckpointOptions::parse(any);
}
