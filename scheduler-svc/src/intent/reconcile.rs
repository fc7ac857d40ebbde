//! Repairs the traces of crashes and lost timers: page by page, in the background, at the start, every hour, and some
//! time after each new connection, because timers that are due while the server restarts can be lost.
//!
//! A walk brings the records of intents that have changed since the last walk into `AUDIT`, and cleans up ended
//! intents. Intents that are overdue, or have waited too long for an end, are handled as if their timer had fired.
//! Reservations without an intent are removed from the agents' books. The last writes are checked first, because a
//! crash interrupted those. The service is ready before the walk starts.
//!
//! If the bucket was restored to an older state, intents are behind `AUDIT` ([`super::catch_up`]). Then the records of
//! all intents are checked, whenever they changed, until a walk has found none that is behind.
//!
//! The bucket is read by one ordered reader without a filter. For each batch of direct reads with a filter, the server
//! counts the remaining messages under the filter with the stream locked: for a tenth of a second no intent of a
//! million could be written.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use shared::bus::position::told_sound;
use shared::bus::{ConnectionCount, IncomingMessage, OrderedReader, StreamInfo};
use shared::clock::pause;
use shared::model::intent::book::AgentBook;
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{Intent, IntentStatus};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::subject::untoken;
use shared::wire::topology::buckets::INTENTS;

use super::catch_up::BEHIND;
use super::error::HandleIntentError;
use super::executor::IntentExecutor;
use super::store::STREAM;
use super::timers;
use crate::timer::AFTER_CONNECTION;

/// Time between two walks.
const EVERY: Duration = Duration::from_secs(3_600);
/// Pause after a walk that failed.
const AGAIN: Duration = Duration::from_secs(10);
/// Messages in a page.
const PAGE: usize = 256;
/// Messages of a page that are handled concurrently.
const AT_ONCE: usize = 8;
/// Least pause between two pages; the pause is at least [`REST`] times the duration of the page, so that a walk over a
/// million intents takes some minutes and does not load the server.
const BETWEEN_PAGES: Duration = Duration::from_millis(25);
/// Ratio of the pause to the duration of a page.
const REST: u32 = 2;
/// Number of writes that are checked before all others: some seconds of a busy installation.
const LATELY: u64 = 32_768;
/// Wait for the next message, after which the leader is asked whether there is one.
const SILENCE: Duration = Duration::from_secs(1);
/// Delay of an intent, in milliseconds, above which its timer counts as lost: timers are late by a fraction of a
/// second.
const OVERDUE_MS: i64 = 60_000;
/// Time since the last write of a book, in milliseconds, after which no admission is under way in it.
const ADMITTED_WITHIN_MS: i64 = 600_000;
/// Time that ended intents are kept in KV, milliseconds; `AUDIT` keeps them for ever.
const KEPT_MS: i64 = 30 * 86_400_000;

/// Identity and range of the bucket that was walked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Walked {
    incarnation: String,
    created: String,
    /// Last revision that was checked.
    through: u64,
}

impl Walked {
    /// Returns whether `info` describes the same bucket, and it was not restored.
    fn is_of(&self, info: &StreamInfo) -> bool {
        let is_same = self.incarnation == info.incarnation && self.created == info.created;
        is_same && self.through <= info.state.last
    }
}

/// Walks until `shutdown`: every hour, 75 s after a new connection, after an intent was found behind `AUDIT`, and at once after a
/// new connection if the bucket was restored.
pub async fn run(clerk: Arc<IntentExecutor>, shutdown: ShutdownSignal) {
    let mut walked = None;
    let mut connections = clerk.bus.connections();
    connections.count_from_now();
    while !shutdown.is_requested() {
        let rest = match walk_on(&clerk, walked.as_ref(), &shutdown).await {
            Ok(through) => {
                walked = through;
                EVERY
            }
            Err(error) => {
                tracing::warn!(%error, "reconciliation of intents incomplete");
                AGAIN
            }
        };

        tokio::select! {
            () = wait_until_due(&clerk, rest, walked.as_ref(), &mut connections) => {}
            () = clerk.store.put_back() => walked = None,
            () = shutdown.requested() => {}
        }
    }
}

