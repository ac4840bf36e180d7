//! The proxy of AWS App Mesh in a sandbox.

use std::num::NonZeroU16;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::left_out::is_default;

/// App Mesh's proxy, which a sandbox's traffic is led through by ECS's plugin `aws-appmesh`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppMesh {
    /// The proxy's port for what goes out.
    pub egress: NonZeroU16,
    /// The proxy's port for what comes in to `app_ports`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<NonZeroU16>,
    /// The ports of the sandbox's servers, whose traffic the proxy gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub app_ports: Vec<NonZeroU16>,
    /// The user whose traffic goes out directly: the proxy's own. It needs this or `ignored_gid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignored_uid: Option<u32>,
    /// The group whose traffic goes out directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignored_gid: Option<u32>,
    /// Ports elsewhere that are reached directly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_ports: Vec<NonZeroU16>,
    /// Addresses and networks that are reached directly, such as `169.254.169.254`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_ips: Vec<String>,
    /// Whether IPv6 is led through it too; false by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ipv6: bool,
}
