//! Tasks from bundles, as a manager writes their `config.json`: what such a
//! configuration may ask for, seen from inside the container.
//!
//! Needs root; says SKIPPED without. Each case is a script in a container of
//! busybox; `UNDER_TEST=reference` runs the same by runc. The executor runs in a
//! process of its own with one thread: this program again.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test tells what it does")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use bowline_executor::internal::undo_bundle;
use bowline_executor::systemd::Systemd;
use bowline_executor::{Bundle, Config, Exec, Launch, Leave, ShimCgroup, StateDir, Target, serve};
use serde_json::{Value, json};

mod cases {
    pub(crate) mod embedding;
    pub(crate) mod hooks;
    pub(crate) mod mounts;
    pub(crate) mod notify;
    pub(crate) mod process;
}

/// Where a container's output goes, inside its bundle.
const OUTPUT: &str = "output";
/// What is executed besides, as an OCI process.
const EXEC: &str = "exec.json";

/// A bundle that is being put together, its root that of busybox.
pub(crate) struct Test {
    dir: tempfile::TempDir,
    pub(crate) config: Value,
}

/// What became of a container.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) output: String,
    /// Its exit code, or why there is none.
    pub(crate) code: Result<i64, String>,
}

impl Ended {
    /// What it said, if it has ended well.
    pub(crate) fn said(&self) -> &str {
        assert_eq!(self.code, Ok(0), "{self:?}");
        self.output.trim_end()
    }

    /// Why it was not to be.
    pub(crate) fn error(&self) -> &str {
        self.code.as_ref().expect_err("it was refused")
    }
}

impl Test {
    pub(crate) fn new(script: &str) -> Test {
        let dir = tempfile::tempdir().expect("a folder");
        let bin = dir.path().join("rootfs/bin");
        for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "mnt"] {
            fs::create_dir_all(dir.path().join("rootfs").join(folder)).expect("made");
        }
        fs::copy("/bin/busybox", bin.join("busybox")).expect("busybox is installed");
        for name in ["sh", "cat", "ls", "stat", "mount", "grep", "touch", "id", "echo", "sort", "readlink", "taskset"] {
            symlink("busybox", bin.join(name)).expect("linked");
        }
        // Its users may not be the host's.
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(dir.path(), open).expect("ours");
        let all = ["CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_ADMIN"];
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["sh", "-c", script],
                "env": ["PATH=/bin"],
                "cwd": "/",
                "capabilities": {"bounding": all, "effective": all, "permitted": all},
            },
            "root": {"path": "rootfs"},
            "hostname": "test",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
                {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
                 "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
            ],
            "linux": {
                "cgroupsPath": format!("/bowline-bundle-{}/{}", std::process::id(), dir.path().file_name().expect("a name").to_string_lossy().trim_start_matches('.')),
                "namespaces": [
                    {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"},
                ],
            },
        });
        Test { dir, config }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn root(&self, name: &str) -> PathBuf {
        self.path("rootfs").join(name)
    }

    /// Puts `value` at `pointer`, whose parent exists.
    pub(crate) fn set(mut self, pointer: &str, value: Value) -> Test {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        self.config.pointer_mut(parent).expect("it exists")[name] = value;
        self
    }

    pub(crate) fn add(mut self, pointer: &str, value: Value) -> Test {
        self.config.pointer_mut(pointer).and_then(Value::as_array_mut).expect("a list").push(value);
        self
    }

    pub(crate) fn mount(self, destination: &str, kind: &str, source: &str, options: &[&str]) -> Test {
        let mount = json!({"destination": destination, "type": kind, "source": source, "options": options});
        self.add("/mounts", mount)
    }

    /// In a user namespace whose root is 100000 on the host.
    pub(crate) fn in_user_namespace(self) -> Test {
        let mappings = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
        let status = Command::new("chown").args(["-R", "-h", "100000:100000"]).arg(self.path("rootfs")).status();
        assert!(status.expect("it runs").success());
        self.add("/linux/namespaces", json!({"type": "user"}))
            .set("/linux/uidMappings", mappings.clone())
            .set("/linux/gidMappings", mappings)
    }

    /// Runs this process too, once the container runs.
    pub(crate) fn exec(self, process: &Value) -> Test {
        fs::write(self.path(EXEC), process.to_string()).expect("written");
        self
    }

    pub(crate) fn run(&self) -> Ended {
        let ended = self.run_beside();
        self.assert_nothing_left();
        ended
    }

    /// Where something of the test's own is mounted meanwhile.
    pub(crate) fn run_beside(&self) -> Ended {
        fs::write(self.path("config.json"), self.config.to_string()).expect("written");
        let output = self.path(OUTPUT);
        fs::write(&output, "").expect("written");
        let code = if is_reference() { self.run_by_runc() } else { self.run_by_ours() };
        let text = fs::read(&output).expect("readable");
        Ended { output: String::from_utf8_lossy(&text).into_owned(), code }
    }

    fn run_by_ours(&self) -> Result<i64, String> {
        let exe = std::env::current_exe().expect("this program");
        let ran = Command::new(exe).env("BOWLINE_BUNDLE", self.dir.path()).output().expect("it runs");
        let text = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        let answer = text.lines().find_map(|line| line.strip_prefix("ended: "));
        match answer.map(str::parse) {
            Some(Ok(code)) => Ok(code),
            _ => Err(text.trim().to_owned()),
        }
    }

    /// Has whoever supervises it killed once the container has made `up`, and
    /// what that has left undone.
    pub(crate) fn run_and_lose_its_shim(&self, up: &Path) {
        fs::write(self.path("config.json"), self.config.to_string()).expect("written");
        let exe = std::env::current_exe().expect("this program");
        let mut shim = Command::new(&exe).env("BOWLINE_BUNDLE", self.dir.path()).spawn().expect("it runs");
        let late = Instant::now() + Duration::from_secs(30);
        while !up.exists() {
            assert!(Instant::now() < late, "the container comes up");
            std::thread::sleep(Duration::from_millis(5));
        }
        shim.kill().expect("it runs");
        shim.wait().expect("it was ours");
        let undone = Command::new(exe).env("BOWLINE_UNDO", self.dir.path()).status().expect("it runs");
        assert!(undone.success(), "{undone:?}");
        // Who made it is not known any more; it is empty.
        parents().iter().filter(|parent| parent.exists()).for_each(|parent| fs::remove_dir(parent).expect("empty"));
        self.assert_nothing_left();
    }

    fn run_by_runc(&self) -> Result<i64, String> {
        let name = format!("bowline-{}", std::process::id());
        let out = fs::File::options().append(true).open(self.path(OUTPUT)).expect("it opens");
        let log = self.path("log");
        let mut command = Command::new("runc");
        command.arg("--log").arg(&log).args(["run", "--bundle"]).arg(self.dir.path()).arg(&name);
        command.stdin(std::process::Stdio::null()).stdout(out.try_clone().expect("a copy")).stderr(out);
        let status = command.status().expect("runc is installed");
        let said = fs::read_to_string(&log).unwrap_or_default();
        if said.contains("level=error") { Err(said) } else { Ok(i64::from(status.code().unwrap_or(-1))) }
    }

    pub(crate) fn assert_nothing_left(&self) {
        let at = self.dir.path().to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
        let left: Vec<&str> = mounts.lines().filter(|line| line.contains(&at)).collect();
        assert!(left.is_empty(), "mounts: {left:?}");
        for parent in parents() {
            if is_reference() {
                // It leaves the parent, if anything.
                let _ = fs::remove_dir(&parent);
            }
            assert!(!parent.exists(), "{} is left", parent.display());
        }
    }
}

