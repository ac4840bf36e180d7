//! How much a sandbox may use as a whole, and its network.

use std::collections::BTreeSet;

use super::require;
use super::{identity, limits, network};
use crate::invalid::Invalid;
use crate::task::{Budget, Enforcement, Overhead, Sandbox};

impl Sandbox {
    /// Whether the description makes sense, whatever the host and the members.
    ///
    /// # Errors
    /// The first field that does not.
    pub fn validate(&self) -> Result<(), Invalid> {
        let (cpu, memory) = (&self.cpu, &self.memory);
        limits::cpu(cpu.shares, cpu.limit, cpu.period)?;
        limits::memory(memory.limit, memory.high, memory.low, memory.swap)?;
        limits::pids(self.pids, "the sandbox")?;
        limits::hugepages(&self.hugepages)?;
        require(self.page_limits().len() == self.hugepages.len(), "hugepages", || "names a page size twice".into())?;
        self.hostname.as_deref().map_or(Ok(()), identity::check_hostname)?;
        limits_without_cgroup(self)?;
        limits_of_members(self)?;
        members(self)?;
        network::check(&self.network)
    }
}

/// Checks each member as a task, and that its name differs from the others' and the sandbox's.
fn members(sandbox: &Sandbox) -> Result<(), Invalid> {
    let mut names: BTreeSet<&str> = sandbox.name.as_deref().into_iter().collect();
    if sandbox.overhead == Overhead::Inside {
        // It is a cgroup beside theirs.
        names.insert("overhead");
    }
    for (index, member) in sandbox.members.iter().enumerate() {
        let field = |name: &str| format!("members[{index}].{name}");
        member.validate().map_err(|error| {
            let inside = field(&error.field);
            Invalid { field: inside, ..error }
        })?;
        let taken = member.name.as_deref().filter(|name| !names.insert(name));
        require(taken.is_none(), &field("name"), || format!("{} is taken in this sandbox", taken.unwrap_or_default()))?;
    }
    Ok(())
}

/// Refuses joint limits that the rule computes from the members.
fn limits_of_members(sandbox: &Sandbox) -> Result<(), Invalid> {
    let (cpu, memory) = (&sandbox.cpu, &sandbox.memory);
    let (of_members, of_pod) = (sandbox.budget != Budget::Given, sandbox.budget == Budget::Pod);
    let given = [
        ("cpu.shares", of_members && cpu.shares.is_some()),
        ("cpu.limit", of_members && cpu.limit.is_some()),
        ("memory.limit", of_pod && memory.limit.is_some()),
        ("memory.low", of_pod && memory.low.is_some()),
        ("memory.high", of_pod && memory.high.is_some()),
        ("hugepages", of_pod && !sandbox.hugepages.is_empty()),
    ];
    let given = given.into_iter().find(|(_, given)| *given);
    require(given.is_none(), given.map_or("", |(field, _)| field), || {
        format!("is given, and budget = \"{}\" makes it of the members'; leave one out", sandbox.budget.as_str())
    })
}

/// Refuses limits together with `cgroup = "off"`, which enforces nothing.
fn limits_without_cgroup(sandbox: &Sandbox) -> Result<(), Invalid> {
    let (cpu, memory) = (&sandbox.cpu, &sandbox.memory);
    let asked = [
        ("cpu.shares", cpu.shares.is_some()),
        ("cpu.limit", cpu.limit.is_some()),
        ("cpu.cpuset", cpu.cpuset.is_some()),
        ("cpu.mems", cpu.mems.is_some()),
        ("memory.limit", memory.limit.is_some()),
        ("memory.high", memory.high.is_some()),
        ("memory.low", memory.low.is_some()),
        ("pids", sandbox.pids.is_some()),
        ("hugepages", !sandbox.hugepages.is_empty()),
    ];
    let asked = asked.into_iter().find(|(_, asked)| *asked && sandbox.cgroup == Enforcement::Off);
    require(asked.is_none(), "cgroup", || {
        let field = asked.map_or("", |(field, _)| field);
        format!("is \"off\", and nothing enforces {field} then; leave one out, or write \"best-effort\"")
    })
}

