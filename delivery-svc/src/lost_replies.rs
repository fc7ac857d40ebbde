//! Search for replies that their queue has lost: `DELIVERIES` or `PARKED` was restored to an older state, emptied or
//! created again.
//!
//! The ledger has every reply, and the receipts record the settled ones. A reply that is in neither the queues nor the
//! receipts is published again under its own id. If the receipts were older too, their witness would cause it to be
//! held. The queues are checked whenever they may be other ones: when this process starts, after a new connection, and
//! if a stream is not the one seen before. One replica at a time does that. The time back to which the search must look
//! is recorded every few seconds (KV `positions`): the time of the oldest reply that waits.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use shared::bus::{
    CasError, Kv, OutgoingMessage, PublishError, ReadStreamError, StoredMessage, StreamInfo, StreamPages, TaskLease,
};
use shared::clock::pause;
use shared::model::ledger::LedgerEntry;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::model::restore::{HOLD_KEY, RestoreHold};
use shared::model::time::{UnixMillis, millis_of};
use shared::process::ShutdownSignal;
use shared::wire::envelope::{PayloadFormat, encode};
use shared::wire::held::HeldKind;
use shared::wire::subject;
use shared::wire::topology::{RECEIPTS_KEPT, buckets, streams};
use shared::wire::witness::WaitingMark;
use ulid::Ulid;

use crate::destination::Destination;
use crate::effects::DelivererContext;
use crate::job::{DeliveryJob, StreamPlace};
use crate::receipts::{self, PartitionReceipts};

/// Interval in which the age of the oldest waiting reply is recorded.
const EVERY: Duration = Duration::from_secs(2);
/// Additional margin of the recorded time, in milliseconds: a reply is in the ledger before it is in the queue.
const MARGIN_MS: i64 = 10_000;
/// Number of messages read at once.
const PAGE: usize = 500;
/// The task that one replica at a time does.
const TASK: &str = "lost-replies";

/// The search for replies that are missing from the queue.
#[derive(Debug)]
pub struct LostReplies {
    outfit: Arc<DelivererContext>,
    noted: Kv<WaitingMark>,
    lease: TaskLease,
}

/// The identities and progress of the queues at a check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    connection: u64,
    deliveries: Queue,
    parked: Queue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Queue {
    incarnation: String,
    created: String,
    last: u64,
}

impl Queue {
    fn new(info: &StreamInfo) -> Self {
        Self {
            incarnation: info.incarnation.clone(),
            created: info.created.clone(),
            last: info.state.last,
        }
    }

    /// Returns whether `later` is the same queue, not restored to an older state.
    fn is_followed_by(&self, later: &Self) -> bool {
        self.incarnation == later.incarnation && self.created == later.created && self.last <= later.last
    }
}

impl Seen {
    /// Returns whether both queues in `later` are the same ones, on the same connection, not restored to an older state.
    fn is_followed_by(&self, later: &Self) -> bool {
        self.connection == later.connection
            && self.deliveries.is_followed_by(&later.deliveries)
            && self.parked.is_followed_by(&later.parked)
    }
}

/// The reason why the queue cannot be checked.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Note(#[from] CasError),
}

impl LostReplies {
    /// Creates the search on the bus of `outfit`.
    #[must_use]
    pub fn new(outfit: Arc<DelivererContext>) -> Self {
        Self {
            noted: outfit.bus.kv(buckets::POSITIONS),
            lease: TaskLease::new(&outfit.bus, TASK, outfit.instance.clone()),
            outfit,
        }
    }

    /// Checks the queues repeatedly until `stop` is requested.
    pub async fn watch_queue(mut self, stop: ShutdownSignal) {
        let mut connections = self.outfit.bus.connections();
        let mut known = None;
        loop {
            // Read before the check, so that one more check runs after the request to stop.
            let stops = stop.is_requested();

            match self.find_lost(known.as_ref()).await {
                Ok(seen) => known = seen,
                Err(error) => tracing::debug!(%error, "failed to compare DELIVERIES with the ledger; retrying"),
            }

            // The lease is given back, so that another replica can take over at once.
            if stops {
                self.lease.give_back().await;
                return;
            }

            tokio::select! {
                () = stop.requested() => {}
                () = connections.stands_anew() => {}
                () = pause(EVERY) => {}
            }
        }
    }

