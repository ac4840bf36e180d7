//! Clients that wait for a place, in the order in which they came.
//!
//! A client is passed over while its user has all places that one user may have. A user's clients never fill the queue:
//! what is left is for others.

use std::collections::{BTreeSet, VecDeque};

/// A user has at most three quarters of the queue.
const SHARE: (usize, usize) = (3, 4);

pub struct Queue<T> {
    room: usize,
    /// Each with its user, if known.
    waiting: VecDeque<(Option<u32>, T)>,
}

impl<T> Queue<T> {
    /// A queue for `room` clients; at least one.
    pub fn new(room: usize) -> Queue<T> {
        Queue { room: room.max(1), waiting: VecDeque::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.waiting.len() >= self.room
    }

    /// Adds a client.
    ///
    /// # Errors
    /// Returns the client if its user has its share of the queue.
    pub fn push(&mut self, uid: Option<u32>, client: T) -> Result<(), T> {
        let of_user = self.waiting.iter().filter(|(other, _)| uid.is_some() && *other == uid).count();
        if of_user >= (self.room * SHARE.0).div_ceil(SHARE.1) {
            return Err(client);
        }
        self.waiting.push_back((uid, client));
        Ok(())
    }

    /// Takes out the first client for whose user `admit` has a place.
    pub fn next<S>(&mut self, admit: impl Fn(Option<u32>) -> Option<S>) -> Option<(T, S)> {
        let mut refused = BTreeSet::new();
        for at in 0..self.waiting.len() {
            let uid = self.waiting[at].0;
            if refused.contains(&uid) {
                continue;
            }
            if let Some(seat) = admit(uid) {
                return self.waiting.remove(at).map(|(_, client)| (client, seat));
            }
            refused.insert(uid);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_first_is_first_unless_its_user_has_no_place() {
        let mut queue = Queue::new(8);
        for (number, uid) in [Some(7), Some(7), None, Some(0)].into_iter().enumerate() {
            assert!(queue.push(uid, number).is_ok());
        }
        let other = |uid: Option<u32>| (uid != Some(7)).then_some(());
        assert_eq!(queue.next(other), Some((2, ())));
        assert_eq!(queue.next(|_| Some(())), Some((0, ())));
        assert_eq!(queue.next(other), Some((3, ())));
        assert_eq!((queue.next(other), queue.is_empty()), (None, false));
    }

    #[test]
    fn a_user_leaves_room_for_others() {
        let mut queue = Queue::new(4);
        assert!((0..3).all(|number| queue.push(Some(7), number).is_ok()));
        assert_eq!((queue.push(Some(7), 3), queue.is_full()), (Err(3), false));
        assert_eq!((queue.push(None, 4), queue.is_full()), (Ok(()), true));
        let mut least = Queue::new(0);
        assert_eq!((least.push(Some(7), 0), least.is_full()), (Ok(()), true));
    }
}
