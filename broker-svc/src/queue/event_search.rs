//! Search for the event of a dispatch that is lost.
//!
//! Redriven, the event makes the dispatch again, so it must be the one that made it. Its record in `INVOCATIONS` names
//! the dispatch among its fires, and the event by its sequence and subject. A source that sent the event again, after
//! `EVENTS` was restored or the event had expired, has stored it at another sequence of the same subject. A change of an
//! item has the id of its item and a record of its own. A dispatch that no hook made has no such event.

use shared::bus::{Bus, ReadStreamError, StoredMessage};
use shared::model::event::EventId;
use shared::model::invocation::EventInvocations;
use shared::model::ledger::DispatchRef;
use shared::wire::headers::EVENT_SUBJECT;
use shared::wire::seal::record_key;
use shared::wire::subject;
use shared::wire::topology::streams::{EVENTS, INVOCATIONS};

use super::doubt::earliest_stored;

/// Number of messages read at once.
const PAGE: usize = 256;
/// Maximum number of messages of the conversation that are read. The search begins at the time of the event, and a
/// source sends again soon after it has noticed a loss.
const MOST_READ: usize = 64 * PAGE;

/// Returns the event of which the dispatch `known` was made, as it is stored; `None` if it is not found.
///
/// # Errors
/// Returns [`ReadStreamError`] if a stream cannot be read.
pub async fn find_event(bus: &Bus, known: &DispatchRef) -> Result<Option<StoredMessage>, ReadStreamError> {
    let Some((stored, record)) = read_record(bus, &known.event_id).await? else {
        return Ok(None);
    };

    let recorded = bus.at_sequence(EVENTS, record.event_seq).await?;
    if let Some(recorded) = recorded
        && has_made(bus, &recorded, known).await?
    {
        return Ok(Some(recorded));
    }

    match stored.headers.get(EVENT_SUBJECT) {
        Some(subject) => find_on_subject(bus, subject, known).await,
        None => Ok(None),
    }
}

/// As [`find_event`], among the newest messages on `subject`, oldest first.
async fn find_on_subject(
    bus: &Bus,
    subject: &str,
    known: &DispatchRef,
) -> Result<Option<StoredMessage>, ReadStreamError> {
    let mut page = bus
        .history_since(EVENTS, subject, earliest_stored(known.id), PAGE)
        .await?;
    let mut read = 0;

    while read < MOST_READ {
        let Some(last) = page.last().map(|last| last.sequence) else {
            break;
        };
        read += page.len();
        for stored in page {
            if has_made(bus, &stored, known).await? {
                return Ok(Some(stored));
            }
        }

        page = bus.read_history(EVENTS, subject, last + 1, PAGE).await?;
        if page.is_empty() {
            // The history may be stale on a replica, and the event may be the newest message.
            page.extend(bus.next_on_subject(EVENTS, subject, last + 1).await?);
        }
    }

    Ok(None)
}

/// Returns whether the event in `stored` is that of `known` and its record has the dispatch among its fires.
async fn has_made(bus: &Bus, stored: &StoredMessage, known: &DispatchRef) -> Result<bool, ReadStreamError> {
    let event = stored.read_event(bus.trust()).ok();
    let Some(event) = event.filter(|event| event.id == known.event_id) else {
        return Ok(false);
    };

    let record = read_record(bus, &record_key(&event)).await?;
    Ok(record.is_some_and(|(_, record)| record.has_made(known.id)))
}

/// Returns the newest record under `key`, with its message.
async fn read_record(bus: &Bus, key: &EventId) -> Result<Option<(StoredMessage, EventInvocations)>, ReadStreamError> {
    let stored = bus
        .last_on_subject(INVOCATIONS, &subject::invocation_anywhere(key))
        .await?;
    Ok(stored.and_then(|stored| {
        let record = stored.decode().ok()?;
        Some((stored, record))
    }))
}
