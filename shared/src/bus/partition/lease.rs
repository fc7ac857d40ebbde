//! Lease on one partition: taking it, holding it, giving it back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select_all;
use tokio::task::JoinHandle;

use crate::wire::session_mark::LeaseRecord;
use crate::wire::topology::buckets;

use super::super::connect::Bus;
use super::super::error::{CasError, PublishError};
use super::super::kv::Kv;
use super::super::publish::OutgoingMessage;
use super::super::writer::note_panic;
use super::floors::PartitionFloorStore;
use super::owned::{OwnedPartition, begin_partition};
use super::tenure::{LeaseDeadline, LeaseTenure};
use super::{PartitionGroup, SettledOutcome, TICK, TTL};

/// A partition that this replica holds.
#[derive(Debug)]
pub(super) struct HeldLease {
    partition: u16,
    kv: Kv<LeaseRecord>,
    key: String,
    revision: u64,
    deadline: LeaseDeadline,
    handler: JoinHandle<()>,
    ended: bool,
    over: bool,
}

impl HeldLease {
    /// Number of the partition.
    pub(super) const fn partition(&self) -> u16 {
        self.partition
    }

    /// Whether the lease is given back or lost.
    pub(super) const fn is_over(&self) -> bool {
        self.over
    }

    /// Asks the handler to end; the lease is held until it has.
    pub(super) fn give_back(&self) {
        self.deadline.stop.cancel();
    }

    /// Waits until one of the handlers among `held` that were asked to end has ended.
    pub(super) async fn any_over(held: &HashMap<u16, Self>) {
        let ending: Vec<_> = held
            .values()
            .filter(|lease| lease.deadline.stop.is_cancelled() && !lease.ended)
            .map(|lease| Box::pin(poll_finished(&lease.handler)))
            .collect();
        if ending.is_empty() {
            return std::future::pending().await;
        }
        select_all(ending).await;
    }

    /// Records whether the handler has ended, and returns it.
    pub(super) fn note_end(&mut self) -> bool {
        // The handle must not be polled again after its end.
        if !self.ended
            && let Some(ended) = (&mut self.handler).now_or_never()
        {
            self.ended = true;
            if ended.is_err_and(|error| error.is_panic()) {
                note_panic();
            }
        }

        self.ended
    }

    /// Records that the key of the lease was written or removed by another after `revision`, our own write.
    pub(super) fn note_loss(&self) {
        self.deadline.note_loss();
    }

    /// Revision at which this replica wrote the lease.
    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    /// Gives the lease back if the handler is recorded to have ended, and ends it if it is over.
    pub(super) async fn settle_end(&mut self) {
        if self.ended {
            self.release_lease().await;
            return;
        }
        self.end_if_over();
    }

    /// Aborts the handler, with everything it has in progress, if the lease is over.
    pub(super) fn end_if_over(&mut self) {
        if !self.over && !self.ended && !self.deadline.is_live() {
            tracing::warn!(key = %self.key, "lease lost");
            metrics::counter!("nexus_leases_lost_total").increment(1);
            self.deadline.stop.cancel();
            self.handler.abort();
            self.over = true;
        }
    }

    /// Removes the lease. While it is not known whether the server did so, the lease stays in hand: its session lives on,
    /// and no other replica could take it.
    async fn release_lease(&mut self) {
        if !self.deadline.is_live() {
            self.over = true;
            return;
        }

        let given = tokio::time::timeout(TICK, self.kv.delete(&self.key, Some(self.revision))).await;
        match given {
            Ok(Ok(()) | Err(CasError::Conflict { .. })) => self.over = true,
            Ok(Err(error)) => tracing::debug!(key = %self.key, %error, "failed to release a lease; retrying"),
            Err(_) => tracing::debug!(key = %self.key, "a lease was not released in time; retrying"),
        }
    }
}

/// Returns the message that writes the lease `key`, if its current revision is `revision`, for [`TTL`].
pub(super) fn lease_message(key: &str, record: &LeaseRecord, revision: u64) -> OutgoingMessage {
    session_lease_message(key, record, revision).ttl(TTL)
}

