//! The deliveries named by the recent receipts of each destination, so that an ordinary delivery needs no read.
//!
//! Only the owner of a partition writes receipts, so it can remember which deliveries its latest receipts name. A
//! delivery that is not among them is new, if the memory reaches back to the time at which the delivery was made. In
//! all other cases the answer is [`Remembered::Unknown`], and `RECEIPTS` itself must be asked.

use std::collections::{HashMap, VecDeque};

use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::destination::Destination;

/// Maximum number of destinations per partition; beyond it the memory is cleared.
const MAX_DESTINATIONS: usize = 16_384;

/// Maximum number of deliveries per partition; beyond it the memory is cleared.
const MAX_DELIVERIES: usize = 131_072;

/// Maximum number of deliveries per destination; beyond it the oldest are forgotten.
const MAX_OF_DESTINATION: usize = 32_768;

/// Time for which a delivery is remembered after its last receipt, in milliseconds.
const KEPT_MS: i64 = 180_000;

/// The result of looking for a delivery among the remembered receipts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remembered {
    /// A remembered receipt names the delivery.
    Named,
    /// No receipt names the delivery.
    Absent,
    /// The memory does not reach back far enough.
    Unknown,
}

/// The remembered receipts of one partition.
#[derive(Debug, Default)]
pub struct RecentReceipts {
    destinations: HashMap<Destination, Recent>,
    /// Number of remembered deliveries of all destinations.
    held: usize,
}

/// The remembered receipts of one destination.
#[derive(Debug)]
struct Recent {
    /// Sequence of the destination's last receipt; 0 = there is none.
    last: u64,
    /// Time after which every receipt up to `last` is among `deliveries`.
    complete_after: UnixMillis,
    /// Deliveries with the time of their last receipt, in the order of the receipts.
    deliveries: VecDeque<(UnixMillis, Ulid)>,
}

impl RecentReceipts {
    /// Returns the sequence of the last receipt of `destination`; 0 = there is none. `None` if it is not known.
    #[must_use]
    pub fn last_sequence(&self, destination: &Destination) -> Option<u64> {
        self.destinations.get(destination).map(|recent| recent.last)
    }

    /// Looks for `delivery`, whose receipts are all stored at or after `since`.
    #[must_use]
    pub fn find_delivery(&self, destination: &Destination, delivery: Ulid, since: UnixMillis) -> Remembered {
        let Some(recent) = self.destinations.get(destination) else {
            return Remembered::Unknown;
        };

        // A delivery is repeated soon, if at all.
        if recent.deliveries.iter().rev().any(|(_, named)| *named == delivery) {
            return Remembered::Named;
        }

        match since > recent.complete_after {
            true => Remembered::Absent,
            false => Remembered::Unknown,
        }
    }

    /// Notes the destination's last message, read from the leader: its sequence (0 = there is none), the time at which
    /// it was stored, and the delivery that it names.
    pub fn note_last(&mut self, destination: &Destination, sequence: u64, stored_at: UnixMillis, names: Option<Ulid>) {
        if self.last_sequence(destination) == Some(sequence) {
            return;
        }

        // Another process has written receipts: what this one remembers has a gap.
        let complete_after = if sequence == 0 { UnixMillis(i64::MIN) } else { stored_at };
        let deliveries = names.map(|delivery| (stored_at, delivery)).into_iter().collect();
        self.replace(
            destination,
            Recent {
                last: sequence,
                complete_after,
                deliveries,
            },
        );
    }

    /// Notes the receipt at `sequence`, which names `delivery` and was written at `at` directly after `expected`.
    pub fn note_written(
        &mut self,
        destination: &Destination,
        expected: u64,
        sequence: u64,
        at: UnixMillis,
        delivery: Ulid,
    ) {
        let Some(recent) = self
            .destinations
            .get_mut(destination)
            .filter(|recent| recent.last == expected)
        else {
            return self.note_last(destination, sequence, at, Some(delivery));
        };

        let before = recent.deliveries.len();
        recent.last = sequence;
        recent.push_delivery(at, delivery);
        self.held = self.held.saturating_sub(before) + recent.deliveries.len();
        self.bound();
    }

