//! What is kept of the task's output: in which form, and how much of it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::text::text_value;
use crate::values::ByteSize;

/// How large a file becomes before the next is begun, where nothing is said.
const DEFAULT_SIZE: ByteSize = ByteSize::mib(10);
/// How many files are kept, where nothing is said.
const DEFAULT_FILES: u32 = 5;

/// In which form output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of JSON for each line, with its stream and time.
    Json,
    /// The bytes as they were written, one file for each stream.
    Raw,
    /// As entries of the host's journal, in no file of ours.
    Journald,
    /// No log of the output is kept.
    None,
}

impl FromStr for LogFormat {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<LogFormat, Invalid> {
        match text {
            "json" => Ok(LogFormat::Json),
            "raw" => Ok(LogFormat::Raw),
            "journald" => Ok(LogFormat::Journald),
            "none" => Ok(LogFormat::None),
            _ => Err(Invalid::value(format!("{text:?} is none of \"json\", \"raw\", \"journald\" and \"none\""))),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Json => "json",
            LogFormat::Raw => "raw",
            LogFormat::Journald => "journald",
            LogFormat::None => "none",
        })
    }
}

text_value!(
    LogFormat,
    "LogFormat",
    string,
    "\"json\", \"raw\", \"journald\" or \"none\"",
    "json",
    "raw",
    "journald",
    "none"
);

/// How output is kept. A stream with a file in `output` goes there instead.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `json`: lines with stream and time; `raw`: the bytes as written; `journald`: entries of the host's journal;
    /// `none`. By default `json` for a task in the background or if another field of this table is set, else `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
    /// How large a file becomes before the next begins, at least 4K; 10M by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<ByteSize>,
    /// How many files are kept, including the current one: 1 to 1000; 5 by default. With `raw`, per stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_files: Option<u32>,
    /// The folder of the files, which are named by the task's id; by default the task's own, removed with the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

impl Log {
    /// The form, with its default where nobody has chosen one.
    pub fn format(&self) -> LogFormat {
        let asked_for = *self != Log::default();
        self.format.unwrap_or(if asked_for { LogFormat::Json } else { LogFormat::None })
    }

    /// How large a file becomes, in bytes, with its default.
    pub fn max_size(&self) -> u64 {
        self.max_size.unwrap_or(DEFAULT_SIZE).as_u64()
    }

    /// How many files are kept, with its default.
    pub fn max_files(&self) -> u32 {
        self.max_files.unwrap_or(DEFAULT_FILES)
    }
}