/// The cgroup above those of the containers, wherever it may be.
fn parents() -> Vec<PathBuf> {
    let name = format!("bowline-bundle-{}", std::process::id());
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]).map(|path| path.join(&name)).collect()
}

/// Whether mounts are made by mount(2) alone, as `BOWLINE_ABSENT` has it: then
/// none is idmapped or shared with the host.
pub(crate) fn lacks_mount_fds() -> bool {
    std::env::var("BOWLINE_ABSENT").is_ok_and(|absent| absent.contains("fsopen") || absent.contains("mount_setattr"))
}

pub(crate) fn is_reference() -> bool {
    std::env::var("UNDER_TEST").is_ok_and(|name| name == "reference")
}

/// No container here has a unit for its cgroup.
pub(crate) fn no_systemd() -> Systemd {
    Systemd::by("/nowhere/bowline")
}

/// Runs the container in `bundle` to its end, as a shim does.
fn run_bundle(bundle: &Path) -> ExitCode {
    let state = StateDir::new(bundle.join("state"));
    let id: bowline_spec::id::TaskId = "test".parse().expect("an id");
    let (folder, lock) = state.create(&id).expect("a folder");
    let config = Config { leave: Leave::WhenTold, ..Config::new(folder, state, ShimCgroup::Inherit, no_systemd()) };
    let output = Target::Path(bundle.join(OUTPUT));
    let exec = fs::read(bundle.join(EXEC)).ok();
    let process = exec.map(|text| serde_json::from_slice(&text).expect("a process"));
    let bundle = Bundle { path: bundle.to_owned(), layers: Vec::new(), member: None };
    let ran = serve(config, |executor| async move {
        let done = async {
            let launch = Launch {
                stdout: output.clone(),
                stderr: output.clone(),
                direct: true,
                ..Launch::new(id.clone(), bundle)
            };
            executor.create(launch).await?;
            let started = executor.start(&id).await;
            if process.is_some() {
                let (stdout, stderr) = (output.clone(), output);
                executor.exec(&id, Exec { process, stdout, stderr, direct: true, ..Exec::default() }).await?;
            }
            let report = executor.wait(&id).await?;
            executor.remove(&id).await?;
            started.map(|()| report)
        };
        match done.await {
            Ok(report) => println!("ended: {}", report.exit_code.unwrap_or(-1)),
            Err(error) => println!("{:?}: {error}", error.kind()),
        }
        executor.leave();
        Ok(())
    });
    drop(lock);
    ran.expect("it served");
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    if let Some(bundle) = std::env::var_os("BOWLINE_BUNDLE") {
        return run_bundle(Path::new(&bundle));
    }
    if let Some(bundle) = std::env::var_os("BOWLINE_UNDO") {
        let (pid, report) = undo_bundle(Path::new(&bundle), &no_systemd()).expect("undone");
        assert!(pid.is_some() && report.shim_died, "{report:?}");
        return ExitCode::SUCCESS;
    }
    if let Ok(program) = std::env::var(cases::embedding::PROGRAM) {
        return cases::embedding::program(&program);
    }
    if fs::metadata("/root").is_ok() && fs::read_dir("/root").is_err() {
        assert!(std::env::var("CI").is_err(), "tasks from bundles need root");
        println!("SKIPPED: tasks from bundles need root");
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let all = [cases::embedding::ALL, cases::hooks::ALL, cases::mounts::ALL, cases::notify::ALL, cases::process::ALL]
        .concat();
    let chosen = all.into_iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| name.contains(&**w)));
    let mut failed = Vec::new();
    for (name, case) in chosen {
        let done = std::panic::catch_unwind(case);
        println!("test {name} ... {}", if done.is_ok() { "ok" } else { "FAILED" });
        if done.is_err() {
            failed.push(name);
        }
    }
    println!("failed: {failed:?}");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
