//! `bowline doctor`: prints what this host can do, the effect of each problem, and the command that fixes it.
//!
//!   kernel, cgroup, isolation, tools ─► facts ─► lines or JSON, and an exit code
//!
//! Each family of facts has a file. Kernel features are really tried, by `bowline_executor::probe`; a fact that only
//! root can find says so. Must not: change the host.

mod cgroup;
mod isolation;
mod kernel;
mod tools;

use bowline_executor::{Result, StateDir};
use serde::Serialize;

use crate::exit_code::FAILED;
use crate::ui::json;
use crate::ui::print::say;

/// One feature that this host may have.
#[derive(Debug, Serialize)]
struct Fact {
    family: &'static str,
    name: String,
    state: State,
    found: String,
    /// Which feature is refused without it, or what happens instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<String>,
    /// The command or kernel parameter that provides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Has,
    /// It is missing; a feature is refused or done in another way.
    Lacks,
    /// It is missing, and no task runs without it, unless its description says so.
    Blocks,
    /// Only root can find out.
    Unknown,
}

impl Fact {
    fn new(name: impl Into<String>, state: State, found: impl Into<String>) -> Fact {
        Fact { family: "", name: name.into(), state, found: found.into(), effect: None, fix: None }
    }

    fn has(name: impl Into<String>, found: impl Into<String>) -> Fact {
        Fact::new(name, State::Has, found)
    }

    fn lacks(name: impl Into<String>, found: impl Into<String>, effect: impl Into<String>) -> Fact {
        Fact { effect: Some(effect.into()), ..Fact::new(name, State::Lacks, found) }
    }

    fn blocks(name: impl Into<String>, found: impl Into<String>, effect: impl Into<String>) -> Fact {
        Fact { state: State::Blocks, ..Fact::lacks(name, found, effect) }
    }

    fn unknown(name: impl Into<String>) -> Fact {
        Fact::new(name, State::Unknown, "only root can tell")
    }

    /// Adds the command that fixes a fact that is lacking or blocked.
    fn fix(mut self, command: impl Into<String>) -> Fact {
        self.fix = matches!(self.state, State::Lacks | State::Blocks).then(|| command.into());
        self
    }

    /// Formats the fact as lines for people.
    fn lines(&self) -> String {
        let mark = match self.state {
            State::Has => '+',
            State::Lacks => '-',
            State::Blocks => '!',
            State::Unknown => '?',
        };
        let mut text = format!("{mark} {}: {}", self.name, self.found);
        for (label, more) in [("effect", &self.effect), ("fix   ", &self.fix)] {
            if let Some(more) = more {
                text += &format!("\n    {label}  {more}");
            }
        }
        text
    }
}

/// All facts, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Examination {
    /// Whether tasks can run on this host.
    runs: bool,
    facts: Vec<Fact>,
}

/// Runs `bowline doctor`; exits with 125 if tasks cannot run on this host.
pub fn run(state: &StateDir, json: bool) -> Result<u8> {
    let found = examine(state);
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

fn examine(state: &StateDir) -> Examination {
    let root = rustix::process::geteuid().is_root();
    let families: [(&'static str, Vec<Fact>); 4] = [
        ("kernel", kernel::facts(root)),
        ("cgroup", cgroup::facts()),
        ("isolation", isolation::facts(root)),
        ("tools", tools::facts(root, state)),
    ];
    let with_family = |(family, facts): (_, Vec<Fact>)| facts.into_iter().map(move |fact| Fact { family, ..fact });
    let facts: Vec<Fact> = families.into_iter().flat_map(with_family).collect();
    Examination { runs: facts.iter().all(|fact| fact.state != State::Blocks), facts }
}

/// Reads a file of `/proc` or `/sys`, trimmed; `None` if it cannot be read.
fn setting(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_its_effect_and_its_fix() {
        let fact = Fact::lacks("CRIU", "not found", "no checkpoints").fix("apt-get install criu");
        assert_eq!(fact.lines(), "- CRIU: not found\n    effect  no checkpoints\n    fix     apt-get install criu");
    }

    #[test]
    fn what_is_there_needs_no_mend() {
        assert_eq!(Fact::has("kernel", "Linux 6.18").fix("reboot").lines(), "+ kernel: Linux 6.18");
    }
}
