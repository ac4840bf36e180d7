//! Gathers the figures of tasks that containerd started from their shims, and from files if a shim does not answer.
//!
//! ```text
//!   bundles ─► shims, each asked once ─► tasks, by what is in task.json and exit.json
//!                                     └► pods
//! ```
//!
//! Must not: ask containerd, which may not be running.

use std::cell::LazyCell;
use std::sync::Arc;

use bowline_executor::internal::housekeeping::Cgroups;
use bowline_model::folder::Record;
use bowline_model::report::ExitReport;
use bowline_model::stats::Stats;
use bowline_model::stats::figures::{SandboxFigures, TaskFigures};
use bowline_model::status::Shown;
use bowline_model::{Error, Kind, Result};
use bowline_spec::place::PodPlace;
use tokio::sync::Semaphore;

use super::bundles::{Bundle, Containerd};
use super::gather::{Answer, DEADLINE, Sandbox, Scrape, Shim, Task, ask_all, name_devices, named, take};
use bowline_client::scrape::{Heard, ask_at};
use bowline_client::spawn;

/// The cgroups of this host, opened on first use.
type OfHost = LazyCell<Result<Cgroups>>;

/// What the shim's files say about a task.
struct Known {
    id: String,
    record: Record,
    exit: Option<ExitReport>,
}

/// Asks the shims of containerd's tasks; `room` limits how many at a time.
pub async fn gather(containerd: &Containerd, room: &Arc<Semaphore>) -> Result<Scrape> {
    let mut scrape = Scrape::default();
    let mut shims = containerd.shims(&mut scrape.errors);
    let asked = shims.keys().cloned().map(|place| {
        let socket = place.1.clone();
        (place, async move { ask_at(&socket, DEADLINE).await })
    });
    let heard = ask_all(room, asked.collect()).await?;
    let cgroups: OfHost = LazyCell::new(|| spawn::systemd().and_then(Cgroups::of_host));
    for (place, heard) in heard {
        let bundles = shims.remove(&place).unwrap_or_default();
        tell(&mut scrape, place.0, &bundles, heard, &cgroups);
    }
    Ok(scrape)
}

/// Records what one shim answered, or what its files say if it did not answer.
fn tell(scrape: &mut Scrape, namespace: String, bundles: &[Bundle], mut heard: Heard, cgroups: &OfHost) {
    // Read the files after asking: what the shim reported still exists, unless removed since.
    let known: Vec<Known> = bundles.iter().filter_map(|bundle| Known::look(bundle, &mut scrape.errors)).collect();
    let lives = known.iter().any(|task| task.exit.is_none());
    // A shim whose connection broke while it was leaving counts as gone.
    if matches!(&heard, Heard::Silent(error) if error.kind() != Kind::Timeout && !lives) {
        heard = Heard::Gone;
    }
    let pod = bundles.iter().find_map(|bundle| bundle.sandbox.clone());
    let Some(id) = pod.clone().or_else(|| bundles.first().map(|bundle| bundle.id.clone())) else { return };
    let (mut figures, silent) = match heard {
        Heard::Figures(mut figures) => {
            named(&mut figures);
            (Some(figures), false)
        }
        Heard::Silent(error) => {
            tracing::warn!(%error, shim = id, namespace, "a shim gave no answer");
            scrape.errors += 1;
            (None, true)
        }
        Heard::Starting | Heard::Gone => (None, false),
    };
    let answer = figures.as_ref().map(|figures| Answer::of(figures));
    let told_of = figures.as_mut().and_then(|figures| figures.sandbox.take());
    let pod = told_of.as_ref().map(|sandbox| sandbox.id.clone()).or(pod);
    let shim =
        AskedShim { namespace: namespace.clone(), id: id.clone(), pod: pod.clone(), answers: answer.is_some(), silent };
    let cgroup = known.first().map(|task| task.record.cgroup.clone());
    let tasks = known.into_iter().filter_map(|task| {
        let figures = figures.as_mut().and_then(|figures| take(figures, &task.id));
        shim.task(task, figures)
    });
    let tasks: Vec<Task> = tasks.collect();
    let members = tasks.iter().filter(|task| task.exit.is_none()).count() as u64;
    scrape.tasks.extend(tasks);
    if !shim.answers && !silent && !lives {
        // The shim ended with the last of its tasks: nothing here should be up.
        return;
    }
    if let Some(pod) = pod {
        let figures = shim.answers.then(|| {
            let mut figures = told_of.unwrap_or(SandboxFigures { id: pod.clone(), members, usage: None });
            figures.usage = figures.usage.or_else(|| usage_of_pod(cgroups, cgroup.as_deref()?, &mut scrape.errors));
            figures
        });
        scrape.sandboxes.push(Sandbox { namespace: namespace.clone(), id: pod, up: shim.answers, figures });
    }
    scrape.shims.push(Shim { namespace, id, answer });
}

