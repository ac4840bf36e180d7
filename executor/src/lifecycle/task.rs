//! A task's life, from its launch until the shim forgets it.
//!
//! ```text
//!   Starting ─► Created ─► Running ◄─► Paused
//!      │  │        │          │           │
//!      │  └────────┴──────────┼───────────┴──► Stopping, Killing
//!      ▼ its launch fails     ▼ init is reaped, from any of these
//!   Undoing               Reaped ─► Exited ─► ReportMade ─► ExitPublished ─┐
//!      └─► Undone ─────────────────────────────────────────────────────────┴─► Over ─► Removing ─► Removed
//! ```

use bowline_error::{Error, Kind, Result};
use bowline_model::clock::Moment;
use bowline_model::shutdown::StopPlan;
use bowline_model::status::Status;
use bowline_spec::signal::Signal;
use serde::{Deserialize, Serialize};

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// Init was cloned, and is being set up.
    #[default]
    Starting,
    /// Set up; the user's program does not run yet.
    Created,
    Running,
    /// All its processes are frozen.
    Paused,
    /// Asked to end; killed at the plan's time.
    Stopping(StopPlan),
    /// Its processes are being sent SIGKILL until none is left. The value is the status before.
    Killing(Status),
    /// Its launch has failed: its processes are being killed.
    Undoing,
    /// Init was reaped; operations on it that are under way end first. The value is the status before.
    Reaped(Status),
    /// Its remaining processes are being killed, and its report is being made.
    Exited,
    /// Its report is made: only its exit is still to be reported.
    #[serde(rename = "reported")]
    ReportMade,
    /// Callers that wait know of its exit.
    #[serde(rename = "told")]
    ExitPublished,
    /// The processes of its failed launch have ended.
    Undone,
    /// Everything that its end requires is done.
    Over,
    /// Its last hooks run, and what a manager has mounted for it is taken down.
    Removing,
    /// Nothing is left of it.
    Removed,
}

/// What happens to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Init is set up, and waits for the order to execute.
    SetUp,
    /// The user's program was executed.
    Started,
    Pause,
    Resume,
    /// Somebody else has thawed it.
    Thawed,
    /// End it as planned; the second value is the time now.
    Stop(StopPlan, Moment),
    /// A caller sends SIGKILL.
    Kill,
    /// The time is now this: a kill may be due.
    Tick(Moment),
    /// Its launch has failed.
    Failed,
    /// Init was reaped.
    Reaped,
    /// Operations on init that were under way are over.
    Exited,
    /// The report is made, but nobody was told yet.
    ReportMade,
    /// The exit was reported to the manager, and waiting callers can get it.
    ExitPublished,
    /// Everything that its end requires is done.
    Done,
    Remove,
    /// Nothing is left of it.
    Removed,
}

/// What the caller must do after a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Freeze,
    Thaw,
    /// Thaw the cgroup if possible, then send init this signal: a frozen process handles none.
    Signal(Signal),
    /// Like `Signal`, but the thaw must succeed, because the shim has frozen the task.
    ThawAndSignal(Signal),
    /// Kill everything in the task's cgroup.
    Kill,
}

