//! The drain of one destination's parked replies: from the head, each when it is due.

use std::collections::HashSet;
use std::time::Duration;

use shared::bus::{Bus, ConsumeError, ReadStreamError, StoredMessage};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::DISPATCH;
use shared::wire::topology::streams;
use tokio::sync::Semaphore;

use crate::deliverer::{DeliveryProgress, PartitionDeliverer};
use crate::destination::{Destination, parked_of};
use crate::error::DeliverError;
use crate::job::{DeliveryJob, SERVICE, delivery_copy};
use crate::repair_pause::{REPAIR_PAUSE, wait};

/// Maximum wait before the clock, which may jump, is read again.
const MAX_NAP: Duration = Duration::from_secs(30);

/// Maximum wait for the next parked reply in a listing.
const LIST_PATIENCE: Duration = Duration::from_secs(3);

/// The reason why the listing of parked replies did not complete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListParkedError {
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    #[error(transparent)]
    Consume(#[from] ConsumeError),
    /// The remaining replies are gone, because a former owner settled them in the meantime.
    #[error("no message within {} s", LIST_PATIENCE.as_secs())]
    Stalled,
}

/// Returns the destinations with parked replies in `partition`.
pub(crate) async fn list_parked(bus: &Bus, partition: u16) -> Result<HashSet<Destination>, ListParkedError> {
    let filter = parked_of(partition);
    let mut found = HashSet::new();
    // An ordered reader of an empty subject would wait for a message that never arrives.
    let Some(first) = bus.next_on_subject(streams::PARKED, &filter, 1).await? else {
        return Ok(found);
    };

    let mut parked = bus
        .read_ordered(streams::PARKED, std::slice::from_ref(&filter), first.sequence)
        .await?;
    loop {
        let next = tokio::time::timeout(LIST_PATIENCE, parked.next()).await;
        let message = next.map_err(|_| ListParkedError::Stalled)?;
        found.extend(Destination::of_parked(&message.subject));
        if message.pending == 0 {
            return listed_by_the_leader(bus, &filter, message.sequence + 1, found).await;
        }
    }
}

/// Adds the leader's destinations at and after `from`. The reader may have used a replica that lags behind, and later
/// replies would overtake those of a destination that is missed.
async fn listed_by_the_leader(
    bus: &Bus,
    filter: &str,
    from: u64,
    mut found: HashSet<Destination>,
) -> Result<HashSet<Destination>, ListParkedError> {
    let mut from = from;
    while let Some(stored) = bus.next_on_subject(streams::PARKED, filter, from).await? {
        from = stored.sequence + 1;
        found.extend(Destination::of_parked(&stored.subject));
    }
    Ok(found)
}

/// Drains the parked replies of `destination` until none is left (`true`) or `stop` is requested (`false`). The
/// permits of `slots` limit the number of attempts that run at once in the process.
pub async fn drain_destination(
    deliverer: &PartitionDeliverer<'_>,
    destination: &Destination,
    slots: &Semaphore,
    stop: &ShutdownSignal,
) -> bool {
    let subject = destination.parked_subject();
    while !stop.is_requested() {
        // One after the other, in the order in which they were parked.
        let ended = match deliverer.bus().next_on_subject(streams::PARKED, &subject, 1).await {
            Ok(None) => return true,
            Ok(Some(head)) => settle_head(deliverer, destination, &head, slots, stop).await,
            Err(error) => {
                tracing::warn!(destination = destination.as_str(), %error, "failed to read parked replies; retrying");
                false
            }
        };

        if !ended {
            wait(REPAIR_PAUSE, stop).await;
        }
    }

    false
}

