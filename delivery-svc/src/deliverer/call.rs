//! One call to a platform: made now, or begun before, by this replica or a former owner.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use shared::bus::PublishError;
use shared::clock::pause;
use shared::model::approval::is_decision;
use shared::model::receipt::{AttemptOutcome, PlanReference, ReceiptStep};
use shared::model::reply::ReplyAction;
use shared::model::time::UnixMillis;

use super::count;
use crate::account_gate::CallAdmission;
use crate::attempt::{CallOutcome, LimitScope, PartSearch, Refusal, Repetition};
use crate::calls::CallId;
use crate::changed_message::{ChangedMessage, FindMessageError, find_message};
use crate::channel::{Channel, MessageReaction, SendRequest};
use crate::effects::DeliveryEffects;
use crate::error::DeliverError;
use crate::former_owners::FormerOwners;
use crate::frozen_plan::{has_secret, planned_parts, reply_plan_hash, split_pieces};
use crate::outbound::sent_event_id;
use crate::outgoing_files::LoadedFile;
use crate::plan::MessagePart;
use crate::receipts::{ReceiptWrite, WriteReceiptError};
use crate::resume::{DeliveryStanding, OpenCall, RemainingWork, StandingPlan, keep_doubt};

/// The parts and attempts before a call, as receipts tell them.
#[derive(Debug, Clone)]
pub(super) struct PartsBefore {
    /// Number of attempts that do not count towards the maximum.
    pub(super) uncounted: u32,
    /// Platform's ids of the parts before it.
    pub(super) platform_ids: Vec<Vec<String>>,
    /// Indexes of the parts that the platform may have twice, or may have already.
    pub(super) unconfirmed: Vec<u32>,
    /// Plan of the delivery.
    pub(super) plan: StandingPlan,
    /// Time by which every call before began, as the last receipt tells it.
    recorded_at: UnixMillis,
}

impl PartsBefore {
    /// Splits `remaining` into what was before its next call, and that call if it was begun.
    pub(super) fn split_work(remaining: RemainingWork) -> (Self, Option<OpenCall>) {
        let before = Self {
            uncounted: remaining.uncounted,
            platform_ids: remaining.platform_ids,
            unconfirmed: remaining.unconfirmed,
            plan: remaining.plan,
            recorded_at: remaining.recorded_at,
        };
        (before, remaining.begun)
    }

    /// Returns the step that the attempt `id` ended with `outcome`.
    pub(super) fn finished_step(self, id: CallId, outcome: AttemptOutcome) -> ReceiptStep {
        ReceiptStep::AttemptFinished {
            attempt: id.attempt,
            part: id.part,
            platform_ids: self.platform_ids,
            unconfirmed: self.unconfirmed,
            uncounted: self.uncounted,
            plan: self.plan.reference(),
            outcome,
        }
    }
}

/// The result of the decision to make a call.
pub(super) enum Made {
    /// Outcome of the call, made now or started before.
    Call(CallOutcome),
    /// State that another owner recorded.
    Superseded(DeliveryStanding),
    /// No call: none may be made before this wait is over.
    Later(Duration),
}

