//! `bowline cgroup name`: a pod's or a sandbox's name to its cgroup, and back.
//!
//! The rules are in `bowline_spec::place`. The cgroup need not exist.

use bowline_model::folder::StateDir;
use bowline_model::{Doing, Kind, Result};
use bowline_spec::Invalid;
use bowline_spec::budget::Class;
use bowline_spec::id::TaskId;
use bowline_spec::place::{OURS, PODS, PodPlace, SandboxPlace};
use bowline_spec::unit;
use serde_json::json;

use crate::exit_code::NOWHERE;
use crate::input::args::cgroup::{NameArgs, NamingDriver};
use crate::ui::json;
use crate::ui::print::say;

pub fn run(state: &StateDir, args: &NameArgs) -> Result<u8> {
    match (&args.path, &args.pod, &args.sandbox) {
        (Some(path), ..) => whose(state, path, args),
        (_, Some(uid), _) => {
            let class = args.qos.unwrap_or(Class::Guaranteed);
            let pod = PodPlace::new(args.root.as_deref().unwrap_or(PODS), class, uid);
            print(args, pod.and_then(|pod| Ok((pod.cgroupfs(), pod.systemd()?))))
        }
        (_, _, id) => {
            let id = id.as_deref().unwrap_or_default();
            // A place that a description names has no mark.
            let sandbox = match args.root.as_deref() {
                Some(root) => SandboxPlace::new(root, id),
                None => SandboxPlace::marked(OURS, id, &state.mark()),
            };
            print(args, sandbox.and_then(|sandbox| Ok((sandbox.cgroupfs(), sandbox.systemd()?))))
        }
    }
}

/// Prints the path for the driver that `args` name, or both as JSON.
fn print(args: &NameArgs, paths: std::result::Result<(String, String), Invalid>) -> Result<u8> {
    let (cgroupfs, systemd) = paths.doing(Kind::Usage, || "cannot name the cgroup")?;
    match args.driver {
        _ if args.json => json::print(&json!({"cgroupfs": cgroupfs, "systemd": systemd})),
        NamingDriver::Cgroupfs => say(&cgroupfs),
        NamingDriver::Systemd => say(&systemd),
    }
    .map(|()| 0)
}

/// Prints whose cgroup `path` is: a pod's or a container's of one, if its root is that of pods, else a sandbox's of ours,
/// or of the root that `args` name.
fn whose(state: &StateDir, path: &str, args: &NameArgs) -> Result<u8> {
    let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    let path = match path.strip_suffix(".slice") {
        Some(_) if !path.contains('/') => unit::slice_path(path),
        _ => path.to_owned(),
    };
    let root = args.root.as_deref().map(|root| root.trim_matches('/'));
    let pod_at = |path: &str| {
        // The kubelet may have its root below another.
        let holds_pods = |of: &str| root.map_or_else(|| of.rsplit('/').next() == Some(PODS), |root| of == root);
        PodPlace::of_path(path).filter(|pod| holds_pods(&pod.root()))
    };
    let of_pod = |pod: &PodPlace| json!({"pod": pod.uid(), "qos": pod.class(), "root": pod.root()});
    let found = if let Some(pod) = pod_at(&path) {
        of_pod(&pod)
    } else if let Some((above, last)) = path.rsplit_once('/')
        && let Some((pod, container)) = pod_at(above).zip(container(last))
    {
        let mut found = of_pod(&pod);
        found["container"] = container.into();
        found
    } else if let Some(sandbox) = SandboxPlace::of_path(&path).filter(|of| of.prefix() == root.unwrap_or(OURS)) {
        json!({"sandbox": state.id_of(sandbox.id()), "root": sandbox.prefix()})
    } else {
        return Ok(NOWHERE);
    };
    if args.json {
        return json::print(&found).map(|()| 0);
    }
    for (name, value) in found.as_object().into_iter().flatten() {
        say(&format!("{name} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))?;
    }
    Ok(0)
}

/// The id of a container, from its cgroup in a pod's: with systemd a scope, where the runtime's name is before it, as CRI-O
/// has its own always. CRI-O names the cgroup of a container's monitor alike.
fn container(name: &str) -> Option<&str> {
    const MONITOR: &str = "crio-conmon-";
    let id = match name.strip_suffix(".scope") {
        Some(unit) => unit.rsplit_once('-').map_or(unit, |(_, id)| id),
        None => name.strip_prefix("crio-").unwrap_or(name),
    };
    let is_unit = [".slice", ".service", ".scope"].iter().any(|suffix| id.ends_with(suffix));
    (!is_unit && !name.starts_with(MONITOR) && TaskId::of_manager(id).is_ok()).then_some(id)
}
