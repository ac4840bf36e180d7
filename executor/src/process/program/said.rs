//! The output of a program. Its beginning and its end are kept, which tell the reason of a failure.

use std::os::fd::AsFd;

/// How much is kept.
pub const OUTPUT: usize = 4096;
const HALF: usize = OUTPUT / 2;

/// What a program has written so far, as far as that is kept.
#[derive(Debug, Default)]
pub struct Said {
    beginning: Vec<u8>,
    end: Vec<u8>,
    is_cut: bool,
}

impl Said {
    /// Adds `bytes`.
    pub fn push(&mut self, bytes: &[u8]) {
        let (beginning, end) = bytes.split_at(bytes.len().min(HALF - self.beginning.len()));
        self.beginning.extend(beginning);
        self.end.extend(end);
        let over = self.end.len().saturating_sub(HALF);
        self.is_cut |= over > 0;
        self.end.drain(..over);
    }

    /// Reads some bytes; returns whether there were any.
    pub fn read_some(&mut self, pipe: impl AsFd + Copy) -> bool {
        let mut chunk = [0u8; 4096];
        let length = rustix::io::read(pipe, &mut chunk[..]).unwrap_or(0);
        self.push(&chunk[..length]);
        length > 0
    }

    /// Reads what is in the pipe of a program that has ended. What that has left running may write on without end.
    pub fn read_rest(&mut self, pipe: impl AsFd + Copy) {
        let mut left = rustix::io::ioctl_fionread(pipe).unwrap_or(0);
        while left > 0 && self.read_some(pipe) {
            left = left.saturating_sub(4096);
        }
    }

    /// All of it, or its beginning and its end.
    pub fn into_text(self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match self.is_cut {
            true => text(&self.beginning) + " … " + &text(&self.end),
            false => text(&[self.beginning, self.end].concat()),
        }
    }
}