/// Returns the outcome of the call `id`. It is made, unless it was `begun` before and its outcome can be learned.
pub(super) async fn call(
    effects: &DeliveryEffects<'_>,
    part: &MessagePart,
    id: CallId,
    begun: Option<OpenCall>,
    before: &mut PartsBefore,
) -> Result<Made, DeliverError> {
    // This process may have made the call before it lost the partition and got it back.
    if let Some(call) = effects.outfit.calls.await_outcome(id).await {
        return Ok(Made::Call(call));
    }

    let traits = effects.traits_of_part(id.part);
    if let Some(begun) = begun {
        if let Some(call) = reported_outcome(effects, begun, id).await? {
            return Ok(Made::Call(call));
        }
        // The platform may have the part, and another call may be its repetition.
        if traits.repetition.keeps_doubts() {
            keep_doubt(&mut before.unconfirmed, id.part);
        }
    }

    let effect = traits.repetition.at_age(effects.age());
    let is_doubtful = before.unconfirmed.contains(&id.part) && effect != Repetition::Recognised;
    if is_doubtful && effect == Repetition::AtMostOnce && !traits.finds_parts {
        return Ok(Made::Call(unknown_outcome()));
    }

    // Before the receipt of its start: a call that has no slot was not begun.
    if let Some(wait) = await_slot(effects).await? {
        return Ok(Made::Later(wait));
    }

    if is_doubtful && traits.finds_parts {
        let is_last = is_last_attempt(effects, id.attempt, before.uncounted);
        match find_part(effects, part, id).await? {
            PartSearch::Found { platform_ids } => {
                before.unconfirmed.retain(|doubtful| *doubtful != id.part);
                let live = None;
                return Ok(Made::Call(CallOutcome::Accepted { platform_ids, live }));
            }
            PartSearch::Absent => match arrival_left(effects, before.recorded_at) {
                // It is not there and will not come, so that this call is no repetition.
                None => before.unconfirmed.retain(|doubtful| *doubtful != id.part),
                // Without a receipt, so that neither the attempt nor the wait begins anew.
                Some(wait) if effect == Repetition::AtMostOnce => return Ok(Made::Later(wait)),
                // The mark stays, because the part may still appear.
                Some(_) => {}
            },
            PartSearch::Failed { outcome } if effect == Repetition::AtMostOnce || !is_last => {
                return Ok(Made::Call(outcome));
            }
            PartSearch::Unknown if effect == Repetition::AtMostOnce => return Ok(Made::Call(unknown_outcome())),
            PartSearch::Unknown | PartSearch::Failed { .. } => {}
        }
    }

    if let Some(found) = freeze_plan(effects, id.part, &mut before.plan).await? {
        return Ok(Made::Superseded(found));
    }

    // Durable before the call, because the next owner must know that it may have been made.
    if traits.waits_for_remote {
        let started = ReceiptStep::AttemptStarted {
            attempt: id.attempt,
            part: id.part,
            by: effects.outfit.instance.clone(),
            platform_ids: before.platform_ids.clone(),
            unconfirmed: before.unconfirmed.clone(),
            uncounted: before.uncounted,
            plan: before.plan.reference(),
        };
        if let ReceiptWrite::Superseded(found) = effects.write_receipt(effects.now(), started).await? {
            return Ok(Made::Superseded(found));
        }
    }

    make_call(effects, part, id).await.map(Made::Call)
}

/// Returns the outcome of a part whose former call may have sent it, and which must not be sent twice.
fn unknown_outcome() -> CallOutcome {
    CallOutcome::Refused {
        refusal: Refusal::Permanent,
        reason: "the outcome of an earlier call is unknown (it may have been sent, and is sent at most once)"
            .to_owned(),
    }
}

/// Returns the time for which a call that began at `began` or before may still show its part; `None` = no longer.
fn arrival_left(effects: &DeliveryEffects<'_>, began: UnixMillis) -> Option<Duration> {
    // A clock that was set back makes the call younger, but no wait longer than the whole.
    let age = u64::try_from(effects.now().since(began)).unwrap_or(0);
    let left = effects.outfit.arrival_wait.checked_sub(Duration::from_millis(age));
    left.filter(|left| !left.is_zero())
}

/// Returns whether the schedule has no attempt after `attempt`, of which `uncounted` do not count.
fn is_last_attempt(effects: &DeliveryEffects<'_>, attempt: u32, uncounted: u32) -> bool {
    let schedule = effects.outfit.schedule;
    schedule.delay(attempt.saturating_sub(uncounted), 0.5).is_none()
}

/// Searches the platform for `part`, which an earlier call may have sent.
async fn find_part(effects: &DeliveryEffects<'_>, part: &MessagePart, id: CallId) -> Result<PartSearch, DeliverError> {
    let DeliveryEffects { outfit, job, lease, .. } = effects;
    let target = &job.reply.delivery_context;
    let Some(channel) = outfit.channels.get(&target.channel) else {
        return Ok(PartSearch::Unknown);
    };
    let shipment = SendRequest {
        reply: &job.reply,
        part,
        parts: count(effects.parts),
        event_id: &sent_event_id(&job.reply, part.index)?,
        carrier: effects.carrier,
        now: effects.now(),
        lease,
        file: None,
    };

    // A channel that panics has found nothing.
    let search = AssertUnwindSafe(channel.find(&shipment, effects.stored_at())).catch_unwind();
    let found = search.await.unwrap_or(PartSearch::Unknown);
    if !lease.is_live() {
        return Err(DeliverError::Lost);
    }

    let name = match &found {
        PartSearch::Found { .. } => "found",
        PartSearch::Absent => "absent",
        PartSearch::Unknown => "unknown",
        PartSearch::Failed { outcome } => {
            outfit.gates.note_outcome(target, outcome);
            "failed"
        }
    };
    metrics::counter!("nexus_delivery_searches_total", "result" => name).increment(1);
    tracing::info!(
        delivery_id = %id.delivery, event_id = %job.reply.causation.event, session = %job.reply.session,
        part = id.part, result = name, "searched the platform for a part that may have been sent"
    );
    Ok(found)
}