/// Returns the message that writes a lease without an end of its own: it ends with its session.
fn session_lease_message(key: &str, record: &LeaseRecord, revision: u64) -> OutgoingMessage {
    OutgoingMessage::new(format!("$KV.{}.{key}", buckets::LEASES), record).expect_last(revision)
}

/// Writes `record`, a lease that ends with its session, in place of the one of `revision`. Returns its revision; `None`
/// if another replica was faster.
///
/// # Errors
/// Returns [`PublishError`] if the server does not store it in time.
pub(in crate::bus) async fn store_lease(
    bus: &Bus,
    key: &str,
    record: &LeaseRecord,
    revision: u64,
) -> Result<Option<u64>, PublishError> {
    let mut taken = bus
        .publish_once(&session_lease_message(key, record, revision), TICK)
        .await;
    if revision > 0 && matches!(taken, Err(PublishError::WrongLastSequence { .. })) {
        // The marker of a lease that was given back expires, and no watch reports that: then the key has no revision.
        taken = bus.publish_once(&session_lease_message(key, record, 0), TICK).await;
    }

    match taken {
        Ok(published) => Ok(Some(published.sequence)),
        Err(PublishError::WrongLastSequence { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn poll_finished(handler: &JoinHandle<()>) {
    while !handler.is_finished() {
        crate::clock::pause(Duration::from_millis(10)).await;
    }
}

/// Takes the lease on `partition` at `revision` for the session that is named and ends as `session` says, and starts the
/// handler. Returns `None` if another replica was faster.
pub(super) async fn take<H, F>(
    bus: Bus,
    group: Arc<PartitionGroup>,
    floors: Arc<PartitionFloorStore>,
    ((partition, revision), session): ((u16, u64), (String, LeaseDeadline)),
    handler: H,
) -> Option<HeldLease>
where
    H: Fn(OwnedPartition) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let kv: Kv<LeaseRecord> = bus.kv(buckets::LEASES);
    let key = group.lease_key(partition);
    let record = LeaseRecord {
        holder: group.instance.clone(),
        epoch: revision + 1,
        in_progress: None,
        runs: Vec::new(),
        released: false,
        session: session.0,
    };

    let taken = match store_lease(&bus, &key, &record, revision).await {
        Ok(taken) => taken?,
        Err(error) => {
            tracing::debug!(key, %error, "failed to acquire a lease");
            return None;
        }
    };

    let deadline = session.1.of_lease();
    tracing::debug!(key, epoch = taken, "partition acquired");
    let tenure = LeaseTenure {
        bus,
        group,
        floors,
        partition,
        epoch: taken,
        deadline: deadline.clone(),
    };

    let handler = tokio::spawn(run_generations(Arc::new(tenure), handler));
    Some(HeldLease {
        partition,
        kv,
        key,
        revision: taken,
        deadline,
        handler,
        ended: false,
        over: false,
    })
}

/// Runs the handler while the lease lives, once more each time the partition has to be restarted.
async fn run_generations<H, F>(tenure: Arc<LeaseTenure>, handler: H)
where
    H: Fn(OwnedPartition) -> F,
    F: Future<Output = ()>,
{
    let LeaseTenure {
        group,
        floors,
        partition,
        deadline,
        ..
    } = tenure.as_ref();

    // One floor for the whole period: a restart of the partition continues its count.
    let floor = (group.settled == SettledOutcome::ByOwner).then(|| floors.take(*partition));
    let mut generation = 0;
    while !deadline.stop.is_cancelled() && deadline.is_live() {
        match begin_partition(&tenure, floor.as_ref(), generation).await {
            Ok(owned) => {
                generation += 1;
                handler(owned).await;
            }
            Err(error) => {
                tracing::debug!(
                    group = group.name,
                    partition,
                    error,
                    "failed to start a partition; retrying"
                );
                // Short, because the lease keeps running while the partition has no reader.
                tokio::select! {
                    () = deadline.stop.cancelled() => return,
                    () = crate::clock::pause(TICK / 3) => {}
                }
            }
        }
    }
}
