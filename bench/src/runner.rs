//! Runs commands and times them: here, or in a process of ours that sees no
//! cgroup v2 beside v1.
//!
//! crun refuses a host with both when the v2 hierarchy has any controller
//! ("cgroups in hybrid mode not supported"). It need not see that hierarchy: a
//! mount namespace without it is enough. To put each command there would cost
//! it half a millisecond, so a process that is there already starts them.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bowline_model::{Doing, Error, Kind, Result};
use rustix::mount::{UnmountFlags, unmount};

use crate::interrupt;

/// The flag that makes this program such a process.
pub const FLAG: &str = "--run-commands";

pub enum Runner {
    /// Here; their stderr goes to the file.
    Here(File),
    There(There),
}

/// A process of ours that starts commands.
pub struct There {
    child: Child,
    /// Taken away at the end: the end of its input ends it.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Runner {
    /// A process that sees no cgroup v2; its stderr, and its commands', to `log`.
    pub fn without_v2(log: File) -> Result<Runner> {
        let what = || "cannot start a process in a mount namespace of its own";
        let ours = std::env::current_exe().doing(Kind::Internal, what)?;
        let mut command = Command::new("unshare");
        command.arg("--mount").arg("--").arg(ours).arg(FLAG);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut child = command.spawn().doing(Kind::Internal, what)?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| Error::new(Kind::Internal, what()))?;
        Ok(Runner::There(There { child, input, output: BufReader::new(output) }))
    }

    /// Runs all of `commands` at once: how long until the last had ended, and
    /// whether all succeeded.
    pub fn run(&mut self, commands: &[Vec<String>]) -> Result<(Duration, bool)> {
        match self {
            Runner::Here(log) => execute(commands, Some(log)),
            Runner::There(there) => there.run(commands),
        }
    }
}

impl There {
    fn run(&mut self, commands: &[Vec<String>]) -> Result<(Duration, bool)> {
        let what = || "cannot have a command run";
        let mut answer = String::new();
        let line = serde_json::to_string(commands).doing(Kind::Internal, what)?;
        let input = self.input.as_mut().ok_or_else(|| Error::new(Kind::Internal, what()))?;
        writeln!(input, "{line}").doing(Kind::Internal, what)?;
        self.output.read_line(&mut answer).doing(Kind::Internal, what)?;
        let (took, success) = serde_json::from_str(&answer).doing(Kind::Internal, what)?;
        Ok((Duration::from_nanos(took), success))
    }
}

impl Drop for There {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// What the other process does: a line of commands in, a line of figures out.
pub fn serve() -> Result<()> {
    let what = || "cannot serve";
    // Who asks may be interrupted too, and has then to have its tasks removed. The end of our input ends us.
    interrupt::outlive()?;
    for target in unified_mounts() {
        unmount(target.as_str(), UnmountFlags::DETACH).doing(Kind::Internal, || format!("cannot unmount {target}"))?;
    }
    for line in std::io::stdin().lines() {
        let commands: Vec<Vec<String>> =
            serde_json::from_str(&line.doing(Kind::Internal, what)?).doing(Kind::Internal, what)?;
        let (took, success) = execute(&commands, None)?;
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mut out = std::io::stdout().lock();
        writeln!(out, "[{nanoseconds},{success}]").and_then(|()| out.flush()).doing(Kind::Internal, what)?;
    }
    Ok(())
}

/// Where cgroup v2 is mounted, if v1 is as well.
pub fn unified_mounts() -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let of = |kind: &str| -> Vec<String> {
        let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        fields.filter(|fields| fields.get(2) == Some(&kind)).map(|fields| fields[1].to_owned()).collect()
    };
    if of("cgroup").is_empty() { Vec::new() } else { of("cgroup2") }
}

fn execute(commands: &[Vec<String>], log: Option<&File>) -> Result<(Duration, bool)> {
    let what = || "cannot run a command";
    let mut ready = Vec::new();
    for words in commands {
        let (program, args) = words.split_first().ok_or_else(|| Error::new(Kind::Internal, what()))?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(log) = log {
            command.stderr(log.try_clone().doing(Kind::Internal, what)?);
        }
        // ctrl-C is for us; what is under way ends by itself.
        command.process_group(0);
        ready.push(command);
    }
    let begin = Instant::now();
    let mut children = Vec::new();
    for command in &mut ready {
        children.push(command.spawn().doing(Kind::Internal, what)?);
    }
    let mut success = true;
    for child in &mut children {
        success &= child.wait().doing(Kind::Internal, what)?.success();
    }
    Ok((begin.elapsed(), success))
}
