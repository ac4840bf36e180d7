//! The proxy of AWS App Mesh in a sandbox.

use std::num::NonZeroU16;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::left_out::is_default;

/// App Mesh's proxy for a sandbox's traffic, set up by ECS's plugin `aws-appmesh`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AppMesh {
    /// The proxy's port for outgoing traffic.
    pub egress: NonZeroU16,
    /// The proxy's port for traffic to `app_ports`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<NonZeroU16>,
    /// Ports of the sandbox's servers, whose traffic the proxy gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub app_ports: Vec<NonZeroU16>,
    /// The user whose traffic bypasses the proxy: the proxy's own. Required without `ignored_gid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignored_uid: Option<u32>,
    /// The group whose traffic bypasses the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignored_gid: Option<u32>,
    /// Remote ports reached directly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_ports: Vec<NonZeroU16>,
    /// Addresses and networks reached directly, such as `169.254.169.254`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_ips: Vec<String>,
    /// Whether the proxy gets IPv6 too; false by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ipv6: bool,
}