/// Stores the plan before its first call, which is for the part `first`. Returns the state that another owner recorded in
/// the meantime.
async fn freeze_plan(
    effects: &DeliveryEffects<'_>,
    first: u32,
    plan: &mut StandingPlan,
) -> Result<Option<DeliveryStanding>, DeliverError> {
    match plan {
        StandingPlan::Unmade => {}
        StandingPlan::Whole | StandingPlan::Parts(_) => return Ok(None),
    }
    // One part has the whole text, whatever its form will be.
    if effects.parts.len() == 1 && !effects.outfit.has_files(&effects.job.reply) {
        *plan = StandingPlan::Whole;
        return Ok(None);
    }

    let reply = &effects.job.reply;
    let stored = if has_secret(reply) {
        Vec::new()
    } else {
        split_pieces(&planned_parts(effects.parts))
    };
    let mut pieces = Vec::new();
    for parts in stored {
        let step = ReceiptStep::Planned { first, parts };
        match effects.write_receipt(effects.now(), step).await {
            Ok(ReceiptWrite::Stored(sequence)) => pieces.push(sequence),
            Ok(ReceiptWrite::Superseded(found)) => return Ok(Some(found)),
            // The hash alone tells then whether the plan is the same later.
            Err(DeliverError::Receipt(WriteReceiptError::Publish(PublishError::TooLarge { size, .. }))) => {
                tracing::warn!(delivery_id = %reply.id, size, "part is too large to be stored with the plan");
                pieces.clear();
                break;
            }
            Err(error) => return Err(error),
        }
    }

    *plan = StandingPlan::Parts(PlanReference {
        parts: count(effects.parts),
        sha256: reply_plan_hash(reply, effects.parts),
        pieces,
    });
    Ok(None)
}

/// Waits for the account's slot for a call. Returns the wait after which the delivery may ask again if it has none soon.
async fn await_slot(effects: &DeliveryEffects<'_>) -> Result<Option<Duration>, DeliverError> {
    let DeliveryEffects { outfit, job, lease, .. } = effects;
    let target = &job.reply.delivery_context;
    let channel = outfit.channels.get(&target.channel);
    let pace = channel.and_then(|channel| channel.pace(target));

    match outfit.gates.admit(target, pace) {
        CallAdmission::NotBefore(wait) => Ok(Some(wait)),
        CallAdmission::After(Duration::ZERO) => Ok(None),
        CallAdmission::After(wait) => {
            pause(wait).await;
            if lease.is_live() {
                Ok(None)
            } else {
                Err(DeliverError::Lost)
            }
        }
    }
}

/// Returns the outcome of the call `id` from the replica that started it; `None` if it is unknown and must be made
/// again.
async fn reported_outcome(
    effects: &DeliveryEffects<'_>,
    begun: OpenCall,
    id: CallId,
) -> Result<Option<CallOutcome>, DeliverError> {
    let DeliveryEffects { outfit, job, lease, .. } = effects;
    let former = FormerOwners {
        bus: &outfit.bus,
        clock: &outfit.clock,
        lease,
        patience: outfit.patience,
    };

    // What this instance knows of its own calls was looked up before.
    let by = begun.by;
    let call = if by == outfit.instance {
        None
    } else {
        former.ask_outcome(&by, id).await
    };

    // The wait may have outlasted the lease.
    if !lease.is_live() {
        return Err(DeliverError::Lost);
    }

    let (event_id, session) = (&job.reply.causation.event, &job.reply.session);
    match &call {
        Some(_) => {
            metrics::counter!("nexus_delivery_calls_told_total").increment(1);
            tracing::info!(delivery_id = %id.delivery, %event_id, %session, by, "former owner reported the result of its call");
        }
        None => {
            metrics::counter!("nexus_delivery_calls_repeated_total").increment(1);
            tracing::warn!(
                delivery_id = %id.delivery, %event_id, %session, by, attempt = id.attempt, part = id.part,
                "repeating a call with an unknown outcome"
            );
        }
    }

    Ok(call)
}

/// Sends the part of `shipment` in place of the message `preview`, which shows the beginning of it.
async fn send_whole(channel: &dyn Channel, shipment: &SendRequest<'_>, preview: &str) -> CallOutcome {
    if shipment.part.file.is_some() {
        // It shows the beginning of nothing.
        channel.delete(shipment, preview).await;
        return channel.send(shipment).await;
    }

    let outcome = channel.edit(shipment, preview).await;
    let is_gone = |outcome: &CallOutcome| {
        matches!(
            outcome,
            CallOutcome::Refused {
                refusal: Refusal::Permanent,
                ..
            }
        )
    };
    // It was deleted, or the platform edits it no more.
    if is_gone(&outcome) {
        return channel.send(shipment).await;
    }
    outcome
}

