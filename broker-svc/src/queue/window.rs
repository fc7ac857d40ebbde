//! The newest dispatches of the parts that this broker reads, by session, which a look reads without asking the
//! server. *Pure.*
//!
//! The server finds "the next message of this subject" by walking over all other subjects' messages, so a look must
//! not ask it in the ordinary case. For each part that is read, the window holds every message from
//! [`DispatchWindow::first`] on that was fed, without gaps; it forgets the message first that came first, and forgotten
//! messages are read from the server.

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

/// The newest messages of one part.
#[derive(Debug)]
struct PartWindow {
    first: u64,
    through: u64,
    order: VecDeque<Arc<StoredMessage>>,
}

/// The newest messages of the parts that are read.
#[derive(Debug, Default)]
pub struct DispatchWindow {
    parts: HashMap<u16, PartWindow>,
    /// The part of each message, in the order in which they came.
    ages: VecDeque<u16>,
    by_subject: HashMap<String, VecDeque<Arc<StoredMessage>>>,
    bytes: usize,
}

impl DispatchWindow {
    /// Empties the window of `part`: every message of it from `first` on will be fed.
    pub fn begin_part(&mut self, part: u16, first: u64) {
        self.drop_part(part);
        let begun = PartWindow {
            first,
            through: first.saturating_sub(1),
            order: VecDeque::new(),
        };
        self.parts.insert(part, begun);
    }

    /// Forgets `part`, which is not read any more.
    pub fn drop_part(&mut self, part: u16) {
        let Some(dropped) = self.parts.remove(&part) else {
            return;
        };
        for stored in dropped.order {
            self.bytes -= stored_bytes(&stored);
            self.by_subject.remove(&stored.subject);
        }
        self.ages.retain(|of| *of != part);
    }

    /// Returns the first sequence from which on the window knows all messages of `part`; `None` if the part is not
    /// read.
    #[must_use]
    pub fn first(&self, part: u16) -> Option<u64> {
        self.parts.get(&part).map(|known| known.first)
    }

    /// Adds the next message of `part`. A message of a part that is not read is passed over.
    pub fn feed_message(&mut self, part: u16, stored: StoredMessage) {
        let Some(known) = self.parts.get_mut(&part) else { return };
        if stored.sequence <= known.through {
            return;
        }

        known.through = stored.sequence;
        self.bytes += stored_bytes(&stored);

        // The payload is a slice of the connection's read buffer, all of which it would keep in memory.
        let payload = Bytes::copy_from_slice(&stored.payload);
        let stored = Arc::new(StoredMessage { payload, ..stored });
        self.by_subject
            .entry(stored.subject.clone())
            .or_default()
            .push_back(Arc::clone(&stored));

        known.order.push_back(stored);
        self.ages.push_back(part);

        while self.ages.len() > MAX_MESSAGES || self.bytes > MAX_BYTES {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(part) = self.ages.pop_front() else { return };
        let Some(known) = self.parts.get_mut(&part) else { return };
        let Some(oldest) = known.order.pop_front() else { return };

        known.first = oldest.sequence + 1;
        self.bytes -= stored_bytes(&oldest);
        if let Some(own) = self.by_subject.get_mut(&oldest.subject) {
            own.pop_front();
            if own.is_empty() {
                self.by_subject.remove(&oldest.subject);
            }
        }
    }

    /// Returns up to `limit` messages on `subject`, which is of `part`, at or after `from`; `None` if the window does
    /// not reach back that far.
    #[must_use]
    pub fn on_subject(&self, part: u16, subject: &str, from: u64, limit: usize) -> Option<Vec<Arc<StoredMessage>>> {
        if from < self.first(part)? {
            return None;
        }
        let Some(own) = self.by_subject.get(subject) else {
            return Some(Vec::new());
        };
        let start = own.partition_point(|stored| stored.sequence < from);
        Some(own.range(start..).take(limit).cloned().collect())
    }

    /// Returns up to `limit` messages of `part` at or after `from`; `None` if the window does not reach back that far.
    #[must_use]
    pub fn from(&self, part: u16, from: u64, limit: usize) -> Option<Vec<Arc<StoredMessage>>> {
        let known = self.parts.get(&part).filter(|known| known.first <= from)?;
        let start = known.order.partition_point(|stored| stored.sequence < from);
        Some(known.order.range(start..).take(limit).cloned().collect())
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
        assert_eq!(window.on_subject(3, "a", 1, 9), None);

        // Nothing is known about a part that is not read.
        window.feed_message(3, stored(9, "a", 1));
        assert_eq!((window.first(3), window.bytes), (None, 0));

        window.begin_part(3, 10);

        for (sequence, subject) in [(10, "a"), (12, "b"), (13, "a"), (13, "a"), (15, "a")] {
            window.feed_message(3, stored(sequence, subject, 1));
        }

        assert_eq!(sequences(window.on_subject(3, "a", 9, 9)), None);
        assert_eq!(sequences(window.on_subject(3, "a", 11, 9)), Some(vec![13, 15]));
        assert_eq!(sequences(window.on_subject(3, "c", 11, 9)), Some(vec![]));
        assert_eq!(sequences(window.from(3, 11, 2)), Some(vec![12, 13]));
        assert_eq!(window.first(3), Some(10));
    }

    #[test]
    fn parts_come_and_go_without_touching_each_other() {
        let mut window = DispatchWindow::default();
        window.begin_part(1, 10);
        window.feed_message(1, stored(10, "a", 1));
        window.begin_part(2, 11);
        window.feed_message(2, stored(12, "b", 1));
        window.feed_message(1, stored(11, "a", 1));

        window.drop_part(1);
        assert_eq!((window.first(1), window.on_subject(1, "a", 10, 9)), (None, None));
        assert_eq!(sequences(window.from(2, 11, 9)), Some(vec![12]));
        assert_eq!((window.ages.len(), window.by_subject.len()), (1, 1));

        // Begun again, the part knows the messages that come from then on.
        window.begin_part(1, 14);
        window.feed_message(1, stored(14, "a", 1));
        assert_eq!(sequences(window.on_subject(1, "a", 13, 9)), None);
        assert_eq!(sequences(window.on_subject(1, "a", 14, 9)), Some(vec![14]));

        window.drop_part(1);
        window.drop_part(2);
        assert_eq!((window.bytes, window.ages.len(), window.by_subject.len()), (0, 0, 0));
    }

    #[test]
    fn it_forgets_what_came_first_by_size_and_number() {
        let mut window = DispatchWindow::default();
        window.begin_part(0, 1);
        window.begin_part(1, 1);
        window.feed_message(0, stored(1, "a", MAX_BYTES));
        window.feed_message(1, stored(2, "b", 1));

        assert_eq!(
            (
                window.first(0),
                window.first(1),
                sequences(window.on_subject(0, "a", 2, 9))
            ),
            (Some(2), Some(1), Some(vec![]))
        );

        for sequence in 3..=MAX_MESSAGES as u64 + 3 {
            window.feed_message(1, stored(sequence, "b", 1));
        }

        assert_eq!(
            (window.first(1), window.ages.len(), window.by_subject.len()),
            (Some(4), MAX_MESSAGES, 1)
        );

        while window.ages.len() > 1 {
            window.forget_oldest();
        }

        assert_eq!(window.bytes, stored_bytes(&stored(0, "b", 1)));
    }
}
