//! Hooks of an OCI configuration: programs that run at points of a container's life, with its state as JSON on stdin.
//!
//! ```text
//!   create: mounts ─► prestart, createRuntime ─► createContainer ─► pivot … READY
//!   start:  confined ─► startContainer ─► execve ─► poststart        delete: poststop
//! ```
//!
//! Workers run the hooks of the runtime's namespaces: the shim's, or for poststop those of whoever removes a task of the
//! command line. The container's init runs those of the container, the last of them confined as the program will be,
//! because they are the image's. A hook that fails ends the list. At its timeout a hook is killed with all that descends
//! from it: by its worker, or by the end of the container, whose cgroup init's hooks are in. So are the hooks of a launch
//! once the container is ended or the shim has died. Nobody waits for a poststop hook for longer than for the end of its
//! container: a process without a parent finishes it. Must not: decide what a failure means.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use bowline_error::{Doing, Error, Kind, Result};
use bowline_model::record::Poststop;
use bowline_spec::Task;
use bowline_sys as sys;
use oci_spec::runtime::{ContainerState, Hook, Spec, StateBuilder};

use crate::oci::tolerance::{self, LARGEST_CONFIG};
use crate::process::page_release::FRUGAL;
use crate::process::program::{Apart, Program};
use crate::process::worker::{self, Worker};

/// The timeout of a hook that sets none: a network may take long, but nothing waits for ever.
pub const LONGEST: Duration = Duration::from_secs(300);

/// Where in a container's life hooks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The container's namespaces exist, its root is not changed yet; obsolete.
    Prestart,
    /// After [`Point::Prestart`], in the same state.
    CreateRuntime,
    /// Right after [`Point::CreateRuntime`], inside the container.
    CreateContainer,
    /// Before the program is executed, inside the container.
    StartContainer,
    /// After the program was executed.
    Poststart,
    /// After the container's processes have ended, outside of it.
    Poststop,
}

impl Point {
    /// The name of the point in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Point::Prestart => "prestart",
            Point::CreateRuntime => "createRuntime",
            Point::CreateContainer => "createContainer",
            Point::StartContainer => "startContainer",
            Point::Poststart => "poststart",
            Point::Poststop => "poststop",
        }
    }

    /// All points, in their order.
    pub const ALL: [Point; 6] = [
        Point::Prestart,
        Point::CreateRuntime,
        Point::CreateContainer,
        Point::StartContainer,
        Point::Poststart,
        Point::Poststop,
    ];

    fn status(self) -> ContainerState {
        match self {
            Point::Prestart | Point::CreateRuntime | Point::CreateContainer => ContainerState::Creating,
            Point::StartContainer => ContainerState::Created,
            Point::Poststart => ContainerState::Running,
            Point::Poststop => ContainerState::Stopped,
        }
    }
}

/// The container that hooks run for.
#[derive(Debug, Clone, Copy)]
pub struct Container<'a> {
    /// The id of the container.
    pub id: &'a str,
    /// The folder of the container's configuration.
    pub bundle: &'a Path,
    pub spec: &'a Spec,
}