    /// Checks the queues if that is this replica's task, and searches them if they may have lost something. Returns
    /// their state; `None` = another replica checks them.
    async fn find_lost(&mut self, known: Option<&Seen>) -> Result<Option<Seen>, LookError> {
        if !self.lease.hold().await? {
            return Ok(None);
        }

        // A connection that ends in the meantime has another number at the next check.
        let bus = self.outfit.bus.clone();
        let connection = bus.connection_number();
        let info = bus.stream_info(streams::DELIVERIES).await?;
        let parked = bus.stream_info(streams::PARKED).await?;
        let seen = Seen {
            connection,
            deliveries: Queue::new(&info),
            parked: Queue::new(&parked),
        };

        if !known.is_some_and(|known| known.is_followed_by(&seen)) {
            self.find(info.state.last.max(parked.state.last)).await?;
        }

        self.note_waiting(&info, &parked).await?;
        Ok(Some(seen))
    }

    /// Records the time since which a reply waits.
    async fn note_waiting(&self, info: &StreamInfo, parked: &StreamInfo) -> Result<(), LookError> {
        let waiting = match self.first_of(streams::DELIVERIES, info).await? {
            Some(first) => first.published_at,
            None => self.server_time().await?,
        };

        // The copy that is parked is younger than the reply, whose id is older than its place in the ledger.
        let first = self.first_of(streams::PARKED, parked).await?;
        let parked = first.and_then(|first| first.decode::<Reply>().ok());
        let parked = parked.and_then(|reply| i64::try_from(reply.id.timestamp_ms()).ok());
        let mut since = parked
            .map_or(waiting, |parked| waiting.min(UnixMillis(parked)))
            .plus(-MARGIN_MS);

        // The first parked reply by sequence need not be the oldest: while any is parked, the time never moves on.
        if parked.is_some()
            && let Some(former) = self.noted.find(streams::DELIVERIES).await?.0
        {
            since = since.min(former.since);
        }

        let noted = WaitingMark { since };
        self.noted.put(streams::DELIVERIES, &noted).await?;

        Ok(())
    }

    async fn first_of(&self, stream: &str, info: &StreamInfo) -> Result<Option<StoredMessage>, ReadStreamError> {
        match info.state.messages {
            0 => Ok(None),
            _ => self.outfit.bus.next_on_subject(stream, ">", info.state.first).await,
        }
    }

    async fn server_time(&self) -> Result<UnixMillis, ReadStreamError> {
        let server = self.outfit.bus.server_clock(self.outfit.clock.as_ref()).await?;
        Ok(self.outfit.clock.now().plus(server.ahead_ms))
    }

    /// Publishes the replies again that are missing from the queue. `last` is the queue's last sequence.
    async fn find(&mut self, last: u64) -> Result<(), LookError> {
        let Some(since) = self.lost_since().await? else {
            return Ok(());
        };

        // The order matters: a reply that leaves the queue now has a receipt, and one that enters it is in the
        // ledger.
        // A reply that enters the ledger from now on is not lost: it is published after the queue was read.
        let end = self.outfit.bus.stream_info(streams::LEDGER).await?.state.last;
        let waiting = self.waiting_replies().await?;
        let mut settled = self.settled_deliveries(since).await?;
        settled.extend(waiting);

        let receipts = PartitionReceipts::new(
            self.outfit.bus.clone(),
            self.outfit.witness.clone(),
            Arc::clone(&self.outfit.clock),
        );
        let mut count = 0_u64;

        let mut ledger = StreamPages::since(&self.outfit.bus, streams::LEDGER, since);
        loop {
            let page = ledger.next().await?;
            if page.is_empty() {
                break;
            }

            let known = page.iter().filter(|stored| stored.sequence <= end);
            for reply in known.flat_map(replies_of_record) {
                if settled.insert(reply.id) && !self.is_settled(&receipts, &reply).await? {
                    // The server may still remember the id of the lost copy, so the copy has another id. A duplicate
                    // costs one lookup.
                    let copy = OutgoingMessage::reply(&reply).msg_id(format!("lost:{last}:{}", reply.id));
                    self.outfit.bus.publish(copy.repeated()).await?;
                    count += 1;
                }
            }

            // Reading takes its time, and another replica would begin as well.
            self.lease.hold().await?;
        }

        count_read(ledger.read());

        if count > 0 {
            metrics::counter!("nexus_delivery_lost_replies_total").increment(count);
            tracing::warn!(
                count,
                since_ms = since.0,
                "replies missing from DELIVERIES and RECEIPTS; publishing them again from the ledger"
            );
        }

        Ok(())
    }

