//! What is kept of the output.

use super::rules::{absolute, require};
use crate::invalid::Invalid;
use crate::task::{LogFormat, Task};
use crate::values::ByteSize;

/// Room for any line in its longest form: see `log` of the executor, whose
/// pieces of lines are an eighth of it.
const SMALLEST: ByteSize = ByteSize::bytes(4096);
/// Whoever reads a log opens all of its files, of which it may have 1024.
const MOST_FILES: u32 = 1000;

pub(super) fn check(task: &Task) -> Result<(), Invalid> {
    let log = &task.log;
    let of_files =
        [("max_size", log.max_size.is_some()), ("max_files", log.max_files.is_some()), ("path", log.path.is_some())];
    for (name, given) in of_files {
        let field = format!("log.{name}");
        require(!given || log.format() != LogFormat::Journald, &field, || {
            "is of files, and log.format \"journald\" has none; journald.conf limits the journal".into()
        })?;
        require(!given || log.format != Some(LogFormat::None), &field, || {
            "is of files, and log.format \"none\" keeps none; leave one of the two out".into()
        })?;
    }
    if let Some(size) = log.max_size {
        require(size >= SMALLEST, "log.max_size", || format!("{size} is too small; write at least {SMALLEST}"))?;
    }
    if let Some(files) = log.max_files {
        require((1..=MOST_FILES).contains(&files), "log.max_files", || {
            format!("{files} is not a number from 1 to {MOST_FILES}")
        })?;
    }
    log.path.as_ref().map_or(Ok(()), |path| absolute("log.path", path))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{accepted, refused};

    #[test]
    fn a_log_has_room_for_a_line() {
        accepted("log.max_size = '4K'");
        accepted("log = { format = 'raw', max_size = '1G', max_files = 1, path = '/var/log/tasks' }");
        refused("log.max_size = '4095'", "log.max_size", "at least 4K");
        refused("log.max_files = 0", "log.max_files", "from 1 to 1000");
        refused("log.max_files = 1001", "log.max_files", "from 1 to 1000");
    }

    #[test]
    fn what_is_no_log_is_refused() {
        refused("log.path = 'logs'", "log.path", "not an absolute path");
        refused("log.format = 'text'", "log.format", "\"json\"");
        accepted("log.format = 'journald'");
        for of_files in ["max_size = '1G'", "max_files = 2", "path = '/l'"] {
            let field = format!("log.{}", of_files.split(' ').next().unwrap_or_default());
            refused(&format!("log.format = 'journald'\nlog.{of_files}"), &field, "journald");
            refused(&format!("log.format = 'none'\nlog.{of_files}"), &field, "none");
            accepted(&format!("log.{of_files}"));
        }
    }
}