/// Sends the part of `shipment`, in place of the message `preview` if there is one, or makes `change`, an action and its
/// message.
async fn send_or_change(
    channel: &dyn Channel,
    shipment: &SendRequest<'_>,
    change: Option<(&ReplyAction, &Result<ChangedMessage, FindMessageError>)>,
    preview: Option<&str>,
) -> CallOutcome {
    let (action, message) = match change {
        None => {
            return match preview {
                Some(preview) => send_whole(channel, shipment, preview).await,
                None => channel.send(shipment).await,
            };
        }
        Some((action, Ok(message))) => (action, message.platform_id.as_str()),
        // A card that was never sent shows nothing that its decision could change.
        Some((_, Err(FindMessageError::Unsent(_)))) if is_decision(shipment.reply.interactive.as_ref()) => {
            return CallOutcome::Accepted {
                platform_ids: Vec::new(),
                live: None,
            };
        }
        Some((_, Err(error))) => {
            return CallOutcome::Refused {
                refusal: Refusal::Permanent,
                reason: error.to_string(),
            };
        }
    };
    match action {
        ReplyAction::Edit { .. } => channel.edit(shipment, message).await,
        ReplyAction::Delete { .. } => channel.delete(shipment, message).await,
        ReplyAction::React { emoji, removed, .. } => {
            let (emoji, removed) = (emoji.as_str(), *removed);
            channel
                .react(shipment, message, MessageReaction { emoji, removed })
                .await
        }
    }
}

/// Makes the call `id`.
async fn make_call(effects: &DeliveryEffects<'_>, part: &MessagePart, id: CallId) -> Result<CallOutcome, DeliverError> {
    // Before the call's own task: the receipts are read.
    let message = match &effects.job.reply.action {
        Some(action) => Some(find_message(&effects.outfit.bus, effects.job, action, effects.now()).await?),
        None => None,
    };
    // As few files as possible are in the memory at once.
    let file = match &part.file {
        Some(file) => match effects.outfit.files.load(file).await {
            Ok(loaded) => Some(loaded),
            Err(error) => return Ok(error.outcome()),
        },
        None => None,
    };
    let (outfit, job, lease) = (Arc::clone(effects.outfit), effects.job.clone(), effects.lease.clone());
    let (part, carrier, now) = (part.clone(), effects.carrier.clone(), effects.now());
    let event_id = sent_event_id(&job.reply, part.index)?;
    let parts = count(effects.parts);
    let preview = effects.preview.filter(|_| part.index == 0).map(str::to_owned);

    let call = async move {
        // The last check before any byte is sent: a process that was stopped notices here that another replica has
        // taken over, which either finds the call in the book, or the call is never made.
        let channel = outfit.channels.get(&job.reply.delivery_context.channel);
        let Some(channel) = channel.filter(|_| lease.is_live()) else {
            return CallOutcome::Withheld;
        };

        let shipment = SendRequest {
            reply: &job.reply,
            part: &part,
            parts,
            event_id: &event_id,
            carrier: &carrier,
            now,
            lease: &lease,
            file: file.as_ref().map(LoadedFile::bytes),
        };

        // Another call may have met the account's limit since this one got its slot.
        let (gates, target) = (&outfit.gates, &job.reply.delivery_context);
        if let Some(after) = gates.limit_left(target) {
            return CallOutcome::Limited {
                after,
                scope: LimitScope::Destination,
                reason: "the platform limits the account".to_owned(),
            };
        }

        let change = job.reply.action.as_ref().zip(message.as_ref());
        let outcome = send_or_change(channel, &shipment, change, preview.as_deref()).await;
        gates.note_outcome(target, &outcome);
        match (outcome, part.without_markup()) {
            // Once, and as part of the same call: the platform has shown nothing yet.
            (CallOutcome::Unformattable { reason }, Some(plain)) if lease.is_live() => {
                metrics::counter!("nexus_delivery_unformattable_total").increment(1);
                tracing::warn!(delivery_id = %id.delivery, part = id.part, reason, "sending the part as plain text");
                let plain = SendRequest {
                    part: &plain,
                    ..shipment
                };
                let outcome = send_or_change(channel, &plain, change, preview.as_deref()).await;
                gates.note_outcome(target, &outcome);
                outcome
            }
            (outcome, _) => outcome,
        }
    };

    match effects.outfit.calls.make_call(id, call).await {
        Some(CallOutcome::Withheld) | None => Err(DeliverError::Lost),
        Some(call) => Ok(call),
    }
}
