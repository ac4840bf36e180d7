//! `update`: turns limits from the command line into an update of a task.

use bowline_model::folder::StateDir;
use bowline_model::{Doing, Kind, Result};
use bowline_spec::id::TaskId;
use bowline_spec::values::ByteSize;
use bowline_spec::{CpuUpdate, MemoryUpdate, Update};

use crate::input::args::update::UpdateArgs;
use crate::input::io::IoArg;
use crate::reach;
use crate::ui::print::complain;

pub async fn run(state: &StateDir, id: &TaskId, args: UpdateArgs) -> Result<u8> {
    let update = json(args)?;
    for note in reach::live(state, id).await?.update(update).await? {
        complain(&note, None);
    }
    Ok(0)
}

/// Makes an update from the flags, as JSON.
///
/// # Errors
/// `Usage` if the flags change nothing.
pub fn json(args: UpdateArgs) -> Result<String> {
    serde_json::to_string(&update(args)?).doing(Kind::Internal, || "cannot write the update as JSON")
}

fn update(args: UpdateArgs) -> Result<Update> {
    let mut update = Update {
        cpu: CpuUpdate {
            shares: args.cpu_shares,
            limit: args.cpus,
            period: None,
            realtime: args.realtime,
            realtime_period: args.realtime_period,
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
