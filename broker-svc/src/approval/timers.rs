//! The timers of approvals: message schedules, set before the session is released.
//!
//! Source: `docs/design/sessions.md` §8 (expiry and escalation are message schedules).

use shared::bus::{Bus, OutgoingMessage, PublishError};
use shared::model::approval::{ApprovalTimer, ApprovalTimerPurpose};
use shared::model::time::UnixMillis;
use shared::wire::subject;

/// Time that a fired message is kept for the broker that handles it, seconds.
const FIRED_TTL_S: u64 = 7 * 24 * 3_600;
/// Returns the message that fires `timer` at `due`.
fn timer_message(timer: &ApprovalTimer, due: UnixMillis) -> OutgoingMessage {
    let letter = match timer.purpose {
        ApprovalTimerPurpose::Expire => "x",
        ApprovalTimerPurpose::Escalate => "e",
    };
    let name = format!("{}-{letter}", timer.approval);
    let at = jiff::Timestamp::from_millisecond(due.0.max(0)).unwrap_or_default();

    OutgoingMessage::new(subject::approval_timer(&name), timer)
        .header("Nats-Schedule", format!("@at {at:.3}"))
        .header("Nats-Schedule-Target", subject::approval_fire(&name))
        .header("Nats-Schedule-TTL", format!("{FIRED_TTL_S}s"))
        .expect_last(0)
}

/// Sets `timer` to fire at `due`; a timer that is set already stays.
///
/// # Errors
/// Returns [`PublishError`] if the server refuses it.
pub async fn set(bus: &Bus, timer: &ApprovalTimer, due: UnixMillis) -> Result<(), PublishError> {
    match bus.publish(timer_message(timer, due)).await {
        Ok(_) | Err(PublishError::WrongLastSequence { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
