//! Whether a conversation is quiet, or over, asked of `EVENTS` and `LEDGER` themselves at the moment that it matters.
//!
//! Nothing follows a conversation while an intent waits for its quiet: the timer rings when it could have been quiet for
//! long enough, the last event tells whether it was, and if not, when to look again.

use shared::bus::{Bus, StoredMessage};
use shared::model::event::{DEFAULT_ACCOUNT, Event, EventDirection};
use shared::model::intent::{Intent, IntentSchedule};
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::subject::{self, conversation};
use shared::wire::topology::streams::{EVENTS, LEDGER};

use super::error::HandleIntentError;

/// Events looked at in one conversation and one question.
const MAX_EVENTS: usize = 1_000;

/// Records of a session looked at for one reset.
const MAX_RECORDS: u32 = 512;

/// What a look says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleVerdict {
    /// It has been quiet for long enough.
    Holds,
    /// Not yet; at this instant it could have been.
    LookAgain(UnixMillis),
}

/// From when on quiet counts for `intent`: when it was asked for, or given its present schedule.
#[must_use]
pub fn quiet_since(intent: &Intent) -> UnixMillis {
    intent.lineage.last().map_or(intent.proposed_at, |lineage| lineage.at)
}

/// Whether the conversation that `intent` was asked for in has been quiet for as long as its schedule wants, counted from when it was asked
/// for on; or, where the end of the chat is waited for, whether its session began anew since.
///
/// # Errors
/// [`HandleIntentError`] where `EVENTS` cannot be read.
pub async fn check_quiet(bus: &Bus, intent: &Intent, now: UnixMillis) -> Result<IdleVerdict, HandleIntentError> {
    let Some(seconds) = intent.intent.schedule.quiet_seconds() else {
        return Ok(IdleVerdict::Holds);
    };
    let wanted = i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX);
    let only_user = matches!(intent.intent.schedule, IntentSchedule::UserIdle { .. });

    let begun = quiet_since(intent);
    if !only_user && was_reset(bus, intent, begun).await? {
        return Ok(IdleVerdict::Holds);
    }

    let since = begun.max(now.plus(-wanted));
    let last = last_after(bus, intent, since, only_user).await?.unwrap_or(begun);
    let quiet_at = last.max(begun).plus(wanted);

    Ok(if quiet_at <= now {
        IdleVerdict::Holds
    } else {
        IdleVerdict::LookAgain(quiet_at)
    })
}

/// Whether the session that asked for `intent` began anew after `begun`. Read backwards: each record names the one that it
/// was written upon.
async fn was_reset(bus: &Bus, intent: &Intent, begun: UnixMillis) -> Result<bool, HandleIntentError> {
    let session = SessionRef {
        persona: intent.intent.agent.clone(),
        session: intent.intent.session.clone(),
    };
    let mut next = bus.last_on_subject(LEDGER, &subject::ledger(&session)).await?;
    for _ in 0..MAX_RECORDS {
        let Some(stored) = next else { return Ok(false) };
        let Ok(record) = stored.decode::<LedgerRecord>() else {
            return Ok(false);
        };

        if record.at <= begun {
            return Ok(false);
        }

        let mut entries = record.entries.iter();
        if entries.any(|entry| matches!(entry, LedgerEntry::SessionReset { .. })) {
            return Ok(true);
        }

        next = bus.previous_message(LEDGER, &stored).await?;
    }

    Ok(false)
}

/// Whether a user has said something in the conversation of `intent` since it was asked for.
///
/// # Errors
/// [`HandleIntentError`] where `EVENTS` cannot be read.
pub async fn user_spoke(bus: &Bus, intent: &Intent) -> Result<bool, HandleIntentError> {
    let last = last_after(bus, intent, intent.proposed_at.plus(1), true).await?;
    Ok(last.is_some())
}

/// When the last event after `since` was stored in the conversation that `intent` was asked for in; the newest by the
/// leader's word, for much is decided by it.
async fn last_after(
    bus: &Bus,
    intent: &Intent,
    since: UnixMillis,
    only_user: bool,
) -> Result<Option<UnixMillis>, HandleIntentError> {
    let at = intent.asked_in();
    let account = at.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    let subject = conversation(&at.channel, account, at.peer_id.as_deref().unwrap_or_default());

    let counts = |event: &Event| match event.direction {
        // A stranger who names this conversation is not its user.
        EventDirection::Received => event.origin.speaks_on(event),
        EventDirection::Sent
        | EventDirection::Observed
        | EventDirection::Created
        | EventDirection::Updated
        | EventDirection::Deleted => !only_user,
    };

    let is_counted = |stored: &StoredMessage| stored.read_event(bus.trust()).is_ok_and(|event| counts(&event));
    let newest = bus.last_on_subject(EVENTS, &subject).await?;
    let Some(newest) = newest.filter(|newest| newest.published_at >= since) else {
        return Ok(None);
    };

    if is_counted(&newest) {
        return Ok(Some(newest.published_at));
    }

    let stored = bus.history_since(EVENTS, &subject, since, MAX_EVENTS).await?;
    let counted = stored.iter().rev().find(|stored| is_counted(stored));

    Ok(counted.map(|stored| stored.published_at))
}
