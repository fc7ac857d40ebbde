//! Intents' timers: messages that the server stores now and gives out at their time (`docs/contribute/nats-facts.md`
//! "KV and schedules").
//!
//! A timer's subject names intent, purpose and nominal time, so putting it again changes nothing, and a new time never
//! takes an old timer away: one that rings for a time that is not the intent's any more is ignored. Stopping one is
//! tidiness, not correctness.

use shared::bus::{Bus, OutgoingMessage, PublishError};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::time::UnixMillis;
use shared::wire::subject::{intent_fire, intent_timer};
use shared::wire::topology::streams::SCHEDULES;

/// How long what has rung is kept.
const FIRED_TTL: &str = "168h";

/// `at` as RFC 3339, in UTC to the millisecond.
fn format_rfc3339(at: UnixMillis) -> String {
    jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| "1970-01-01T00:00:00Z".to_owned(), |at| format!("{at:.3}"))
}

fn name(timer: &IntentTimer) -> String {
    format!("{}-{}{}", timer.intent, timer.purpose.subject_letter(), timer.nominal)
}

/// Has `timer` ring at `at`; at once where that is past.
///
/// # Errors
/// [`PublishError`] where the server refuses it for good.
pub async fn set_timer(bus: &Bus, timer: &IntentTimer, at: UnixMillis) -> Result<(), PublishError> {
    let name = name(timer);
    let out = OutgoingMessage::new(intent_timer(&name), timer)
        .header("Nats-Schedule", format!("@at {}", format_rfc3339(at)))
        .header("Nats-Schedule-Target", intent_fire(&name))
        .header("Nats-Schedule-TTL", FIRED_TTL);
    bus.publish(out).await.map(|_| ())
}

/// Stops `timer`, if it waits.
pub async fn stop(bus: &Bus, timer: &IntentTimer) {
    let subject = intent_timer(&name(timer));
    if let Err(error) = bus.purge_subject(SCHEDULES, &subject).await {
        tracing::debug!(intent = %timer.intent, %error, "failed to stop a timer; it will be ignored");
    }
}

/// The timer of `intent` for `purpose` at `nominal`.
#[must_use]
pub fn new_timer(intent: &shared::model::intent::Intent, purpose: TimerPurpose, nominal: UnixMillis) -> IntentTimer {
    IntentTimer {
        intent: intent.intent.id,
        agent: intent.intent.agent.clone(),
        purpose,
        nominal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_to_the_millisecond() {
        assert_eq!(
            format_rfc3339(UnixMillis(1_795_305_600_007)),
            "2026-11-22T00:00:00.007Z"
        );
    }
}
