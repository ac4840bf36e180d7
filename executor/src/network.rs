//! Network namespaces: what a new one needs before it is of use.

use crate::error::{Doing, Kind, Result};
use crate::sys;

/// Readies a new network namespace, from inside: loopback up, nothing else.
pub fn prepare_new() -> Result<()> {
    sys::loopback_up().doing(Kind::Internal, || "cannot bring the loopback interface up")
}
