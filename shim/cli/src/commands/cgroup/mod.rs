//! `bowline cgroup`: looks at and changes any cgroup by its path, in all hierarchies.
//!
//! `housekeeping` does the work; this file reads the arguments and prints the results.

mod name;

use std::path::Path;

use bowline_executor::internal::housekeeping::{Cgroups, Configuration, Destroyed, Usage};
use bowline_model::folder::StateDir;
use bowline_model::{Error, Kind, Result};
use bowline_spec::check_pids;
use bowline_spec::values::{ByteSize, Ceiling};
use oci_spec::runtime::{LinuxCpu, LinuxHugepageLimit, LinuxMemory, LinuxPids, LinuxResources};
use serde_json::json;

use crate::exit_code::{FAILED, NOWHERE};
use crate::input::args::cgroup::{CgroupCommand, SetArgs};
use crate::ui::json;
use crate::ui::numbers::{count, cpu_time, or_dash, size};
use crate::ui::print::{complain, say, show};
use crate::ui::table::{Cell, Column, render};
use bowline_client::spawn;

/// The CPU period for a cgroup that has none, in µs.
const PERIOD: u64 = 100_000;

/// The least CPU time per period that the kernel accepts, in µs.
const LEAST_QUOTA: i64 = 1_000;

pub fn run(state: &StateDir, command: CgroupCommand) -> Result<u8> {
    let cgroups = || Cgroups::of_host(spawn::systemd()?);
    match command {
        // Names need no cgroups: this also works on another host.
        CgroupCommand::Name(args) => name::run(state, &args),
        CgroupCommand::Exists { at } => {
            let cgroups = cgroups()?;
            let found = cgroups.exists(at.path.as_str())?;
            let folder = |mount: &Path| format!("{}{}", mount.display(), at.path);
            found.at.iter().try_for_each(|mount| say(&folder(mount)))?;
            if found.at.is_empty() {
                return Ok(NOWHERE);
            }
            found.missing.iter().for_each(|mount| complain(&format!("{} is missing", folder(mount)), None));
            Ok(if found.missing.is_empty() { 0 } else { NOWHERE })
        }
        CgroupCommand::Ensure { at, threaded } => cgroups()?.ensure(at.path.as_str(), threaded).map(|()| 0),
        CgroupCommand::Usage { at, json } => {
            let usage = cgroups()?.usage(at.path.as_str())?;
            if json { json::print(&usage) } else { print(usage_rows(&usage)) }.map(|()| 0)
        }
        CgroupCommand::Show { at, json } => {
            let found = cgroups()?.configuration(at.path.as_str())?;
            if json { json::print(&found) } else { print(limit_rows(&found)) }.map(|()| 0)
        }
        CgroupCommand::Set { at, limits } => {
            let cgroups = cgroups()?;
            let now = cgroups.configuration(at.path.as_str())?;
            cgroups.change(at.path.as_str(), resources(limits, &now)?).map(|()| 0)
        }
        CgroupCommand::ReduceCpu { at } => cgroups()?.reduce_cpu(at.path.as_str()).map(|()| 0),
        CgroupCommand::Kill { at } => cgroups()?.kill(at.path.as_str()).map(|()| 0),
        CgroupCommand::Destroy { at, json } => {
            let destroyed = cgroups()?.destroy(at.path.as_str())?;
            if json {
                let Destroyed { was_there, moved } = destroyed;
                return json::print(&json!({"was_there": was_there, "moved": moved})).map(|()| 0);
            }
            for pid in destroyed.moved {
                complain(&format!("{pid} did not end, and was moved to a parent of {}", at.path), None);
            }
            Ok(0)
        }
        CgroupCommand::Place { at, tids } => place(&cgroups()?, at.path.as_str(), &tids),
    }
}

/// Places threads and reports the skipped ones. Fails if no thread could be placed.
fn place(cgroups: &Cgroups, path: &str, tids: &[String]) -> Result<u8> {
    let mut threads = Vec::new();
    for tid in tids {
        match tid.parse() {
            Ok(tid) => threads.push(tid),
            Err(_) => complain(&format!("skipped {tid:?}: it is no thread's id"), None),
        }
    }
    let placed = cgroups.place(path, &threads)?;
    for (tid, error) in placed.skipped {
        complain(&format!("skipped {tid}: {error}"), error.hint_text());
    }
    Ok(if placed.placed.is_empty() { FAILED } else { 0 })
}

