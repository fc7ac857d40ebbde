//! Queues by key: one running item at a time per key, with any number of keys side by side. *Pure.*
//!
//! Without them, a retried publish would be stored after its successor (`docs/design/wire.md` §8.3).

use std::collections::{HashMap, VecDeque};

/// The items that wait for an item with the same key.
#[derive(Debug)]
pub struct KeyedQueue<T> {
    /// Waiting items by key. A queue exists while its first item is running.
    queues: HashMap<String, VecDeque<T>>,
    held: usize,
}

impl<T> Default for KeyedQueue<T> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            held: 0,
        }
    }
}

impl<T> KeyedQueue<T> {
    /// Adds `item` to the queue of `key`. Returns it if it may start now.
    pub fn enqueue(&mut self, key: &str, item: T) -> Option<T> {
        self.held += 1;
        if let Some(waiting) = self.queues.get_mut(key) {
            waiting.push_back(item);
            return None;
        }
        self.queues.insert(key.to_owned(), VecDeque::new());
        Some(item)
    }

    /// Reports that the running item of `key` is done. Returns the next one.
    pub fn finish_item(&mut self, key: &str) -> Option<T> {
        let waiting = self.queues.get_mut(key)?;
        self.held -= 1;
        let next = waiting.pop_front();
        if next.is_none() {
            self.queues.remove(key);
        }
        next
    }

    /// Returns the number of running and waiting items.
    #[must_use]
    pub const fn held_count(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_in_order_and_others_do_not_wait_for_it() {
        let mut queues = KeyedQueue::default();
        assert_eq!(queues.enqueue("a", 1), Some(1));
        assert_eq!(queues.enqueue("a", 2), None);
        assert_eq!(queues.enqueue("b", 3), Some(3));
        assert_eq!(queues.enqueue("a", 4), None);
        assert_eq!(queues.held_count(), 4);
        assert_eq!(queues.finish_item("a"), Some(2));
        assert_eq!(queues.finish_item("b"), None);
        assert_eq!(queues.finish_item("a"), Some(4));
        assert_eq!(queues.finish_item("a"), None);

        assert_eq!(queues.held_count(), 0);
        assert_eq!(queues.enqueue("a", 5), Some(5));
        assert_eq!(queues.finish_item("zz"), None);
    }
}
