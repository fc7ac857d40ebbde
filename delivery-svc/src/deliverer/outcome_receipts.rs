//! The receipts by which an attempt or a delivery ends, and what follows from each.

use shared::model::receipt::{AttemptOutcome, ReceiptStep};

use super::call::PartsBefore;
use super::{DeliveryProgress, Step, count};
use crate::acknowledgements::{show_denied, show_given_up, show_sent};
use crate::effects::DeliveryEffects;
use crate::error::DeliverError;
use crate::receipts::ReceiptWrite;
use crate::resume::sent_part;
use crate::typing_listener::end_writing;

/// Settles the delivery without a call, as `rule` says.
pub(super) async fn deny(effects: &DeliveryEffects<'_>, rule: &str) -> Result<Step, DeliverError> {
    let denied = ReceiptStep::DeniedByPolicy { rule: rule.to_owned() };
    let written = effects.write_receipt(effects.now(), denied).await?;
    show_denied(effects.outfit, &effects.job.reply, effects.lease);
    end_unsent(effects);
    Ok(Step::after_receipt(written, DeliveryProgress::Settled))
}

/// Records that the platform has all parts, as `before` has them, and publishes the last one's event.
pub(super) async fn finish_delivery(
    effects: &DeliveryEffects<'_>,
    attempts: u32,
    before: PartsBefore,
    live: Option<bool>,
) -> Result<Step, DeliverError> {
    let PartsBefore {
        platform_ids,
        unconfirmed,
        plan,
        ..
    } = before;
    if !unconfirmed.is_empty() {
        metrics::counter!("nexus_delivery_unconfirmed_total").increment(1);
    }

    // Its turn writes no more, whatever beats are still on their way. A card or a change is not yet the turn's answer.
    let reply = &effects.job.reply;
    if reply.id == reply.turn {
        effects.outfit.typing.note_sent(reply.turn);
    }

    let at = effects.now();
    let parts = count(effects.parts);
    let last = sent_part(parts.saturating_sub(1), at, &platform_ids, &unconfirmed);
    let delivered = ReceiptStep::Delivered {
        attempts,
        parts,
        platform_ids,
        unconfirmed,
        live,
        plan: plan.reference(),
    };

    if let ReceiptWrite::Superseded(found) = effects.write_receipt(at, delivered).await? {
        return Ok(Step::Superseded(found));
    }

    effects.publish_event(&last).await?;
    show_sent(effects.outfit, reply, effects.lease);

    metrics::counter!("nexus_delivery_delivered_total").increment(1);
    Ok(Step::SETTLED)
}

/// Records how the attempt `ended`, and leaves the rest of the delivery for `after_ms` milliseconds. `message` says
/// why.
pub(super) async fn postpone(
    effects: &DeliveryEffects<'_>,
    ended: ReceiptStep,
    after_ms: u64,
    message: &str,
) -> Result<Step, DeliverError> {
    let DeliveryEffects { job, .. } = effects;
    let reason = if let ReceiptStep::AttemptFinished {
        outcome: AttemptOutcome::Retry { reason, .. } | AttemptOutcome::Limited { reason, .. },
        ..
    } = &ended
    {
        reason.as_str()
    } else {
        ""
    };
    tracing::warn!(
        delivery_id = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
        destination = job.destination.as_str(), retry_in_ms = after_ms, error = reason, "{message}"
    );
    let at = effects.now();
    let again = at.plus(i64::try_from(after_ms).unwrap_or(i64::MAX));
    Ok(Step::after_receipt(
        effects.write_receipt(at, ended).await?,
        DeliveryProgress::Later(again),
    ))
}

/// Records that the delivery is given up after `attempts`, and makes a dead letter of it, which says the `reason`.
pub(super) async fn give_up(
    effects: &DeliveryEffects<'_>,
    reason: String,
    attempts: u32,
) -> Result<Step, DeliverError> {
    let DeliveryEffects { job, .. } = effects;
    metrics::counter!("nexus_delivery_gave_up_total").increment(1);
    tracing::error!(
        delivery_id = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
        destination = job.destination.as_str(), attempts, reason, "delivery failed permanently"
    );

    let gave_up = ReceiptStep::GaveUp {
        attempts,
        reason: reason.clone(),
    };
    if let ReceiptWrite::Superseded(found) = effects.write_receipt(effects.now(), gave_up).await? {
        return Ok(Step::Superseded(found));
    }

    effects.dead_letter(reason, attempts).await?;
    show_given_up(effects.outfit, &job.reply, effects.lease);
    end_unsent(effects);
    Ok(Step::SETTLED)
}

/// Takes back that the turn writes, whose answer is not sent. A card or a change is not the answer.
fn end_unsent(effects: &DeliveryEffects<'_>) {
    let reply = &effects.job.reply;
    if reply.id == reply.turn {
        end_writing(effects.outfit, &reply.delivery_context, reply.turn);
    }
}