fn resources(args: SetArgs, now: &Configuration) -> Result<LinuxResources> {
    let mut resources = LinuxResources::default();
    let mut cpu = LinuxCpu::default();
    if let Some(most) = args.cpus {
        let period = now.cpu_period_usec.unwrap_or(PERIOD);
        let quota = match most {
            Ceiling::At(cpus) => cpus.quota_us(period),
            Ceiling::Unlimited => -1,
        };
        if (0..LEAST_QUOTA).contains(&quota) {
            let message = format!("--cpus: {quota} µs in each {period} µs is less than the kernel's least, 1000 µs");
            return Err(Error::new(Kind::Usage, message).hint("choose 0.01 or more"));
        }
        cpu.set_quota(Some(quota));
        cpu.set_period(Some(period));
    }
    cpu.set_shares(args.shares);
    cpu.set_cpus(args.cpuset.map(|set| set.to_string()));
    cpu.set_mems(args.mems.map(|set| set.to_string()));
    resources.set_cpu((cpu != LinuxCpu::default()).then_some(cpu));
    if let Some(most) = args.memory {
        let mut memory = LinuxMemory::default();
        memory.set_limit(Some(match most {
            Ceiling::At(most) => most.as_i64(),
            Ceiling::Unlimited => -1,
        }));
        resources.set_memory(Some(memory));
    }
    if let Some(most) = args.pids {
        let mut pids = LinuxPids::default();
        pids.set_limit(match most {
            // OCI's 0 means one.
            Ceiling::At(0) => return Err(Error::new(Kind::Usage, "--pids: 0 is less than one process")),
            Ceiling::At(most) => {
                check_pids(most).map_err(|wrong| Error::new(Kind::Usage, format!("--{wrong}")))?;
                i64::try_from(most).unwrap_or(-1)
            }
            Ceiling::Unlimited => -1,
        });
        resources.set_pids(Some(pids));
    }
    let pages = args.hugepages.into_iter().map(|(pages, most)| {
        let most: ByteSize =
            most.parse().map_err(|error| Error::new(Kind::Usage, format!("--hugepages {pages}: {error}")))?;
        let mut limit = LinuxHugepageLimit::default();
        limit.set_page_size(pages).set_limit(most.as_i64());
        Ok(limit)
    });
    let pages: Vec<LinuxHugepageLimit> = pages.collect::<Result<_>>()?;
    resources.set_hugepage_limits((!pages.is_empty()).then_some(pages));
    Ok(resources)
}

fn usage_rows(usage: &Usage) -> Vec<(String, String)> {
    let mut rows = vec![
        ("memory".to_owned(), size(usage.memory_bytes)),
        ("cpu time".to_owned(), or_dash(usage.cpu_usec.map(cpu_time))),
        ("pids".to_owned(), count(usage.pids)),
    ];
    rows.extend(usage.hugepages.iter().map(|(page, used)| (format!("hugepages {page}"), size(Some(*used)))));
    rows
}

fn limit_rows(found: &Configuration) -> Vec<(String, String)> {
    let quota = found.cpu_quota_usec.zip(found.cpu_period_usec);
    let cpus = quota.filter(|(_, period)| *period > 0).map(|(quota, period)| {
        let cpus = quota as f64 / period as f64;
        format!("{cpus} ({quota} µs in each {period} µs)")
    });
    let weight = match (found.cpu_weight, found.cpu_shares) {
        (Some(weight), _) => ("cpu weight", Some(weight)),
        (None, shares) => ("cpu shares", shares),
    };
    let mut rows = vec![
        ("cpus".to_owned(), or_dash(cpus)),
        (weight.0.to_owned(), count(weight.1)),
        ("memory".to_owned(), size(found.memory_limit_bytes)),
        ("pids".to_owned(), count(found.pids_limit)),
        ("cpuset".to_owned(), or_dash(found.cpuset_cpus.clone())),
        ("mems".to_owned(), or_dash(found.cpuset_mems.clone())),
    ];
    rows.extend(found.hugepages.iter().map(|(page, most)| (format!("hugepages {page}"), size(*most))));
    rows
}

/// Prints a line for each row, without a head.
fn print(rows: Vec<(String, String)>) -> Result<()> {
    let cells: Vec<Vec<Cell>> = rows.iter().map(|(name, value)| vec![Cell::from(name), Cell::from(value)]).collect();
    show(&render(&[Column::Left(""), Column::Left("")], &cells, None)[1..])
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Typed {
        #[command(flatten)]
        limits: SetArgs,
    }

    fn typed(args: &[&str], now: &Configuration) -> Result<LinuxResources> {
        let typed = Typed::try_parse_from(std::iter::once(&"set").chain(args)).expect("good flags");
        resources(typed.limits, now)
    }

    #[test]
    fn what_is_typed_becomes_what_changes_and_nothing_else() {
        let now = Configuration { cpu_period_usec: Some(50_000), ..Configuration::default() };
        let cpu = typed(&["--cpus=0.5"], &now).expect("fine");
        let quota = cpu.cpu().clone().map(|cpu| (cpu.quota(), cpu.period()));
        assert_eq!(quota, Some((Some(25_000), Some(50_000))));
        assert!(cpu.memory().is_none() && cpu.pids().is_none() && cpu.hugepage_limits().is_none());
        let lifted = typed(&["--cpus=max", "--memory=max", "--pids=max"], &now).expect("fine");
        assert_eq!(lifted.cpu().clone().and_then(|cpu| cpu.quota()), Some(-1));
        assert_eq!(lifted.memory().and_then(|memory| memory.limit()), Some(-1));
        assert_eq!(lifted.pids().map(|pids| pids.limit()), Some(-1));
    }

    #[test]
    fn what_the_kernel_would_not_take_is_said_before_it_is_asked() {
        for args in [&["--cpus=0.001"][..], &["--pids=0"], &["--hugepages=2MB=x"]] {
            let error = typed(args, &Configuration::default()).expect_err("refused");
            assert_eq!(error.kind(), Kind::Usage, "{error}");
        }
    }
}
