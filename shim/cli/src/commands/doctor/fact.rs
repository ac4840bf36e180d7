//! One thing that is found of the host, and how it is told.

use serde::Serialize;

/// One feature that this host may have.
#[derive(Debug, Serialize)]
pub struct Fact {
    pub family: &'static str,
    pub name: String,
    pub state: State,
    pub found: String,
    /// Which feature is refused without it, or what happens instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The command or kernel parameter that provides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Has,
    /// It is missing; a feature is refused or done in another way.
    Lacks,
    /// It is missing, and no task runs without it, unless its description says so.
    Blocks,
    /// Only root can find out.
    Unknown,
}

impl Fact {
    pub fn new(name: impl Into<String>, state: State, found: impl Into<String>) -> Fact {
        Fact { family: "", name: name.into(), state, found: found.into(), effect: None, fix: None }
    }

    pub fn has(name: impl Into<String>, found: impl Into<String>) -> Fact {
        Fact::new(name, State::Has, found)
    }

    pub fn lacks(name: impl Into<String>, found: impl Into<String>, effect: impl Into<String>) -> Fact {
        Fact { effect: Some(effect.into()), ..Fact::new(name, State::Lacks, found) }
    }

    pub fn blocks(name: impl Into<String>, found: impl Into<String>, effect: impl Into<String>) -> Fact {
        Fact { state: State::Blocks, ..Fact::lacks(name, found, effect) }
    }

    pub fn unknown(name: impl Into<String>) -> Fact {
        Fact::new(name, State::Unknown, "only root can tell")
    }

    /// Adds the command that fixes a fact that is lacking or blocked.
    pub fn fix(mut self, command: impl Into<String>) -> Fact {
        self.fix = matches!(self.state, State::Lacks | State::Blocks).then(|| command.into());
        self
    }

    /// Like [`Fact::fix`], where there is a command.
    pub fn maybe_fix(self, command: Option<String>) -> Fact {
        match command {
            Some(command) => self.fix(command),
            None => self,
        }
    }

    /// Formats the fact as lines for people.
    pub fn lines(&self) -> String {
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
