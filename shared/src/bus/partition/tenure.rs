//! The period in which this replica holds a partition: how long it may act, and on which messages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::clock::SharedClock;

use super::super::connect::Bus;
use super::floors::PartitionFloorStore;
use super::{PartitionGroup, TTL};

/// Time by which the holder ends its lease earlier than the server does, for clock drift and network delay.
const MARGIN: Duration = Duration::from_millis(300);

/// Time until which this replica may act; moved forward by each refresh. Leases of one session share the time, and can
/// be lost one by one.
#[derive(Debug, Clone)]
pub(in crate::bus) struct LeaseDeadline {
    at: Arc<Mutex<Instant>>,
    is_lost: Arc<AtomicBool>,
    clock: SharedClock,
    /// Token that ends the handler's pulling.
    pub(super) stop: CancellationToken,
}

impl LeaseDeadline {
    /// Creates the deadline of a lease that was requested at `asked_at`.
    pub(in crate::bus) fn new(clock: SharedClock, asked_at: Instant) -> Self {
        Self {
            at: Arc::new(Mutex::new(asked_at + TTL - MARGIN)),
            is_lost: Arc::default(),
            clock,
            stop: CancellationToken::new(),
        }
    }

    /// Creates the deadline of a lease that lives no longer than the session of this deadline.
    pub(in crate::bus) fn of_lease(&self) -> Self {
        Self {
            at: Arc::clone(&self.at),
            is_lost: Arc::default(),
            clock: Arc::clone(&self.clock),
            stop: CancellationToken::new(),
        }
    }

    /// Returns whether this replica may still act.
    pub(in crate::bus) fn is_live(&self) -> bool {
        !self.left().is_zero()
    }

    /// Returns how long this replica may still act.
    pub(in crate::bus) fn left(&self) -> Duration {
        if self.is_lost.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let until = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        until.saturating_duration_since(self.now())
    }

    /// Returns the time on the clock of the deadline.
    pub(in crate::bus) fn now(&self) -> Instant {
        self.clock.monotonic()
    }

    /// Moves the deadline forward for a refresh that was requested at `asked_at`.
    pub(in crate::bus) fn note_refresh(&self, asked_at: Instant) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = asked_at + TTL - MARGIN;
    }

    /// Ends this lease at once: another replica has it.
    pub(in crate::bus) fn note_loss(&self) {
        self.is_lost.store(true, Ordering::Release);
    }

    /// Ends the session at once, with all its leases.
    pub(super) fn note_end_of_session(&self) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = self.now();
    }
}

/// Handle to check whether a partition is still held.
#[derive(Debug, Clone)]
pub struct PartitionLease(pub(super) LeaseDeadline);

impl PartitionLease {
    /// Returns a lease without a server that was taken at `asked_at` and is never refreshed.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn taken_at(clock: SharedClock, asked_at: Instant) -> Self {
        Self(LeaseDeadline::new(clock, asked_at))
    }

    /// Returns whether this replica may still act on the partition.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.0.is_live()
    }
}

/// One period in which this replica holds one partition.
pub(super) struct LeaseTenure {
    pub(super) bus: Bus,
    pub(super) group: Arc<PartitionGroup>,
    pub(super) floors: Arc<PartitionFloorStore>,
    pub(super) partition: u16,
    /// First revision of the lease.
    pub(super) epoch: u64,
    pub(super) deadline: LeaseDeadline,
}
