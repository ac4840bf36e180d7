//! `-info`: describes the features of this runtime.

use bowline_executor::VERSION;
use bowline_executor::internal::features;
use bowline_model::{Doing, Kind, Result};
use containerd_shim_protos::types::introspection::{RuntimeInfo, RuntimeVersion};
use protobuf::Message as _;
use protobuf::well_known_types::any::Any;

use super::bootstrap;
use super::options::Options;
use super::runtime::RUNTIME;
use super::start::GROUPS;

/// The type of the OCI's features, which are JSON, as containerd registers it.
const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

/// The answer to `stdin`, which holds the options as an `Any`, or nothing.
///
/// # Errors
/// `Usage` and `BadSpec` for options that no container could be created with.
pub fn answer(stdin: Vec<u8>) -> Result<Vec<u8>> {
    let options = bootstrap::any(&stdin)?;
    Options::parse(options.as_ref())?;
    let features =
        serde_json::to_vec(&features(&GROUPS)).doing(Kind::Internal, || "cannot write the features as JSON")?;
    let features = Any { type_url: FEATURES.to_owned(), value: features, ..Any::default() };
    let version = RuntimeVersion { version: VERSION.to_owned(), ..RuntimeVersion::default() };
    let info = RuntimeInfo {
        name: RUNTIME.to_owned(),
        version: Some(version).into(),
        options: options.into(),
        features: Some(features).into(),
        ..RuntimeInfo::default()
    };
    info.write_to_bytes().doing(Kind::Internal, || "cannot encode the answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(stdin: Vec<u8>) -> RuntimeInfo {
        RuntimeInfo::parse_from_bytes(&answer(stdin).unwrap()).unwrap()
    }

    #[test]
    fn it_names_the_runtime_and_its_features() {
        let info = info(Vec::new());
        assert_eq!((info.name.as_str(), info.version.version.as_str()), (RUNTIME, VERSION));
        assert!(info.options.is_none());
        assert_eq!(info.features.type_url, FEATURES);
        let told: serde_json::Value = serde_json::from_slice(&info.features.value).unwrap();
        assert_eq!(told, features(&GROUPS));
    }

    #[test]
    fn options_come_back_as_they_were_sent() {
        let options = Any { type_url: "containerd.runc.v1.Options".to_owned(), value: vec![0x48, 1], ..Any::default() };
        assert_eq!(info(options.write_to_bytes().unwrap()).options.into_option(), Some(options));
    }

    #[test]
    fn options_that_no_container_could_have_are_refused() {
        let options = Any { type_url: "io.example.Own".to_owned(), ..Any::default() };
        assert_eq!(answer(options.write_to_bytes().unwrap()).map_err(|e| e.kind()), Err(Kind::BadSpec));
        assert_eq!(answer(vec![0xff]).map_err(|e| e.kind()), Err(Kind::Usage));
    }
}
