//! Commands and flags of other programs that start processes: what to type instead.
//!
//! One source for hints and for the tables of docs/coming-from.md: `UPDATE_DOCS=1 cargo test -p bowline --lib foreign`
//! writes them again. Without it the name that is spelled most like such a word would be suggested. Must not: list what
//! exists.

mod bwrap;
mod docker;
mod firejail;
mod nsjail;
#[cfg(test)]
mod page;
mod runc;
mod systemd_run;
#[cfg(test)]
mod tried;

/// Words, and what to type instead of them. A word is a command, a flag, a flag after its command (`ps -l`), or a setting
/// of systemd's with its `=`.
type Words = &'static [(&'static [&'static str], &'static str)];

/// A program that people come from.
struct Tool {
    /// Its tables of docs/coming-from.md.
    #[cfg(test)]
    name: &'static str,
    /// Whole lines, and bowline's. Only the page has them.
    #[cfg(test)]
    lines: &'static [(&'static str, &'static str)],
    words: Words,
    /// Words that only hints know: the page would be too long.
    rare: Words,
}

/// Groups of docker's and podman's whose name is left out here.
pub const GROUPS: [&str; 2] = ["container", "system"];

/// Where two programs have the same word, and nothing else on the line is of one of them, the first one counts.
const TOOLS: [&Tool; 6] =
    [&docker::TOOL, &bwrap::TOOL, &systemd_run::TOOL, &firejail::TOOL, &nsjail::TOOL, &runc::TOOL];

const NO_IMAGES: &str = "bowline has no images: see \"An image of Docker or a registry\" in docs/recipes.md";
const SANDBOX: &str = "tasks that belong together are a sandbox: see `bowline sandbox --help`";
const SERVICE: &str = "systemd restarts a service: see \"A service under systemd\" in docs/recipes.md";
const NICE: &str = "a shell sets it: `sh -c 'exec nice -n 5 CMD'`; `--cpu-shares 512` is its weight";
const PID: &str = "`bowline inspect -f '{{ pid }}' ID` prints a task's pid; `bowline start --pid-file FILE` writes its shim's, for systemd";
const ADDRESS: &str = "the plugins of a network choose its addresses: see docs/network.md";

impl Tool {
    fn find(&self, word: &str) -> Option<&'static str> {
        let mut all = self.words.iter().chain(self.rare);
        all.find(|(words, _)| words.contains(&word)).map(|(_, instead)| *instead)
    }

    /// How many words of the line are this program's own.
    fn knows(&self, line: &[String]) -> usize {
        let is_known = |word: &&String| self.find(word.split('=').next().unwrap_or_default()).is_some();
        line.iter().filter(is_known).count()
    }
}

