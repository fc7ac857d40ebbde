//! Timers of intents: messages that the server stores now and publishes at their time (`docs/contribute/nats-facts.md`
//! "KV and schedules").
//!
//! A timer's subject names the intent, the purpose and the nominal time, so storing it again changes nothing, and a new
//! time never removes an old timer: a timer for a time that is no longer the intent's is ignored. Stopping a timer only
//! saves work.

use shared::bus::{Bus, OutgoingMessage, PublishError};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::time::UnixMillis;
use shared::wire::subject::{intent_fire, intent_timer};
use shared::wire::topology::streams::SCHEDULES;

/// Time that a fired timer is kept.
const FIRED_TTL: &str = "168h";

/// Time from a firing to the first poll by timer, milliseconds; the listener is usually faster.
pub(super) const FIRST_LOOK_MS: i64 = 30_000;

/// Formats `at` by RFC 3339, in UTC with milliseconds.
fn format_rfc3339(at: UnixMillis) -> String {
    jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| "1970-01-01T00:00:00Z".to_owned(), |at| format!("{at:.3}"))
}

fn name(timer: &IntentTimer) -> String {
    format!("{}-{}{}", timer.intent, timer.purpose.subject_letter(), timer.nominal)
}

/// Stores `timer`, to fire at `at`, or at once if `at` is past.
///
/// # Errors
/// Returns [`PublishError`] if the server rejects it for good.
pub async fn set_timer(bus: &Bus, timer: &IntentTimer, at: UnixMillis) -> Result<(), PublishError> {
    let name = name(timer);
    let out = OutgoingMessage::new(intent_timer(&name), timer)
        .header("Nats-Schedule", format!("@at {}", format_rfc3339(at)))
        .header("Nats-Schedule-Target", intent_fire(&name))
        .header("Nats-Schedule-TTL", FIRED_TTL);
    bus.publish(out).await.map(|_| ())
}

/// Stops `timer`, if it has not fired.
pub async fn stop(bus: &Bus, timer: &IntentTimer) {
    let subject = intent_timer(&name(timer));
    if let Err(error) = bus.purge_subject(SCHEDULES, &subject).await {
        tracing::debug!(intent = %timer.intent, %error, "failed to stop a timer; it will be ignored");
    }
}

/// Returns the timer of `intent` for `purpose` at `nominal`.
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