impl Container<'_> {
    /// Whether there are hooks at `point`.
    pub fn has(&self, point: Point) -> bool {
        !self.hooks(point).is_empty()
    }

    fn hooks(&self, point: Point) -> &[Hook] {
        let Some(hooks) = self.spec.hooks() else { return &[] };
        #[allow(deprecated, reason = "Docker's network is set up by one")]
        let of_point = match point {
            Point::Prestart => hooks.prestart(),
            Point::CreateRuntime => hooks.create_runtime(),
            Point::CreateContainer => hooks.create_container(),
            Point::StartContainer => hooks.start_container(),
            Point::Poststart => hooks.poststart(),
            Point::Poststop => hooks.poststop(),
        };
        of_point.as_deref().unwrap_or_default()
    }

    /// The state at `point`, as the runtime specification defines it. `pid` is init's, in the namespace of the reader.
    pub fn state(&self, point: Point, pid: Option<i32>) -> Result<Vec<u8>> {
        self.state_as(point.status(), pid)
    }

    fn state_as(&self, status: ContainerState, pid: Option<i32>) -> Result<Vec<u8>> {
        let annotations: HashMap<String, String> = self.spec.annotations().clone().unwrap_or_default();
        let mut state = StateBuilder::default()
            .version(self.spec.version())
            .id(self.id)
            .status(status)
            .bundle(self.bundle)
            .annotations(annotations);
        if let Some(pid) = pid {
            state = state.pid(pid);
        }
        let what = || "cannot describe a container's state";
        serde_json::to_vec(&state.build().doing(Kind::Internal, what)?).doing(Kind::Internal, what)
    }

    /// Runs the hooks of `point`, each in a worker, one after the other. `failed` is given an error that names
    /// the hook that failed, and what it wrote; the list goes on if it returns none. Once `given_up` returns, the hook that
    /// runs is killed, which fails.
    ///
    /// # Errors
    /// What `failed` returns.
    pub async fn run(
        &self,
        point: Point,
        pid: Option<i32>,
        given_up: impl Future<Output = ()>,
        failed: impl Fn(Error) -> Result<()>,
    ) -> Result<()> {
        if !self.has(point) {
            return Ok(());
        }
        let state = self.state(point, pid)?;
        tokio::pin!(given_up);
        for (number, hook) in self.hooks(point).iter().enumerate() {
            let name = name(point, number, hook);
            let env = surroundings();
            let started = program(hook, self.bundle, &env, &state);
            let outcome =
                match started.and_then(|(program, timeout)| program.run_apart(|| sys::clone3(0, None), timeout)) {
                    Ok(apart) => apart.answer_unless(&mut given_up).await,
                    Err(error) => Err(error),
                };
            let done = outcome.map_err(|error| not_run(error, &name)).and_then(|outcome| outcome.success(&name));
            done.map_err(|error| error.about(field(point, number))).or_else(&failed)?;
        }
        Ok(())
    }

    /// Runs the hooks inside the container, as children of its init, which has one thread and waits for
    /// them itself. A hook without an environment gets that of the container's process, `env`, as with other
    /// runtimes. With `filter`, each hook's process loads that before it executes the hook.
    pub fn run_inside(
        &self,
        point: Point,
        cwd: &Path,
        env: impl FnOnce() -> Vec<OsString>,
        filter: Option<(&[u8], u64)>,
    ) -> Result<()> {
        if !self.has(point) {
            return Ok(());
        }
        let state = self.state(point, Some(std::process::id().cast_signed()))?;
        let env = env();
        for (number, hook) in self.hooks(point).iter().enumerate() {
            let name = name(point, number, hook);
            let done = program(hook, cwd, &env, &state).and_then(|(program, timeout)| {
                let program = if point == Point::StartContainer { program.confined(filter) } else { program };
                let started = program.start_inside()?;
                started.finish_blocking(timeout)
            });
            let done = done.map_err(|error| not_run(error, &name)).and_then(|outcome| outcome.success(&name));
            done.map_err(|error| error.about(field(point, number)))?;
        }
        Ok(())
    }
}

/// The poststop hooks of the container, for its record; `None` if there are none.
pub fn poststop_of(container: Container<'_>) -> Result<Option<Box<Poststop>>> {
    if !container.has(Point::Poststop) {
        return Ok(None);
    }
    let state = container.state(Point::Poststop, None)?;
    let state = String::from_utf8(state).doing(Kind::Internal, || "cannot describe a container's state")?;
    let (hooks, bundle) = (container.hooks(Point::Poststop).to_vec(), container.bundle.to_owned());
    Ok(Some(Box::new(Poststop { hooks, state, bundle })))
}

/// Runs all recorded hooks, in any thread of a process that reaps its own children. Returns whether they have ended within
/// `most`; otherwise they go on until each has ended, or its timeout has come.
///
/// # Errors
/// Names the first hook that failed.
pub fn run_recorded(recorded: &Poststop, most: Duration) -> Result<bool> {
    start_recorded(recorded)?.answer_within(most).map(|answer| answer.is_some())
}