    /// Notes the result of a search: `deliveries` are named by the receipts from `since` through `sequence`, in order.
    pub fn note_search(
        &mut self,
        destination: &Destination,
        sequence: u64,
        since: UnixMillis,
        deliveries: impl IntoIterator<Item = (UnixMillis, Ulid)>,
    ) {
        let complete_after = since.plus(-1);
        let is_news = |recent: &Recent| recent.last == sequence && recent.complete_after > complete_after;
        if !self.destinations.get(destination).is_some_and(is_news) {
            return;
        }

        let mut found = Recent {
            last: sequence,
            complete_after,
            deliveries: VecDeque::new(),
        };
        for (at, delivery) in deliveries {
            found.push_delivery(at, delivery);
        }
        self.replace(destination, found);
    }

    /// Forgets `destination`, of which another process may have written receipts.
    pub fn forget(&mut self, destination: &Destination) {
        if let Some(forgotten) = self.destinations.remove(destination) {
            self.held = self.held.saturating_sub(forgotten.deliveries.len());
        }
    }

    fn replace(&mut self, destination: &Destination, recent: Recent) {
        self.forget(destination);
        self.held += recent.deliveries.len();
        self.destinations.insert(destination.clone(), recent);
        self.bound();
    }

    fn bound(&mut self) {
        if self.destinations.len() > MAX_DESTINATIONS || self.held > MAX_DELIVERIES {
            *self = Self::default();
        }
    }
}

