//! regex-lite in the place of regex, in this workspace alone.
//!
//! oci-spec and libcontainer match two short ASCII patterns by regular
//! expressions, `execCPUAffinity` among them. The engine of regex brings tables
//! of pointers for all of Unicode, which the loader relocates, so that every
//! shim would have a copy of its own in memory of what no task ever asks for.
//!
//! Must not: be used by our own code, which matches no text to decide.

pub use regex_lite::*;
