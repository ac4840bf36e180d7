//! From events of the kernel to what each step took: system calls, page
//! faults, processor time, waiting.
//!
//! ```text
//!   begin ─► the process that is asked ─► its child ─► that one's child ─► end
//!            step, step, …                step, …      step, …
//! ```
//!
//! A process goes on to its next step by the first call that begins one, and
//! never back. Pure: takes events, returns figures.

use std::collections::HashMap;

/// What happened, when, and in which process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Microseconds of the monotonic clock.
    pub at: u64,
    /// The process that the event happened in.
    pub pid: i32,
    pub what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A system call, by its number, begins.
    Entered(i64),
    /// A system call returns this.
    Returned(i64, i64),
    /// A page that the process has no access to yet is touched: by itself, or by the kernel on its behalf.
    Faulted,
    /// A processor starts to run the process.
    Runs,
    /// A processor stops running the process.
    Rests,
    /// It has made this process.
    Forked(i32),
    Exited,
    /// A round begins: the request is about to be sent.
    Begin,
    /// A round ends: what was asked for is done.
    End,
}

/// What a step begins with.
#[derive(Debug, Clone, Copy)]
pub enum Begins {
    /// The request, for a process of the first generation; else the process itself.
    First,
    /// The request, for a process that was there before.
    There,
    /// The first of these calls.
    By(&'static [i64]),
    /// The return of the first of these that has made a process.
    After(&'static [i64]),
}

/// A part of what a process does.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// How many forks from the process that is asked.
    pub generation: usize,
    /// What it says in the table.
    pub name: &'static str,
    pub begins: Begins,
}

/// What a step took; times are in microseconds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// How many system calls began in the step.
    pub calls: u64,
    /// How many page faults there were.
    pub faults: u64,
    /// How long its processes ran on a processor.
    pub processor: u64,
    /// Asleep, or in line for a processor.
    pub waiting: u64,
}

/// What one request took, in all and by step.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Round {
    /// One entry for each step, in the order given to [`rounds`].
    pub steps: Vec<Spent>,
    /// From the request until whoever measures was content.
    pub elapsed: u64,
}

/// A process that is followed.
struct Process {
    generation: usize,
    /// The step that it is in, of all.
    step: Option<usize>,
    since: u64,
    /// Whether a processor has it.
    runs: bool,
    /// Whether it has exited: what its last moments take still counts, and no waiting.
    over: bool,
}

impl Process {
    fn new(generation: usize, since: u64) -> Process {
        Process { generation, step: None, since, runs: false, over: false }
    }
}

/// All rounds between a `Begin` and an `End`. `asked` are the processes of the
/// first generation that are there already.
pub fn rounds(events: &[Event], asked: &[(i32, usize)], steps: &[Step]) -> Vec<Round> {
    let first = steps.first().map_or(0, |step| step.generation);
    let mut all: HashMap<i32, Process> = HashMap::new();
    let (mut done, mut round, mut begun) = (Vec::new(), None, 0);
    for event in events {
        let generation = asked.iter().find_map(|(pid, generation)| (*pid == event.pid).then_some(*generation));
        if let Some(generation) = generation {
            // It has slept until now.
            all.entry(event.pid).or_insert_with(|| Process::asked(generation, begun, steps));
        }
        match event.what {
            What::Begin => {
                begun = event.at;
                round = Some(Round { steps: vec![Spent::default(); steps.len()], elapsed: 0 });
                for process in all.values_mut() {
                    let is_asked = process.generation == first;
                    process.begin(event.at, steps, |b| {
                        matches!((b, is_asked), (Begins::First, true) | (Begins::There, false))
                    });
                }
            }
            What::End => {
                let Some(mut round) = round.take() else { continue };
                for process in all.values_mut() {
                    process.spend(event.at, &mut round);
                    process.step = None;
                }
                round.elapsed = event.at - begun;
                done.push(round);
            }
            What::Forked(child) => {
                let Some(generation) = all.get(&event.pid).map(|parent| parent.generation + 1) else { continue };
                let mut process = Process::new(generation, event.at);
                // Else it is there for the next request.
                if round.is_some() && generation > first {
                    process.begin(event.at, steps, |b| matches!(b, Begins::First));
                }
                all.insert(child, process);
            }
            what => {
                let Some(process) = all.get_mut(&event.pid) else { continue };
                process.go_on(event.at, what, steps, round.as_mut());
            }
        }
    }
    done
}

