//! A setting of the kernel, as a file has it.

/// Reads a file of `/proc` or `/sys`, trimmed; `None` if it cannot be read.
pub fn setting(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
