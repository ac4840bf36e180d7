//! `--gpus`, in docker's words: GPUs of NVIDIA are the devices `nvidia.com/gpu=…`.

use bowline_spec::CdiDevice;

/// The kind that docker's `--gpus` means.
pub const KIND: &str = "nvidia.com/gpu";

/// The command of NVIDIA's container toolkit that writes the file of these devices.
pub const GENERATE: &str = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml";

/// More than any host has.
const MOST: u16 = 1024;

/// The devices that one `--gpus` names.
#[derive(Debug, Clone)]
pub struct Gpus(pub Vec<CdiDevice>);

/// Parses `--gpus all`, `2`, `device=0,1` and `"device=0,1"`: docker's fields, of which one with a comma is quoted.
pub fn gpus(text: &str) -> Result<Gpus, String> {
    let (mut count, mut ids) = (None, Vec::new());
    let mut key = "count";
    let fields = fields(text);
    for field in &fields {
        let value = match field.split_once('=') {
            Some((name @ ("count" | "device" | "driver"), value)) => {
                key = name;
                value
            }
            Some((name @ ("capabilities" | "options"), _)) => {
                return Err(format!("{name}: the file of CDI says what a GPU gives; leave it out"));
            }
            // One more of `device=`, as `vendor.com/class=name`.
            Some(_) if key == "device" => field.as_str(),
            Some((name, _)) => return Err(format!("{name:?} is no field; write all, 2 or device=0,1")),
            None => field,
        };
        match (key, value) {
            ("device", value) => ids.extend(value.split(',').map(str::to_owned)),
            ("driver", "nvidia" | "cdi") => {}
            ("driver", other) => {
                return Err(format!("driver {other} is not known; write --device vendor.com/class=name"));
            }
            (_, value) if count.is_none() => count = Some(value.to_owned()),
            (_, value) => return Err(format!("{value:?}: there is a count already; write device=0,1 for these two")),
        }
    }
    match (count.as_deref(), ids.is_empty()) {
        (Some("all" | "-1"), true) => ids.push("all".to_owned()),
        (Some(count), true) => {
            let count = count.parse().ok().filter(|count| (1..=MOST).contains(count));
            let count = count.ok_or_else(|| format!("{text:?} is no number of GPUs; write all, 2 or device=0,1"))?;
            ids.extend((0..count).map(|id| id.to_string()));
        }
        (None, false) => {}
        (Some(_), false) => return Err("a count and devices exclude each other".to_owned()),
        (None, true) => return Err(format!("{text:?} names no GPU; write all, 2 or device=0,1")),
    }
    let device = |id: String| if id.contains('=') { id.parse() } else { format!("{KIND}={id}").parse() };
    let all = ids.into_iter().map(device).collect::<Result<_, bowline_spec::Invalid>>();
    all.map(Gpus).map_err(|wrong| wrong.to_string())
}

/// The fields of one line of CSV.
fn fields(text: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            letter => fields.last_mut().expect("one is there from the beginning").push(letter),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_named_as_docker_names_them() {
        let read = |text: &str| {
            gpus(text)
                .map(|Gpus(all)| all.iter().map(|one| one.to_string().replace(KIND, "")).collect::<Vec<_>>().join(" "))
        };
        for (text, devices) in [
            ("all", "=all"),
            ("-1", "=all"),
            ("count=all", "=all"),
            ("2", "=0 =1"),
            ("count=1,driver=nvidia", "=0"),
            ("device=0,1", "=0 =1"),
            ("\"device=0,1\"", "=0 =1"),
            ("driver=nvidia,\"device=0,GPU-3a23\"", "=0 =GPU-3a23"),
            ("device=nvidia.com/mig=1:0,amd.com/gpu=0", "nvidia.com/mig=1:0 amd.com/gpu=0"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(devices), "{text}");
        }
        for bad in [
            "",
            "0",
            "-2",
            "two",
            "99999999999",
            "2,3",
            "2,device=0",
            "device=",
            "all,capabilities=utility",
            "x=1",
            "driver=y,1",
        ] {
            assert!(read(bad).is_err(), "{bad:?}: {:?}", read(bad));
        }
    }
}
