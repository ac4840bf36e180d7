//! `bowline doctor`: prints what this host can do, the effect of each problem, and the command that fixes it.
//!
//!   kernel, cgroup, isolation, tools ─► facts ─► lines or JSON, and an exit code
//!
//! Each family of facts has a file; `fact` is what a fact is. Kernel features are really tried, by `bowline_executor::internal::probe`; a fact that only
//! root can find says so. Must not: change the host.

mod cgroup;
mod fact;
mod isolation;
mod kernel;
mod setting;
mod tools;

use std::path::PathBuf;

use bowline_model::Result;
use bowline_model::folder::StateDir;
use serde::Serialize;

use self::fact::{Fact, State};
use crate::exit_code::FAILED;
use crate::ui::json;
use crate::ui::print::say;

/// All facts, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Examination {
    /// Whether tasks can run on this host.
    runs: bool,
    facts: Vec<Fact>,
}

/// Runs `bowline doctor`; `cdi` are the folders with vendors' files of devices. Exits with 125 if tasks cannot run on this host.
pub fn run(state: &StateDir, cdi: &[PathBuf], json: bool) -> Result<u8> {
    let found = examine(state, cdi);
    let code = if found.runs { 0 } else { FAILED };
    if json {
        return json::print(&found).map(|()| code);
    }
    for fact in &found.facts {
        say(&fact.lines())?;
    }
    say(if found.runs { "Tasks can run here." } else { "Tasks cannot run here: see what is marked with !" })?;
    Ok(code)
}

fn examine(state: &StateDir, cdi: &[PathBuf]) -> Examination {
    let root = rustix::process::geteuid().is_root();
    let families: [(&'static str, Vec<Fact>); 4] = [
        ("kernel", kernel::facts(root)),
        ("cgroup", cgroup::facts()),
        ("isolation", isolation::facts(root)),
        ("tools", tools::facts(root, state, cdi)),
    ];
    let with_family = |(family, facts): (_, Vec<Fact>)| facts.into_iter().map(move |fact| Fact { family, ..fact });
    let facts: Vec<Fact> = families.into_iter().flat_map(with_family).collect();
    Examination { runs: facts.iter().all(|fact| fact.state != State::Blocks), facts }
}
