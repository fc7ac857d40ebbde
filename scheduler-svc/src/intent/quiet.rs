//! Whether a conversation is quiet, asked of `EVENTS` itself at the moment that it matters.
//!
//! Nothing follows a conversation while an intent waits for its quiet: the timer rings when it could have been quiet for
//! long enough, the last event tells whether it was, and if not, when to look again.

use shared::bus::Bus;
use shared::model::event::{DEFAULT_ACCOUNT, Direction, Event};
use shared::model::intent::{Intent, IntentSchedule};
use shared::model::time::UnixMillis;
use shared::wire::subject::conversation;
use shared::wire::topology::streams::EVENTS;

use super::error::HandleIntentError;

/// Events looked at in one conversation and one question.
const MAX_EVENTS: usize = 1_000;

/// What a look says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quiet {
    /// It has been quiet for long enough.
    Holds,
    /// Not yet; at this instant it could have been.
    LookAgain(UnixMillis),
}

/// Whether the conversation of `intent` has been quiet for as long as its schedule wants, counted from when it was asked
/// for on.
///
/// # Errors
/// [`HandleIntentError`] where `EVENTS` cannot be read.
pub async fn look(bus: &Bus, intent: &Intent, now: UnixMillis) -> Result<Quiet, HandleIntentError> {
    let Some(seconds) = intent.intent.schedule.quiet_seconds() else {
        return Ok(Quiet::Holds);
    };
    let wanted = i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX);
    let only_user = matches!(intent.intent.schedule, IntentSchedule::UserIdle { .. });
    let begun = intent.lineage.last().map_or(intent.proposed_at, |lineage| lineage.at);
    let since = begun.max(now.plus(-wanted));
    let last = last_after(bus, intent, since, only_user).await?.unwrap_or(begun);
    let quiet_at = last.max(begun).plus(wanted);
    Ok(if quiet_at <= now {
        Quiet::Holds
    } else {
        Quiet::LookAgain(quiet_at)
    })
}

/// Whether a user has said something in the conversation of `intent` since it was asked for.
///
/// # Errors
/// [`HandleIntentError`] where `EVENTS` cannot be read.
pub async fn user_spoke(bus: &Bus, intent: &Intent) -> Result<bool, HandleIntentError> {
    let last = last_after(bus, intent, intent.proposed_at.plus(1), true).await?;
    Ok(last.is_some())
}

/// When the last event after `since` was stored in the conversation of `intent`.
async fn last_after(
    bus: &Bus,
    intent: &Intent,
    since: UnixMillis,
    only_user: bool,
) -> Result<Option<UnixMillis>, HandleIntentError> {
    let at = &intent.delivery_context;
    let account = at.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    let subject = conversation(&at.channel, account, at.peer_id.as_deref().unwrap_or_default());
    let stored = bus.history_since(EVENTS, &subject, since, MAX_EVENTS).await?;
    let counts = |event: &Event| match event.direction {
        Direction::Received => true,
        Direction::Sent | Direction::Observed | Direction::Created | Direction::Updated | Direction::Deleted => {
            !only_user
        }
    };
    let counted = stored
        .iter()
        .rev()
        .find(|stored| stored.decode::<Event>().is_ok_and(|event| counts(&event)));
    Ok(counted.map(|stored| stored.published_at))
}
