//! `update`: limits as typed become an update of the description.

use std::str::FromStr;

use bowline_executor::{Doing, Kind, Result, StateDir};
use bowline_spec::id::TaskId;
use bowline_spec::units::ByteSize;
use bowline_spec::{CpuUpdate, IoDeviceUpdate, MemoryUpdate, Update};

use super::args::UpdateArgs;
use super::control;

/// One `--io`.
#[derive(Debug, Clone)]
pub enum IoArg {
    /// `weight=500`: of all devices.
    Weight(u16),
    /// `/dev/sda,read_bps=1M`: of one.
    Device(Box<IoDeviceUpdate>),
}

impl FromStr for IoArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<IoArg, String> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        if let Some(weight) = first.strip_prefix("weight=").filter(|_| !text.contains(',')) {
            let wrong = |_| format!("{weight} is not a weight; write a number from 10 to 1000");
            return weight.parse().map(IoArg::Weight).map_err(wrong);
        }
        let mut device = IoDeviceUpdate { path: first.to_owned(), ..IoDeviceUpdate::default() };
        let mut any = false;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            set(&mut device, key, value)?;
            any = true;
        }
        if any {
            return Ok(IoArg::Device(Box::new(device)));
        }
        Err(format!("{text:?} changes nothing; write weight=500, or /dev/sda,read_bps=1M"))
    }
}

fn set(device: &mut IoDeviceUpdate, key: &str, value: &str) -> std::result::Result<(), String> {
    fn parsed<T: FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> std::result::Result<Option<T>, String> {
        value.parse().map(Some).map_err(|error| format!("{key}: {error}"))
    }
    match key {
        "weight" => device.weight = parsed(key, value)?,
        "read_bps" => device.read_bps = parsed(key, value)?,
        "write_bps" => device.write_bps = parsed(key, value)?,
        "read_iops" => device.read_iops = parsed(key, value)?,
        "write_iops" => device.write_iops = parsed(key, value)?,
        _ => return Err(format!("{key:?} is none of weight, read_bps, write_bps, read_iops, write_iops")),
    }
    Ok(())
}

/// `bowline update`.
pub async fn run(state: &StateDir, id: &TaskId, args: UpdateArgs) -> Result<u8> {
    let update = serde_json::to_string(&update(args)?).doing(Kind::Internal, || "cannot write the update as JSON")?;
    control::live(state, id).await?.update(update).await.map(|()| 0)
}

/// What the flags say.
///
/// # Errors
/// `Usage` where they change nothing.
pub fn update(args: UpdateArgs) -> Result<Update> {
    let mut update = Update {
        cpu: CpuUpdate {
            shares: args.cpu_shares,
            limit: args.cpus,
            period: None,
            cpuset: args.cpuset,
            mems: args.mems,
        },
        memory: MemoryUpdate { limit: args.memory, high: args.memory_high, low: args.memory_low, swap: args.swap },
        pids: args.pids,
        unified: args.unified.into_iter().collect(),
        ..Update::default()
    };
    for (size, most) in args.hugepages {
        let most: ByteSize = most.parse().doing(Kind::Usage, || format!("--hugepages {size}"))?;
        update.hugepages.insert(size, most);
    }
    for io in args.io {
        match io {
            IoArg::Weight(weight) => update.io.weight = Some(weight),
            IoArg::Device(device) => update.io.devices.push(*device),
        }
    }
    if update == Update::default() {
        let message = "nothing to change: name at least one limit";
        return Err(bowline_executor::Error::new(Kind::Usage, message).hint("`bowline update --help` lists the flags"));
    }
    Ok(update)
}
