//! The claims of one part, requested as slots become free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use shared::bus::{ConsumeError, FetchMode, IncomingMessage, MessageFetcher, claim};
use shared::clock::pause;
use shared::wire::partition::PartSet;
use shared::wire::topology::SESSION_PARTS;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::quiet::{LOOK_EVERY, Quiet};
use super::{MAX_AGE, TakenClaim};
use crate::broker::BrokerContext;

/// Maximum number of claims requested at once.
const MAX_BATCH: usize = 64;
/// Share of all slots that must be free for a broker to help out: one in so many.
const SPARE: usize = 4;
/// Wait before a broker without slots to spare looks again whether it can help out.
const HELP_PAUSE: Duration = Duration::from_millis(250);
/// Wait after a request that found nothing, if there are too few slots to reserve some for each part.
const TIGHT_PAUSE: Duration = Duration::from_millis(100);

/// The slots of a broker, which the sources of all parts share.
#[derive(Debug)]
pub(super) struct ClaimSlots {
    slots: Arc<Semaphore>,
    places: Arc<Semaphore>,
    all: usize,
    /// The parts whose last request failed, as bits.
    failing: AtomicU64,
}

impl ClaimSlots {
    /// Creates `all` free slots, and as many places for sessions that lend theirs.
    pub(super) fn new(all: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(all)),
            places: Arc::new(Semaphore::new(all)),
            all,
            failing: AtomicU64::new(0),
        }
    }

    /// Number of claims that a quiet part asks for: half of the slots are reserved if all parts are read.
    fn quiet_batch(&self) -> usize {
        (self.all / (2 * usize::from(SESSION_PARTS))).clamp(1, MAX_BATCH)
    }

    fn can_help(&self) -> bool {
        self.slots.available_permits() * SPARE >= self.all
    }

    /// Notes whether the consumer of `part` can be asked. Returns whether those of all parts can.
    fn note_asked(&self, part: u16, is_reached: bool) -> bool {
        let bit = 1 << part;
        let before = match is_reached {
            true => self.failing.fetch_and(!bit, Ordering::Relaxed) & !bit,
            false => self.failing.fetch_or(bit, Ordering::Relaxed) | bit,
        };
        before == 0
    }
}

/// A request for claims.
struct LastRequest {
    mode: FetchMode,
    /// Number of claims that it asked for.
    asked: usize,
    /// Number of claims that it has got.
    received: usize,
}

impl LastRequest {
    /// The request before the first one.
    const NONE: Self = Self {
        mode: FetchMode::Wait,
        asked: 0,
        received: 0,
    };
}

/// Source of the claims of one part.
pub(super) struct ClaimSource<'a> {
    broker: &'a Arc<BrokerContext>,
    slots: &'a ClaimSlots,
    part: u16,
    parts: watch::Receiver<PartSet>,
    claims: MessageFetcher,
    /// Slots reserved for requested claims that have not come yet.
    kept: Option<OwnedSemaphorePermit>,
    quiet: Quiet,
    /// Number of claims to request next, if this broker reads the part.
    batch: usize,
    last_request: LastRequest,
}

impl<'a> ClaimSource<'a> {
    /// Creates the source of `part`, which takes its slots from `slots`.
    pub(super) fn new(broker: &'a Arc<BrokerContext>, slots: &'a ClaimSlots, part: u16) -> Self {
        Self {
            parts: broker.parts.subscribe(),
            claims: claim::fetcher(&broker.bus, part),
            kept: None,
            quiet: Quiet::new(broker.clock.monotonic()),
            batch: slots.quiet_batch(),
            last_request: LastRequest::NONE,
            broker,
            slots,
            part,
        }
    }

    /// Returns the next claim. `tell` is called with whether claims can be requested.
    pub(super) async fn next(&mut self, tell: &impl Fn(Result<(), &ConsumeError>)) -> TakenClaim {
        loop {
            // Whether the buffer was empty decides when a claim was received: a buffered one may be old.
            let incoming = self.next_incoming().await;

            let slot = self.kept.as_mut().and_then(|kept| kept.split(1));
            let (Some(incoming), Some(slot)) = (incoming, slot) else {
                let asked = self.request_claims().await;
                // One part that can be asked says nothing about another one that cannot.
                if self.slots.note_asked(self.part, asked.is_ok()) || asked.is_err() {
                    tell(asked.as_ref().copied());
                }
                continue;
            };
            self.last_request.received += 1;

            // The ack timeout counts from the delivery. A claim that waited here may belong to another broker soon.
            let received = self.quiet.since();
            let age = self.broker.clock.monotonic().saturating_duration_since(received);
            if age <= MAX_AGE {
                return TakenClaim {
                    part: self.part,
                    incoming,
                    received,
                    slot,
                    places: Arc::clone(&self.slots.places),
                };
            }

            let age_ms = age.as_millis();
            tracing::debug!(age_ms, "claims waited too long; leaving them to the ack timeout");
            // All buffered claims are at least as old.
            self.claims.cancel_request();
        }
    }

