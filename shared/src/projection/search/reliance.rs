//! Whether this copy of the read model waits for vectors of another copy, or embeds itself. *Pure.*
//!
//! A copy that answers and has not embedded so far yet is waited for, because it is about to; but not for long, since
//! nothing may depend on it. One that does not answer is not waited for at all.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::store::VectorRow;
use super::vectors::QuantizedVector;

/// Longest wait for a copy that has lent vectors before, and has not the next ones yet.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same for one that has not, or was waited for in vain: it may be far behind for a long time.
const LITTLE_PATIENCE: Duration = Duration::from_secs(2);

/// Time for which this copy embeds itself before it asks again.
const ON_OWN: Duration = Duration::from_secs(20);

/// How far this copy relies on another one.
#[derive(Debug, Default)]
pub(super) struct PeerReliance {
    /// Time of the first answer without the next vectors.
    waiting_since: Option<Instant>,
    /// End of the time in which this copy embeds itself.
    on_own_until: Option<Instant>,
    /// Whether the last wait was in vain.
    is_doubted: bool,
}

impl PeerReliance {
    /// Returns whether another copy is asked `now` for the next vectors; `is_there`: whether there is one to ask.
    pub(super) fn asks(&mut self, is_there: bool, now: Instant) -> bool {
        if !is_there {
            // The next one is another.
            *self = Self::default();
            return false;
        }
        self.on_own_until.is_none_or(|until| now >= until)
    }

    /// Notes that the other copy has looked at the next texts.
    pub(super) fn note_lent(&mut self) {
        *self = Self::default();
    }

    /// Notes that the other copy has not embedded the next texts yet. Returns whether to wait for it; if not, this copy
    /// embeds itself.
    pub(super) fn waits(&mut self, now: Instant) -> bool {
        let since = *self.waiting_since.get_or_insert(now);
        let patience = if self.is_doubted { LITTLE_PATIENCE } else { PATIENCE };
        if now.saturating_duration_since(since) < patience {
            return true;
        }

        self.embed_on_own(now);
        false
    }

    /// Lets this copy embed itself for some time: the other one has not answered, or was waited for in vain.
    pub(super) fn embed_on_own(&mut self, now: Instant) {
        *self = Self {
            waiting_since: None,
            on_own_until: Some(now + ON_OWN),
            is_doubted: true,
        };
    }
}

/// Returns how many of the leading `rows`, ascending, are settled by an answer that reaches `through` and contains
/// `lent`: those without text, those that were lent, and those that this copy has to embed because the other one has
/// another text, at most `most`.
pub(super) fn settled_rows(
    rows: &[VectorRow],
    through: u64,
    lent: &HashMap<u64, Option<QuantizedVector>>,
    most: usize,
) -> usize {
    let mut own = 0;
    let settled = rows.iter().take_while(|row| {
        let has_text = !row.content.is_empty();
        own += usize::from(has_text && !lent.contains_key(&row.sequence));
        !has_text || row.sequence <= through && own <= most
    });
    settled.count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock as _;
    use crate::model::time::UnixMillis;
    use crate::testing::ManualClock;

    fn start() -> Instant {
        ManualClock::at(UnixMillis(0)).monotonic()
    }

    #[test]
    fn a_copy_without_others_asks_none() {
        assert!(!PeerReliance::default().asks(false, start()));
    }

    #[test]
    fn one_that_answers_is_waited_for_but_not_for_long() {
        let start = start();
        let mut reliance = PeerReliance::default();
        assert!(reliance.asks(true, start) && reliance.waits(start));
        assert!(reliance.waits(start + PATIENCE / 2));
        // A loan ends the wait, and the next wait is as long as the first.
        reliance.note_lent();
        assert!(reliance.waits(start + PATIENCE));

        let given_up = start + PATIENCE * 2;
        assert!(!reliance.waits(given_up));
        assert!(!reliance.asks(true, given_up + ON_OWN / 2));

        // It is asked again, and hardly waited for until it has lent something.
        let again = given_up + ON_OWN;
        assert!(reliance.asks(true, again) && reliance.waits(again));
        assert!(!reliance.waits(again + LITTLE_PATIENCE));
        let third = again + LITTLE_PATIENCE + ON_OWN;
        assert!(reliance.asks(true, third));
        reliance.note_lent();
        assert!(reliance.waits(third) && reliance.waits(third + LITTLE_PATIENCE));
    }

    #[test]
    fn one_that_does_not_answer_is_not_waited_for() {
        let start = start();
        let mut reliance = PeerReliance::default();
        reliance.embed_on_own(start);
        assert!(!reliance.asks(true, start));
        assert!(reliance.asks(true, start + ON_OWN));

        // The next first replica is another one, of which nothing is known.
        reliance.embed_on_own(start);
        assert!(!reliance.asks(false, start));
        assert!(reliance.asks(true, start) && reliance.waits(start) && reliance.waits(start + PATIENCE / 2));
    }

    #[test]
    fn rows_are_settled_in_their_order_as_far_as_the_answer_reaches() {
        let row = |(sequence, content): (u64, &str)| VectorRow {
            sequence,
            id: String::new(),
            channel: String::new(),
            timestamp: 0,
            content: content.to_owned(),
        };
        let rows = [(1, "a"), (2, ""), (3, "c"), (5, "e"), (6, ""), (7, "g")].map(row);
        let settled = |through, lent: &[u64], most| {
            let lent = lent.iter().map(|sequence| (*sequence, None)).collect();
            settled_rows(&rows, through, &lent, most)
        };

        assert_eq!(settled(0, &[], 9), 0);
        assert_eq!(settled(1, &[1], 9), 2, "what has no text is settled");
        assert_eq!(settled(5, &[1, 3, 5], 9), 5);
        assert_eq!(settled(9, &[1, 3, 5, 7], 0), 6);
        assert_eq!(settled(9, &[1, 5, 7], 1), 6, "one is embedded here");
        assert_eq!(settled(9, &[1], 1), 3, "the next one has to wait");
        assert_eq!(settled(9, &[1], 0), 2);
    }
}