    /// Returns whether `reply` was settled before, by an older receipt or by the events of its parts. A turn that is
    /// run again after a restore ends with the same reply.
    async fn is_settled(&self, receipts: &PartitionReceipts, reply: &Reply) -> Result<bool, ReadStreamError> {
        let (payload, headers) = encode(reply, PayloadFormat::Cbor);
        let subject = subject::delivery(&reply.delivery_context);
        let stored = subject.replacen("nexus.delivery.", "nexus.dl.0.", 1);
        let nowhere = StreamPlace {
            sequence: 0,
            stored_at_ns: 0,
        };

        let job = Destination::of_delivery(&stored).map(|to| DeliveryJob::read(to, nowhere, &headers, &payload));
        let Some(Ok(job)) = job else {
            // The readers of the queue report the error.
            return Ok(false);
        };

        let parts = self.outfit.parts_of(reply);
        let standing = receipts
            .find_standing(&job, &parts, false, self.outfit.clock.now())
            .await?;

        Ok(receipts::is_settled(&standing))
    }

    /// Returns the time since which replies may have been lost; `None` = there was never one. Receipts that were
    /// deleted by age prove nothing about older replies.
    async fn lost_since(&self) -> Result<Option<UnixMillis>, ReadStreamError> {
        let since = match self.noted.get(streams::DELIVERIES).await? {
            Some(noted) => Some(noted.value.since),
            // The bucket is new or lost: the writer of the last receipt knew the queue.
            None => {
                let last = self.outfit.bus.last_on_subject(streams::RECEIPTS, ">").await?;
                last.map(|last| last.published_at.plus(-MARGIN_MS))
            }
        };

        // The queue was copied after the receipts: a reply in neither was made during the backup, and is not lost.
        let holds = self.outfit.bus.kv::<RestoreHold>(buckets::RESTORE);
        let restored = holds.get(HOLD_KEY).await?.and_then(|hold| hold.value.at);
        let kept = millis_of(RECEIPTS_KEPT);
        let oldest = self.server_time().await?.plus(-kept).plus(2 * MARGIN_MS);
        let oldest = restored.map_or(oldest, |restored| oldest.max(restored));

        Ok(since.map(|since| since.max(oldest)))
    }

    /// Returns the replies in the queue, parked ones, and held ones with or without an operator's decision.
    async fn waiting_replies(&self) -> Result<HashSet<Ulid>, ReadStreamError> {
        let mut ids = HashSet::new();
        for stream in [streams::DELIVERIES, streams::PARKED] {
            let mut page = self.outfit.bus.read_history(stream, ">", 1, PAGE).await?;
            while let Some(through) = page.last().map(|stored| stored.sequence) {
                let replies = page.iter().filter_map(|stored| stored.decode::<Reply>().ok());
                ids.extend(replies.map(|reply| reply.id));
                page = self.outfit.bus.read_history(stream, ">", through + 1, PAGE).await?;
            }
        }

        // A held reply has left its queue, and is not lost.
        for (_, held) in self.outfit.bus.held_bucket().entries().await? {
            if held.value.kind == HeldKind::Delivery {
                ids.insert(held.value.id);
            }
        }

        Ok(ids)
    }

    /// Returns the deliveries that were settled since then.
    async fn settled_deliveries(&self, since: UnixMillis) -> Result<HashSet<Ulid>, ReadStreamError> {
        let mut ids = HashSet::new();
        let mut receipts = StreamPages::since(&self.outfit.bus, streams::RECEIPTS, since);
        loop {
            let page = receipts.next().await?;
            if page.is_empty() {
                break;
            }

            let receipts = page.iter().filter_map(|stored| stored.decode::<Receipt>().ok());
            ids.extend(
                receipts
                    .filter(|receipt| is_last(&receipt.step))
                    .map(|receipt| receipt.delivery),
            );
        }

        count_read(receipts.read());
        Ok(ids)
    }
}

fn count_read(messages: u64) {
    metrics::counter!("nexus_delivery_lost_replies_read_total").increment(messages);
}

/// Returns whether a receipt with `step` is the last one of a delivery, unless an operator repeats it.
const fn is_last(step: &ReceiptStep) -> bool {
    match step {
        ReceiptStep::Delivered { .. } | ReceiptStep::GaveUp { .. } | ReceiptStep::DeniedByPolicy { .. } => true,
        ReceiptStep::Planned { .. }
        | ReceiptStep::Preview { .. }
        | ReceiptStep::AttemptStarted { .. }
        | ReceiptStep::AttemptFinished { .. } => false,
    }
}

/// Returns the replies in a record of the ledger.
fn replies_of_record(stored: &StoredMessage) -> Vec<Reply> {
    let Ok(record) = stored.decode_known_entries() else {
        return Vec::new();
    };

    let reply = |entry| {
        let (LedgerEntry::TurnCompleted { reply, .. } | LedgerEntry::TurnFailed { reply, .. }) = entry else {
            return None;
        };
        reply.map(|reply| *reply)
    };

    record.entries.into_iter().filter_map(reply).collect()
}