/// Waits for `rest`, for [`AFTER_CONNECTION`] if there is a new connection meanwhile, or for one after which the bucket
/// may be another one than `walked`.
async fn wait_until_due(
    clerk: &IntentExecutor,
    rest: Duration,
    walked: Option<&Walked>,
    connections: &mut ConnectionCount,
) {
    let mut due = clerk.clock.monotonic() + rest;
    loop {
        let now = clerk.clock.monotonic();
        tokio::select! {
            () = pause(due.saturating_duration_since(now)) => return,
            () = connections.stands_anew() => {}
        }

        connections.count_from_now();
        due = due.min(clerk.clock.monotonic() + AFTER_CONNECTION);
        match clerk.bus.stream_info(STREAM).await {
            Ok(info) if walked.is_some_and(|walked| walked.is_of(&info)) => {}
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%error, "failed to query the bucket of intents; checking all intents");
                return;
            }
        }
    }
}

/// Walks once. Returns the bucket that was checked, or `None` if the walk was interrupted.
async fn walk_on(
    clerk: &Arc<IntentExecutor>,
    walked: Option<&Walked>,
    shutdown: &ShutdownSignal,
) -> Result<Option<Walked>, HandleIntentError> {
    let info = clerk.bus.stream_info(STREAM).await?;
    // The same bucket was walked before: only intents that changed since then need their records checked.
    let audited = walked
        .filter(|walked| walked.is_of(&info))
        .map_or(0, |walked| walked.through);
    let behind = clerk.store.caught_up();
    let through = reconcile_all(clerk, audited, shutdown).await?;
    if shutdown.is_requested() {
        return Ok(None);
    }

    // A whole walk has found no value behind `AUDIT`: the fault is over.
    if audited == 0 && clerk.store.caught_up() == behind {
        told_sound(BEHIND);
    }

    Ok(Some(Walked {
        incarnation: info.incarnation,
        created: info.created,
        through,
    }))
}

/// Checks all intents and books, including the audit records of intents that changed after revision `audited`. Returns
/// the last revision that was checked.
///
/// # Errors
/// Returns [`HandleIntentError`] if the bucket cannot be read.
pub async fn reconcile_all(
    clerk: &Arc<IntentExecutor>,
    audited: u64,
    shutdown: &ShutdownSignal,
) -> Result<u64, HandleIntentError> {
    let state = clerk.bus.stream_state(STREAM).await?;
    let lately = state.last.saturating_sub(LATELY).max(state.first);
    reconcile_range(clerk, audited, lately..=state.last, shutdown).await?;
    reconcile_range(clerk, audited, state.first..=lately.saturating_sub(1), shutdown).await?;
    Ok(if shutdown.is_requested() { audited } else { state.last })
}

/// Checks the messages at the revisions `through`.
async fn reconcile_range(
    clerk: &Arc<IntentExecutor>,
    audited: u64,
    through: RangeInclusive<u64>,
    shutdown: &ShutdownSignal,
) -> Result<(), HandleIntentError> {
    let (mut from, to) = through.into_inner();
    if from > to {
        return Ok(());
    }

    let mut reader = clerk.bus.read_ordered(STREAM, &[], from).await?;
    while from <= to && !shutdown.is_requested() {
        let begun = clerk.clock.monotonic();
        let (page, next) = read_page(clerk, &mut reader, from..=to).await?;
        // One bad value must not stop the walk.
        stream::iter(page)
            .for_each_concurrent(AT_ONCE, async |message| {
                if let Err(error) = reconcile_entry(clerk, &message, audited).await {
                    tracing::warn!(subject = message.subject, %error, "failed to repair an intent or a budget record");
                }
            })
            .await;

        from = next;
        // The walk rests longer than it works, so that it never slows the scheduler's own work.
        let took = clerk.clock.monotonic().saturating_duration_since(begun);
        if from <= to {
            pause(BETWEEN_PAGES.max(took * REST)).await;
        }
    }

    Ok(())
}

/// Returns the next messages at the revisions `through`, and the revision after them.
async fn read_page(
    clerk: &Arc<IntentExecutor>,
    reader: &mut OrderedReader,
    through: RangeInclusive<u64>,
) -> Result<(Vec<IncomingMessage>, u64), HandleIntentError> {
    let (mut from, to) = through.into_inner();
    let mut page = Vec::with_capacity(PAGE);
    while from <= to && page.len() < PAGE {
        match tokio::time::timeout(SILENCE, reader.next()).await {
            Ok(message) => {
                from = message.sequence + 1;
                if message.sequence <= to {
                    page.push(message);
                }
            }
            // The last message may have been deleted, or the replica that is read may lag: the leader knows.
            Err(_) => match clerk.bus.next_on_subject(STREAM, ">", from).await? {
                Some(next) if next.sequence <= to => {}
                Some(_) | None => from = to + 1,
            },
        }
    }

    Ok((page, from))
}