#[cfg(test)]
mod tests {
    use crate::parse::{Format, parse_sandbox};

    #[track_caller]
    fn accepted(toml: &str) {
        if let Err(error) = parse_sandbox(toml, Format::Toml) {
            panic!("{toml}: {error}");
        }
    }

    #[track_caller]
    fn refused(toml: &str, field: &str, reason: &str) {
        let error = parse_sandbox(toml, Format::Toml).expect_err(toml);
        assert_eq!(error.field, field, "{toml}: {error}");
        assert!(error.reason.contains(reason), "{toml}: {error}");
        assert!(error.line.is_some(), "{toml}: {error}");
    }

    #[test]
    fn limits_are_checked_as_a_tasks_are() {
        accepted("");
        accepted("name = 'web'\ncpu = {shares = 2, limit = 0.01, period = '100ms', cpuset = '0-1', mems = 0}");
        accepted(
            "memory = {limit = '64M', high = '32M', low = '16M', swap = 0}\npids = 'max'\nhugepages = {2MB = '4M'}",
        );
        refused("cpu.limit = 0.009", "cpu.limit", "at least 1000");
        refused("cpu = {limit = 0.5, period = '1ms'}", "cpu.limit", "500 µs");
        refused("cpu.period = '2s'", "cpu.period", "between 1ms and 1s");
        refused("cpu.shares = 1", "cpu.shares", "between 2 and 262144");
        refused("memory.limit = '5M'", "memory.limit", "below what can start");
        refused("memory = {limit = '64M', high = '65M'}", "memory.high", "above memory.limit");
        refused("memory.swap = '1G'", "memory.swap", "needs memory.limit");
        refused("pids = 0", "pids", "the sandbox needs at least 1");
        refused("hugepages = {big = 1}", "hugepages.big", "not a page size");
        refused("hugepages = {2MB = '4M', 2M = '8M'}", "hugepages", "twice");
    }

    #[test]
    fn what_is_unknown_is_refused_by_its_field() {
        refused("qos = 'gold'", "qos", "unknown variant `gold`, expected one of `guaranteed`");
        refused("cgroup = 'maybe'", "cgroup", "unknown variant `maybe`");
        refused("memory.limits = '1G'", "memory.limits", "unknown field `limits`");
        refused("command = 'true'", "command", "unknown field `command`");
        refused("name = '-a'", "name", "must begin with");
    }

    #[test]
    fn members_are_tasks_with_names_of_their_own() {
        accepted("name = 'web'\nmembers = [{command = 'true', name = 'a'}, {command = 'true'}, {command = 'true'}]");
        refused("members = [{command = 'true'}, {args = ['x']}]", "members[1].command", "");
        refused("members = [{command = 'a', name = 'x'}, {command = 'b', name = 'x'}]", "members[1].name", "taken");
        refused("name = 'x'\nmembers = [{command = 'a', name = 'x'}]", "members[0].name", "taken");
        refused("overhead = 'inside'\nmembers = [{command = 'a', name = 'overhead'}]", "members[0].name", "taken");
        refused("overhead = 'outside'", "overhead", "unknown variant");
    }

    #[test]
    fn what_the_members_make_is_not_given_too() {
        accepted("budget = 'members'\nmemory.limit = '64M'\npids = 3\ncpu.cpuset = '0'");
        accepted("budget = 'pod'\npids = 3");
        refused("budget = 'members'\ncpu.limit = 1", "cpu.limit", "budget = \"members\"");
        refused("budget = 'pod'\nmemory.limit = '64M'", "memory.limit", "budget = \"pod\"");
        refused("budget = 'mine'", "budget", "unknown variant `mine`");
        refused("hostname = 'a b'", "hostname", "not a host name");
    }

    #[test]
    fn nothing_is_asked_of_a_cgroup_that_there_is_not() {
        accepted("cgroup = 'off'\nqos = 'best-effort'\ncpu.period = '50ms'");
        accepted("cgroup = 'best-effort'\nmemory.limit = '64M'");
        refused("cgroup = 'off'\nmemory.limit = '64M'", "cgroup", "enforces memory.limit");
        refused("cgroup = 'off'\npids = 3", "cgroup", "enforces pids");
    }
}
