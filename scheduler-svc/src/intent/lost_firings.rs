//! Firings whose message is lost, because its stream was restored to an older state, emptied or created again.
//!
//! No record of another service names the messages of an intent, so they are made again from the intent's own value,
//! with the same ids. Each receiver checks whether it has handled an earlier copy.

use shared::bus::{Bus, ReadStreamError, StoredMessage};
use shared::clock::SharedClock;
use shared::model::dispatch::{DeliveryContext, Dispatch};
use shared::model::event::Event;
use shared::model::intent::{Intent, IntentFiring};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::headers::EVENT;
use shared::wire::held::{HeldKind, held_key};
use shared::wire::subject;
use shared::wire::topology::streams::{DELIVERIES, DISPATCHES, EVENTS, PARKED};
use ulid::Ulid;

use super::error::HandleIntentError;
use super::firing;

/// Time without any trace of a firing after which its queue is searched, milliseconds. It is longer than the 120 s in
/// which the server would refuse a copy.
pub(super) const LOST_AFTER_MS: i64 = 150_000;
/// Largest difference assumed between the clocks and a message's store time, milliseconds.
const SKEW_MS: i64 = 600_000;
/// Messages per read of a stream.
const PAGE: usize = 256;

/// Stream, subject and time range of a search.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    stream: &'a str,
    subject: &'a str,
    /// Start of the range by store time; none = the whole stream.
    since: Option<UnixMillis>,
}

/// Returns whether no message of `running`, the firing under way of `intent`, is stored anywhere.
///
/// # Errors
/// Returns [`HandleIntentError`] if the streams cannot be read.
pub async fn is_lost(
    bus: &Bus,
    clock: &SharedClock,
    intent: &Intent,
    running: &IntentFiring,
) -> Result<bool, HandleIntentError> {
    // The message to look for depends on the kind: a dispatch, a reply, or the event alone.
    if let Some(dispatch) = running.dispatch {
        let place = Place {
            stream: DISPATCHES,
            subject: &subject::dispatch(&intent.target()),
            since: Some(stored_since(bus, clock, running.at).await?),
        };

        let waits = first(bus, place, |stored| has_dispatch(stored, dispatch))
            .await?
            .is_some();
        return Ok(!waits && !is_held(bus, HeldKind::Dispatch, dispatch).await?);
    }

    if let Some(reply) = firing::firing_reply(intent, running.nominal)? {
        return Ok(!waits_to_be_sent(bus, &reply).await? && !is_held(bus, HeldKind::Delivery, reply.id).await?);
    }

    let event = firing::firing_event(intent, running.nominal, running.at)?;
    Ok(stored_event(bus, clock, &event).await?.is_none())
}

/// Returns the sequence of `event`, the event of a firing, if `EVENTS` has it.
///
/// # Errors
/// Returns [`ReadStreamError`] if the stream cannot be read.
pub async fn stored_event(bus: &Bus, clock: &SharedClock, event: &Event) -> Result<Option<u64>, ReadStreamError> {
    let place = Place {
        stream: EVENTS,
        subject: &subject::conversation(&event.channel, event.account(), &event.peer.id),
        // The event cannot have been stored before its nominal time.
        since: Some(stored_since(bus, clock, event.timestamp).await?),
    };

    let is_it = |stored: &StoredMessage| stored.headers.get(EVENT) == Some(event.id.as_str());
    Ok(first(bus, place, is_it).await?.map(|stored| stored.sequence))
}

/// Returns the earliest store time, by the server's clock, of a message that was published at `at` or later.
async fn stored_since(bus: &Bus, clock: &SharedClock, at: UnixMillis) -> Result<UnixMillis, ReadStreamError> {
    let server = bus.server_clock(clock.as_ref()).await?;
    Ok(at.plus(server.ahead_ms).plus(-SKEW_MS))
}

fn has_dispatch(stored: &StoredMessage, id: Ulid) -> bool {
    stored.decode::<Dispatch>().is_ok_and(|dispatch| dispatch.id == id)
}

/// Returns whether `reply` is in the queue, or parked behind a destination that fails.
async fn waits_to_be_sent(bus: &Bus, reply: &Reply) -> Result<bool, ReadStreamError> {
    for (stream, root) in [(DELIVERIES, "nexus.dl"), (PARKED, "nexus.parked")] {
        let place = Place {
            stream,
            subject: &stored_delivery(root, &reply.delivery_context),
            since: None,
        };

        let is_it = |stored: &StoredMessage| stored.decode::<Reply>().is_ok_and(|waiting| waiting.id == reply.id);
        if first(bus, place, is_it).await?.is_some() {
            return Ok(true);
        }
    }

    Ok(false)
}

/// Returns the subject of stored deliveries to `to` below `root`, in any partition.
fn stored_delivery(root: &str, to: &DeliveryContext) -> String {
    subject::delivery(to).replacen("nexus.delivery", &format!("{root}.*"), 1)
}

async fn is_held(bus: &Bus, kind: HeldKind, id: Ulid) -> Result<bool, ReadStreamError> {
    Ok(bus.held_bucket().find(&held_key(kind, id)).await?.0.is_some())
}

/// Returns the first message at `place` for which `is_it` holds. A replica that lags may lack the message: then it is
/// published once more, and recognized by its id.
async fn first(
    bus: &Bus,
    place: Place<'_>,
    is_it: impl Fn(&StoredMessage) -> bool,
) -> Result<Option<StoredMessage>, ReadStreamError> {
    let Place { stream, subject, since } = place;
    let mut page = match since {
        Some(since) => bus.history_since(stream, subject, since, PAGE).await?,
        None => bus.read_history(stream, subject, 1, PAGE).await?,
    };

    while let Some(through) = page.last().map(|stored| stored.sequence) {
        if let Some(found) = page.into_iter().find(&is_it) {
            return Ok(Some(found));
        }
        page = bus.read_history(stream, subject, through + 1, PAGE).await?;
    }

    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_looked_for_in_every_partition() {
        let to = DeliveryContext {
            channel: "telegram".to_owned(),
            peer_id: Some("5".to_owned()),
            ..DeliveryContext::default()
        };
        let stored = stored_delivery("nexus.parked", &to);
        let published = subject::delivery(&to);
        assert_eq!(
            stored.strip_prefix("nexus.parked.*"),
            published.strip_prefix("nexus.delivery")
        );
    }
}