/// Starts all recorded hooks, in a process that goes on when its starter ends. Its answer names the first that failed.
///
/// # Errors
/// When that process cannot be started.
pub fn start_recorded(recorded: &Poststop) -> Result<Worker<()>> {
    // The task may outlive its bundle.
    let cwd = if recorded.bundle.is_dir() { &*recorded.bundle } else { Path::new("/") };
    let run = || run_each_poststop(&recorded.hooks, cwd, recorded.state.as_bytes());
    worker::start_orphan("the poststop hooks", sys::fork_among_threads, run)
}

/// Runs the poststop hooks of a manager's container whose shim has died, in a process that reaps its own
/// children. All hooks are tried; the first failure is returned.
pub fn run_poststop(id: &str, bundle: &Path) -> Result<()> {
    let path = bundle.join("config.json");
    let what = || format!("cannot read {}", path.display());
    let text = sys::read_regular_file(&path, LARGEST_CONFIG).doing(Kind::NotFound, what)?;
    let (spec, _) = tolerance::spec(&text).doing(Kind::BadSpec, what)?;
    let container = Container { id, bundle, spec: &spec };
    let state = container.state(Point::Poststop, None)?;
    run_each_poststop(container.hooks(Point::Poststop), bundle, &state)
}

fn run_each_poststop(hooks: &[Hook], cwd: &Path, state: &[u8]) -> Result<()> {
    let (mut first, env) = (Ok(()), surroundings());
    for (number, hook) in hooks.iter().enumerate() {
        let name = name(Point::Poststop, number, hook);
        let started = program(hook, cwd, &env, state)
            .and_then(|(program, timeout)| program.run_apart(sys::fork_among_threads, timeout));
        let outcome = started.and_then(Apart::answer_blocking);
        let done = outcome.map_err(|error| not_run(error, &name)).and_then(|outcome| outcome.success(&name));
        first = first.and(done.map_err(|error| error.about(field(Point::Poststop, number))));
    }
    first
}

/// The name of a hook in errors.
fn name(point: Point, number: usize, hook: &Hook) -> String {
    format!("{} hook #{number} ({})", point.name(), hook.path().display())
}

/// What an error calls a hook, as [`naming_file`] finds it again.
fn field(point: Point, number: usize) -> String {
    format!("hooks.{}[{number}]", point.name())
}

/// Names the file of CDI whose hook `error` is about, if the `task` has that from one.
pub fn naming_file(error: Error, task: Option<&Task>) -> Error {
    let edits = task.and_then(|task| task.cdi_edits.as_ref());
    match edits.and_then(|edits| edits.file_of_hook(error.field()?)) {
        // From here on it is about what was asked for.
        Some(file) => error.within(file.display()).about("cdi_devices"),
        None => error,
    }
}

/// The error of a hook that could not be run. A program that is missing is not the task's command.
fn not_run(error: Error, name: &str) -> Error {
    match error.kind() {
        Kind::CommandNotFound | Kind::NotExecutable => Error::new(Kind::BadSpec, error.message()).within(name),
        // Nor is it the task's time that is over.
        Kind::Timeout => Error::new(Kind::Internal, error.message()).within(name),
        _ => error.within(name),
    }
}

/// The environment of this process, for a hook that the shim runs and that brings none. Other
/// runtimes do the same, and their hooks count on a PATH.
fn surroundings() -> Vec<OsString> {
    let ours = |(key, value): &(OsString, OsString)| key == FRUGAL.0 && value == FRUGAL.1;
    std::env::vars_os().filter(|one| !ours(one)).map(|(key, value)| [key, value].join("=".as_ref())).collect()
}

/// Refuses hooks that could not be run, wherever they belong: some come when it is too late to say so.
///
/// # Errors
/// `BadSpec` naming the hook.
pub fn check(spec: &Spec) -> Result<()> {
    let all = Container { id: "", bundle: Path::new("/"), spec };
    for point in Point::ALL {
        for (number, hook) in all.hooks(point).iter().enumerate() {
            let within = |error: Error| error.within(name(point, number, hook));
            if !hook.path().is_absolute() {
                return Err(within(Error::new(Kind::BadSpec, "its path is not absolute")));
            }
            timeout(hook).map_err(within)?;
        }
    }
    Ok(())
}

