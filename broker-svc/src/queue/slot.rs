//! The slot of a claimed session among those that a broker runs at once.
//!
//! A session whose turns are over and whose post-turn hooks still run lends its slot to others. It then has a place
//! instead, of which there are as many as slots. The session keeps the place to its end, even if it runs a turn
//! again, so that no session waits for a slot with a claim in hand.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Slot of a claimed session; dropped with the claim.
#[derive(Debug)]
pub struct SessionSlot {
    places: Arc<Semaphore>,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// A slot or, once it is lent, the place that replaces it.
    _permit: OwnedSemaphorePermit,
    is_lent: bool,
}

impl SessionSlot {
    /// Creates the slot of `permit`; `places` are those of sessions that have lent theirs.
    #[must_use]
    pub fn new(permit: OwnedSemaphorePermit, places: Arc<Semaphore>) -> Self {
        metrics::gauge!("nexus_broker_slots_in_use").increment(1);
        Self {
            places,
            held: Mutex::new(Held {
                _permit: permit,
                is_lent: false,
            }),
        }
    }

    /// Lends the slot to others, if there is a free place.
    pub fn lend(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_lent {
            return;
        }

        if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            *held = Held {
                _permit: permit,
                is_lent: true,
            };
            metrics::gauge!("nexus_broker_slots_in_use").decrement(1);
        }
    }

    /// Returns whether the slot is lent.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).is_lent
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        if !self.is_lent() {
            metrics::gauge!("nexus_broker_slots_in_use").decrement(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_lent_once_where_there_is_a_place_and_everything_is_given_back() {
        let (slots, places) = (Arc::new(Semaphore::new(2)), Arc::new(Semaphore::new(1)));
        let slot = || {
            let permit = Arc::clone(&slots).try_acquire_owned().expect("a slot");
            SessionSlot::new(permit, Arc::clone(&places))
        };

        let free = || (slots.available_permits(), places.available_permits());
        let (one, two) = (slot(), slot());
        assert_eq!(free(), (0, 1));

        one.lend();
        one.lend();
        assert!(one.is_lent());
        assert_eq!(free(), (1, 0));

        two.lend();
        assert!(!two.is_lent(), "there is no place");
        assert_eq!(free(), (1, 0));

        drop(one);
        assert_eq!(free(), (1, 1));

        drop(two);
        assert_eq!(free(), (2, 1));
    }
}
