//! One attempt at a delivery: call → receipt → sent event, each durable before the next.
//!
//! After a crash between any two steps, the delivery continues at its last receipt (`resume`): a call is repeated
//! only if its outcome is not recorded, and an event only under its own id.

mod call;

use std::sync::Arc;
use std::time::Duration;

use shared::bus::partition::PartitionLease;
use shared::bus::{Bus, ReadStreamError};
use shared::clock::IdSource;
use shared::model::receipt::{AttemptOutcome, ReceiptStep};
use shared::model::restore::HeldDelivery;
use shared::model::time::UnixMillis;
use shared::process::trace::{carrier_of, consumer_span};
use shared::wire::held::HeldUntil;
use tracing::Instrument as _;

use crate::acknowledgements::{show_denied, show_given_up, show_sent};
use crate::attempt::{AttemptVerdict, CallSituation, Repetition, judge_call};
use crate::calls::CallId;
use crate::changed_message::has_newer_change;
use crate::effects::{DelivererContext, DeliveryEffects};
use crate::error::DeliverError;
use crate::frozen_plan::{read_plan, reply_plan_hash};
use crate::job::DeliveryJob;
use crate::plan::MessagePart;
use crate::previews::end_preview;
use crate::receipts::{PartitionReceipts, ReceiptWrite};
use crate::resume::{DeliveryStanding, RemainingWork, StandingPlan, attempts_before, keep_doubt, keep_ids, sent_part};
use call::{Made, PartsBefore, call};

/// Maximum number of times that another owner may settle a delivery during one attempt.
const MAX_OVERTAKEN: u32 = 8;
/// Time after which a delivery that waits for the operator is checked again, in milliseconds.
const HELD_AGAIN_MS: i64 = 2_000;

/// The progress of a delivery after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryProgress {
    /// The delivery is settled, and all its consequences are stored.
    Settled,
    /// The attempt failed; the next one must not start before this time.
    Later(UnixMillis),
}

/// The end of one step: the delivery's progress, or the state that another owner recorded.
enum Step {
    Progress(DeliveryProgress),
    Superseded(DeliveryStanding),
}

impl Step {
    const SETTLED: Self = Self::Progress(DeliveryProgress::Settled);

    /// Returns that the next attempt must not start before `wait` is over.
    fn after_wait(effects: &DeliveryEffects<'_>, wait: Duration) -> Self {
        let wait = i64::try_from(whole_millis(wait)).unwrap_or(i64::MAX);
        Self::Progress(DeliveryProgress::Later(effects.now().plus(wait)))
    }

    /// Returns `progress` if its receipt is stored.
    fn after_receipt(written: ReceiptWrite, progress: DeliveryProgress) -> Self {
        match written {
            ReceiptWrite::Stored(_) => Self::Progress(progress),
            ReceiptWrite::Superseded(found) => Self::Superseded(found),
        }
    }
}

/// Makes the deliveries of one partition.
#[derive(Debug)]
pub struct PartitionDeliverer<'a> {
    outfit: &'a Arc<DelivererContext>,
    receipts: PartitionReceipts,
    lease: PartitionLease,
}

impl<'a> PartitionDeliverer<'a> {
    /// Creates a deliverer for the partition of `lease`, with an empty receipt cache.
    #[must_use]
    pub fn new(outfit: &'a Arc<DelivererContext>, lease: PartitionLease) -> Self {
        Self {
            lease,
            outfit,
            receipts: PartitionReceipts::new(outfit.bus.clone(), outfit.witness.clone(), Arc::clone(&outfit.clock)),
        }
    }

