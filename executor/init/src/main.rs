//! The first process of a task, or the one above its workload: it forwards signals, reaps, and outlives the shim.
//!
//! ```text
//!   shim's child ─fork─► workload
//!        └ execve ─► init: signals ─► workload;  its end ─► status file ─► exit, once its output is read
//! ```
//!
//! Init keeps a reading end of each output pipe, so that the workload can write on while no shim reads, and nothing
//! that it wrote is lost. The workload's end goes to a file of the shim's, mapped into memory. While output is unread,
//! init stays until the shim has read it and kills the task's cgroup. The program has no C library, no heap and a
//! few pages of memory. Must not: be dumpable, execute anything, or have more rights than the workload.

// Clippy looks at it as at a program that unwinds, which only a program with the standard library can.
#![cfg_attr(panic = "abort", no_std)]
#![no_main]

mod kernel;
mod memory;

use core::ffi::{CStr, c_char};

use bowline_init::{REQUEST, ended, requested};

/// The most pipes that are kept: a process has two.
const MOST_KEPT: usize = 4;

const STANDARD_STREAMS: [i32; 3] = [0, 1, 2];

/// Exit code for arguments that make no sense.
const USAGE: i32 = 2;

struct Init {
    workload: i32,
    status: kernel::ExitStatus,
    notify: i32,
    kept: [Option<i32>; MOST_KEPT],
    /// Whether the workload was reaped: its pid may then be another process's.
    reaped: bool,
}

/// Runs init. `arguments` are the program's, which end with a null pointer.
fn run(arguments: &[*const c_char]) -> ! {
    // First of all: until now another process of the same user might look into this one.
    kernel::hide();
    kernel::name(c"bowline-init");
    kernel::block_signals();
    kernel::be_subreaper();
    let Some(mut init) = parse(arguments) else { kernel::exit(USAGE) };
    // The workload's own: its readers see the end when the workload closes them. The first is for the workload, which
    // waits until nobody can look into this process.
    STANDARD_STREAMS.into_iter().for_each(kernel::close);
    loop {
        init.reap();
        let signal = kernel::wait_for_signal();
        match requested(signal.value).filter(|_| signal.number == REQUEST) {
            Some(index) => init.close_kept(index),
            None if signal.number == kernel::SIGCHLD => {}
            None if !init.reaped => kernel::kill(init.workload, signal.number),
            None => {}
        }
    }
}

fn parse(arguments: &[*const c_char]) -> Option<Init> {
    let mut numbers = arguments.iter().skip(1).map_while(|argument| number(kernel::text(*argument)));
    let (workload, status, notify) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let mut kept = [None; MOST_KEPT];
    for (place, fd) in kept.iter_mut().zip(numbers) {
        *place = Some(fd);
    }
    let status = kernel::ExitStatus::map(status)?;
    Some(Init { workload, status, notify, kept, reaped: false })
}

/// A number in decimal digits; `None` for anything else, as for `--`.
fn number(text: &CStr) -> Option<i32> {
    let digits = text.to_bytes();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0i32, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(i32::from(digit))
    })
}

impl Init {
    /// Reaps all children that have ended, the workload and what others have left.
    fn reap(&mut self) {
        while let Some((pid, status)) = kernel::reap() {
            if pid == self.workload && !self.reaped {
                self.reaped = true;
                self.see_off(status);
            }
        }
    }

    /// Passes on how the workload has ended, and ends as it did once its output is read.
    fn see_off(&mut self, status: i32) {
        self.status.store(ended(status));
        if self.kept.iter().flatten().next().is_some() {
            // Nobody writes any more from here on: without this, the rest of the namespace would until its init ends.
            kernel::kill_namespace();
        }
        if self.kept.iter().flatten().all(|fd| kernel::unread(*fd) == 0) {
            kernel::exit(code(status));
        }
        kernel::write(self.notify, b"k");
    }

    fn close_kept(&mut self, index: usize) {
        if let Some(fd) = self.kept.get_mut(index).and_then(Option::take) {
            kernel::close(fd);
        }
    }
}

/// The exit code for a status of wait(2), as shells make it.
fn code(status: i32) -> i32 {
    match status & 0x7f {
        0 => (status >> 8) & 0xff,
        signal => 128 + signal,
    }
}
