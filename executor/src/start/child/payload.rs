//! What every process of a task needs on its way to execve.

use std::os::fd::{BorrowedFd, RawFd};

use bowline_cgroup::Entry;
use bowline_model::reserve::StartMark;
use bowline_sys::SharedText;
use oci_spec::runtime::{Process, Spec};

use crate::output::io::Stdio;
use crate::rights::lsm::Labels;
use crate::start::init_program::InitProgram;

/// What every process of a task needs.
pub struct Payload<'a> {
    pub process: &'a Process,
    pub spec: &'a Spec,
    /// The compiled seccomp filter with its flags.
    pub filter: Option<(&'a [u8], u64)>,
    /// Where the filter's listener is sent, if it has one.
    pub notify: Option<BorrowedFd<'a>>,
    /// Where it leaves an error, if its filter denies what a report takes.
    pub last_words: Option<&'a SharedText>,
    pub stdio: &'a Stdio,
    /// The cgroups that it joins.
    pub entry: &'a Entry,
    /// Whether it stays in the shim's session keyring.
    pub keeps_keyring: bool,
    /// Its AppArmor profile and SELinux label, if it has any.
    pub labels: Option<&'a Labels<'a>>,
    /// The program that stays above the workload as its init, if there is one.
    pub init: Option<&'a InitProgram>,
    /// Where init tells that it executes the program, if another shim may ask.
    pub start_mark: Option<StartMark<'a>>,
    /// How many of the starter's descriptors, from 3 on, the program gets.
    pub preserved: u32,
    /// Variables of the program that depend on its pid: see [`Service`](crate::view::service::Service).
    pub service: &'a [String],
}

impl Payload<'_> {
    /// The starter's descriptors that the program gets.
    pub fn preserved(&self) -> impl Iterator<Item = RawFd> + use<> {
        preserved(self.preserved)
    }
}

/// The first descriptors behind the standard streams.
pub fn preserved(count: u32) -> impl Iterator<Item = RawFd> {
    3..3 + count.cast_signed()
}
