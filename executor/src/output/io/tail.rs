//! The last bytes that a process wrote, in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// How much output is kept of each stream of a task or exec, in bytes.
pub const TAIL: usize = 4096;

/// The last bytes of one or two streams.
pub type Tail = Rc<RefCell<LastBytes>>;

/// Creates a tail that keeps the last `bytes` bytes.
pub fn new_tail(bytes: usize) -> Tail {
    Rc::new(RefCell::new(LastBytes { most: bytes, kept: VecDeque::new() }))
}

/// Keeps the last bytes of all that it was given. Takes memory only once it was given some.
#[derive(Debug)]
pub struct LastBytes {
    most: usize,
    kept: VecDeque<u8>,
}

impl LastBytes {
    /// How many bytes are kept at most.
    pub fn capacity(&self) -> usize {
        self.most
    }

    /// Adds bytes, and drops the oldest of what is then too much.
    pub fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.most)..];
        let over = (self.kept.len() + bytes.len()).saturating_sub(self.most);
        self.kept.drain(..over);
        self.kept.extend(bytes);
    }

    /// The kept bytes, the oldest first.
    pub fn to_vec(&self) -> Vec<u8> {
        self.kept.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_and_no_more() {
        let tail = new_tail(4);
        for (pushed, kept) in [("ab", "ab"), ("", "ab"), ("cde", "bcde"), ("0123456", "3456"), ("x", "456x")] {
            tail.borrow_mut().push(pushed.as_bytes());
            assert_eq!(tail.borrow().to_vec(), kept.as_bytes());
        }
        let none = new_tail(0);
        none.borrow_mut().push(b"abc");
        assert_eq!(none.borrow().to_vec(), b"");
    }
}
