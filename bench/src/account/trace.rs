//! An instance of the kernel's tracer that follows some processes and their
//! children: system calls, page faults, and when a processor has them.
//!
//! Its file system is mounted on a folder of ours where it is not mounted yet.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use bowline_model::{Doing, Error, Kind, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use super::timeline::{Event, What};

/// For each processor, in KiB: some thousands of events in each of some tens of rounds.
const BUFFER: &str = "16384";
const EVENTS: [&str; 5] = [
    "raw_syscalls/sys_enter",
    "raw_syscalls/sys_exit",
    "sched/sched_switch",
    "sched/sched_process_fork",
    "sched/sched_process_exit",
];
/// Page faults: some kernels have no such events.
const FAULTS: &str = "exceptions";

/// An instance; dropped, it is gone.
pub struct Trace {
    instance: PathBuf,
    marker: File,
    /// Where the file system is mounted, if we have done so.
    mounted: Option<TempDir>,
}

impl Trace {
    /// A tracer whose instance has this name.
    ///
    /// # Errors
    /// `Unsupported` on a kernel without it.
    pub fn start(name: &str) -> Result<Trace> {
        let what = || "cannot trace system calls";
        let usual = Path::new("/sys/kernel/tracing");
        let mounted = (!usual.join("instances").is_dir()).then(|| mount_anew(name)).transpose()?;
        let top = mounted.as_ref().map_or(usual, TempDir::path);
        let instance = top.join("instances").join(name);
        let made =
            fs::create_dir(&instance).and_then(|()| File::options().write(true).open(instance.join("trace_marker")));
        let marker = match made {
            Ok(marker) => marker,
            Err(error) => {
                if let Some(folder) = &mounted {
                    let _ = unmount(folder.path(), UnmountFlags::DETACH);
                }
                return Err(error).doing(Kind::Unsupported, what);
            }
        };
        let trace = Trace { instance, marker, mounted };
        trace.write("buffer_size_kb", BUFFER)?;
        trace.write("trace_clock", "mono")?;
        trace.write("options/event-fork", "1")?;
        Ok(trace)
    }

    /// Follows a process too, and its future children.
    pub fn follow(&self, pid: u32) -> Result<()> {
        let path = self.instance.join("set_event_pid");
        let what = || format!("cannot follow process {pid}");
        let mut file = File::options().append(true).open(&path).doing(Kind::Internal, what)?;
        file.write_all(pid.to_string().as_bytes()).doing(Kind::Internal, what)?;
        // Not before: without any pid, all processes are followed.
        let faults = self.instance.join("events").join(FAULTS).is_dir().then_some(&FAULTS);
        EVENTS.iter().chain(faults).try_for_each(|event| self.write(&format!("events/{event}/enable"), "1"))
    }

    /// Marks in the trace that a round begins.
    pub fn begin(&self) -> Result<()> {
        self.mark(BEGIN)
    }

    /// Marks in the trace that the round is over.
    pub fn end(&self) -> Result<()> {
        self.mark(END)
    }

    fn mark(&self, word: &str) -> Result<()> {
        (&self.marker).write_all(word.as_bytes()).doing(Kind::Internal, || "cannot mark a trace")
    }

    /// All events so far, which it then forgets.
    pub fn take(&self) -> Result<Vec<Event>> {
        let what = || "cannot read a trace";
        // A comm is whatever bytes a process has chosen.
        let text = fs::read(self.instance.join("trace")).doing(Kind::Internal, what)?;
        for processor in fs::read_dir(self.instance.join("per_cpu")).doing(Kind::Internal, what)?.flatten() {
            let stats = fs::read_to_string(processor.path().join("stats")).doing(Kind::Internal, what)?;
            if stats.lines().any(|line| line.strip_prefix("overrun: ").is_some_and(|count| count.trim() != "0")) {
                return Err(Error::new(Kind::Internal, "a trace lost events").hint("ask for fewer rounds by --rounds"));
            }
        }
        fs::write(self.instance.join("trace"), "").doing(Kind::Internal, what)?;
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().flat_map(read).collect())
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let what = || format!("cannot trace system calls: {file} takes no {value}");
        fs::write(self.instance.join(file), value).doing(Kind::Unsupported, what)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // An instance is busy while anything of it is open.
        if let Ok(null) = File::options().write(true).open("/dev/null") {
            self.marker = null;
        }
        let _ = fs::remove_dir(&self.instance);
        if let Some(folder) = &self.mounted {
            let _ = unmount(folder.path(), UnmountFlags::DETACH);
        }
    }
}