/// What to type instead of `word`, on a line of these words.
pub fn find(word: &str, line: &[String]) -> Option<&'static str> {
    // The first of those that know as much: `max_by_key` has the last.
    let best = TOOLS.iter().rev().filter_map(|tool| Some((tool.knows(line), tool.find(word)?)));
    best.max_by_key(|(knows, _)| *knows).map(|(_, instead)| instead)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::input::args::Cli;
    use crate::input::hints::FLAGS;
    use crate::input::set::Setting;

    fn all() -> impl Iterator<Item = (&'static Tool, &'static str, &'static str)> {
        TOOLS.into_iter().flat_map(|tool| {
            let rows = tool.words.iter().chain(tool.rare);
            rows.flat_map(move |(words, instead)| words.iter().map(move |word| (tool, *word, *instead)))
        })
    }

    #[test]
    fn nothing_that_exists_is_listed() {
        let bowline = Cli::whole();
        for (tool, word, _) in all() {
            let (command, flag) = word.rsplit_once(' ').unwrap_or(("run", word));
            let Some(command) = bowline.find_subcommand(command) else { continue };
            if flag.starts_with('-') {
                let has = command.get_arguments().any(|argument| {
                    let long = argument.get_long_and_visible_aliases().unwrap_or_default();
                    let short = argument.get_short_and_visible_aliases().unwrap_or_default();
                    long.iter().any(|long| format!("--{long}") == flag)
                        || short.iter().any(|short| format!("-{short}") == flag)
                });
                assert!(!has, "{}: {word}", tool.name);
            } else if !word.contains(' ') && !word.ends_with('=') {
                assert!(bowline.find_subcommand(word).is_none(), "{}: {word}", tool.name);
            }
        }
    }

    #[test]
    fn no_word_has_two_answers_of_one_program() {
        let mut seen = HashSet::new();
        for (tool, word, _) in all() {
            assert!(seen.insert((tool.name, word)), "{}: {word}", tool.name);
        }
    }

    #[test]
    fn every_setting_is_one() {
        for (_, word, instead) in all() {
            for (_, rest) in instead.match_indices("--set ").map(|(at, set)| instead.split_at(at + set.len())) {
                let text = rest.trim_start_matches('\'').split([' ', ',', ';', '`', '\'']).next().unwrap_or_default();
                let setting: Setting = text.parse().unwrap_or_else(|wrong| panic!("{word}: {wrong}"));
                let mut task = bowline_spec::Task::default();
                let set = crate::input::set::set(&mut task, &setting, bowline_spec::parse);
                set.unwrap_or_else(|wrong| panic!("{word}: {wrong}"));
            }
        }
    }

    #[test]
    fn no_field_is_proposed_that_has_a_flag() {
        let bowline = Cli::whole();
        let run = bowline.find_subcommand("run").expect("it is there");
        let is_flag = |id: &&str| run.get_arguments().any(|argument| argument.get_id() == *id);
        for (_, word, instead) in all() {
            for (_, rest) in instead.match_indices("--set ").map(|(at, set)| instead.split_at(at + set.len())) {
                let (field, value) = rest.trim_start_matches('\'').split_once('=').expect("a setting");
                let with_flag = FLAGS.iter().find(|(of, _)| *of == field).filter(|_| !value.starts_with('/'));
                let flag = with_flag.and_then(|(_, flags)| flags.iter().find(|id| is_flag(id)));
                let below = field.starts_with("unified.").then_some(&"unified");
                assert_eq!(flag.or(below), None, "{word}: {instead}");
            }
        }
    }

    #[test]
    fn every_flag_that_is_proposed_exists() {
        let bowline = Cli::whole();
        let flags: HashSet<String> = bowline
            .get_subcommands()
            .chain(bowline.get_subcommands().flat_map(clap::Command::get_subcommands))
            .flat_map(clap::Command::get_arguments)
            .flat_map(|argument| argument.get_long_and_visible_aliases().unwrap_or_default())
            .chain(["version", "help"])
            .map(|long| format!("--{long}"))
            .collect();
        for (_, word, instead) in all() {
            let named =
                instead.split([' ', '`', ',', ';', ':', '=', '(', ')', '\'']).filter(|part| part.starts_with("--"));
            for flag in named {
                assert!(flags.contains(flag), "{word}: {flag}");
            }
            for (_, rest) in instead.match_indices("`bowline ").map(|(at, it)| instead.split_at(at + it.len())) {
                let command = rest.split([' ', '`']).next().unwrap_or_default();
                assert!(command.starts_with('-') || bowline.find_subcommand(command).is_some(), "{word}: {command}");
            }
        }
    }

    #[test]
    fn no_answer_harms() {
        // What gives rights away is named only where it was asked for by its name.
        let changes =
            ["chmod", "chown", "mkdir", "rm -r", "sudo", "kill -9", "docker.sock", "--privileged", "/root", "-v /:"];
        for (_, word, instead) in all() {
            assert!(changes.iter().all(|change| !instead.contains(change)), "{word}: {instead}");
        }
    }

    #[test]
    fn of_two_programs_with_a_word_the_one_counts_that_knows_the_line() {
        let find = |line: &[&str]| {
            let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
            super::find(&line[0], &line).expect("listed")
        };
        assert_ne!(find(&["-P", "nginx"]), find(&["-P", "--collect"]));
    }
}
