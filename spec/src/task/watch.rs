//! What the shim watches a task for, and what it does then.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::left_out::is_default;
use crate::values::{ByteSize, Duration};

/// What the shim watches for: by kernel events where they exist, else periodically. What is left out is not watched.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Watch {
    /// A process was killed by the OOM killer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom: Option<WatchOom>,
    /// The task was slowed down above `memory.high`; cgroup v2 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_high: Option<WatchCount>,
    /// It uses much memory, limited or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<WatchMemory>,
    /// Its CPU limit holds it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled: Option<WatchThrottled>,
    /// It waits for a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_pressure: Option<WatchPressure>,
    /// It waits for memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<WatchPressure>,
    /// It waits for block devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_pressure: Option<WatchPressure>,
    /// Unexpected processes are in the shim's own cgroup, twice in a row; only in the mode `overhead`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unexpected_processes: Option<WatchProcesses>,
}

/// What the shim does once it has found what it watches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WatchAction {
    /// It writes an event `watch`.
    #[default]
    Report,
    /// It also stops the task, as its description says.
    Stop,
    /// It also lifts the task's `cpu.limit`, `memory.limit` and `memory.high`; those of its sandbox stay.
    Lift,
}

impl WatchAction {
    /// The name that commands and descriptions use.
    pub fn as_str(self) -> &'static str {
        match self {
            WatchAction::Report => "report",
            WatchAction::Stop => "stop",
            WatchAction::Lift => "lift",
        }
    }
}

/// Kills by the OOM killer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WatchOom {
    /// What bowline does then; `report` by default.
    #[serde(skip_serializing_if = "is_default")]
    pub action: WatchAction,
}

/// Events of one kind, and how many may happen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
// Not required to serde: `validate` says better what to write.
#[schemars(extend("required" = ["above"]))]
pub struct WatchCount {
    /// How many may happen: one more is found, and as many again after that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<u64>,
    /// What bowline does then; `report` by default.
    #[serde(skip_serializing_if = "is_default")]
    pub action: WatchAction,
}

/// Memory in use; needs at least one of the three sizes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WatchMemory {
    /// The most memory, including page cache and swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<ByteSize>,
    /// The most anonymous memory: the processes' own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anon_above: Option<ByteSize>,
    /// The most page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_above: Option<ByteSize>,
    /// How often the shim looks, at least 100ms; 10s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// What bowline does then; `report` by default.
    #[serde(skip_serializing_if = "is_default")]
    pub action: WatchAction,
}

/// Time for which the CPU limit held the task back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["above"]))]
pub struct WatchThrottled {
    /// How long it may be held back between two looks, on all CPUs together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<Duration>,
    /// How often the shim looks, at least 100ms; 10s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// What bowline does then; `report` by default.
    #[serde(skip_serializing_if = "is_default")]
    pub action: WatchAction,
}

/// Time that processes wait for a resource (pressure stall information).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["above"]))]
pub struct WatchPressure {
    /// How much of the window they may wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<Duration>,
    /// The window: 500ms to 10s, or a multiple of 2s if the shim lacks CAP_SYS_RESOURCE; 2s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
    /// Who waits: at least one process (`some`, the default), or all.
    #[serde(skip_serializing_if = "is_default")]
    pub who: Stalled,
    /// What bowline does then; `report` by default.
    #[serde(skip_serializing_if = "is_default")]
    pub action: WatchAction,
}

/// Who waits for a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stalled {
    /// At least one process.
    #[default]
    Some,
    /// All of them at the same time.
    Full,
}

impl Stalled {
    /// The kernel's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Stalled::Some => "some",
            Stalled::Full => "full",
        }
    }
}

/// Processes in the shim's own cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WatchProcesses {
    /// How often the shim looks, at least 100ms; 10s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// What bowline does then; `report` by default.
    #[serde(skip_serializing_if = "is_default")]
    pub action: WatchAction,
}

/// How often the shim looks where nothing is said.
pub const WATCH_PERIOD: Duration = Duration::from_secs(10);

/// The window in which pressure is measured where nothing is said: one that the
/// kernel gives everybody.
pub const PRESSURE_WINDOW: Duration = Duration::from_secs(2);

/// The default of each field that has one.
#[allow(missing_docs)]
impl WatchMemory {
    pub fn every(&self) -> std::time::Duration {
        self.every.unwrap_or(WATCH_PERIOD).as_std()
    }
}

#[allow(missing_docs)]
impl WatchThrottled {
    pub fn every(&self) -> std::time::Duration {
        self.every.unwrap_or(WATCH_PERIOD).as_std()
    }
}

#[allow(missing_docs)]
impl WatchProcesses {
    pub fn every(&self) -> std::time::Duration {
        self.every.unwrap_or(WATCH_PERIOD).as_std()
    }
}

#[allow(missing_docs)]
impl WatchPressure {
    pub fn window(&self) -> std::time::Duration {
        self.window.unwrap_or(PRESSURE_WINDOW).as_std()
    }
}
