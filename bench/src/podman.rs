//! Podman with each runtime's command: what its user waits for, Podman's own work included.
//!
//! Must not: touch the storage of the machine's Podman.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bowline_model::{Doing, Error, Kind, Result};
use rustix::mount::{UnmountFlags, unmount};

use crate::contenders::Contenders;
use crate::rounds::{Gap, Rounds};
use crate::table::{BOWLINE, Row};

const PROGRAM: &str = "podman";
const IMAGE: &str = "localhost/bench";

/// Limits that a container may have where root lacks CAP_SYS_RESOURCE, and locks that no other Podman shares.
const SETTINGS: &str = "[containers]\nlog_driver = \"k8s-file\"\n\
    default_ulimits = [\"nofile=1024:1024\", \"nproc=1000:1000\"]\n[engine]\nlock_type = \"file\"\n";

/// A Podman with folders of its own.
struct Podman {
    folder: PathBuf,
    parent: String,
}

impl Podman {
    fn command(&self, runtime: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        for (flag, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            command.arg(flag).arg(self.folder.join(name));
        }
        command.arg("--runtime").arg(runtime).args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]);
        command.args(["--events-backend", "none"]).args(arguments);
        command.env("CONTAINERS_CONF", self.folder.join("containers.conf"));
        // conmon goes on with the streams.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn time(&self, runtime: &Path, arguments: &[&str]) -> Result<Duration> {
        let begin = Instant::now();
        let what = || format!("cannot run {PROGRAM} {}", arguments.join(" "));
        let status = self.command(runtime, arguments).status().doing(Kind::Internal, what)?;
        if status.success() {
            Ok(begin.elapsed())
        } else {
            Err(Error::new(Kind::Internal, format!("{}: {status}", what())))
        }
    }

    fn run(&self, runtime: &Path, flags: &[&str], command: &[&str]) -> Result<Duration> {
        let parent = ["run", "--network", "none", "--cgroup-parent", &self.parent];
        self.time(runtime, &[&parent, flags, &[IMAGE], command].concat())
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        for name in ["root", "run"] {
            // Where it was not mounted, nothing is to be done.
            let _ = unmount(self.folder.join(name), UnmountFlags::DETACH);
        }
    }
}

/// `podman run --rm` and `podman exec`, whole, by the runtime of each column; no rows without Podman.
pub fn run(rounds: &mut Rounds, on: &mut Contenders, bin: &Path) -> Result<Vec<Row>> {
    let is_there =
        Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !is_there {
        return Ok(Vec::new());
    }
    let podman = Podman { folder: on.state().join("podman"), parent: format!("/{}/podman", on.name()) };
    let what = || format!("cannot prepare {}", podman.folder.display());
    fs::create_dir_all(&podman.folder).doing(Kind::Internal, what)?;
    fs::write(podman.folder.join("containers.conf"), SETTINGS).doing(Kind::Internal, what)?;
    let image = podman.folder.join("image.tar");
    let tar = Command::new("tar").arg("-C").arg(on.root()).arg("-cf").arg(&image).arg(".").status();
    if !tar.doing(Kind::Internal, what)?.success() {
        return Err(Error::new(Kind::Internal, what()));
    }
    let own = bin.join("bowline-oci");
    podman.time(&own, &["import", &image.to_string_lossy(), IMAGE])?;
    let runtimes: Vec<Option<PathBuf>> =
        (0..crate::table::COLUMNS.len())
            .map(|column| {
                if column == BOWLINE {
                    Some(own.clone())
                } else {
                    on.peer(column).map(|peer| peer.program().to_owned())
                }
            })
            .collect();
    let held = |column: usize| format!("held-{column}");
    for (column, runtime) in runtimes.iter().enumerate() {
        if let Some(runtime) = runtime {
            podman.run(runtime, &["--detach", "--name", &held(column)], &["/bin/sleep", "100000"])?;
        }
    }
    let measured = rounds.measure(
        ["podman run --rm", "podman exec"],
        Gap::None,
        &mut runtimes.clone(),
        |_| Ok(()),
        |runtimes, column| {
            let Some(runtime) = &runtimes[column] else { return Ok([None, None]) };
            let ran = podman.run(runtime, &["--rm"], &["/bin/true"])?;
            Ok([Some(ran), Some(podman.time(runtime, &["exec", &held(column), "/bin/true"])?)])
        },
    );
    for (column, runtime) in runtimes.iter().enumerate() {
        if let Some(runtime) = runtime {
            podman.time(runtime, &["rm", "--force", "--time", "0", &held(column)])?;
        }
    }
    measured.map(Vec::from)
}