    /// Returns the bus.
    #[must_use]
    pub fn bus(&self) -> &Bus {
        &self.outfit.bus
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> UnixMillis {
        self.outfit.clock.now()
    }

    /// Returns the state of `job`. `untried` means that no process can have started it.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be read.
    pub async fn find_standing(&self, job: &DeliveryJob, untried: bool) -> Result<DeliveryStanding, ReadStreamError> {
        let parts = self.outfit.parts_of(&job.reply);
        self.receipts.find_standing(job, &parts, untried, self.now()).await
    }

    /// Returns the parts of `job`, which is at `standing`: those of its plan, or as they are planned now, and whether its
    /// plan is lost and today's is another.
    async fn parts_at(
        &self,
        job: &DeliveryJob,
        standing: &DeliveryStanding,
    ) -> Result<(Vec<MessagePart>, bool), ReadStreamError> {
        let reference = match plan_of(standing) {
            StandingPlan::Unmade => return Ok((self.outfit.parts_of(&job.reply), false)),
            StandingPlan::Whole => return Ok((self.outfit.whole_part(&job.reply), false)),
            StandingPlan::Parts(reference) => reference,
        };
        if let Some(parts) = read_plan(self.bus(), job, reference).await? {
            return Ok((parts, false));
        }

        // The pieces are gone, or were not to be stored.
        let parts = self.outfit.parts_of(&job.reply);
        let is_other = reply_plan_hash(&job.reply, &parts) != reference.sha256;
        if is_other {
            metrics::counter!("nexus_delivery_replanned_total").increment(1);
            tracing::warn!(
                delivery_id = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
                former_parts = reference.parts, parts = parts.len(),
                "the plan of a delivery is lost, and it would be planned otherwise now"
            );
        }
        Ok((parts, is_other))
    }

    /// Advances `job` from its state `standing`, up to the first failed call.
    ///
    /// # Errors
    /// Returns [`DeliverError`]; the state is then that of the last receipt.
    pub async fn advance_job(
        &self,
        job: &DeliveryJob,
        mut standing: DeliveryStanding,
    ) -> Result<DeliveryProgress, DeliverError> {
        let incoming = job.carrier();
        let span = consumer_span("delivery.attempt", &incoming);
        span.record("event_id", job.reply.causation.event.as_str());
        span.record("delivery_id", tracing::field::display(job.reply.id));
        span.record("turn_id", tracing::field::display(job.reply.turn));
        span.record("session", tracing::field::display(&job.reply.session));
        span.record("dispatch_id", job.dispatch_id());

        let carrier = carrier_of(&span, &incoming);
        let preview = end_preview(self.outfit, job, &self.lease).await?;
        async {
            // Another process may have written a receipt: its state replaces ours, and its plan.
            for _ in 0..MAX_OVERTAKEN {
                let (parts, is_other) = self.parts_at(job, &standing).await?;
                let effects = DeliveryEffects {
                    outfit: self.outfit,
                    receipts: &self.receipts,
                    lease: &self.lease,
                    job,
                    parts: &parts,
                    carrier: &carrier,
                    preview: preview.as_deref(),
                };
                let ended = match standing {
                    DeliveryStanding::Open(remaining) if is_other => open_replanned(&effects, remaining).await?,
                    other @ (DeliveryStanding::Open(_)
                    | DeliveryStanding::Unknown
                    | DeliveryStanding::Past
                    | DeliveryStanding::Delivered { .. }
                    | DeliveryStanding::GaveUp { .. }
                    | DeliveryStanding::Denied) => step(&effects, other).await?,
                };
                match ended {
                    Step::Progress(progress) => {
                        // The receipts have the outcomes of its calls by now.
                        self.outfit.calls.forget_delivery(job.reply.id, job.place);
                        if progress == DeliveryProgress::Settled && job.reply.id == job.reply.turn {
                            self.outfit.previews.forget(job.reply.turn);
                        }
                        return Ok(progress);
                    }
                    Step::Superseded(found) => standing = found,
                }
            }

            Err(DeliverError::Overtaken {
                delivery: job.reply.id.to_string(),
                times: MAX_OVERTAKEN,
            })
        }
        .instrument(span)
        .await
    }
}

/// Returns the plan of a delivery at `standing`.
const fn plan_of(standing: &DeliveryStanding) -> &StandingPlan {
    match standing {
        DeliveryStanding::Open(RemainingWork { plan, .. }) | DeliveryStanding::Delivered { plan, .. } => plan,
        DeliveryStanding::Past
        | DeliveryStanding::GaveUp { .. }
        | DeliveryStanding::Denied
        | DeliveryStanding::Unknown => &StandingPlan::Unmade,
    }
}

pub(crate) fn count(parts: &[MessagePart]) -> u32 {
    u32::try_from(parts.len()).unwrap_or(u32::MAX)
}

async fn step(effects: &DeliveryEffects<'_>, standing: DeliveryStanding) -> Result<Step, DeliverError> {
    match standing {
        DeliveryStanding::Past | DeliveryStanding::Denied => Ok(Step::SETTLED),
        DeliveryStanding::Delivered { last, plan: _ } => {
            effects.publish_event(&last).await?;
            Ok(Step::SETTLED)
        }
        DeliveryStanding::GaveUp { attempts, reason } => {
            effects.dead_letter(reason, attempts).await?;
            Ok(Step::SETTLED)
        }
        DeliveryStanding::Open(remaining) => open(effects, remaining).await,
        DeliveryStanding::Unknown => match effects.hold_delivery().await? {
            // The whole message is in the bucket, and stays there until an operator decides.
            HeldUntil::Decided | HeldUntil::Skip => Ok(Step::SETTLED),
            HeldUntil::Redo => open(effects, RemainingWork::ALL).await,
        },
    }
}

/// Opens a delivery whose plan is lost, and which is planned otherwise now. By another plan no part has the same words:
/// one that goes on in the middle would lose words, or repeat them.
async fn open_replanned(effects: &DeliveryEffects<'_>, remaining: RemainingWork) -> Result<Step, DeliverError> {
    if remaining.part == 0 && remaining.begun.is_none() && remaining.unconfirmed.is_empty() {
        let plan = StandingPlan::Unmade;
        return open(effects, RemainingWork { plan, ..remaining }).await;
    }

    let sent = remaining.part;
    let reason = format!(
        "the plan of the parts is lost, and the reply would be cut otherwise now; {sent} parts were sent, and \
         `nexus dlq redrive` sends the whole reply again"
    );
    give_up(effects, reason, remaining.attempt).await
}

async fn open(effects: &DeliveryEffects<'_>, remaining: RemainingWork) -> Result<Step, DeliverError> {
    let reply = &effects.job.reply;
    // Checked at every attempt, because the policy may have changed since the last one.
    if let Some(rule) = effects.outfit.policy.denying_rule(reply) {
        metrics::counter!("nexus_delivery_denied_total").increment(1);
        return deny(effects, &rule).await;
    }

    match restore_decision(effects).await? {
        HeldDelivery::Leaves => {}
        HeldDelivery::Waits => {
            let again = effects.now().plus(HELD_AGAIN_MS);
            return Ok(Step::Progress(DeliveryProgress::Later(again)));
        }
        HeldDelivery::Dropped => return deny(effects, "dropped by the operator after a restore").await,
    }

    // Only an operator brings a change back after later ones: of each destination, one follows the other.
    if effects.job.is_redriven() && has_newer_change(&effects.outfit.bus, effects.job).await? {
        return deny(effects, "a newer change of the message was made").await;
    }

    let name = &reply.delivery_context.channel;
    if effects.outfit.channels.get(name).is_none() {
        return give_up(
            effects,
            format!("channel `{name}` is not configured; add it to channels.yaml, then `nexus dlq redrive`"),
            remaining.attempt,
        )
        .await;
    }

    // A crash may have come between the receipt of this part and its event.
    if let Some(sent) = &remaining.event_due {
        effects.publish_event(sent).await?;
    }

    if effects.now() < remaining.not_before {
        return Ok(Step::Progress(DeliveryProgress::Later(remaining.not_before)));
    }

    send_parts(effects, remaining).await
}

/// Settles the delivery without a call, as `rule` says.
async fn deny(effects: &DeliveryEffects<'_>, rule: &str) -> Result<Step, DeliverError> {
    let denied = ReceiptStep::DeniedByPolicy { rule: rule.to_owned() };
    let written = effects.write_receipt(effects.now(), denied).await?;
    show_denied(effects.outfit, &effects.job.reply, effects.lease);
    Ok(Step::after_receipt(written, DeliveryProgress::Settled))
}

/// Returns the outcome of a restore's hold for the delivery.
async fn restore_decision(effects: &DeliveryEffects<'_>) -> Result<HeldDelivery, DeliverError> {
    match &effects.outfit.restored {
        Some(gate) => Ok(gate.read_decision(effects.job).await?),
        None => Ok(HeldDelivery::Leaves),
    }
}

/// Returns the situation in which the call of `attempt` for `part` is judged, if `uncounted` attempts before it do not
/// count.
fn call_situation(effects: &DeliveryEffects<'_>, part: u32, attempt: u32, uncounted: u32) -> CallSituation {
    let outfit = effects.outfit;
    let traits = effects.traits_of_part(part);
    CallSituation {
        scheduled: outfit
            .schedule
            .delay(attempt.saturating_sub(uncounted), jitter(outfit.ids.as_ref())),
        uncounted,
        repetition: traits.repetition,
        finds_parts: traits.finds_parts,
        age: effects.age(),
        reauth_wait: outfit.reauth_wait,
    }
}

/// Returns `wait` in milliseconds, rounded up, so that no wait is shorter than the platform asked for.
fn whole_millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

async fn send_parts(effects: &DeliveryEffects<'_>, remaining: RemainingWork) -> Result<Step, DeliverError> {
    let (attempt, first) = (remaining.attempt, remaining.part);
    let (mut before, mut begun) = PartsBefore::split_work(remaining);

    let count = count(effects.parts);
    let mut seen = None;
    for part in effects.parts.iter().filter(|part| part.index >= first) {
        let index = part.index;
        let id = CallId {
            delivery: effects.job.reply.id,
            copy: effects.job.place,
            part: index,
            attempt,
        };

        let call = match call(effects, part, id, begun.take(), &mut before).await? {
            Made::Call(call) => call,
            Made::Superseded(found) => return Ok(Step::Superseded(found)),
            Made::Later(wait) => return Ok(Step::after_wait(effects, wait)),
        };
        let (ids, live) = match judge_call(call, call_situation(effects, index, attempt, before.uncounted)) {
            AttemptVerdict::Done { platform_ids, live } => (platform_ids, live),
            AttemptVerdict::GiveUp { reason } => return give_up(effects, reason, attempt).await,
            AttemptVerdict::Retry {
                after,
                reason,
                is_doubtful,
            } => {
                if is_doubtful {
                    keep_doubt(&mut before.unconfirmed, index);
                }

                metrics::counter!("nexus_delivery_failed_attempts_total").increment(1);
                let after_ms = whole_millis(after);
                let failed = before.finished_step(id, AttemptOutcome::Retry { after_ms, reason });
                return postpone(effects, failed, after_ms, "delivery attempt failed; retrying").await;
            }
            AttemptVerdict::Limited { after, reason } => {
                metrics::counter!("nexus_delivery_limited_total").increment(1);
                let after_ms = whole_millis(after);
                let limited = before.finished_step(id, AttemptOutcome::Limited { after_ms, reason });
                return postpone(effects, limited, after_ms, "platform asks to wait; retrying").await;
            }
        };

        end_doubt(effects, &mut before.unconfirmed, index);
        keep_ids(&mut before.platform_ids, index, ids);
        seen = live.or(seen);

        // The last part needs no receipt of its own: `Delivered` records it.
        if index + 1 < count {
            let at = effects.now();
            let done = before.clone().finished_step(id, AttemptOutcome::Done);

            if let ReceiptWrite::Superseded(found) = effects.write_receipt(at, done).await? {
                return Ok(Step::Superseded(found));
            }

            let sent = sent_part(index, at, &before.platform_ids, &before.unconfirmed);
            effects.publish_event(&sent).await?;
            before.uncounted = attempts_before(attempt);
        }
    }

    finish_delivery(effects, attempt, before, seen).await
}

/// Ends the doubt about `part`, which was accepted now, if the platform still recognised a repetition: it has it once.
fn end_doubt(effects: &DeliveryEffects<'_>, unconfirmed: &mut Vec<u32>, part: u32) {
    let repetition = effects.traits_of_part(part).repetition;
    if repetition.at_age(effects.age()) == Repetition::Recognised {
        unconfirmed.retain(|doubtful| *doubtful != part);
    }
}

/// Returns a number in 0..1 from the randomness of a new id.
fn jitter(ids: &dyn IdSource) -> f64 {
    let low = ids.ulid().random() & u128::from(u32::MAX);
    u32::try_from(low).map_or(0.5, |low| f64::from(low) / (f64::from(u32::MAX) + 1.0))
}

/// Records that the platform has all parts, as `before` has them, and publishes the last one's event.
async fn finish_delivery(
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
async fn postpone(
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

async fn give_up(effects: &DeliveryEffects<'_>, reason: String, attempts: u32) -> Result<Step, DeliverError> {
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
    Ok(Step::SETTLED)
}