/// Advances the head until it is settled and deleted, or `stop` is requested. Returns `false` if it must be tried
/// again.
async fn settle_head(
    deliverer: &PartitionDeliverer<'_>,
    destination: &Destination,
    head: &StoredMessage,
    slots: &Semaphore,
    stop: &ShutdownSignal,
) -> bool {
    let (at, sequence) = (destination.as_str(), head.sequence);
    let job = match read(destination, head) {
        Ok(job) => job,
        Err(letter) => {
            let buried = dead_letter_head(deliverer, *letter, head).await;
            if let Err(error) = &buried {
                tracing::warn!(
                    destination = at, sequence, event_id = head.headers.event_id(), %error,
                    "unreadable parked reply is not dead-lettered yet; retrying"
                );
            }

            // A head that cannot be removed is tried again: nothing may pass it.
            return buried.is_ok();
        }
    };

    let brought = bring_on(deliverer, &job, head, slots, stop).await;
    if let Err(error) = &brought {
        tracing::warn!(
            destination = at, sequence, delivery_id = %job.reply.id, event_id = %job.reply.causation.event,
            session = %job.reply.session, dispatch_id = head.headers.get(DISPATCH), %error, "failed to process a parked reply; retrying"
        );
    }

    brought.is_ok()
}

async fn dead_letter_head(
    deliverer: &PartitionDeliverer<'_>,
    letter: DeadLetter,
    head: &StoredMessage,
) -> Result<(), DeliverError> {
    let letter = DeadLetter {
        at: deliverer.now(),
        ..letter
    };
    deliverer.bus().dead_letter_record(letter).await?;
    Ok(delete_head(deliverer, head).await?)
}

async fn bring_on(
    deliverer: &PartitionDeliverer<'_>,
    job: &DeliveryJob,
    head: &StoredMessage,
    slots: &Semaphore,
    stop: &ShutdownSignal,
) -> Result<(), DeliverError> {
    while !stop.is_requested() {
        let Ok(slot) = slots.acquire().await else { return Ok(()) };
        let standing = deliverer.find_standing(job, false).await?;
        let progress = deliverer.advance_job(job, standing).await?;
        // The wait for the next attempt must not hold a slot.
        drop(slot);

        match progress {
            DeliveryProgress::Settled => return Ok(delete_head(deliverer, head).await?),
            DeliveryProgress::Later(at) => wait_until(at, deliverer, stop).await,
        }
    }

    Ok(())
}

async fn wait_until(at: UnixMillis, deliverer: &PartitionDeliverer<'_>, stop: &ShutdownSignal) {
    while !stop.is_requested() {
        let left = u64::try_from(at.since(deliverer.now())).unwrap_or(0);
        if left == 0 {
            return;
        }
        wait(Duration::from_millis(left).min(MAX_NAP), stop).await;
    }
}

async fn delete_head(deliverer: &PartitionDeliverer<'_>, head: &StoredMessage) -> Result<(), ReadStreamError> {
    deliverer
        .bus()
        .delete_message(streams::PARKED, head.sequence)
        .await
        .map(|_| ())
}

/// Returns the parked delivery, or the dead letter for a message that is not one.
fn read(destination: &Destination, head: &StoredMessage) -> Result<DeliveryJob, Box<DeadLetter>> {
    // The dead letter keeps the message as it is, so that it can be published again.
    let letter = |reason: &str, detail: String| {
        Box::new(DeadLetter {
            service: SERVICE.to_owned(),
            subject: head.subject.clone(),
            redrive_subject: destination.published_subject(),
            stream: streams::PARKED.to_owned(),
            sequence: head.sequence,
            headers: head
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            payload: DeadLetter::encode_payload(&head.payload),
            reason: reason.to_owned(),
            detail,
            attempts: 0,
            at: head.published_at,
        })
    };

    let Some(place) = delivery_copy(&head.headers) else {
        return Err(letter(
            "malformed",
            "the parked reply does not say which delivery it is".to_owned(),
        ));
    };

    DeliveryJob::read(destination.clone(), place, &head.headers, &head.payload)
        .map_err(|error| letter(error.reason(), error.to_string()))
}