/// A shim that was asked.
struct AskedShim {
    namespace: String,
    id: String,
    pod: Option<String>,
    answers: bool,
    /// Whether the shim lives but does not answer.
    silent: bool,
}

impl AskedShim {
    /// One of the shim's tasks, with its figures; `None` if the task was created or removed while we looked.
    fn task(&self, task: Known, figures: Option<TaskFigures>) -> Option<Task> {
        let Known { id, record, exit } = task;
        if self.answers && figures.is_none() && exit.is_none() {
            return None;
        }
        let told_at = figures.as_ref().and_then(|figures| figures.started_at);
        let ended_at = exit.as_ref().and_then(|exit| exit.started_at);
        let figures = figures.filter(|_| exit.is_none());
        let (state, up) = match (&exit, &figures) {
            (Some(_), _) => (Some(Shown::Exited), None),
            (None, Some(figures)) => {
                let state = figures.status.parse().ok();
                (state, Some(true).filter(|_| state != Some(Shown::Exited)))
            }
            // Unknown if the shim is silent; otherwise the task died with its shim.
            (None, None) => ((!self.silent).then_some(Shown::Dead), Some(false)),
        };
        Some(Task {
            namespace: self.namespace.clone(),
            id,
            shim: self.id.clone(),
            sandbox: self.pod.clone(),
            nomad: None,
            cgroup: Some(record.cgroup),
            started_at: told_at.or(ended_at).or(record.started_at),
            state,
            up,
            figures,
            exit,
        })
    }
}

impl Known {
    /// Reads the shim's files; `None` if there is no task. A damaged file counts as an error and as missing.
    fn look(bundle: &Bundle, errors: &mut u64) -> Option<Known> {
        let mut checked = |error: Error| {
            tracing::warn!(%error, path = %bundle.folder.path().display(), "a task is reported in part");
            *errors += 1;
        };
        let exit = bundle.folder.exit().unwrap_or_else(|error| {
            checked(error);
            None
        });
        let record = bundle.folder.record().unwrap_or_else(|error| {
            checked(error);
            None
        });
        record.map(|record| Known { id: bundle.id.clone(), record, exit })
    }
}

/// The usage of the cgroup of `member`'s pod, if the kubelet named that cgroup. Any other parent cgroup may belong to
/// more than one pod.
fn usage_of_pod(cgroups: &OfHost, member: &str, errors: &mut u64) -> Option<Stats> {
    let (pod, _) = member.rsplit_once('/')?;
    PodPlace::of_path(pod)?;
    match LazyCell::force(cgroups).as_ref().map_err(Clone::clone).and_then(|cgroups| cgroups.figures(pod)) {
        Ok(mut usage) => {
            name_devices(&mut usage);
            Some(usage)
        }
        Err(error) if error.kind() == Kind::NotFound => None,
        Err(error) => {
            tracing::warn!(%error, "a pod is reported in part");
            *errors += 1;
            None
        }
    }
}
