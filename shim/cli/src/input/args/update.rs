//! Limits as flags: those of `run`, `start` and `update`, which are the same.

use std::str::FromStr;

use bowline_spec::Invalid;
use bowline_spec::values::{ByteSize, Ceiling, Cpus, Duration, IdSet};
use clap::Args;

use crate::input::args::parsers::{LIMITS, number, variable};
use crate::input::io::IoArg;

// Limits as typed, for a launch or a change; `max` or `-1` lifts one.
#[derive(Debug, Args)]
#[command(next_help_heading = LIMITS)]
pub struct LimitFlags {
    /// Memory limit: 64M, 1G, max
    #[arg(short, long, value_name = "SIZE", allow_negative_numbers = true, value_parser = ceiling::<ByteSize>)]
    pub memory: Option<Ceiling<ByteSize>>,
    /// Limit of memory and swap together: 128M; -1 for no limit of swap
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = ceiling::<ByteSize>, conflicts_with = "swap")]
    pub memory_swap: Option<Ceiling<ByteSize>>,
    /// Swap limit, beyond the memory limit: 16M, max
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = ceiling::<ByteSize>)]
    pub swap: Option<Ceiling<ByteSize>>,
    /// Memory beyond which it is slowed down (cgroup v2): 48M, max
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = ceiling::<ByteSize>)]
    pub memory_high: Option<Ceiling<ByteSize>>,
    /// Memory up to which the kernel spares it: 16M, 0
    #[arg(long, value_name = "SIZE")]
    pub memory_low: Option<ByteSize>,
    /// CPU limit, in CPUs: 0.5, max
    #[arg(long, allow_negative_numbers = true, value_parser = ceiling::<Cpus>)]
    pub cpus: Option<Ceiling<Cpus>>,
    /// The weight when CPU time is short: 2 to 262144
    #[arg(long, value_parser = number::<u64>)]
    pub cpu_shares: Option<u64>,
    /// CPU time for realtime scheduling in each --realtime-period (cgroup v1): 10ms
    #[arg(long, value_name = "TIME")]
    pub realtime: Option<Duration>,
    /// How often that is renewed: 1s
    #[arg(long, value_name = "TIME")]
    pub realtime_period: Option<Duration>,
    /// The CPUs that it may run on: 0-1,3
    #[arg(long, value_name = "CPUS", visible_alias = "cpuset", allow_negative_numbers = true)]
    pub cpuset_cpus: Option<IdSet>,
    /// The memory nodes that it may use: 0
    #[arg(long, value_name = "NODES", visible_alias = "cpuset-mems")]
    pub mems: Option<IdSet>,
    /// Limit of processes and threads: 64; -1 for none
    #[arg(long, allow_negative_numbers = true, value_parser = pids, visible_alias = "pids-limit")]
    pub pids: Option<Ceiling<u64>>,
    /// Block devices: weight=500, or /dev/sda,read_bps=1M,write_iops=max; may be repeated
    #[arg(long, value_name = "IO")]
    pub io: Vec<IoArg>,
    /// Huge pages by their size: 2MB=64M; may be repeated
    #[arg(long, value_name = "PAGE=SIZE", value_parser = variable)]
    pub hugepages: Vec<(String, String)>,
    /// A raw cgroup v2 file: memory.oom.group=1; may be repeated
    #[arg(long, value_name = "FILE=VALUE", value_parser = variable)]
    pub unified: Vec<(String, String)>,
}

/// A limit, `max`, or `-1` as runc and docker write it.
pub fn ceiling<T: FromStr<Err = Invalid>>(text: &str) -> Result<Ceiling<T>, String> {
    limit(text, |wrong: Invalid| wrong.to_string())
}

/// Like [`ceiling`], for a limit that is a number.
pub fn count(text: &str) -> Result<Ceiling<u64>, String> {
    limit(text, |_| format!("{text:?} is not a limit; write a number such as 64"))
}

/// Like [`count`], for processes.
fn pids(text: &str) -> Result<Ceiling<u64>, String> {
    match count(text)? {
        Ceiling::At(0) => {
            Err("0 leaves no room for the command itself; write 1 or more, or -1 for no limit".to_owned())
        }
        limit => Ok(limit),
    }
}

fn limit<T: FromStr>(text: &str, why: impl FnOnce(T::Err) -> String) -> Result<Ceiling<T>, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "-1" | "max" | "unlimited" => Ok(Ceiling::Unlimited),
        _ => text.trim().parse().map(Ceiling::At).map_err(|wrong| format!("{}; -1 or max is no limit", why(wrong))),
    }
}
