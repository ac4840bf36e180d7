//! The cgroups of execs: made for one that has a deadline, whose caller has died, or that is hung up with its caller and
//! cannot have a cgroup namespace of its own; kept for the next one, removed once empty.

use std::rc::Rc;

use bowline_cgroup::ExecGroup;
use bowline_model::clock::Moment;

use crate::facts::{ExecFacts, TaskFacts};
use crate::supervise::exec::slots::EXEC_NUMBERS;
use crate::supervise::supervisor::Supervisor;
use crate::supervise::task::Task;

impl Supervisor {
    /// Returns a cgroup for an exec: the spare empty one, or a new one. A daemon that an exec left behind keeps
    /// that exec's cgroup. `None` if no cgroup can be created, for instance because of a limit on their number.
    pub(crate) fn free_exec_group(&self, task: &Task) -> Option<Rc<ExecGroup>> {
        let free = task.handles.borrow_mut().exec_group.take();
        free.or_else(|| self.new_exec_group(task))
    }

    /// Like [`Self::free_exec_group`], for an exec that is about to begin.
    pub(crate) fn exec_group(&self, task: &Task, deadline: Option<Moment>) -> Option<Rc<ExecGroup>> {
        let group = self.free_exec_group(task)?;
        // For the shim that takes the task over, should this one die.
        if task.facts.read(|facts| facts.record.outlives_shim())
            && let Err(error) = group.note(deadline.map(|deadline| deadline.number()))
        {
            tracing::warn!(%error, "an exec's deadline ends with its shim");
        }
        Some(group)
    }

    fn new_exec_group(&self, task: &Task) -> Option<Rc<ExecGroup>> {
        // The oldest leftover cgroup may be empty by now. One is tried for each cgroup that is created, so that
        // there are never many more of them than daemons.
        let oldest = task.facts.update(|facts| facts.exec_groups_left.pop_front());
        oldest.into_iter().for_each(|number| self.remove_group(task, number));
        let number = task.facts.update(|facts| {
            facts.exec_groups_made += 1;
            facts.exec_groups_made
        });
        let made = task.with_cgroup(|c| self.layout.create_exec_group(c, &group_name(number), number));
        let made = made.and_then(|made| made);
        made.inspect_err(|error| tracing::info!(%error, "an exec that is killed is so by its session"))
            .ok()
            .map(Rc::new)
    }

    /// Takes back the cgroup of an exec that has ended, and keeps an empty one for the next exec. Keeps no
    /// descriptor of a cgroup that still holds a process, nor of a second empty one.
    pub(crate) fn give_back(&self, task: &Task, number: u64) {
        let group = task.handles.borrow_mut().execs.get_mut(&number).and_then(|exec| exec.group.take());
        let Some(group) = group else { return };
        let being_killed = |exec: &ExecFacts| exec.killed_at.filter(|_| !exec.all_dead);
        let killed_at = task.facts.read(|facts| facts.execs.get(&number).and_then(being_killed));
        if killed_at.is_some() || !group.is_empty() {
            // What an exec that has ended in time leaves behind has no deadline. Who takes the task over meanwhile goes on
            // killing the others.
            if let Err(error) = group.note(killed_at.map(|at| at.number())) {
                tracing::warn!(%error, "what an exec has left may be killed at its deadline, or outlive it");
            }
            task.facts.update(|facts| facts.exec_groups_left.push_back(group.number()));
            return;
        }
        self.keep_empty_group(task, group);
    }

    /// Takes back a cgroup that nothing was done with.
    pub(crate) fn give_back_group(&self, task: &Task, group: Rc<ExecGroup>) {
        match group.is_empty() {
            true => self.keep_empty_group(task, group),
            false => task.facts.update(|facts| facts.exec_groups_left.push_back(group.number())),
        }
    }

    fn keep_empty_group(&self, task: &Task, group: Rc<ExecGroup>) {
        let second = task.handles.borrow_mut().exec_group.replace(group);
        if let Some(second) = second {
            self.remove_group(task, second.number());
        }
    }

    /// Notes the cgroups of execs that a shim before this one has made.
    pub(crate) fn note_exec_groups(&self, task: &Task) {
        let names = task.with_cgroup(|cgroup| self.layout.names_below(cgroup)).unwrap_or_default();
        // A task that has its cgroup may have made one with a number that no other could follow.
        let last = names.iter().filter_map(|name| group_number(name)).filter(|n| EXEC_NUMBERS.contains(n)).max();
        task.facts.update(|facts| facts.exec_groups_made = last.unwrap_or_default());
    }

    /// Goes on with the deadlines of those that an earlier shim has made, which belong to no exec that this one knows.
    pub(crate) fn go_on_with_exec_groups(self: &Rc<Self>, task: &Rc<Task>) {
        let spare = task.handles.borrow().exec_group.as_ref().map(|group| group.number());
        // Of those that are left some may be being killed.
        task.facts.update_silently(|facts| facts.exec_groups_left.clear());
        let known = |number: &u64| {
            let is_execs = |facts: &TaskFacts| facts.execs.values().any(|exec| exec.group == Some(*number));
            spare == Some(*number) || task.facts.read(is_execs)
        };
        let names = task.with_cgroup(|cgroup| self.layout.names_below(cgroup)).unwrap_or_default();
        let numbers: Vec<u64> = names.iter().filter_map(|name| group_number(name)).filter(|n| !known(n)).collect();
        self.kill_groups_in_time(task, &numbers);
    }

    fn kill_groups_in_time(self: &Rc<Self>, task: &Rc<Task>, numbers: &[u64]) {
        for &number in numbers {
            let opened = task.with_cgroup(|c| self.layout.open_exec_group(c, &group_name(number), number));
            let deadline = opened.and_then(|opened| opened).ok().filter(|group| !group.is_empty());
            match deadline.and_then(|group| Some((group.noted()?, group))) {
                Some((deadline, group)) => self.kill_group_at(task, Rc::new(group), Moment::of(deadline)),
                None => self.remove_group(task, number),
            }
        }
    }

    pub(crate) fn remove_group(&self, task: &Task, number: u64) {
        // If the task's cgroup is gone, so is the exec's.
        if !task.with_cgroup(|c| self.layout.remove_exec_group(c, &group_name(number))).unwrap_or(true) {
            task.facts.update(|facts| facts.exec_groups_left.push_back(number));
        }
    }
}

pub(crate) fn group_name(number: u64) -> String {
    format!("exec-{number}")
}

/// The number in a name that [`group_name`] has made.
fn group_number(name: &str) -> Option<u64> {
    name.strip_prefix("exec-")?.parse().ok().filter(|number| group_name(*number) == name)
}