impl Life {
    /// The only way a task changes state. The caller performs the action.
    ///
    /// # Errors
    /// `WrongState`, with the state unchanged, when the trigger has no place in it.
    pub fn apply(&mut self, trigger: Trigger) -> Result<Action> {
        use Life::*;
        let (next, action) = match (*self, trigger) {
            (Starting, Trigger::SetUp) => (Created, Action::Nothing),
            (Starting, Trigger::Started) => return Err(self.refuses("started")),
            (Created, Trigger::Started) => (Running, Action::Nothing),
            // None of the user's code runs yet: nobody to be graceful to.
            (Starting | Created, Trigger::Stop(..)) => (Killing(Status::Stopping), Action::Kill),

            (Running, Trigger::Pause) => (Paused, Action::Freeze),
            (Running, Trigger::Stop(plan, now)) => stop(plan, now, Action::Signal(plan.signal)),
            (Paused, Trigger::Resume) => (Running, Action::Thaw),
            (Paused, Trigger::Thawed) => (Running, Action::Nothing),
            (Paused, Trigger::Stop(plan, now)) => stop(plan, now, Action::ThawAndSignal(plan.signal)),

            // A repeated stop may shorten the wait, never lengthen it.
            (Stopping(old), Trigger::Stop(new, now)) => {
                let plan = old.shortened_by(new);
                if new.kills_at_once(now) {
                    (Killing(Status::Stopping), Action::Kill)
                } else {
                    (Stopping(plan), Action::Nothing)
                }
            }
            (Stopping(plan), Trigger::Tick(now)) if plan.kill_at <= now => (Killing(Status::Stopping), Action::Kill),

            (Starting | Created | Running | Paused | Stopping(_), Trigger::Kill) => {
                (Killing(self.status()), Action::Kill)
            }
            (Killing(was), Trigger::Started) => (Killing(was.started()), Action::Nothing),
            (Killing(_), Trigger::Stop(..)) => (Killing(Status::Stopping), Action::Nothing),
            (Killing(_), Trigger::Kill | Trigger::SetUp) => (*self, Action::Nothing),
            (Killing(_) | Undoing | Reaped(_), Trigger::Pause) => return Err(self.refuses("paused")),
            (Killing(_) | Undoing | Reaped(_), Trigger::Resume) => return Err(self.refuses("resumed")),

            (Starting | Created | Running | Paused | Stopping(_), Trigger::Failed) => (Undoing, Action::Kill),
            (Killing(_), Trigger::Failed) => (Undoing, Action::Nothing),
            (Undoing, Trigger::Stop(..) | Trigger::Kill) => (Undoing, Action::Nothing),
            (Undoing, Trigger::Reaped) => (Undone, Action::Nothing),

            (Starting | Created | Running | Paused | Stopping(_) | Killing(_), Trigger::Reaped) => {
                (Reaped(self.status()), Action::Nothing)
            }
            (Reaped(was), Trigger::Started) => (Reaped(was.started()), Action::Nothing),
            // Init may leave many processes, and what is under way may take its time.
            (Reaped(was), Trigger::Kill) => (Reaped(was), Action::Kill),
            (Reaped(_), Trigger::Stop(plan, now)) => {
                (Reaped(Status::Stopping), if plan.kills_at_once(now) { Action::Kill } else { Action::Nothing })
            }
            (Reaped(_), Trigger::Exited) => (Exited, Action::Nothing),
            (Exited, Trigger::ReportMade) => (ReportMade, Action::Nothing),
            (ReportMade, Trigger::ExitPublished) => (ExitPublished, Action::Nothing),
            (ExitPublished | Undone, Trigger::Done) => (Over, Action::Nothing),
            (Over | Removing, Trigger::Remove) => (Removing, Action::Nothing),
            (Over | Removing, Trigger::Removed) => (Removed, Action::Nothing),

            // Ending what has ended is what was wanted.
            (
                Exited | ReportMade | ExitPublished | Undone | Over | Removing | Removed,
                Trigger::Stop(..) | Trigger::Kill,
            ) => (*self, Action::Nothing),
            (
                Starting | Created | Running | Paused | Stopping(_) | Killing(_) | Undoing | Reaped(_) | Exited
                | ReportMade | ExitPublished | Undone | Over | Removing | Removed,
                Trigger::Tick(_),
            )
            | (
                Starting | Created | Running | Stopping(_) | Killing(_) | Undoing | Reaped(_) | Exited | ReportMade
                | ExitPublished | Undone | Over | Removing | Removed,
                Trigger::Thawed,
            ) => (*self, Action::Nothing),

            (
                Starting | Created | Paused | Stopping(_) | Exited | ReportMade | ExitPublished | Undone | Over
                | Removing | Removed,
                Trigger::Pause,
            ) => {
                return Err(self.refuses("paused"));
            }
            (
                Starting | Created | Running | Stopping(_) | Exited | ReportMade | ExitPublished | Undone | Over
                | Removing | Removed,
                Trigger::Resume,
            ) => return Err(self.refuses("resumed")),
            (
                Running | Paused | Stopping(_) | Undoing | Exited | ReportMade | ExitPublished | Undone | Over
                | Removing | Removed,
                Trigger::Started,
            ) => {
                return Err(self.refuses("started"));
            }
            (
                Created | Running | Paused | Stopping(_) | Undoing | Reaped(_) | Exited | ReportMade | ExitPublished
                | Undone | Over | Removing | Removed,
                Trigger::SetUp,
            ) => return Err(self.refuses("set up")),
            (
                Undoing | Reaped(_) | Exited | ReportMade | ExitPublished | Undone | Over | Removing | Removed,
                Trigger::Failed,
            ) => {
                return Err(self.refuses("undone"));
            }
            (Reaped(_) | Exited | ReportMade | ExitPublished | Undone | Over | Removing | Removed, Trigger::Reaped) => {
                return Err(self.refuses("reaped"));
            }
            (
                Starting | Created | Running | Paused | Stopping(_) | Killing(_) | Undoing | Exited | ReportMade
                | ExitPublished | Undone | Over | Removing | Removed,
                Trigger::Exited,
            ) => return Err(self.refuses("seen off")),
            (
                Starting | Created | Running | Paused | Stopping(_) | Killing(_) | Undoing | Reaped(_) | ReportMade
                | ExitPublished | Undone | Over | Removing | Removed,
                Trigger::ReportMade,
            )
            | (
                Starting | Created | Running | Paused | Stopping(_) | Killing(_) | Undoing | Reaped(_) | Exited
                | ExitPublished | Undone | Over | Removing | Removed,
                Trigger::ExitPublished,
            ) => return Err(self.refuses("reported")),
            (
                Starting | Created | Running | Paused | Stopping(_) | Killing(_) | Undoing | Reaped(_) | Exited
                | ReportMade | Over | Removing | Removed,
                Trigger::Done,
            ) => return Err(self.refuses("done with")),
            (
                Starting | Created | Running | Paused | Stopping(_) | Killing(_) | Undoing | Reaped(_) | Exited
                | ReportMade | ExitPublished | Undone | Removed,
                Trigger::Remove | Trigger::Removed,
            ) => return Err(self.refuses("removed")),
        };
        *self = next;
        Ok(action)
    }

