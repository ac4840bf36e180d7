//! Where a log ended before a write, and the time of the write. With both, and the same bytes, a later shim makes the
//! same text to the byte, finds how much of it is in the log, and writes the rest. Must not: read or write a log.

use jiff::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// When the bytes were read, which JSON lines say.
    pub time: Timestamp,
    pub at: At,
}

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// How many bytes of the log come before its newest file.
    pub start: u64,
    /// The size of that file.
    pub size: u64,
}

impl At {
    /// How many bytes of the log come before this place.
    pub fn position(self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

impl Mark {
    /// How many numbers it is stored as.
    pub const WORDS: usize = 7;

    pub fn words(self) -> [u32; Mark::WORDS] {
        let Mark { time, at: At { start, size } } = self;
        let [second, start, size] = [time.as_second().cast_unsigned(), start, size].map(halves);
        [second.0, second.1, time.subsec_nanosecond().cast_unsigned(), start.0, start.1, size.0, size.1]
    }

    /// `None` where they are none.
    pub fn of([second, seconds, nanosecond, start, starts, size, sizes]: [u32; Mark::WORDS]) -> Option<Mark> {
        let time = Timestamp::new(whole(second, seconds).cast_signed(), nanosecond.cast_signed()).ok()?;
        Some(Mark { time, at: At { start: whole(start, starts), size: whole(size, sizes) } })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "both halves are kept")]
fn halves(number: u64) -> (u32, u32) {
    (number as u32, (number >> 32) as u32)
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_after_it_was_stored() {
        let time = Timestamp::new(1_764_000_000, 123_456_789).expect("a time");
        let mark = Mark { time, at: At { start: 1 << 40 | 7, size: 5_000_000_000 } };
        assert_eq!(Mark::of(mark.words()), Some(mark));
        assert_eq!(Mark::of([0, u32::MAX >> 1, 0, 0, 0, 0, 0]), None, "no such time");
    }
}
