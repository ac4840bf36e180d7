//! The last bytes that a process wrote, in memory.

use std::cell::RefCell;
use std::rc::Rc;

use circular_buffer::heap::HeapCircularBuffer;

/// How much output is kept of every task and exec, in bytes.
pub const TAIL: usize = 4096;

/// The last bytes of one or two streams.
pub type Tail = Rc<RefCell<HeapCircularBuffer<u8>>>;

/// Creates a tail that keeps the last `bytes` bytes.
pub fn new_tail(bytes: usize) -> Tail {
    Rc::new(RefCell::new(HeapCircularBuffer::with_capacity(bytes)))
}
