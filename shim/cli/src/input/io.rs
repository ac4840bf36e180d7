//! Parses `--io` of an update: weights and limits of block devices.

use std::str::FromStr;

use bowline_spec::IoDeviceUpdate;

/// The value of one `--io` flag.
#[derive(Debug, Clone)]
pub enum IoArg {
    /// `weight=500`: the weight for all devices.
    Weight(u16),
    /// `/dev/sda,read_bps=1M`: the limits of one device.
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
