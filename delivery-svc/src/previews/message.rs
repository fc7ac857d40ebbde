//! The message of a preview: sent once, edited, and given to the reply or taken back.

use std::time::Duration;

use shared::bus::PublishError;
use shared::bus::partition::PartitionLease;
use shared::clock::pause;
use shared::model::event::EventId;
use shared::model::receipt::ReceiptStep;
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;
use shared::wire::topology::streams;

use super::receipts::{FoundPreview, find_preview, write_preview};
use crate::attempt::{CallOutcome, PartSearch, Refusal, RequestSent};
use crate::channel::{Channel, SendRequest};
use crate::effects::DelivererContext;
use crate::outbound::sent_event_id;
use crate::plan::{MessagePart, plan_parts};
use crate::shown_previews::{PreviewMessage, PreviewStage};

/// Number of attempts to write a receipt while others write to the same subject.
const MAX_TRIES: u32 = 8;
/// Pause before a receipt is written again.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Number of parts that the preview is said to be of: its only one is not the last, which has the buttons.
const PARTS: u32 = 2;

impl PreviewMessage {
    /// Shows `text`, as `reply` has it. Returns the wait before the next call.
    pub(super) async fn show_text(
        &mut self,
        outfit: &DelivererContext,
        reply: &Reply,
        text: &str,
        lease: &PartitionLease,
    ) -> Duration {
        let Some(channel) = outfit.channels.get(&reply.delivery_context.channel) else {
            return Duration::ZERO;
        };
        if self.stage == PreviewStage::Unopened {
            self.stage = open(outfit, channel, reply, lease).await;
            text.clone_into(&mut self.shown);
            return Duration::ZERO;
        }
        let PreviewStage::Shown(id) = self.stage.clone() else {
            return Duration::ZERO;
        };

        let outcome = edit(outfit, channel, reply, &id, lease).await;
        outfit.gates.note_outcome(&reply.delivery_context, &outcome);
        metrics::counter!("nexus_delivery_previews_total").increment(1);
        match outcome {
            CallOutcome::Accepted { .. } => {
                text.clone_into(&mut self.shown);
                Duration::ZERO
            }
            CallOutcome::Limited { after, .. } => after,
            // It was deleted, or the platform edits it no more: the reply sees to it.
            CallOutcome::Refused {
                refusal: Refusal::Permanent,
                ..
            }
            | CallOutcome::Reauth { .. }
            | CallOutcome::WindowClosed { .. }
            | CallOutcome::TooLarge { .. }
            | CallOutcome::Unformattable { .. }
            | CallOutcome::Withheld => {
                self.stage = PreviewStage::Closed(Some(id));
                Duration::ZERO
            }
            CallOutcome::Refused {
                refusal: Refusal::Passing { after },
                ..
            } => after.unwrap_or_default(),
            CallOutcome::Unreachable { .. } => Duration::ZERO,
        }
    }

    /// Takes the message back: the turn has ended without an answer.
    pub(super) async fn take_back(&mut self, outfit: &DelivererContext, reply: &Reply, lease: &PartitionLease) {
        let PreviewStage::Shown(id) = self.stage.clone() else {
            self.stage = PreviewStage::Closed(None);
            return;
        };
        let step = ReceiptStep::Preview {
            message: Some(id.clone()),
            closed: true,
        };
        // A reply that comes nevertheless is a message of its own.
        if !note(outfit, reply, &step, lease).await {
            self.stage = PreviewStage::Closed(Some(id));
            return;
        }
        self.stage = PreviewStage::Closed(None);
        let (Some(channel), Ok(event_id)) = (
            outfit.channels.get(&reply.delivery_context.channel),
            sent_event_id(reply, 0),
        ) else {
            return;
        };
        let (part, carrier) = (MessagePart::default(), TraceCarrier::default());
        let shipment = preview_request(outfit, reply, &part, (&event_id, &carrier), lease);
        let outcome = channel.delete(&shipment, &id).await;
        tracing::info!(turn_id = %reply.turn, ?outcome, "a preview without an answer is taken back");
    }
}

/// Sends the message; returns the stage afterwards.
async fn open(outfit: &DelivererContext, channel: &dyn Channel, reply: &Reply, lease: &PartitionLease) -> PreviewStage {
    let opening = ReceiptStep::Preview {
        message: None,
        closed: false,
    };
    for _ in 0..MAX_TRIES {
        let found = find_preview(&outfit.bus, &reply.delivery_context, reply.turn).await;
        let (found, last) = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "unknown if a preview is shown already");
                return PreviewStage::Unopened;
            }
        };
        match found {
            FoundPreview::None => {}
            FoundPreview::Shown(id) => return PreviewStage::Shown(id),
            // The message may be there: a second one would stay.
            FoundPreview::Opening(_) => return PreviewStage::Doubtful,
            FoundPreview::Ended => return PreviewStage::Closed(None),
        }
        let written = write_preview(&outfit.bus, reply, outfit.clock.now(), opening.clone(), last).await;
        match written {
            Ok(_) => return send(outfit, channel, reply, lease).await,
            Err(PublishError::WrongLastSequence { .. }) => {}
            Err(error) => {
                tracing::debug!(%error, "failed to note a preview");
                return PreviewStage::Unopened;
            }
        }
    }
    PreviewStage::Unopened
}