    /// The word for this state.
    pub fn status(self) -> Status {
        match self {
            Life::Starting | Life::Created => Status::Created,
            Life::Running => Status::Running,
            Life::Paused => Status::Paused,
            Life::Stopping(_) | Life::Undoing => Status::Stopping,
            Life::Killing(was) | Life::Reaped(was) => was,
            Life::Exited
            | Life::ReportMade
            | Life::ExitPublished
            | Life::Undone
            | Life::Over
            | Life::Removing
            | Life::Removed => Status::Exited,
        }
    }

    /// Whether init can be signalled, or could a moment ago.
    pub fn is_live(self) -> bool {
        self.status() != Status::Exited
    }

    /// Whether its program runs, or waits for its end, and is not being killed.
    pub fn runs(self) -> bool {
        matches!(self, Life::Running | Life::Paused | Life::Stopping(_))
    }

    /// Whether init was reaped: its pid may belong to another process.
    pub fn is_reaped(self) -> bool {
        matches!(self, Life::Reaped(_)) || !self.is_live()
    }

    /// Whether only its exit is still to be reported.
    pub fn is_report_made(self) -> bool {
        matches!(self, Life::ReportMade) || self.is_exit_published()
    }

    /// Whether callers that wait know of its exit, or there will be none.
    pub fn is_exit_published(self) -> bool {
        matches!(self, Life::ExitPublished) || self.is_over()
    }

    /// Whether everything that its end requires is done.
    pub fn is_over(self) -> bool {
        matches!(self, Life::Over | Life::Removing | Life::Removed)
    }

    /// When [`Trigger::Tick`] is due next.
    pub fn deadline(self) -> Option<Moment> {
        if let Life::Stopping(plan) = self { Some(plan.kill_at) } else { None }
    }

