//! What a table of figures is sorted by, and the keys that change it in a live view.

use std::cmp::Ordering;

use clap::ValueEnum;

/// What a table of figures is sorted by. The largest comes first; ties go by id or pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    Cpu,
    Memory,
    /// Id, in the alphabet's order.
    Id,
}

impl By {
    /// The order that a key chooses: `c`, `m` or `i`.
    pub fn of_key(key: u8) -> Option<By> {
        match key {
            b'c' => Some(By::Cpu),
            b'm' => Some(By::Memory),
            b'i' => Some(By::Id),
            _ => None,
        }
    }

    /// Compares two rows by their CPU time and their memory; equal where the order is that of ids.
    pub fn compare(self, a: (Option<f64>, u64), b: (Option<f64>, u64)) -> Ordering {
        match self {
            By::Cpu => b.0.unwrap_or(0.0).total_cmp(&a.0.unwrap_or(0.0)),
            By::Memory => b.1.cmp(&a.1),
            By::Id => Ordering::Equal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_comes_first() {
        let (idle, busy) = ((Some(0.0), 9), (Some(50.0), 1));
        assert_eq!(
            (By::Cpu.compare(idle, busy), By::Cpu.compare(busy, (None, 0))),
            (Ordering::Greater, Ordering::Less)
        );
        assert_eq!((By::Memory.compare(idle, busy), By::Id.compare(idle, busy)), (Ordering::Less, Ordering::Equal));
        assert_eq!([b'c', b'm', b'i', b'x'].map(By::of_key), [Some(By::Cpu), Some(By::Memory), Some(By::Id), None]);
    }
}