async fn reconcile_entry(
    clerk: &Arc<IntentExecutor>,
    message: &IncomingMessage,
    audited: u64,
) -> Result<(), HandleIntentError> {
    let key = message
        .subject
        .strip_prefix("$KV.")
        .and_then(|key| key.strip_prefix(INTENTS));

    match key
        .map(|key| key.trim_start_matches('.').split('.').collect::<Vec<_>>())
        .as_deref()
    {
        Some(["i", _, _]) => look_at_intent(clerk, message, audited).await,
        Some(["a", agent]) => match untoken(agent) {
            Some(agent) => look_at_book(clerk, &agent, message).await,
            None => Ok(()),
        },
        Some(_) | None => Ok(()),
    }
}

/// Removes the reservations that do not lapse with a day and have no pending intent.
async fn look_at_book(
    clerk: &Arc<IntentExecutor>,
    agent: &str,
    stored: &IncomingMessage,
) -> Result<(), HandleIntentError> {
    let Ok(book) = stored.decode::<AgentBook>() else {
        return Ok(());
    };

    let now = clerk.clock.now();
    let settled_down = now.since(stored.published_at) > ADMITTED_WITHIN_MS;
    for (id, booking) in book.bookings {
        if booking.due.is_some() {
            continue;
        }

        let fired = match clerk.store.get(Some(agent), id).await? {
            Some(entry) if entry.value.status.is_final() => entry.value.fired > 0,
            None if settled_down => false,
            Some(_) | None => continue,
        };
        tracing::info!(intent = %id, agent, "released a reservation without an intent");
        clerk.books.settle_booking(agent, id, fired, now).await?;
    }

    Ok(())
}

async fn look_at_intent(
    clerk: &Arc<IntentExecutor>,
    stored: &IncomingMessage,
    audited: u64,
) -> Result<(), HandleIntentError> {
    let Ok(intent) = stored.decode::<Intent>() else {
        return Ok(());
    };

    let now = clerk.clock.now();
    let (mut intent, mut revision) = (intent, stored.sequence);

    // An ended intent is never behind `AUDIT`; a waiting one may be, however old its last write is.
    if stored.sequence > audited && (!intent.status.is_final() || changed_lately(&intent, now)) {
        match clerk.store.ensure_audited(&intent).await {
            Ok(_) => {}
            // The value was behind `AUDIT` and has been repaired, or another replica has changed it.
            Err(HandleIntentError::Conflict(id)) => {
                let Some(entry) = clerk.store.get(Some(&intent.intent.agent), id).await? else {
                    return Ok(());
                };
                (intent, revision) = (entry.value, entry.revision);
            }
            Err(error) => return Err(error),
        }
    }

    // Steps that a crash interrupted are repeated; each of them may be repeated without harm.
    if stored.sequence > audited {
        clerk.supersede_intent(&intent).await?;
        clerk.settle_intent(&intent, now).await?;
    }

    let agent = &intent.intent.agent;
    // An overdue intent is handled as if its timer had fired.
    match intent.status {
        IntentStatus::Pending => {
            let rings = intent.due.or(intent.deadline);
            match rings {
                Some(rings) if now.since(rings) > OVERDUE_MS => {
                    clerk.handle_due(agent, intent.intent.id, rings, None).await
                }
                Some(_) | None => Ok(()),
            }
        }
        IntentStatus::Running => match &intent.running {
            Some(running) if now.since(running.at) > OVERDUE_MS => {
                let timer = timers::new_timer(&intent, TimerPurpose::Outcome, running.nominal);
                clerk.handle_timer(&timer).await
            }
            Some(_) | None => Ok(()),
        },
        IntentStatus::Proposed => clerk.handle_due(agent, intent.intent.id, now, None).await,
        IntentStatus::Completed | IntentStatus::Failed | IntentStatus::Canceled | IntentStatus::Rejected => {
            // Their history stays in `AUDIT`.
            let over = intent
                .records
                .last()
                .is_some_and(|record| now.since(record.at) > KEPT_MS);
            if over {
                clerk.store.remove(&intent, revision).await?;
            }

            Ok(())
        }
        IntentStatus::Rescheduled => Ok(()),
    }
}

/// Returns whether `intent` changed so recently that its records may be missing in `AUDIT`: they are published right
/// after the write, unless no scheduler has run since.
fn changed_lately(intent: &Intent, now: UnixMillis) -> bool {
    let last = intent.records.last();
    last.is_some_and(|record| now.since(record.at) < KEPT_MS)
}