impl Recent {
    /// Adds a receipt, and forgets deliveries that are too old or too many.
    fn push_delivery(&mut self, at: UnixMillis, delivery: Ulid) {
        // The receipts of one delivery come one after the other, and need one entry.
        match self.deliveries.back_mut() {
            Some((last, named)) if *named == delivery => *last = at.max(*last),
            Some(_) | None => self.deliveries.push_back((at, delivery)),
        }

        let oldest = at.plus(-KEPT_MS);
        while let Some((last, _)) = self.deliveries.front()
            && (*last < oldest || self.deliveries.len() > MAX_OF_DESTINATION)
        {
            self.complete_after = self.complete_after.max(*last);
            self.deliveries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: UnixMillis = UnixMillis(1_700_000_000_000);

    fn destination() -> Destination {
        Destination::of_delivery("nexus.dl.3.nats.demo.ann").expect("a destination")
    }

    fn delivery(number: u64) -> Ulid {
        Ulid::from_parts(START.0.unsigned_abs() + number, u128::from(number))
    }

    /// A destination whose last receipt, at sequence 5, names delivery 0 and was stored at the start.
    fn known() -> RecentReceipts {
        let mut recent = RecentReceipts::default();
        recent.note_last(&destination(), 5, START, Some(delivery(0)));
        recent
    }

    #[test]
    fn every_delivery_written_since_is_named_and_a_new_one_is_absent() {
        let (to, mut recent) = (destination(), known());
        for number in 1_u64..100 {
            let at = START.plus(number.cast_signed() * 100);
            assert_eq!(recent.find_delivery(&to, delivery(number), at), Remembered::Absent);
            recent.note_written(&to, 3 + 2 * number, 4 + 2 * number, at, delivery(number));
            recent.note_written(&to, 4 + 2 * number, 5 + 2 * number, at.plus(1), delivery(number));
        }

        assert_eq!(recent.last_sequence(&to), Some(203));
        for number in 0..100 {
            let found = recent.find_delivery(&to, delivery(number), START);
            assert_eq!(found, Remembered::Named, "{number}");
        }
    }

    #[test]
    fn what_may_have_a_receipt_before_the_memory_begins_is_unknown() {
        let (to, recent) = (destination(), known());
        assert_eq!(recent.find_delivery(&to, delivery(7), START), Remembered::Unknown);
        assert_eq!(
            recent.find_delivery(&to, delivery(7), START.plus(1)),
            Remembered::Absent
        );

        let other = Destination::of_delivery("nexus.dl.3.nats.demo.bob").expect("a destination");
        assert_eq!(
            recent.find_delivery(&other, delivery(7), START.plus(1)),
            Remembered::Unknown
        );
    }

    #[test]
    fn a_destination_without_receipts_is_known_whole() {
        let (to, mut recent) = (destination(), RecentReceipts::default());
        recent.note_last(&to, 0, UnixMillis(0), None);
        assert_eq!(
            recent.find_delivery(&to, delivery(1), UnixMillis(0)),
            Remembered::Absent
        );
    }

    #[test]
    fn a_receipt_of_another_process_begins_the_memory_again() {
        let (to, mut recent) = (destination(), known());
        recent.note_written(&to, 5, 6, START.plus(10), delivery(1));

        // The same last message again changes nothing; another one hides an unknown number of receipts.
        recent.note_last(&to, 6, START.plus(10), Some(delivery(1)));
        assert_eq!(
            recent.find_delivery(&to, delivery(2), START.plus(5)),
            Remembered::Absent
        );
        recent.note_last(&to, 9, START.plus(20), Some(delivery(3)));
        assert_eq!(
            recent.find_delivery(&to, delivery(2), START.plus(15)),
            Remembered::Unknown
        );

        recent.note_written(&to, 11, 12, START.plus(30), delivery(4));
        assert_eq!(
            recent.find_delivery(&to, delivery(2), START.plus(25)),
            Remembered::Unknown
        );
    }

    #[test]
    fn a_search_extends_the_memory_back() {
        let (to, mut recent) = (destination(), known());
        let found = [(START.plus(-90), delivery(8)), (START, delivery(0))];
        recent.note_search(&to, 5, START.plus(-100), found);

        assert_eq!(
            recent.find_delivery(&to, delivery(8), START.plus(-95)),
            Remembered::Named
        );
        assert_eq!(
            recent.find_delivery(&to, delivery(9), START.plus(-100)),
            Remembered::Absent
        );
        assert_eq!(
            recent.find_delivery(&to, delivery(9), START.plus(-101)),
            Remembered::Unknown
        );

        // A search that ended before the last receipt, or that reaches back less far, tells nothing new.
        recent.note_search(&to, 4, START.plus(-200), []);
        recent.note_search(&to, 5, START.plus(-50), []);
        assert_eq!(
            recent.find_delivery(&to, delivery(8), START.plus(-95)),
            Remembered::Named
        );
    }

    #[test]
    fn a_forgotten_delivery_is_unknown_and_never_absent() {
        let (to, mut recent) = (destination(), known());
        let much_later = START.plus(KEPT_MS + 1);
        recent.note_written(&to, 5, 6, much_later, delivery(1));

        // Delivery 0 is forgotten, with everything as old as its receipt.
        assert_eq!(recent.find_delivery(&to, delivery(0), START), Remembered::Unknown);
        assert_eq!(recent.held, 1);
    }

    #[test]
    fn the_memory_is_bounded() {
        let (to, mut recent) = (destination(), known());
        let many = MAX_OF_DESTINATION as u64 + 10;
        for number in 1..=many {
            recent.note_written(
                &to,
                4 + number,
                5 + number,
                START.plus(number.cast_signed()),
                delivery(number),
            );
        }
        assert_eq!(recent.held, MAX_OF_DESTINATION);

        let since = START.plus(11);
        assert_eq!(recent.find_delivery(&to, delivery(many + 1), since), Remembered::Absent);
        assert_eq!(
            recent.find_delivery(&to, delivery(10), START.plus(10)),
            Remembered::Unknown
        );

        for number in 0..=MAX_DESTINATIONS {
            let peer = Destination::of_delivery(&format!("nexus.dl.3.nats.demo.p{number}")).expect("a destination");
            recent.note_last(&peer, 1, START, None);
        }
        assert!(recent.destinations.len() <= MAX_DESTINATIONS);
    }
}