    /// Returns the next claim, or `None` if none comes any more; looks again and again whether one is there.
    async fn next_incoming(&mut self) -> Option<IncomingMessage> {
        loop {
            let now = self.broker.clock.monotonic();
            if let Some(incoming) = self.claims.next().now_or_never() {
                return incoming;
            }
            self.quiet.note_empty(now);

            tokio::select! {
                biased;
                incoming = self.claims.next() => return incoming,
                () = pause(LOOK_EVERY) => {}
            }
        }
    }

    /// Waits until this broker may ask for claims of the part and has a free slot, then requests as many as the slots
    /// allow.
    async fn request_claims(&mut self) -> Result<(), ConsumeError> {
        self.kept = None;
        self.note_request_end().await;
        let is_own = self.wait_for_role().await;
        let Ok(mut kept) = Arc::clone(&self.slots.slots).acquire_owned().await else {
            return Ok(());
        };

        // At most half of the free slots, so that a busy part leaves some to the others.
        let free = self.slots.slots.available_permits();
        let wanted = if is_own { self.batch - 1 } else { 0 };
        let more = u32::try_from(wanted.min(free / 2)).unwrap_or(0);
        if let Ok(more) = Arc::clone(&self.slots.slots).try_acquire_many_owned(more) {
            kept.merge(more);
        }

        // A slot that waits for claims of one part is of no use to another, so few slots wait for nothing.
        let mode = match (free < usize::from(SESSION_PARTS), is_own) {
            (true, _) => FetchMode::Now,
            (false, true) => FetchMode::Wait,
            (false, false) => FetchMode::Help,
        };

        // Claims for a request are sent after it.
        self.quiet = Quiet::new(self.broker.clock.monotonic());
        let count = kept.num_permits();
        self.last_request = LastRequest {
            mode,
            asked: count,
            received: 0,
        };
        self.claims.request_messages(count, mode).await?;
        self.kept = Some(kept);

        Ok(())
    }

    /// Adapts the next request to the number that the last one has got: a filled one is followed by a larger one.
    async fn note_request_end(&mut self) {
        let last = std::mem::replace(&mut self.last_request, LastRequest::NONE);
        self.batch = if last.asked > 0 && last.received == last.asked {
            (2 * self.batch).min(MAX_BATCH)
        } else {
            self.slots.quiet_batch()
        };

        if last.mode == FetchMode::Now && last.received == 0 {
            pause(TIGHT_PAUSE).await;
        }
    }

    /// Waits until this broker reads the part, or has slots to spare for helping out. Returns whether it reads it.
    async fn wait_for_role(&mut self) -> bool {
        loop {
            if self.parts.borrow_and_update().contains(self.part) {
                return true;
            }
            if self.slots.can_help() {
                return false;
            }

            tokio::select! {
                // The sender lives as long as the broker.
                _ = self.parts.changed() => {}
                () = pause(HELP_PAUSE) => {}
            }
        }
    }

    /// Hands buffered claims back, so that other brokers get them at once.
    pub(super) async fn hand_back(&mut self) {
        while let Some(Some(incoming)) = self.claims.next().now_or_never() {
            incoming.nak(None).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_slots_is_reserved_for_quiet_parts_and_at_least_one_each() {
        let reserved = |all| ClaimSlots::new(all).quiet_batch();
        assert_eq!([1, 31, 32, 256, 4_096].map(reserved), [1, 1, 1, 8, MAX_BATCH]);
    }

    #[tokio::test]
    async fn a_broker_helps_while_a_quarter_of_its_slots_is_free() {
        let slots = ClaimSlots::new(8);
        let taken = Arc::clone(&slots.slots).acquire_many_owned(6).await.expect("free");
        assert!(slots.can_help());

        let one_more = Arc::clone(&slots.slots).acquire_owned().await.expect("free");
        assert!(!slots.can_help());

        drop((taken, one_more));
        assert!(slots.can_help());
    }

    #[test]
    fn one_part_that_cannot_be_asked_is_told_until_it_can() {
        let slots = ClaimSlots::new(8);
        assert!(slots.note_asked(3, true));
        assert!(!slots.note_asked(4, false));
        assert!(!slots.note_asked(3, true));
        assert!(slots.note_asked(4, true));
    }
}
