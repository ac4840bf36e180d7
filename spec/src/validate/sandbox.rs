//! How much a sandbox may use as a whole, and its network.

use std::collections::BTreeSet;

use super::rules::require;
use super::{limits, network, users};
use crate::id::TaskId;
use crate::invalid::Invalid;
use crate::task::{Budget, Overhead, Sandbox};

impl Sandbox {
    /// Whether the description makes sense, whatever the host and the members.
    ///
    /// # Errors
    /// The first field that does not.
    pub fn validate(&self) -> Result<(), Invalid> {
        let (cpu, memory) = (&self.cpu, &self.memory);
        limits::cpu(cpu)?;
        limits::memory(memory.limit, memory.high, memory.low, memory.swap)?;
        limits::pids(self.pids, "the sandbox")?;
        limits::hugepages(&self.hugepages)?;
        require(self.page_limits().len() == self.hugepages.len(), "hugepages", || "names a page size twice".into())?;
        self.hostname.as_deref().map_or(Ok(()), users::check_hostname)?;
        if let (Some(place), Some(name)) = (&self.place, &self.name) {
            place.of(name)?;
        }
        overhead(self)?;
        limits_of_members(self)?;
        members(self)?;
        network::check(&self.network)
    }
}

/// Checks each member as a task, and that its name differs from the others' and the sandbox's.
fn members(sandbox: &Sandbox) -> Result<(), Invalid> {
    let inside = format!("{}overhead", sandbox.overhead_prefix.as_deref().unwrap_or_default());
    let mut names: BTreeSet<&str> = sandbox.name.as_deref().into_iter().collect();
    if sandbox.overhead == Overhead::Inside {
        // It is a cgroup beside theirs.
        names.insert(&inside);
    }
    for (index, member) in sandbox.members.iter().enumerate() {
        let field = |name: &str| format!("members[{index}].{name}");
        member.validate_member().map_err(|error| {
            let inside = field(&error.field);
            Invalid { field: inside, ..error }
        })?;
        let taken = member.name.as_deref().filter(|name| !names.insert(name));
        require(taken.is_none(), &field("name"), || format!("{} is taken in this sandbox", taken.unwrap_or_default()))?;
    }
    Ok(())
}

/// Checks that the prefix of the overhead cgroup's name can be one, and that there is such a cgroup.
fn overhead(sandbox: &Sandbox) -> Result<(), Invalid> {
    let Some(prefix) = &sandbox.overhead_prefix else { return Ok(()) };
    let field = "overhead_prefix";
    let apart = matches!(sandbox.overhead, Overhead::Beside | Overhead::Inside);
    require(apart, field, || {
        "needs overhead = \"beside\" or \"inside\": otherwise the shim has no cgroup of its own".into()
    })?;
    require(!prefix.is_empty(), field, || "is empty; leave it out".into())?;
    TaskId::of_manager(prefix).map(drop).map_err(|error| {
        let reason = error.reason.replace("is not an id", "cannot begin a cgroup's name");
        Invalid::new(field, reason)
    })
}

/// Refuses joint limits that the rule computes from the members.
fn limits_of_members(sandbox: &Sandbox) -> Result<(), Invalid> {
    let (cpu, memory) = (&sandbox.cpu, &sandbox.memory);
    let (of_members, of_pod) = (sandbox.budget != Budget::Given, sandbox.budget == Budget::Pod);
    let given = [
        ("cpu.shares", of_members && cpu.shares.is_some()),
        ("cpu.limit", of_members && cpu.limit.is_some()),
        ("cpu.period", sandbox.budget == Budget::Members && cpu.period.is_some()),
        ("cpu.realtime", of_members && cpu.realtime.is_some()),
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
        refused("memory.limit = '5M'", "memory.limit", "at least 6M");
        refused("memory = {limit = '64M', high = '65M'}", "memory.high", "above memory.limit");
        refused("memory.swap = '1G'", "memory.swap", "needs memory.limit");
        refused("pids = 0", "pids", "the sandbox needs at least 1");
        refused("hugepages = {big = 1}", "hugepages.big", "not a page size");
        refused("hugepages = {2MB = '4M', 2M = '8M'}", "hugepages", "twice");
    }

    #[test]
    fn what_is_unknown_is_refused_by_its_field() {
        refused("qos = 'gold'", "qos", "unknown variant `gold`, expected one of `Guaranteed`, `guaranteed`");
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
        accepted("overhead = 'inside'\noverhead_prefix = 'kata_'\nmembers = [{command = 'a', name = 'overhead'}]");
        let named =
            "overhead = 'inside'\noverhead_prefix = 'kata_'\nmembers = [{command = 'a', name = 'kata_overhead'}]";
        refused(named, "members[0].name", "taken");
    }

    #[test]
    fn a_prefix_begins_the_name_of_a_cgroup_that_there_is() {
        accepted("overhead_prefix = 'kata_'");
        for prefix in ["", "-", "a/b", "../", "_a", "a b"] {
            refused(&format!("overhead_prefix = '{prefix}'"), "overhead_prefix", "");
        }
        for overhead in ["inherit", "root"] {
            refused(&format!("overhead = '{overhead}'\noverhead_prefix = 'kata_'"), "overhead_prefix", "of its own");
        }
    }

    #[test]
    fn a_place_is_its_own_sandboxs() {
        accepted("place = '/ecs/web'");
        accepted("name = 'web'\nplace = '/ecs/web'");
        accepted("name = 'web'\nplace = '/ecs/'");
        accepted("place = 'ecstasks-web.slice'");
        accepted("name = 'shop'\nplace = '/ecs/web'");
        refused("name = 'shop'\nplace = '/bowline/web'", "place", "of a sandbox web, and this one is shop");
        refused("place = '/ecs/../web'", "place", "..");
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
    fn shares_that_the_kernel_does_not_take_are_the_rules_to_change() {
        for shares in [0, 1, 262_145, i64::MAX] {
            accepted(&format!("cpu.shares = {shares}\nmembers = [{{command = 'true', cpu.shares = {shares}}}]"));
        }
        refused("cpu.shares = -1", "cpu.shares", "invalid value");
    }

    #[test]
    fn limits_may_be_asked_of_a_cgroup_that_enforces_none() {
        accepted("cgroup = 'off'\nqos = 'best-effort'\ncpu.period = '50ms'");
        accepted("cgroup = 'off'\nmemory.limit = '64M'\npids = 3");
        accepted("cgroup = 'best-effort'\nmemory.limit = '64M'");
    }
}
