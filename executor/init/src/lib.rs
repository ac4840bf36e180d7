//! What the shim and a task's `bowline-init` agree on: the arguments, the status page and the one request.
//!
//! ```text
//! bowline-init PID STATUS NOTIFY KEPT… -- COMMAND…
//! ```
//!
//! `PID` is the workload, a child of init by now. The others are numbers of descriptors: a file of [`PAGE`] bytes that
//! takes the workload's end, the writing end of a pipe that says that init keeps output, and the reading ends of the
//! workload's output pipes. The command is for lists of processes alone.

#![no_std]

/// The size of the status file, in bytes: one number in the machine's own order.
pub const PAGE: usize = 8;

/// Set in the number once the workload has ended; the lower 32 bits are then its status, as of wait(2).
const ENDED: u64 = 1 << 32;

/// The number that says that the workload has ended with `status`.
pub const fn ended(status: i32) -> u64 {
    ENDED | status.cast_unsigned() as u64
}

/// The workload's status, as of wait(2), if the number says that it has ended.
pub const fn status(number: u64) -> Option<i32> {
    if number & ENDED == 0 { None } else { Some((number as u32).cast_signed()) }
}

/// The signal that carries a request to init, with [`request`] as its value (sigqueue(3)). It is forwarded like any
/// other where it carries nothing.
pub const REQUEST: i32 = 64;

/// The value of a request in the upper bits, so that a signal of somebody else's is not taken for one.
const CLOSE: u64 = 0x626f_776c << 32;

/// The request to close the `index`th of the kept ends, which nobody will read any more.
pub const fn request(index: u32) -> u64 {
    CLOSE | index as u64
}

/// The kept end that the value of a signal asks to close.
pub const fn requested(value: u64) -> Option<usize> {
    if value & !(u32::MAX as u64) == CLOSE { Some((value & u32::MAX as u64) as usize) } else { None }
}
