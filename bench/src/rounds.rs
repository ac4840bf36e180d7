//! Interleaving: in each round one measurement of each column, in an order that
//! is shuffled anew: what the machine does besides hits all alike, and nobody
//! always comes after the same one, whose caches it finds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bowline_model::{Error, Kind, Result};

use crate::interrupt;
use crate::quiet;
use crate::table::{Cells, Row};

/// What passes before each measurement. A kernel that has been quiet for a
/// while waits longer for its grace periods, and so do those who wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    None,
    /// 60 to 100 ms, by chance.
    Random,
    /// Always 100 ms.
    Fixed,
}

/// How measurements follow each other.
pub struct Rounds {
    count: usize,
    interrupted: Arc<AtomicBool>,
    chance: u64,
}

impl Rounds {
    /// `count` rounds of each group; from here on ctrl-C and its like are
    /// errors between two measurements, so that everything is cleaned up.
    pub fn new(count: usize) -> Result<Rounds> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Never 0, which the generator would not leave.
        Ok(Rounds { count, interrupted: interrupt::outlive()?, chance: now.as_secs() | 1 })
    }

    /// No more than `count` rounds.
    pub fn fewer(&self, count: usize) -> Rounds {
        Rounds { count: self.count.min(count), interrupted: self.interrupted.clone(), chance: self.chance }
    }

    /// Fails once we were interrupted.
    pub fn go_on(&self) -> Result<()> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Error::new(Kind::Internal, "interrupted")),
            false => Ok(()),
        }
    }

    /// Does something as often as there are rounds.
    pub fn each(&self, mut act: impl FnMut() -> Result<()>) -> Result<()> {
        for _ in 0..self.count {
            self.go_on()?;
            act()?;
        }
        Ok(())
    }

    /// Measures `rows`: `measure` gets a column and returns a sample for each
    /// row, if that column has one. `prepare` comes before each round. The
    /// first round warms everybody up and does not count.
    pub fn measure<T: ?Sized, const N: usize>(
        &mut self,
        rows: [&str; N],
        gap: Gap,
        on: &mut T,
        prepare: impl Fn(&mut T) -> Result<()>,
        measure: impl Fn(&mut T, usize) -> Result<[Option<Duration>; N]>,
    ) -> Result<[Row; N]> {
        let mut rows = rows.map(Row::new);
        let ((), busy) = quiet::watched(|| {
            for round in 0..=self.count {
                prepare(on)?;
                for column in self.shuffled() {
                    self.go_on()?;
                    self.pause(gap);
                    let samples = measure(on, column)?;
                    for (row, sample) in rows.iter_mut().zip(samples).filter(|_| round > 0) {
                        row.samples[column].extend(sample);
                    }
                }
            }
            Ok(())
        })?;
        rows.iter_mut().for_each(|row| row.busy = busy);
        Ok(rows)
    }

    /// The columns in any order (Fisher and Yates).
    fn shuffled(&mut self) -> Cells<usize> {
        let mut columns = std::array::from_fn(|column| column);
        for last in (1..columns.len()).rev() {
            columns.swap(last, self.random() as usize % (last + 1));
        }
        columns
    }

    /// Lets as much time pass.
    pub fn pause(&mut self, gap: Gap) {
        match gap {
            Gap::None => {}
            Gap::Random => std::thread::sleep(Duration::from_millis(60 + self.random() % 41)),
            Gap::Fixed => std::thread::sleep(Duration::from_millis(100)),
        }
    }

    /// xorshift64 (Marsaglia 2003): no more than gaps need.
    fn random(&mut self) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance >> 32
    }
}
