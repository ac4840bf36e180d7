//! A task's states, what can happen in each, and what is then to be done.
//!
//! ```text
//!   Created ─► Running ◄─► Paused
//!      │          │           │
//!      │          ▼           ▼
//!      └─────► Stopping ◄─────┘        any of them ─► Exited
//! ```
//!
//! Pure: `supervise` performs the actions and owns the clock.

#![deny(clippy::wildcard_enum_match_arm)]

use std::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::shutdown::Plan;

/// Where a task is in its life. `L` is what only a live task has: its pidfd.
#[derive(Debug, PartialEq, Eq)]
pub enum State<L> {
    /// Set up; the user's program does not run yet.
    Created(L),
    /// The user's program runs.
    Running(L),
    /// All its processes are frozen.
    Paused(L),
    /// Asked to end; killed at the plan's time.
    Stopping(L, Plan),
    /// Ended: there is nothing left to signal.
    Exited,
}

/// What happens to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The user's program was executed.
    Started,
    /// Freeze it.
    Pause,
    /// Thaw it.
    Resume,
    /// End it as planned; the second value is the time now.
    Stop(Plan, Instant),
    /// The time is this: is a kill due?
    Tick(Instant),
    /// Init was reaped.
    Exited,
}

/// What the caller must do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Freeze the task's cgroup.
    Freeze,
    /// Thaw it.
    Thaw,
    /// Send init the plan's signal.
    Signal(Plan),
    /// Thaw the cgroup, then send init the plan's signal: a frozen process
    /// handles none.
    ThawAndSignal(Plan),
    /// Kill everything in the task's cgroup.
    Kill,
    /// Write the exit report, then publish the exit.
    Report,
}

/// The word for a state in every answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Set up; the user's program does not run yet.
    Created,
    /// The user's program runs.
    Running,
    /// All its processes are frozen.
    Paused,
    /// Asked to end; killed when its grace is over.
    Stopping,
    /// Ended.
    Exited,
}

impl Status {
    /// The word itself.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Created => "created",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Stopping => "stopping",
            Status::Exited => "exited",
        }
    }
}

impl<L> State<L> {
    /// The only way a task changes state. The caller performs the action.
    ///
    /// # Errors
    /// `WrongState`, with the state unchanged, when the event has no place in it.
    pub fn on(&mut self, event: Event) -> Result<Action> {
        // Taken out for the match; every arm puts a state back.
        let (next, action) = match (std::mem::replace(self, State::Exited), event) {
            (State::Created(live), Event::Started) => (State::Running(live), Ok(Action::Nothing)),
            // None of the user's code runs yet: nobody to be graceful to.
            (State::Created(live), Event::Stop(plan, _)) => (State::Stopping(live, plan), Ok(Action::Kill)),
            (State::Created(live), Event::Pause) => refuse(State::Created(live), "paused"),
            (State::Created(live), Event::Resume) => refuse(State::Created(live), "resumed"),
            (State::Created(live), Event::Tick(_)) => (State::Created(live), Ok(Action::Nothing)),

            (State::Running(live), Event::Pause) => (State::Paused(live), Ok(Action::Freeze)),
            (State::Running(live), Event::Stop(plan, now)) => stop(live, plan, now, Action::Signal(plan)),
            (State::Running(live), Event::Resume) => refuse(State::Running(live), "resumed"),
            (State::Running(live), Event::Started) => refuse(State::Running(live), "started"),
            (State::Running(live), Event::Tick(_)) => (State::Running(live), Ok(Action::Nothing)),

            (State::Paused(live), Event::Resume) => (State::Running(live), Ok(Action::Thaw)),
            (State::Paused(live), Event::Stop(plan, now)) => stop(live, plan, now, Action::ThawAndSignal(plan)),
            (State::Paused(live), Event::Pause) => refuse(State::Paused(live), "paused"),
            (State::Paused(live), Event::Started) => refuse(State::Paused(live), "started"),
            (State::Paused(live), Event::Tick(_)) => (State::Paused(live), Ok(Action::Nothing)),

            // A repeated stop may shorten the wait, never lengthen it.
            (State::Stopping(live, old), Event::Stop(new, now)) => {
                let plan = old.shortened_by(new);
                let due = new.kills_at_once(now);
                (State::Stopping(live, plan), Ok(if due { Action::Kill } else { Action::Nothing }))
            }
            (State::Stopping(live, plan), Event::Tick(now)) => {
                let due = plan.kill_at <= now;
                (State::Stopping(live, plan), Ok(if due { Action::Kill } else { Action::Nothing }))
            }
            // The program was being executed when the stop came.
            (State::Stopping(live, plan), Event::Started) => (State::Stopping(live, plan), Ok(Action::Nothing)),
            (State::Stopping(live, plan), Event::Pause) => refuse(State::Stopping(live, plan), "paused"),
            (State::Stopping(live, plan), Event::Resume) => refuse(State::Stopping(live, plan), "resumed"),

            (State::Created(_) | State::Running(_) | State::Paused(_) | State::Stopping(..), Event::Exited) => {
                (State::Exited, Ok(Action::Report))
            }

            (State::Exited, Event::Pause) => refuse(State::Exited, "paused"),
            (State::Exited, Event::Resume) => refuse(State::Exited, "resumed"),
            (State::Exited, Event::Started) => refuse(State::Exited, "started"),
            // Ending what has ended is what was wanted.
            (State::Exited, Event::Stop(..) | Event::Tick(_) | Event::Exited) => (State::Exited, Ok(Action::Nothing)),
        };
        *self = next;
        action
    }

