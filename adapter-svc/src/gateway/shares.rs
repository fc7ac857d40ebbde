//! Limits for open chat pages: in total and per address.
//!
//! A few addresses can use all places. If none is free, an address with fewer pages than another takes one from the
//! address with the most pages: the page there that was silent for the longest time is closed, and may connect again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use shared::process::lifecycle::ShutdownSignal;

use super::pace::address_block;

/// The places of open chat pages.
#[derive(Debug, Clone)]
pub struct PageSlots(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    total: usize,
    per_address: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// Places by number, which increases in the order of taking.
    places: HashMap<u64, Place>,
    of: HashMap<IpAddr, usize>,
    next: u64,
}

#[derive(Debug)]
struct Place {
    block: IpAddr,
    /// Time of the last message from its page.
    heard_at: Instant,
    leave: ShutdownSignal,
}

impl Taken {
    fn remove(&mut self, number: u64) -> Option<Place> {
        let place = self.places.remove(&number)?;
        if let Some(held) = self.of.get_mut(&place.block) {
            *held -= 1;
            if *held == 0 {
                self.of.remove(&place.block);
            }
        }
        Some(place)
    }

    /// Frees a place for an address with `held` pages. Returns `false` if no address has enough more pages to be
    /// fair.
    fn make_room(&mut self, held: usize) -> bool {
        let most = self.of.values().copied().max().unwrap_or(0);
        if most <= held + 1 {
            return false;
        }

        let crowded = self
            .places
            .iter()
            .filter(|(_, place)| self.of.get(&place.block) == Some(&most));
        let quietest = crowded.min_by_key(|(number, place)| (place.heard_at, **number));
        let Some(place) = quietest
            .map(|(number, _)| *number)
            .and_then(|number| self.remove(number))
        else {
            return false;
        };

        metrics::counter!("nexus_adapter_webchat_moved_total").increment(1);
        place.leave.trigger();

        true
    }
}

/// A place that is taken; it is freed on drop.
#[derive(Debug)]
pub struct PageSlot {
    of: PageSlots,
    number: u64,
    leave: ShutdownSignal,
}

impl PageSlot {
    /// Records that the page sent a message at `now`.
    pub fn note_message(&self, now: Instant) {
        if let Some(place) = self.of.lock_taken().places.get_mut(&self.number) {
            place.heard_at = now;
        }
    }

    /// Returns the signal that is triggered when another page needs the place.
    #[must_use]
    pub const fn leave_signal(&self) -> &ShutdownSignal {
        &self.leave
    }
}

impl PageSlots {
    /// Creates `total` places, of which an address (IPv6: a /64) may take `per_address`.
    #[must_use]
    pub fn new(total: usize, per_address: usize) -> Self {
        Self(Arc::new(Parts {
            total,
            per_address,
            taken: Mutex::default(),
        }))
    }

    fn lock_taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for `from` at `now`. Returns `None` if there is none for this address.
    #[must_use]
    pub fn take(&self, from: IpAddr, now: Instant) -> Option<PageSlot> {
        let block = address_block(from);
        let mut taken = self.lock_taken();
        let held = taken.of.get(&block).copied().unwrap_or(0);
        if held >= self.0.per_address || (taken.places.len() >= self.0.total && !taken.make_room(held)) {
            return None;
        }

        let (number, leave) = (taken.next, ShutdownSignal::default());
        taken.next += 1;
        *taken.of.entry(block).or_default() += 1;
        let place = Place {
            block,
            heard_at: now,
            leave: leave.clone(),
        };

        taken.places.insert(number, place);
        let of = self.clone();

        Some(PageSlot { of, number, leave })
    }
}

impl Drop for PageSlot {
    fn drop(&mut self) {
        // The place may already have been given to another page.
        self.of.lock_taken().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn an_address_has_its_share_and_gives_it_back() {
        let now = SystemClock.monotonic();
        let shares = PageSlots::new(3, 2);
        let first = shares.take(address(1), now);
        let held = [shares.take(address(1), now), shares.take(address(2), now)];

        assert!(first.is_some() && held.iter().all(Option::is_some));
        assert!(shares.take(address(1), now).is_none(), "it has two");

        drop(first);
        assert!(shares.take(address(3), now).is_some());

        drop(held);
        assert!(shares.lock_taken().places.is_empty() && shares.lock_taken().of.is_empty());
    }

    #[test]
    fn a_few_addresses_do_not_close_the_chat_for_others_and_the_quietest_page_leaves() {
        let now = SystemClock.monotonic();
        let shares = PageSlots::new(12, 4);
        let crowd: Vec<PageSlot> = (0..12)
            .map(|number| shares.take(address(number / 4), now).expect("a place"))
            .collect();

        let later = now + Duration::from_secs(1);
        for share in crowd.iter().filter(|share| share.number != 6) {
            share.note_message(later);
        }

        let newcomer = shares.take(address(9), later).expect("a place of the crowd's");
        let left: Vec<u64> = crowd
            .iter()
            .filter(|share| share.leave_signal().is_requested())
            .map(|share| share.number)
            .collect();

        assert_eq!(left, [6], "it said nothing");

        // Nine more arrive: from then on no address has enough more than another that one would have to leave.
        let others: Vec<_> = (10..30).filter_map(|last| shares.take(address(last), later)).collect();
        assert_eq!(shares.lock_taken().places.len(), 12);
        assert!(shares.take(address(40), later).is_none(), "each has one");
        assert!(!newcomer.leave_signal().is_requested() && !others.is_empty());

        drop((crowd, newcomer, others));
        assert!(shares.lock_taken().places.is_empty() && shares.lock_taken().of.is_empty());
    }
}
