//! The process: what surrounds it, and what is refused.

pub const ALL: &[(&str, fn())] = &[];