    /// The word for this state.
    pub fn status(&self) -> Status {
        match self {
            State::Created(_) => Status::Created,
            State::Running(_) => Status::Running,
            State::Paused(_) => Status::Paused,
            State::Stopping(..) => Status::Stopping,
            State::Exited => Status::Exited,
        }
    }

    /// What only a live task has.
    pub fn live(&self) -> Option<&L> {
        match self {
            State::Created(live) | State::Running(live) | State::Paused(live) | State::Stopping(live, _) => Some(live),
            State::Exited => None,
        }
    }

    /// When [`Event::Tick`] is due next.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            State::Stopping(_, plan) => Some(plan.kill_at),
            State::Created(_) | State::Running(_) | State::Paused(_) | State::Exited => None,
        }
    }
}

fn stop<L>(live: L, plan: Plan, now: Instant, graceful: Action) -> (State<L>, Result<Action>) {
    let action = if plan.kills_at_once(now) { Action::Kill } else { graceful };
    (State::Stopping(live, plan), Ok(action))
}

fn refuse<L>(state: State<L>, verb: &str) -> (State<L>, Result<Action>) {
    let message = format!("the task is {} and cannot be {verb}", state.status().as_str());
    (state, Err(Error::new(Kind::WrongState, message)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn plan(grace: u64, now: Instant) -> Plan {
        let term = "TERM".parse().expect("a signal");
        Plan::new(term, Duration::from_secs(grace), now)
    }

    #[test]
    fn a_stop_signals_then_kills_when_the_grace_is_over() {
        let now = Instant::now();
        let mut state = State::Running(());
        let stop = plan(10, now);
        assert_eq!(state.on(Event::Stop(stop, now)), Ok(Action::Signal(stop)));
        assert_eq!(state.on(Event::Tick(now)), Ok(Action::Nothing));
        assert_eq!(state.deadline(), Some(stop.kill_at));
        assert_eq!(state.on(Event::Tick(stop.kill_at)), Ok(Action::Kill));
        assert_eq!(state.on(Event::Exited), Ok(Action::Report));
        assert_eq!(state.live(), None);
    }

    #[test]
    fn a_stop_without_grace_kills_in_every_state() {
        let now = Instant::now();
        for mut state in [State::Created(()), State::Running(()), State::Paused(()), State::Stopping((), plan(9, now))]
        {
            assert_eq!(state.on(Event::Stop(plan(0, now), now)), Ok(Action::Kill));
        }
    }

    #[test]
    fn a_paused_task_is_thawed_before_it_is_signalled() {
        let now = Instant::now();
        let mut state = State::Paused(());
        let stop = plan(1, now);
        assert_eq!(state.on(Event::Stop(stop, now)), Ok(Action::ThawAndSignal(stop)));
    }

    #[test]
    fn an_exit_is_reported_once_and_what_comes_after_changes_nothing() {
        let now = Instant::now();
        let mut state = State::Paused(());
        assert_eq!(state.on(Event::Exited), Ok(Action::Report));
        assert_eq!(state.on(Event::Exited), Ok(Action::Nothing));
        assert_eq!(state.on(Event::Stop(plan(0, now), now)), Ok(Action::Nothing));
        assert_eq!(state.on(Event::Pause).map_err(|e| e.kind()), Err(Kind::WrongState));
    }

    #[test]
    fn a_refused_event_leaves_the_state() {
        let mut state = State::Created(7);
        assert!(state.on(Event::Pause).is_err());
        assert_eq!(state, State::Created(7));
    }
}
