//! A write to one file of a cgroup, with a fallback for kernels without that file.

use bowline_error::{Error, Kind};

use crate::values::{Amount, Device};

/// One value to write to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The controller whose hierarchy has the file; v2 has only one hierarchy.
    pub controller: &'static str,
    pub file: String,
    pub value: String,
    /// For a file with a line for each device: the line's first word, and the value that undoes the write.
    pub line: Option<(String, &'static str)>,
    /// Whether the limit is in effect where there is no such file.
    pub met_without: bool,
    /// Another file, and the value for it, for a kernel without this file.
    pub otherwise: Option<(&'static str, String)>,
}

impl Write {
    pub fn new(controller: &'static str, file: impl Into<String>, value: impl ToString) -> Write {
        let (file, value) = (file.into(), value.to_string());
        Write { controller, file, value, line: None, met_without: false, otherwise: None }
    }

    /// The limit of processes, in the file that both versions have.
    pub fn pids(most: Amount) -> Write {
        Write::new("pids", "pids.max", most).met_without(most.0.is_none())
    }

    /// Whether the task has only the CPU time that nobody else wants, in the file that both versions have.
    pub fn cpu_idle(idle: i64) -> Write {
        Write::new("cpu", "cpu.idle", idle).met_without(idle == 0)
    }

    /// The limits of an RDMA device, in the file that both versions have.
    pub fn rdma(device: &str, handles: Option<u32>, objects: Option<u32>) -> Write {
        let words = [("hca_handle", handles), ("hca_object", objects)];
        let words = words.into_iter().filter_map(|(key, most)| Some(format!("{key}={}", most?)));
        let most = words.collect::<Vec<_>>().join(" ");
        Write::of_line("rdma", "rdma.max", device, most, "hca_handle=max hca_object=max")
    }

    /// A write to a file with a line for each device: `value` for this device. `none` undoes it.
    pub fn of_device(
        controller: &'static str,
        file: &'static str,
        device: Device,
        value: impl std::fmt::Display,
        none: &'static str,
    ) -> Write {
        Write::of_line(controller, file, &device.to_string(), value, none)
    }

    /// A write to a file with a line for each `key`: `value` for this one. `none` undoes it.
    pub fn of_line(
        controller: &'static str,
        file: &'static str,
        key: &str,
        value: impl std::fmt::Display,
        none: &'static str,
    ) -> Write {
        let write = Write::new(controller, file, format_args!("{key} {value}"));
        Write { line: Some((key.to_owned(), none)), ..write }
    }

    /// The same write, of another value.
    pub fn with_value(&self, value: String) -> Write {
        Write { line: self.line.clone(), ..Write::new(self.controller, &self.file, value) }
    }

    /// Writes `value` to `file` instead, where this write's file is missing.
    pub fn or(self, file: &'static str, value: impl ToString) -> Write {
        Write { otherwise: Some((file, value.to_string())), ..self }
    }

    /// If `without`, a missing file is no error: where nothing is counted, nothing is limited.
    pub fn met_without(self, without: bool) -> Write {
        Write { met_without: without, ..self }
    }

    /// Whether both write to the same file, or the same line of it.
    pub fn is_where(&self, other: &Write) -> bool {
        (&self.file, self.line.as_ref().map(|(key, _)| key)) == (&other.file, other.line.as_ref().map(|(key, _)| key))
    }

    /// The write for a kernel on which the file is missing.
    pub fn instead(&self) -> Option<Write> {
        let (file, value) = self.otherwise.clone()?;
        // These files take 0, not `default`, for a device without a weight.
        let line = self.line.clone().map(|(device, _)| (device, "0"));
        Some(Write { line, ..Write::new(self.controller, file, value) })
    }
}

/// The error for a memory limit below what is in use.
pub fn no_room(file: &str, limit: impl std::fmt::Display, used: &str) -> Error {
    let message = format!("cannot write {limit} to {file}: {used} bytes are in use and cannot be reclaimed");
    Error::new(Kind::BadSpec, message).hint("have the task use less first, or choose a higher limit")
}
