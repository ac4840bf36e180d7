//! A storm: one race, run again and again, on a quiet machine and beside busy loops.

use std::process::{Child, Command, Stdio};

/// Runs `round` `share` times, with the number of the round.
///
/// With `BOWLINE_STORM=200`, as in `make faults`, it runs that often, and then as often again beside busy loops on every
/// processor.
pub fn storm(share: usize, mut round: impl FnMut(usize)) {
    let Ok(asked) = std::env::var("BOWLINE_STORM") else {
        (0..share).for_each(round);
        return;
    };
    let rounds: usize = asked.parse().expect("BOWLINE_STORM: a number");
    (0..rounds).for_each(&mut round);
    let _busy = BusyLoops::start();
    (rounds..2 * rounds).for_each(round);
}

/// One busy loop for each processor, for as long as it lives.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start() -> BusyLoops {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let start = |_| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("a shell")
        };
        BusyLoops((0..processors).map(start).collect())
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
