//! From flags to limits: what `run` and `start` put into a description, and `update` changes.

use bowline_model::{Doing, Error, Kind, Result};
use bowline_spec::values::{ByteSize, Ceiling};
use bowline_spec::{CpuUpdate, MemoryUpdate, Update};

use crate::input::args::update::LimitFlags;
use crate::input::io::IoArg;

/// The limits that the flags name. `memory` tells the memory limit by which `--memory-swap` is understood, unless the flags
/// name one.
///
/// # Errors
/// `Usage` for a size that is none, or a limit of both that leaves nothing for swap; those of `memory`.
pub fn named(flags: LimitFlags, memory: impl FnOnce() -> Result<Option<ByteSize>>) -> Result<Update> {
    let swap = match (flags.memory_swap, flags.memory) {
        (None, _) => flags.swap,
        (Some(both), Some(Ceiling::At(memory))) => Some(swap(Some(memory), both)?),
        (Some(both), Some(Ceiling::Unlimited)) => Some(swap(None, both)?),
        (Some(both), None) => Some(swap(memory()?, both)?),
    };
    let mut update = Update {
        cpu: CpuUpdate {
            shares: flags.cpu_shares,
            limit: flags.cpus,
            period: None,
            realtime: flags.realtime,
            realtime_period: flags.realtime_period,
            cpuset: flags.cpuset_cpus,
            mems: flags.mems,
        },
        memory: MemoryUpdate { limit: flags.memory, high: flags.memory_high, low: flags.memory_low, swap },
        pids: flags.pids,
        unified: flags.unified.into_iter().collect(),
        ..Update::default()
    };
    for (size, most) in flags.hugepages {
        let most: ByteSize = most.parse().doing(Kind::Usage, || format!("--hugepages {size}"))?;
        update.hugepages.insert(size, most);
    }
    for io in flags.io {
        match io {
            IoArg::Weight(weight) => update.io.weight = Some(weight),
            IoArg::Device(device) => update.io.devices.push(*device),
        }
    }
    Ok(update)
}

/// What docker's limit of memory and swap together leaves for swap.
pub fn swap(memory: Option<ByteSize>, both: Ceiling<ByteSize>) -> Result<Ceiling<ByteSize>> {
    let refused = |why: &str| {
        Error::new(Kind::Usage, format!("--memory-swap: {why}"))
            .hint("it is the limit of memory and swap together: --memory 64M --memory-swap 128M leaves 64M of swap")
    };
    let Ceiling::At(both) = both else { return Ok(Ceiling::Unlimited) };
    let memory = memory.ok_or_else(|| refused("there is no limit of memory"))?;
    let swap = both.as_u64().checked_sub(memory.as_u64());
    let swap = swap.ok_or_else(|| refused(&format!("{both} is less than the memory limit, {memory}")))?;
    Ok(Ceiling::At(ByteSize::bytes(swap)))
}