impl Process {
    /// One that is asked at `at`.
    fn asked(generation: usize, at: u64, steps: &[Step]) -> Process {
        let mut process = Process::new(generation, at);
        process.begin(at, steps, |b| matches!(b, Begins::First));
        process
    }

    /// Puts it at the beginning of the step that begins like this.
    fn begin(&mut self, at: u64, steps: &[Step], how: impl Fn(Begins) -> bool) {
        self.since = at;
        let is_it = |step: &Step| !self.over && step.generation == self.generation && how(step.begins);
        self.step = steps.iter().position(is_it);
    }

    fn go_on(&mut self, at: u64, what: What, steps: &[Step], round: Option<&mut Round>) {
        if let Some(round) = round {
            let begins = |step: &Step| match (step.begins, what) {
                (Begins::By(calls), What::Entered(call)) => calls.contains(&call),
                (Begins::After(calls), What::Returned(call, value)) => value > 0 && calls.contains(&call),
                _ => false,
            };
            if let Some(now) = self.step {
                let later = steps.iter().enumerate().skip(now + 1);
                let next = later.filter(|(_, step)| step.generation == self.generation).find(|(_, step)| begins(step));
                if let Some((next, _)) = next {
                    self.spend(at, round);
                    self.step = Some(next);
                }
            }
            match (what, self.step) {
                (What::Entered(_), Some(step)) => round.steps[step].calls += 1,
                (What::Faulted, Some(step)) => round.steps[step].faults += 1,
                _ => {}
            }
            if let What::Runs | What::Rests = what {
                self.spend(at, round);
            }
        }
        match what {
            What::Runs => self.runs = true,
            What::Rests => {
                self.runs = false;
                if self.over {
                    self.step = None;
                }
            }
            What::Exited => self.over = true,
            _ => {}
        }
    }

    /// Charges the time until `at`.
    fn spend(&mut self, at: u64, round: &mut Round) {
        if let Some(step) = self.step {
            let time = at.saturating_sub(self.since);
            match self.runs {
                true => round.steps[step].processor += time,
                false => round.steps[step].waiting += time,
            }
        }
        self.since = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 4] = [
        Step { generation: 0, name: "reads", begins: Begins::First },
        Step { generation: 0, name: "waits", begins: Begins::After(&[56]) },
        Step { generation: 1, name: "begins", begins: Begins::First },
        Step { generation: 1, name: "executes", begins: Begins::By(&[59]) },
    ];

    fn event(at: u64, pid: i32, what: What) -> Event {
        Event { at, pid, what }
    }

    #[test]
    fn each_step_has_its_calls_its_faults_its_processor_time_and_its_waiting() {
        let events = [
            event(0, 1, What::Begin),
            event(5, 7, What::Runs),
            event(6, 7, What::Entered(0)),
            event(7, 7, What::Returned(0, 10)),
            event(8, 7, What::Entered(56)),
            event(9, 7, What::Forked(8)),
            event(10, 7, What::Returned(56, 8)),
            event(12, 7, What::Rests),
            event(12, 8, What::Runs),
            event(13, 8, What::Faulted),
            event(14, 8, What::Faulted),
            event(15, 8, What::Entered(59)),
            event(16, 8, What::Returned(59, 0)),
            event(20, 8, What::Exited),
            event(21, 8, What::Rests),
            event(30, 7, What::Runs),
            event(40, 1, What::End),
        ];
        let rounds = rounds(&events, &[(7, 0)], &STEPS);
        let spent = |calls, faults, processor, waiting| Spent { calls, faults, processor, waiting };
        assert_eq!(rounds.len(), 1);
        assert_eq!(rounds[0].elapsed, 40);
        let expected = [spent(2, 0, 5, 5), spent(0, 0, 12, 18), spent(0, 2, 3, 3), spent(1, 0, 6, 0)];
        assert_eq!(rounds[0].steps, expected);
    }

    #[test]
    fn a_call_that_fails_makes_no_process_and_what_is_between_rounds_does_not_count() {
        let events = [
            event(0, 7, What::Entered(0)),
            event(1, 1, What::Begin),
            event(2, 7, What::Entered(56)),
            event(3, 7, What::Returned(56, -9)),
            event(9, 1, What::End),
            event(10, 7, What::Entered(0)),
            event(11, 9, What::Entered(0)),
        ];
        let rounds = rounds(&events, &[(7, 0)], &STEPS);
        assert_eq!(rounds.len(), 1);
        assert_eq!(rounds[0].steps[0], Spent { calls: 1, waiting: 8, ..Spent::default() });
        assert_eq!(rounds[0].steps[1], Spent::default());
    }
}
