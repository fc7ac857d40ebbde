//! Repairing what a crash, or a lost timer, left behind: page by page, in the background, at start and hourly.
//!
//! What changed since the last walk has its records brought into `AUDIT`, and is cleared away where it is over; what is
//! overdue, or has waited too long for an end, is handled as if its timer had rung. Agents' books are looked through for
//! reservations that no intent stands behind. What was written last is looked at first: that is where a crash cut
//! somebody off. Nothing waits for all this: the service is ready before it begins.
//!
//! Where the bucket was put back to an older state, intents are behind `AUDIT` ([`super::catch_up`]). Then all of them have
//! their records looked after, whenever they changed, until a walk has found none that is behind.
//!
//! The bucket is read by one ordered reader without a filter. A batch of direct reads under a filter has the server count
//! what is left under it, each time, with the stream locked: a tenth of a second in which no intent of a million is written.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use shared::bus::position::told_sound;
use shared::bus::{Bus, ConnectionCount, IncomingMessage, OrderedReader, StreamInfo};
use shared::clock::pause;
use shared::model::intent::book::AgentBook;
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{Intent, IntentStatus};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::subject::untoken;
use shared::wire::topology::buckets::INTENTS;

use super::catch_up::BEHIND;
use super::clerk::IntentExecutor;
use super::error::HandleIntentError;
use super::store::STREAM;
use super::timers;

/// Time between two walks.
const EVERY: Duration = Duration::from_secs(3_600);
/// Wait after a walk that the bus cut short.
const AGAIN: Duration = Duration::from_secs(10);
/// Messages of the bucket read at once.
const PAGE: usize = 256;
/// Of a page, looked at together.
const AT_ONCE: usize = 8;
/// Wait between two pages at least, and [`REST`] times what the page took: a walk over a million takes some minutes and
/// leaves the server to its work.
const BETWEEN_PAGES: Duration = Duration::from_millis(25);
/// How many times longer than it looks a walk rests.
const REST: u32 = 2;
/// Writes that are looked at before all others: some seconds of a busy installation.
const LATELY: u64 = 32_768;
/// Wait for the next message before it is asked whether there is one at all.
const SILENCE: Duration = Duration::from_secs(1);
/// An intent so late has lost its timer, milliseconds: timers are late by a fraction of a second.
const OVERDUE_MS: i64 = 60_000;
/// A book that was not written for so long has no admission under way in it, milliseconds.
const ADMITTED_WITHIN_MS: i64 = 600_000;
/// Final intents are kept so long in KV, milliseconds; `AUDIT` keeps them for ever.
const KEPT_MS: i64 = 30 * 86_400_000;

/// The bucket that was looked through.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Walked {
    incarnation: String,
    created: String,
    /// Up to this revision.
    through: u64,
}

impl Walked {
    /// Whether `info` describes this bucket: not another one, and not one that was put back.
    fn is_of(&self, info: &StreamInfo) -> bool {
        let is_same = self.incarnation == info.incarnation && self.created == info.created;
        is_same && self.through <= info.state.last
    }
}

/// Walks until `shutdown`: every hour, when an intent was behind `AUDIT`, and when the connection stands anew to a bucket
/// that was put back.
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
            () = pause(rest) => {}
            () = stands_anew_elsewhere(&clerk.bus, walked.as_ref(), &mut connections) => {}
            () = clerk.store.put_back() => walked = None,
            () = shutdown.requested() => {}
        }
    }
}

/// Waits until the connection stands anew and the bucket is not the one that was `walked`, as far as can be told.
async fn stands_anew_elsewhere(bus: &Bus, walked: Option<&Walked>, connections: &mut ConnectionCount) {
    loop {
        connections.stands_anew().await;
        connections.count_from_now();

        match bus.stream_info(STREAM).await {
            Ok(info) if walked.is_some_and(|walked| walked.is_of(&info)) => {}
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%error, "the bucket of intents cannot be asked for now");
                return;
            }
        }
    }
}

/// Walks once; returns the bucket that was looked through, none if not all of it was.
async fn walk_on(
    clerk: &Arc<IntentExecutor>,
    walked: Option<&Walked>,
    shutdown: &ShutdownSignal,
) -> Result<Option<Walked>, HandleIntentError> {
    let info = clerk.bus.stream_info(STREAM).await?;
    let audited = walked
        .filter(|walked| walked.is_of(&info))
        .map_or(0, |walked| walked.through);
    let behind = clerk.store.caught_up();
    let through = reconcile_all(clerk, audited, shutdown).await?;
    if shutdown.is_requested() {
        return Ok(None);
    }

    if audited == 0 && clerk.store.caught_up() == behind {
        told_sound(BEHIND);
    }

    Ok(Some(Walked {
        incarnation: info.incarnation,
        created: info.created,
        through,
    }))
}

/// Looks through all intents and books; intents that changed after revision `audited` have their records looked after.
/// Answers the last revision seen.
///
/// # Errors
/// [`HandleIntentError`] where the bucket cannot be read.
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

/// Looks at what lies at the revisions `through`.
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
        stream::iter(page)
            .for_each_concurrent(AT_ONCE, async |message| {
                if let Err(error) = reconcile_entry(clerk, &message, audited).await {
                    tracing::warn!(subject = message.subject, %error, "failed to repair an intent or a budget record");
                }
            })
            .await;

        from = next;
        let took = clerk.clock.monotonic().saturating_duration_since(begun);
        if from <= to {
            pause(BETWEEN_PAGES.max(took * REST)).await;
        }
    }

    Ok(())
}

/// The next messages at the revisions `through`, and the revision behind them.
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
            // What stood there last may be gone meanwhile, or the replica that is read from lags behind: the leader knows.
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

/// Frees the reservations that no day settles and no intent stands behind. One that lapses with its day is left to that.
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

    // One that is over is never behind `AUDIT`; one that waits may be, however long ago it was written.
    if stored.sequence > audited && (!intent.status.is_final() || changed_lately(&intent, now)) {
        match clerk.store.ensure_audited(&intent).await {
            Ok(_) => {}
            Err(HandleIntentError::Conflict(id)) => {
                let Some(entry) = clerk.store.get(Some(&intent.intent.agent), id).await? else {
                    return Ok(());
                };
                (intent, revision) = (entry.value, entry.revision);
            }
            Err(error) => return Err(error),
        }
    }

    if stored.sequence > audited {
        clerk.supersede_intent(&intent).await?;
        clerk.settle_intent(&intent, now).await?;
    }

    let agent = &intent.intent.agent;
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

/// Records are published right after they are written: only what was written in the last days can lack them, unless
/// nobody has run since.
fn changed_lately(intent: &Intent, now: UnixMillis) -> bool {
    let last = intent.records.last();
    last.is_some_and(|record| now.since(record.at) < KEPT_MS)
}