    fn refuses(self, verb: &str) -> Error {
        let is = match self {
            Life::Starting => "still being launched",
            Life::Killing(_) => "being killed",
            Life::Undoing | Life::Undone => "gone, as its launch has failed,",
            Life::Created
            | Life::Running
            | Life::Paused
            | Life::Stopping(_)
            | Life::Reaped(_)
            | Life::Exited
            | Life::ReportMade
            | Life::ExitPublished
            | Life::Over
            | Life::Removing
            | Life::Removed => self.status().as_str(),
        };
        Error::new(Kind::WrongState, format!("the task is {is} and cannot be {verb}"))
    }
}

fn stop(plan: StopPlan, now: Moment, graceful: Action) -> (Life, Action) {
    if plan.kills_at_once(now) {
        (Life::Killing(Status::Stopping), Action::Kill)
    } else {
        (Life::Stopping(plan), graceful)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn plan(grace: u64, now: Moment) -> StopPlan {
        StopPlan::new(Signal::TERM, Duration::from_secs(grace), now)
    }

    fn after(triggers: &[Trigger]) -> Life {
        let mut life = Life::Starting;
        for trigger in triggers {
            life.apply(*trigger).expect("it has a place");
        }
        life
    }

    #[test]
    fn a_stop_signals_then_kills_when_the_grace_is_over() {
        let now = Moment::now();
        let mut life = Life::Running;
        let stop = plan(10, now);
        assert_eq!(life.apply(Trigger::Stop(stop, now)), Ok(Action::Signal(Signal::TERM)));
        assert_eq!(life.apply(Trigger::Tick(now)), Ok(Action::Nothing));
        assert_eq!(life.deadline(), Some(stop.kill_at));
        assert_eq!(life.apply(Trigger::Tick(stop.kill_at)), Ok(Action::Kill));
        assert_eq!((life.deadline(), life.status()), (None, Status::Stopping));
        assert_eq!(life.apply(Trigger::Kill), Ok(Action::Nothing), "it is being killed");
    }

    #[test]
    fn a_stop_without_grace_kills_in_every_state() {
        let now = Moment::now();
        for mut life in [Life::Starting, Life::Created, Life::Running, Life::Paused, Life::Stopping(plan(9, now))] {
            assert_eq!(life.apply(Trigger::Stop(plan(0, now), now)), Ok(Action::Kill));
        }
    }

    #[test]
    fn a_paused_task_is_thawed_before_it_is_signalled() {
        let now = Moment::now();
        let mut life = Life::Paused;
        assert_eq!(life.apply(Trigger::Stop(plan(1, now), now)), Ok(Action::ThawAndSignal(Signal::TERM)));
    }

    #[test]
    fn a_paused_task_that_somebody_else_thaws_runs_and_nothing_else_changes() {
        let now = Moment::now();
        for (mut life, then) in [
            (Life::Paused, Life::Running),
            (Life::Created, Life::Created),
            (Life::Stopping(plan(1, now)), Life::Stopping(plan(1, now))),
            (Life::Exited, Life::Exited),
        ] {
            assert_eq!((life.apply(Trigger::Thawed), life), (Ok(Action::Nothing), then));
        }
    }

    #[test]
    fn one_that_was_killed_says_what_it_was_until_it_is_reaped() {
        let mut life = Life::Created;
        assert_eq!(life.apply(Trigger::Kill), Ok(Action::Kill));
        assert_eq!(life.status(), Status::Created);
        assert_eq!(life.apply(Trigger::Started), Ok(Action::Nothing));
        assert_eq!(life.apply(Trigger::Reaped), Ok(Action::Nothing));
        assert_eq!((life.status(), life.is_live()), (Status::Running, true));
        assert_eq!(life.apply(Trigger::Exited), Ok(Action::Nothing));
        assert_eq!((life.status(), life.is_live()), (Status::Exited, false));
    }

    #[test]
    fn a_program_that_ended_while_it_was_started_was_started() {
        assert_eq!(after(&[Trigger::SetUp, Trigger::Reaped, Trigger::Started]), Life::Reaped(Status::Running));
    }

    const SEEN_OFF: [Trigger; 7] = [
        Trigger::Reaped,
        Trigger::Exited,
        Trigger::ReportMade,
        Trigger::ExitPublished,
        Trigger::Done,
        Trigger::Remove,
        Trigger::Removed,
    ];
    const UNDONE: [Trigger; 5] = [Trigger::Failed, Trigger::Reaped, Trigger::Done, Trigger::Remove, Trigger::Removed];

    fn triggers() -> impl Strategy<Value = Vec<Trigger>> {
        let now = Moment::now();
        let stops = (0..3_u64, 0..3_u64)
            .prop_map(move |(grace, late)| Trigger::Stop(plan(grace, now), now.after(Duration::from_secs(late))));
        let ticks = (0..4_u64).prop_map(move |late| Trigger::Tick(now.after(Duration::from_secs(late))));
        let plain = prop::sample::select(vec![
            Trigger::SetUp,
            Trigger::Started,
            Trigger::Pause,
            Trigger::Resume,
            Trigger::Thawed,
            Trigger::Kill,
            Trigger::Failed,
            Trigger::Reaped,
            Trigger::Exited,
            Trigger::ReportMade,
            Trigger::ExitPublished,
            Trigger::Done,
            Trigger::Remove,
            Trigger::Removed,
        ]);
        let trigger = prop_oneof![1 => stops, 1 => ticks, 4 => plain];
        prop::collection::vec(trigger, 0..40)
    }

    proptest! {
        #[test]
        fn whatever_has_happened_a_task_can_be_seen_off_or_undone_and_forgotten(
            triggers in triggers(), fails in any::<bool>()
        ) {
            let mut life = Life::Starting;
            for trigger in triggers {
                let _ = life.apply(trigger);
            }
            let end: &[Trigger] = if fails { &UNDONE } else { &SEEN_OFF };
            for trigger in end.iter().chain(&SEEN_OFF) {
                let _ = life.apply(*trigger);
            }
            prop_assert_eq!(life, Life::Removed);
        }

        #[test]
        fn an_exit_is_reported_once_and_never_of_a_launch_that_failed(triggers in triggers()) {
            let mut life = Life::Starting;
            let (mut reported, mut told, mut failed, mut reaped) = (0, 0, 0, 0);
            for trigger in triggers {
                let done = life.apply(trigger).is_ok();
                reported += usize::from(done && trigger == Trigger::ReportMade);
                told += usize::from(done && trigger == Trigger::ExitPublished);
                failed += usize::from(done && trigger == Trigger::Failed);
                reaped += usize::from(done && trigger == Trigger::Reaped);
            }
            prop_assert!(reported <= 1 && told <= reported && failed <= 1 && reaped <= 1);
            prop_assert!(failed == 0 || reported == 0);
            prop_assert!(reported == 0 || reaped == 1);
        }

        #[test]
        fn a_refused_trigger_changes_nothing_and_the_dead_stay_dead(triggers in triggers()) {
            let mut life = Life::Starting;
            for trigger in triggers {
                let before = life;
                let outcome = life.apply(trigger);
                if outcome.is_err() {
                    prop_assert_eq!(life, before);
                }
                prop_assert!(before.is_live() || !life.is_live());
                prop_assert!(!before.is_reaped() || life.is_reaped());
                prop_assert!(!before.is_over() || life.is_over());
            }
        }

        #[test]
        fn who_was_told_to_end_is_killed_when_the_time_has_come(triggers in triggers()) {
            let mut life = Life::Starting;
            let (mut stopped, mut killed) = (false, false);
            for trigger in triggers {
                let action = life.apply(trigger);
                let ends = matches!(trigger, Trigger::Stop(..) | Trigger::Kill | Trigger::Failed);
                stopped |= ends && action.is_ok();
                killed |= action == Ok(Action::Kill);
            }
            let late = Moment::now().after(Duration::from_secs(3600));
            killed |= life.apply(Trigger::Tick(late)) == Ok(Action::Kill);
            prop_assert!(!stopped || killed || life.is_reaped(), "{life:?}");
        }
    }
}
