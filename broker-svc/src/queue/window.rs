//! The newest part of `DISPATCHES`, by session, which a look reads without asking the server. *Pure.*
//!
//! The server finds "the next message of this subject" by walking over all other subjects' messages, so a look must
//! not ask it in the ordinary case. The window holds every message from [`DispatchWindow::first`] through
//! [`DispatchWindow::through`], without gaps; it forgets the oldest first, and forgotten messages are read from the server.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use shared::bus::StoredMessage;

/// Maximum number of messages in the window.
pub const MAX_MESSAGES: usize = 32_768;
/// Maximum memory of the messages, bytes.
pub const MAX_BYTES: usize = 32 * 1_024 * 1_024;
/// Memory of a message besides its texts, bytes: its places in both orders, the allocations, a subject's entry.
const OVERHEAD: usize = 320;
/// Memory of a header besides its text, bytes.
const HEADER_OVERHEAD: usize = 64;

/// The newest messages of a stream.
#[derive(Debug)]
pub struct DispatchWindow {
    first: u64,
    through: u64,
    order: VecDeque<Arc<StoredMessage>>,
    by_subject: HashMap<String, VecDeque<Arc<StoredMessage>>>,
    bytes: usize,
}

impl Default for DispatchWindow {
    /// Returns a window without messages or sequences.
    fn default() -> Self {
        Self {
            first: u64::MAX,
            through: 0,
            order: VecDeque::new(),
            by_subject: HashMap::new(),
            bytes: 0,
        }
    }
}

impl DispatchWindow {
    /// Empties the window: every message from `first` on will be fed.
    pub fn begin_from(&mut self, first: u64) {
        *self = Self {
            first,
            through: first.saturating_sub(1),
            ..Self::default()
        };
    }

    /// Returns the first sequence that the window knows about.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Returns the last sequence that the window knows about.
    #[must_use]
    pub const fn through(&self) -> u64 {
        self.through
    }

    /// Adds the next message of the stream.
    pub fn feed_message(&mut self, stored: StoredMessage) {
        if stored.sequence <= self.through {
            return;
        }

        self.through = stored.sequence;
        self.bytes += stored_bytes(&stored);

        // The payload is a slice of the connection's read buffer, all of which it would keep in memory.
        let payload = Bytes::copy_from_slice(&stored.payload);
        let stored = Arc::new(StoredMessage { payload, ..stored });
        self.by_subject
            .entry(stored.subject.clone())
            .or_default()
            .push_back(Arc::clone(&stored));

        self.order.push_back(stored);

        while self.order.len() > MAX_MESSAGES || self.bytes > MAX_BYTES {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        self.first = oldest.sequence + 1;
        self.bytes -= stored_bytes(&oldest);
        if let Some(own) = self.by_subject.get_mut(&oldest.subject) {
            own.pop_front();
            if own.is_empty() {
                self.by_subject.remove(&oldest.subject);
            }
        }
    }

    /// Returns up to `limit` messages on `subject` at or after `from`; `None` if the window does not reach back that
    /// far.
    #[must_use]
    pub fn on_subject(&self, subject: &str, from: u64, limit: usize) -> Option<Vec<Arc<StoredMessage>>> {
        if from < self.first {
            return None;
        }
        let Some(own) = self.by_subject.get(subject) else {
            return Some(Vec::new());
        };
        let start = own.partition_point(|stored| stored.sequence < from);
        Some(own.range(start..).take(limit).cloned().collect())
    }

    /// Returns up to `limit` messages at or after `from`; `None` if the window does not reach back that far.
    #[must_use]
    pub fn from(&self, from: u64, limit: usize) -> Option<Vec<Arc<StoredMessage>>> {
        if from < self.first {
            return None;
        }
        let start = self.order.partition_point(|stored| stored.sequence < from);
        Some(self.order.range(start..).take(limit).cloned().collect())
    }
}

/// Returns the approximate memory of a message of the window, bytes.
fn stored_bytes(stored: &StoredMessage) -> usize {
    let headers = stored.headers.iter();
    let headers: usize = headers.map(|(_, value)| value.len() + HEADER_OVERHEAD).sum();
    stored.payload.len() + 2 * stored.subject.len() + headers + OVERHEAD
}

#[cfg(test)]
mod tests {
    use shared::model::time::UnixMillis;
    use shared::wire::headers::Headers;

    use super::*;

    fn stored(sequence: u64, subject: &str, size: usize) -> StoredMessage {
        StoredMessage {
            subject: subject.to_owned(),
            headers: Headers::new(),
            payload: vec![0; size].into(),
            sequence,
            published_at: UnixMillis(0),
            stored_at_ns: 0,
        }
    }

    fn sequences(found: Option<Vec<Arc<StoredMessage>>>) -> Option<Vec<u64>> {
        found.map(|found| found.iter().map(|stored| stored.sequence).collect())
    }

    #[test]
    fn it_knows_what_it_was_fed_and_what_it_cannot_know() {
        let mut window = DispatchWindow::default();
        assert_eq!(window.on_subject("a", 1, 9), None);

        window.begin_from(10);

        for (sequence, subject) in [(10, "a"), (12, "b"), (13, "a"), (13, "a"), (15, "a")] {
            window.feed_message(stored(sequence, subject, 1));
        }

        assert_eq!(sequences(window.on_subject("a", 9, 9)), None);
        assert_eq!(sequences(window.on_subject("a", 11, 9)), Some(vec![13, 15]));
        assert_eq!(sequences(window.on_subject("c", 11, 9)), Some(vec![]));
        assert_eq!(sequences(window.from(11, 2)), Some(vec![12, 13]));
        assert_eq!((window.first(), window.through()), (10, 15));
    }

    #[test]
    fn it_forgets_the_oldest_first_by_size_and_number() {
        let mut window = DispatchWindow::default();
        window.begin_from(1);
        window.feed_message(stored(1, "a", MAX_BYTES));
        window.feed_message(stored(2, "b", 1));

        assert_eq!(
            (window.first(), sequences(window.on_subject("a", 2, 9))),
            (2, Some(vec![]))
        );

        for sequence in 3..=MAX_MESSAGES as u64 + 3 {
            window.feed_message(stored(sequence, "b", 1));
        }

        assert_eq!(
            (window.first(), window.order.len(), window.by_subject.len()),
            (4, MAX_MESSAGES, 1)
        );

        while window.order.len() > 1 {
            window.forget_oldest();
        }

        assert_eq!(window.bytes, stored_bytes(&stored(0, "b", 1)));
    }
}