async fn send(outfit: &DelivererContext, channel: &dyn Channel, reply: &Reply, lease: &PartitionLease) -> PreviewStage {
    let outcome = call(outfit, reply, lease, async |shipment| channel.send(&shipment).await).await;
    outfit.gates.note_outcome(&reply.delivery_context, &outcome);
    metrics::counter!("nexus_delivery_previews_total").increment(1);
    match outcome {
        CallOutcome::Accepted { platform_ids, .. } => {
            let Some(id) = platform_ids.into_iter().next() else {
                return PreviewStage::Closed(None);
            };
            let shown = ReceiptStep::Preview {
                message: Some(id.clone()),
                closed: false,
            };
            // A replica that follows finds it by this receipt alone.
            note(outfit, reply, &shown, lease).await;
            PreviewStage::Shown(id)
        }
        // It may be there, and is looked for once the answer is whole.
        CallOutcome::Unreachable {
            sent: RequestSent::Maybe,
            ..
        } => PreviewStage::Doubtful,
        CallOutcome::Unreachable {
            sent: RequestSent::No, ..
        }
        | CallOutcome::Limited { .. }
        | CallOutcome::Refused { .. }
        | CallOutcome::Reauth { .. }
        | CallOutcome::WindowClosed { .. }
        | CallOutcome::TooLarge { .. }
        | CallOutcome::Unformattable { .. }
        | CallOutcome::Withheld => {
            let closed = ReceiptStep::Preview {
                message: None,
                closed: true,
            };
            note(outfit, reply, &closed, lease).await;
            PreviewStage::Closed(None)
        }
    }
}

/// Writes `step`, as long as the partition is held. Returns whether it is written.
async fn note(outfit: &DelivererContext, reply: &Reply, step: &ReceiptStep, lease: &PartitionLease) -> bool {
    let subject = shared::wire::subject::receipt(&reply.delivery_context);
    for _ in 0..MAX_TRIES {
        if !lease.is_live() {
            return false;
        }
        let last = outfit.bus.last_on_subject(streams::RECEIPTS, &subject).await;
        if let Ok(last) = last {
            let last = last.map_or(0, |last| last.sequence);
            let at = outfit.clock.now();
            match write_preview(&outfit.bus, reply, at, step.clone(), last).await {
                Ok(_) => return true,
                Err(PublishError::WrongLastSequence { .. }) => continue,
                Err(error) => tracing::debug!(%error, "failed to note a preview; retrying"),
            }
        }
        pause(TRY_AGAIN_AFTER).await;
    }
    false
}

/// Returns the request about the message that shows `part` as the beginning of `reply`.
fn preview_request<'a>(
    outfit: &DelivererContext,
    reply: &'a Reply,
    part: &'a MessagePart,
    (event_id, carrier): (&'a EventId, &'a TraceCarrier),
    lease: &'a PartitionLease,
) -> SendRequest<'a> {
    SendRequest {
        reply,
        part,
        parts: PARTS,
        event_id,
        carrier,
        now: outfit.clock.now(),
        lease,
        file: None,
    }
}

/// Edits the message `id`.
async fn edit(
    outfit: &DelivererContext,
    channel: &dyn Channel,
    reply: &Reply,
    id: &str,
    lease: &PartitionLease,
) -> CallOutcome {
    call(outfit, reply, lease, async |shipment| {
        match (channel.edit(&shipment, id).await, shipment.part.without_markup()) {
            (CallOutcome::Unformattable { .. }, Some(plain)) => {
                let plain = SendRequest {
                    part: &plain,
                    ..shipment
                };
                channel.edit(&plain, id).await
            }
            (outcome, _) => outcome,
        }
    })
    .await
}

/// Makes `call` with the beginning of `reply`.
async fn call(
    outfit: &DelivererContext,
    reply: &Reply,
    lease: &PartitionLease,
    call: impl AsyncFnOnce(SendRequest<'_>) -> CallOutcome,
) -> CallOutcome {
    let parts = plan_parts(reply, outfit.traits_of(reply).layout);
    let (Some(part), Ok(event_id)) = (parts.first(), sent_event_id(reply, 0)) else {
        return CallOutcome::Withheld;
    };
    if !lease.is_live() {
        return CallOutcome::Withheld;
    }
    let carrier = TraceCarrier::default();
    let shipment = preview_request(outfit, reply, part, (&event_id, &carrier), lease);
    call(shipment).await
}

/// Returns the message of the preview that `reply` shows, which was sent at `since` and had no answer, if the platform can be
/// searched for it.
pub(super) async fn search(
    outfit: &DelivererContext,
    reply: &Reply,
    lease: &PartitionLease,
    since: UnixMillis,
) -> Option<String> {
    let channel = outfit.channels.get(&reply.delivery_context.channel)?;
    let (part, carrier) = (MessagePart::default(), TraceCarrier::default());
    let event_id = sent_event_id(reply, 0).ok()?;
    let shipment = preview_request(outfit, reply, &part, (&event_id, &carrier), lease);
    match channel.find(&shipment, since).await {
        PartSearch::Found { platform_ids } => platform_ids.into_iter().next(),
        PartSearch::Absent | PartSearch::Unknown | PartSearch::Failed { .. } => None,
    }
}
