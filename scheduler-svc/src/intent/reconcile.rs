//! Repairing what a crash, or a lost timer, left behind: page by page, in the background, at start and hourly.
//!
//! What changed since the last walk has its records brought into `AUDIT`, and is cleared away where it is over; what is
//! overdue, or has waited too long for an end, is handled as if its timer had rung. Agents' books are looked through for
//! reservations that no intent stands behind. Nothing waits for this: the service is ready before it begins.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::Stored;
use shared::clock::pause;
use shared::model::intent::book::AgentBook;
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{Intent, IntentStatus};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::Shutdown;
use shared::wire::subject::untoken;
use shared::wire::topology::buckets::INTENTS;

use super::clerk::Clerk;
use super::error::HandleIntentError;
use super::store::STREAM;
use super::timers;

/// Time between two walks.
const EVERY: Duration = Duration::from_secs(3_600);
/// Intents read at once.
const PAGE: usize = 256;
/// Wait between two pages: a walk over a million takes some minutes and leaves the server to its work.
const BETWEEN_PAGES: Duration = Duration::from_millis(25);
/// An intent so late has lost its timer, milliseconds: timers are late by a fraction of a second.
const OVERDUE_MS: i64 = 60_000;
/// A book that was not written for so long has no admission under way in it, milliseconds.
const ADMITTED_WITHIN_MS: i64 = 600_000;
/// Final intents are kept so long in KV, milliseconds; `AUDIT` keeps them for ever.
const KEPT_MS: i64 = 30 * 86_400_000;

/// Walks until `shutdown`.
pub async fn run(clerk: Arc<Clerk>, shutdown: Shutdown) {
    let mut audited = 0;
    while !shutdown.is_requested() {
        match walk(&clerk, audited, &shutdown).await {
            Ok(through) => audited = through,
            Err(error) => tracing::warn!(%error, "intents were not looked through to the end"),
        }
        tokio::select! {
            () = pause(EVERY) => {}
            () = shutdown.requested() => {}
        }
    }
}

/// Looks through all intents; those that changed after revision `audited` have their records looked after. Answers the
/// last revision seen.
///
/// # Errors
/// [`HandleIntentError`] where a page cannot be read.
pub async fn walk(clerk: &Arc<Clerk>, audited: u64, shutdown: &Shutdown) -> Result<u64, HandleIntentError> {
    let subject = format!("$KV.{INTENTS}.i.*.*");
    let mut from = 1;
    loop {
        let page = clerk.bus.history(STREAM, &subject, from, PAGE).await?;
        for stored in &page {
            from = stored.sequence + 1;
            if let Err(error) = look(clerk, stored, audited).await {
                tracing::warn!(subject = stored.subject, %error, "intent was not repaired");
            }
        }
        if page.len() < PAGE || shutdown.is_requested() {
            break;
        }
        pause(BETWEEN_PAGES).await;
    }
    books(clerk, shutdown).await?;
    Ok(from.saturating_sub(1))
}

async fn books(clerk: &Arc<Clerk>, shutdown: &Shutdown) -> Result<(), HandleIntentError> {
    let subject = format!("$KV.{INTENTS}.a.*");
    let mut from = 1;
    loop {
        let page = clerk.bus.history(STREAM, &subject, from, PAGE).await?;
        for stored in &page {
            from = stored.sequence + 1;
            if let Err(error) = look_at_book(clerk, stored).await {
                tracing::warn!(subject = stored.subject, %error, "book was not repaired");
            }
        }
        if page.len() < PAGE || shutdown.is_requested() {
            return Ok(());
        }
        pause(BETWEEN_PAGES).await;
    }
}

/// Frees the reservations that no day settles and no intent stands behind. One that lapses with its day is left to that.
async fn look_at_book(clerk: &Arc<Clerk>, stored: &Stored) -> Result<(), HandleIntentError> {
    let agent = stored.subject.rsplit('.').next().and_then(untoken);
    let (Some(agent), Ok(book)) = (agent, stored.decode::<AgentBook>()) else {
        return Ok(());
    };
    let now = clerk.clock.now();
    let settled_down = now.since(stored.published_at) > ADMITTED_WITHIN_MS;
    for (id, booking) in book.bookings {
        if booking.due.is_some() {
            continue;
        }
        let fired = match clerk.store.get(Some(&agent), id).await? {
            Some(entry) if entry.value.status.is_final() => entry.value.fired > 0,
            None if settled_down => false,
            Some(_) | None => continue,
        };
        tracing::info!(intent = %id, agent, "reservation without an intent is freed");
        clerk.books.settle(&agent, id, fired, now).await?;
    }
    Ok(())
}

async fn look(clerk: &Arc<Clerk>, stored: &Stored, audited: u64) -> Result<(), HandleIntentError> {
    let Ok(intent) = stored.decode::<Intent>() else {
        return Ok(());
    };
    let now = clerk.clock.now();
    if stored.sequence > audited && changed_lately(&intent, now) {
        match clerk.store.audit(&intent).await {
            Ok(_) | Err(HandleIntentError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    if stored.sequence > audited {
        clerk.supersede(&intent).await?;
        clerk.settle(&intent, now).await?;
    }
    let agent = &intent.intent.agent;
    match intent.status {
        IntentStatus::Pending => {
            let rings = intent.due.or(intent.deadline);
            match rings {
                Some(rings) if now.since(rings) > OVERDUE_MS => clerk.due(agent, intent.intent.id, rings, None).await,
                Some(_) | None => Ok(()),
            }
        }
        IntentStatus::Running => match &intent.running {
            Some(running) if now.since(running.at) > OVERDUE_MS => {
                let timer = timers::timer(&intent, TimerPurpose::Outcome, running.nominal);
                clerk.ring(&timer).await
            }
            Some(_) | None => Ok(()),
        },
        IntentStatus::Proposed => clerk.due(agent, intent.intent.id, now, None).await,
        IntentStatus::Completed | IntentStatus::Failed | IntentStatus::Canceled | IntentStatus::Rejected => {
            let over = intent
                .records
                .last()
                .is_some_and(|record| now.since(record.at) > KEPT_MS);
            if over {
                clerk.store.remove(&intent, stored.sequence).await?;
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