/// The program for `hook`, with `env` if the hook brings no environment.
fn program<'a>(hook: &'a Hook, cwd: &'a Path, env: &[OsString], state: &[u8]) -> Result<(Program<'a>, Duration)> {
    let path = hook.path();
    let name = path.to_string_lossy().into_owned();
    let args = hook.args().clone().filter(|args| !args.is_empty()).unwrap_or_else(|| vec![name]);
    let env: Vec<OsString> = match hook.env() {
        Some(env) => env.iter().map(OsString::from).collect(),
        None => env.to_vec(),
    };
    let timeout = timeout(hook)?;
    let program = Program::new(path, args, env)?.in_folder(cwd).captured().reading(state)?;
    Ok((program, timeout))
}

fn timeout(hook: &Hook) -> Result<Duration> {
    let Some(seconds) = hook.timeout() else { return Ok(LONGEST) };
    match u64::try_from(seconds) {
        Ok(seconds @ 1..) => Ok(Duration::from_secs(seconds)),
        _ => Err(Error::new(Kind::BadSpec, format!("its timeout of {seconds} is not positive"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(hooks: &str) -> Spec {
        let text =
            format!(r#"{{"ociVersion":"1.1.0","annotations":{{"a":"b"}},"hooks":{hooks},"root":{{"path":"rootfs"}}}}"#);
        serde_json::from_str(&text).expect("a configuration")
    }

    fn run(hooks: &str, point: Point) -> Result<()> {
        let spec = spec(hooks);
        let dir = Path::new("/tmp");
        Container { id: "web", bundle: dir, spec: &spec }.run_inside(point, dir, || vec!["B=2".into()], None)
    }

    #[test]
    fn a_hook_reads_the_state_and_has_what_the_configuration_gives_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = dir.path().join("state").display().to_string();
        let hooks = serde_json::json!({"createContainer": [
            {"path": "/bin/sh", "args": ["hook", "-c", format!("cat >{at}; echo $0 $A $PWD >>{at}")], "env": ["A=1"]},
        ]});
        run(&hooks.to_string(), Point::CreateContainer).expect("it ends well");
        run(&hooks.to_string(), Point::StartContainer).expect("there is none");
        let text = std::fs::read_to_string(&at).expect("written");
        let (state, rest) = text.split_at(text.rfind('}').expect("JSON") + 1);
        let state: serde_json::Value = serde_json::from_str(state).expect("JSON");
        let expected = serde_json::json!({
            "ociVersion": "1.1.0", "id": "web", "status": "creating", "pid": std::process::id(),
            "bundle": "/tmp", "annotations": {"a": "b"},
        });
        assert_eq!(state, expected);
        assert_eq!(rest, "hook 1 /tmp\n");
    }

    #[test]
    fn the_hook_that_fails_is_named_and_ends_the_list() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = dir.path().join("ran");
        let hooks = serde_json::json!({"startContainer": [
            {"path": "/bin/true"},
            {"path": "/bin/sh", "args": ["sh", "-c", "echo no bridge >&2; exit 7"]},
            {"path": "/bin/sh", "args": ["sh", "-c", format!("touch {}", at.display())]},
        ]});
        let error = run(&hooks.to_string(), Point::StartContainer).expect_err("it fails");
        assert_eq!(error.to_string(), "startContainer hook #1 (/bin/sh) failed: exit code 7: no bridge");
        assert!(!at.exists(), "the third was not run");
        for (hook, kind) in [
            (r#"{"path":"/bin/sleep","args":["sleep","1000"],"timeout":1}"#, Kind::Internal),
            (r#"{"path":"/bin/true","timeout":0}"#, Kind::BadSpec),
            (r#"{"path":"bin/true"}"#, Kind::BadSpec),
            (r#"{"path":"/no/hook"}"#, Kind::BadSpec),
        ] {
            let error = run(&format!(r#"{{"startContainer":[{hook}]}}"#), Point::StartContainer).expect_err("it fails");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().starts_with("startContainer hook #0"), "{error}");
        }
    }
}
