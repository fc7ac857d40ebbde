//! Checks whether a conversation is quiet or a session was reset, by reading `EVENTS` and `LEDGER` at that moment.
//!
//! A conversation is not watched while an intent waits for its quiet: a timer fires when it could have been quiet for
//! long enough, the last event decides whether it was, and if not, when to check again.

use shared::bus::{Bus, StoredMessage};
use shared::model::event::{DEFAULT_ACCOUNT, Event, EventDirection};
use shared::model::intent::{Intent, IntentSchedule};
use shared::model::ledger::LedgerEntry;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::subject::{self, conversation};
use shared::wire::topology::streams::{EVENTS, LEDGER};

use super::error::HandleIntentError;

/// Events of a conversation that one check reads.
const MAX_EVENTS: usize = 1_000;

/// Records of a session that one check reads for a reset.
const MAX_RECORDS: u32 = 512;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleVerdict {
    /// The condition is met.
    Holds,
    /// The condition is not met; this is the earliest time at which it could be.
    LookAgain(UnixMillis),
}

/// Returns the time from which quiet counts for `intent`: that of its request or of its last change of schedule.
#[must_use]
pub fn quiet_since(intent: &Intent) -> UnixMillis {
    intent.lineage.last().map_or(intent.proposed_at, |lineage| lineage.at)
}

/// Checks whether the conversation in which `intent` was requested has been quiet for as long as its schedule demands,
/// since [`quiet_since`]. If the schedule waits for the end of the chat, a reset of the session meets it as well.
///
/// # Errors
/// Returns [`HandleIntentError`] if the streams cannot be read.
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

/// Returns whether the session that requested `intent` was reset after `begun`. Reads backwards: each record names its
/// predecessor.
async fn was_reset(bus: &Bus, intent: &Intent, begun: UnixMillis) -> Result<bool, HandleIntentError> {
    let session = SessionRef {
        persona: intent.intent.agent.clone(),
        session: intent.intent.session.clone(),
    };
    let mut next = bus.last_on_subject(LEDGER, &subject::ledger(&session)).await?;
    for _ in 0..MAX_RECORDS {
        let Some(stored) = next else { return Ok(false) };
        let Ok(record) = stored.decode_known_entries() else {
            return Ok(false);
        };

        // Older records cannot contain a reset that counts.
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

/// Returns whether a user has written in the conversation of `intent` since it was requested.
///
/// # Errors
/// Returns [`HandleIntentError`] if `EVENTS` cannot be read.
pub async fn user_spoke(bus: &Bus, intent: &Intent) -> Result<bool, HandleIntentError> {
    let last = last_after(bus, intent, intent.proposed_at.plus(1), true).await?;
    Ok(last.is_some())
}

/// Returns the store time of the last event after `since` in the conversation in which `intent` was requested. The
/// newest event is read from the leader, because a firing depends on it.
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
        // A sender without proof who names this conversation is not its user.
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

    // The newest event decides in most cases, and needs no history.
    if is_counted(&newest) {
        return Ok(Some(newest.published_at));
    }

    let stored = bus.history_since(EVENTS, &subject, since, MAX_EVENTS).await?;
    let counted = stored.iter().rev().find(|stored| is_counted(stored));

    Ok(counted.map(|stored| stored.published_at))
}
