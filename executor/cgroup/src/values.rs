//! What limits are made of: amounts, times, sets, devices, and their formats.

use bowline_spec::values::IdSet;

/// The kernel's CPU period, in µs.
pub const PERIOD: u64 = 100_000;

/// How much of something; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount(pub Option<u64>);

/// CPU time in µs in each period. For an absent value, v1 leaves the file alone; v2 gets no quota,
/// or a period of 100 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuQuota {
    /// CPU time in µs in each period; negative is no limit.
    pub quota: Option<i64>,
    /// The period in µs.
    pub period: Option<u64>,
}

/// A set of CPUs or nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// The text of the set as it was given.
    pub text: String,
    /// The parsed set; `None` where only the kernel can parse it.
    pub ids: Option<IdSet>,
}

/// A block device: major and minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device(pub i64, pub i64);

/// A weight on one of two scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoWeight {
    /// v1's: 10 to 1000.
    Blkio(u16),
    /// v2's: 1 to 10000.
    Io(u64),
}

/// What is counted for a device, each in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    BytesRead,
    BytesWritten,
    Reads,
    Writes,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.0, self.1)
    }
}

/// The format of v2's files.
impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(most) => most.fmt(f),
            None => f.write_str("max"),
        }
    }
}

impl From<&str> for Ids {
    fn from(text: &str) -> Ids {
        Ids { text: text.to_owned(), ids: text.parse().ok() }
    }
}

impl Amount {
    /// Converts OCI's figure: negative is no limit.
    pub fn oci(figure: i64) -> Amount {
        Amount(u64::try_from(figure).ok())
    }
}

impl Device {
    /// Parses `8:0`.
    pub fn parse(text: &str) -> Option<Device> {
        let (major, minor) = text.split_once(':')?;
        Some(Device(major.parse().ok()?, minor.parse().ok()?))
    }
}

impl Rate {
    const ALL: [Rate; 4] = [Rate::BytesRead, Rate::BytesWritten, Rate::Reads, Rate::Writes];

    /// The word for it in v2's `io.max`.
    pub fn key(self) -> &'static str {
        match self {
            Rate::BytesRead => "rbps",
            Rate::BytesWritten => "wbps",
            Rate::Reads => "riops",
            Rate::Writes => "wiops",
        }
    }

    /// What `key` is the word for.
    pub fn of_key(key: &str) -> Option<Rate> {
        Rate::ALL.into_iter().find(|rate| rate.key() == key)
    }
}
