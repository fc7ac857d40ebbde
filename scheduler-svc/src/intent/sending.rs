//! Sending a text as the action of an intent: no model is asked, the text goes out as it was asked for, once.
//!
//! The reply's id follows from intent and nominal time, so it is delivered once however often it is published; its
//! receipt tells how the firing ended. Receipts of a destination are read backwards: each names the one that it was
//! written upon.

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

/// Waits between looks after the reply is published; later ones are the timer's.
const LOOKS: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(400),
    Duration::from_millis(1_500),
];
/// Receipts of a destination looked at for one end.
const MAX_RECEIPTS: u32 = 4_096;

/// Publishes `reply` and waits a moment for what becomes of it; none = it is left to the timer.
///
/// # Errors
/// [`HandleIntentError`]: to be tried again.
pub async fn send_and_wait(
    bus: &Bus,
    reply: &Reply,
    carrier: &TraceCarrier,
) -> Result<Option<FiringEnd>, HandleIntentError> {
    let out = OutgoingMessage::reply(reply).repeated().carrier(carrier);
    // Receipts of before cannot be of a reply that was not published before.
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

/// What became of `reply`, if that is known; its receipts stand behind the sequence `before`.
///
/// # Errors
/// [`HandleIntentError`] where the receipts cannot be read.
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

/// How a delivery ended at `step`, if it did.
fn ending_of_step(step: ReceiptStep) -> Option<FiringEnd> {
    let (code, why) = match step {
        ReceiptStep::AttemptStarted { .. } | ReceiptStep::AttemptFinished { .. } => return None,
        ReceiptStep::Delivered { .. } => (IntentCode::Done, "delivered".to_owned()),
        ReceiptStep::GaveUp { reason, .. } => (IntentCode::TurnFailed, format!("not delivered: {reason}")),
        ReceiptStep::DeniedByPolicy { rule } => (IntentCode::TurnFailed, format!("denied by policy: {rule}")),
    };
    Some(FiringEnd { code, why })
}
