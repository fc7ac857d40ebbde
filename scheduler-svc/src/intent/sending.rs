//! Sends a text as the action of an intent, once, as it was requested and without a model.
//!
//! The reply's id follows from the intent and its nominal time, so it is delivered once however often it is published.
//! Its receipt says how the firing ended. The receipts of a destination are read backwards: each names its predecessor.

use std::time::Duration;

use shared::bus::{Bus, OutgoingMessage};
use shared::clock::pause;
use shared::model::intent::IntentCode;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;
use shared::wire::topology::streams::RECEIPTS;

use super::error::HandleIntentError;
use super::machine::FiringEnd;

/// Pauses between polls after the reply is published; after them the timer polls.
const LOOKS: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(400),
    Duration::from_millis(1_500),
];
/// Receipts of a destination that one search reads.
const MAX_RECEIPTS: u32 = 4_096;

/// Publishes `reply` and waits a moment for its end. Returns `None` if the end is left to the timer.
///
/// # Errors
/// Returns [`HandleIntentError`]; the call must be repeated.
pub async fn send_and_wait(
    bus: &Bus,
    reply: &Reply,
    carrier: &TraceCarrier,
) -> Result<Option<FiringEnd>, HandleIntentError> {
    let out = OutgoingMessage::reply(reply).repeated().carrier(carrier);
    // If the reply was not published before, no earlier receipt can be about it.
    let subject = subject::receipt(&reply.delivery_context);
    let newest = bus.last_on_subject(RECEIPTS, &subject).await?;
    let published = bus.publish(out).await?;
    let before = newest
        .filter(|_| !published.duplicate)
        .map_or(0, |stored| stored.sequence);

    for wait in LOOKS {
        pause(wait).await;
        if let Some(ending) = delivery_ending(bus, reply, before).await? {
            return Ok(Some(ending));
        }
    }

    Ok(None)
}

/// Returns how the delivery of `reply` ended, or `None` if it has not. Searches the receipts after the sequence
/// `before`.
///
/// # Errors
/// Returns [`HandleIntentError`] if the receipts cannot be read.
pub async fn delivery_ending(bus: &Bus, reply: &Reply, before: u64) -> Result<Option<FiringEnd>, HandleIntentError> {
    let subject = subject::receipt(&reply.delivery_context);
    let mut next = bus.last_on_subject(RECEIPTS, &subject).await?;
    for _ in 0..MAX_RECEIPTS {
        let Some(stored) = next else { return Ok(None) };
        let receipt = stored.decode::<Receipt>().ok();
        let ending = receipt
            .filter(|receipt| receipt.delivery == reply.id)
            .and_then(|receipt| ending_of_step(receipt.step));
        if ending.is_some() {
            return Ok(ending);
        }

        if stored.previous_sequence().is_none_or(|upon| upon <= before) {
            return Ok(None);
        }

        next = bus.previous_message(RECEIPTS, &stored).await?;
    }

    Ok(None)
}

/// Returns the end of a firing whose delivery is at `step`, or `None` if the delivery goes on.
fn ending_of_step(step: ReceiptStep) -> Option<FiringEnd> {
    let (code, why) = match step {
        ReceiptStep::Planned { .. }
        | ReceiptStep::Preview { .. }
        | ReceiptStep::AttemptStarted { .. }
        | ReceiptStep::AttemptFinished { .. } => {
            return None;
        }
        ReceiptStep::Delivered { .. } => (IntentCode::Done, "delivered".to_owned()),
        ReceiptStep::GaveUp { reason, .. } => (IntentCode::TurnFailed, format!("not delivered: {reason}")),
        ReceiptStep::DeniedByPolicy { rule } => (IntentCode::TurnFailed, format!("denied by policy: {rule}")),
    };
    Some(FiringEnd { code, why })
}