const BEGIN: &str = "bowline-bench: begin";
const END: &str = "bowline-bench: end";

fn mount_anew(name: &str) -> Result<TempDir> {
    let what = || "cannot mount tracefs";
    let folder = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir().doing(Kind::Internal, what)?;
    mount("tracefs", folder.path(), "tracefs", MountFlags::empty(), None::<&CStr>).doing(Kind::Unsupported, what)?;
    Ok(folder)
}

/// The events of one line of a trace, such as
/// `  bowline-shim-42  [001] .....  12.345678: sys_enter: NR 59 (…)`.
fn read(line: &str) -> Vec<Event> {
    let event = || -> Option<Vec<Event>> {
        let (task, rest) = line.split_once(" [")?;
        let pid: i32 = task.rsplit_once('-')?.1.trim().parse().ok()?;
        let (time, rest) = rest.split_once(": ")?;
        let at = microseconds(time.rsplit_once(' ')?.1)?;
        let (name, text) = rest.split_once(": ")?;
        let one = |pid: i32, what: What| Event { at, pid, what };
        Some(match name {
            "sys_enter" => vec![one(pid, What::Entered(number(text, "NR ")?))],
            "sys_exit" => vec![one(pid, What::Returned(number(text, "NR ")?, number(text, " = ")?))],
            "page_fault_user" | "page_fault_kernel" => vec![one(pid, What::Faulted)],
            "sched_process_fork" => vec![one(pid, What::Forked(number(text, "child_pid=")? as i32))],
            "sched_process_exit" => vec![one(pid, What::Exited)],
            "sched_switch" => vec![
                one(number(text, "prev_pid=")? as i32, What::Rests),
                one(number(text, "next_pid=")? as i32, What::Runs),
            ],
            "tracing_mark_write" if text.ends_with(BEGIN) => vec![one(pid, What::Begin)],
            "tracing_mark_write" if text.ends_with(END) => vec![one(pid, What::End)],
            _ => return None,
        })
    };
    event().unwrap_or_default()
}

/// The number behind the last `key`: a comm before it may say anything.
fn number(text: &str, key: &str) -> Option<i64> {
    let rest = &text[text.rfind(key)? + key.len()..];
    rest.split(|c: char| c != '-' && !c.is_ascii_digit()).next()?.parse().ok()
}

/// Seconds with six digits behind the point.
fn microseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000 + fraction.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_trace_are_read() {
        let event = |at, pid, what| Event { at, pid, what };
        let cases = [
            ("# tracer: nop", vec![]),
            (
                "    bowline-shim-42      [001] .....    12.345678: sys_enter: NR 59 (7f, 0, 0, 0, 0, 0)",
                vec![event(12_345_678, 42, What::Entered(59))],
            ),
            (
                "            sh-43      [000] .....    12.000001: sys_exit: NR 56 = -11",
                vec![event(12_000_001, 43, What::Returned(56, -11))],
            ),
            (
                "            sh-43      [000] d....    12.000002: page_fault_user: address=0x5581d0 ip=0x5581d0 error_code=0x14",
                vec![event(12_000_002, 43, What::Faulted)],
            ),
            (
                "            sh-43      [000] d..2.    1.000002: sched_switch: prev_comm=sh prev_pid=43 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120",
                vec![event(1_000_002, 43, What::Rests), event(1_000_002, 0, What::Runs)],
            ),
            (
                "            sh-43      [000] .....    1.000003: sched_process_fork: comm=sh pid=43 child_comm=sh child_pid=44",
                vec![event(1_000_003, 43, What::Forked(44))],
            ),
            (
                " bowline-bench-50      [000] .....    1.000004: tracing_mark_write: bowline-bench: begin",
                vec![event(1_000_004, 50, What::Begin)],
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line), expected, "{line}");
        }
    }
}
