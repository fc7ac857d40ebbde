//! One attempt at one delivery: call → receipt → sent event, each durable before the next.
//!
//! Crashed between any two steps, the delivery is taken up again where its last receipt says (`resume`): a call is
//! repeated only where its outcome is not written down, an event only under its own id.

use shared::bus::{Bus, PublishError, ReadStreamError};
use shared::clock::IdSource;
use shared::model::event::{DEFAULT_ACCOUNT, ParseEventIdError};
use shared::model::receipt::{AttemptOutcome, ReceiptStep};
use shared::model::time::UnixMillis;
use shared::process::trace::{carrier_of, consumer_span};
use tracing::Instrument as _;

use crate::attempt::{Verdict, judge};
use crate::channel::{Channel, Shipment};
use crate::effects::{Effects, Outfit};
use crate::job::Job;
use crate::outbound::sent_event_id;
use crate::plan::{Part, plan};
use crate::receipts::{Receipts, WriteReceiptError, Written};
use crate::resume::{Remaining, SentPart, Standing};

/// How often another owner may overtake us within one delivery.
const MAX_OVERTAKEN: u32 = 8;

/// A delivery could not be brought on; it is as its last receipt says.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// A receipt could not be written.
    #[error(transparent)]
    Receipt(#[from] WriteReceiptError),
    /// A receipt could not be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// An event, a dead letter or a parked copy could not be stored.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// An id that cannot be: never for ids made of a ULID and a number.
    #[error(transparent)]
    Id(#[from] ParseEventIdError),
    /// Others settle it again and again.
    #[error("deliver {delivery}: overtaken {MAX_OVERTAKEN} times")]
    Overtaken {
        /// The delivery.
        delivery: String,
    },
}

/// How far an attempt brought a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is settled, and everything that follows from that is stored.
    Settled,
    /// It failed, and is to be tried again, not sooner than this.
    Later(UnixMillis),
}

/// How one step ended: the delivery's progress, or word from another owner.
enum Step {
    Progress(Progress),
    Superseded(Standing),
}

impl Step {
    const SETTLED: Self = Self::Progress(Progress::Settled);

    /// `progress` where the receipt that says so is stored.
    fn once(written: Written, progress: Progress) -> Self {
        match written {
            Written::Stored => Self::Progress(progress),
            Written::Superseded(found) => Self::Superseded(found),
        }
    }
}

/// Delivers for one partition.
#[derive(Debug)]
pub struct Deliverer<'a> {
    outfit: &'a Outfit,
    receipts: Receipts,
}

impl<'a> Deliverer<'a> {
    /// With the process's outfit, knowing no receipt yet.
    #[must_use]
    pub fn new(outfit: &'a Outfit) -> Self {
        Self {
            outfit,
            receipts: Receipts::new(outfit.bus.clone()),
        }
    }

    /// The bus.
    #[must_use]
    pub const fn bus(&self) -> &Bus {
        &self.outfit.bus
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> UnixMillis {
        self.outfit.clock.now()
    }

    /// Where `job` stands; `untried`: nobody can have begun it.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the stream cannot be asked.
    pub async fn standing(&self, job: &Job, untried: bool) -> Result<Standing, ReadStreamError> {
        self.receipts.standing(job, untried, self.now()).await
    }

    /// Brings `job` on from where it stands, by at most one failed call.
    ///
    /// # Errors
    /// [`DeliverError`]: it is as its last receipt says.
    pub async fn advance(&self, job: &Job, mut standing: Standing) -> Result<Progress, DeliverError> {
        let incoming = job.carrier();
        let span = consumer_span("delivery.attempt", &incoming);
        span.record("event_id", job.reply.causation.event.as_str());
        span.record("delivery_id", tracing::field::display(job.reply.id));
        span.record("turn_id", tracing::field::display(job.reply.turn));
        span.record("session", tracing::field::display(&job.reply.session));
        span.record("dispatch_id", job.dispatch_id());
        let carrier = carrier_of(&span, &incoming);
        let parts = self.parts(job);
        let effects = Effects {
            outfit: self.outfit,
            receipts: &self.receipts,
            job,
            parts: &parts,
            carrier: &carrier,
        };
        async {
            for _ in 0..MAX_OVERTAKEN {
                match step(&effects, standing).await? {
                    Step::Progress(progress) => return Ok(progress),
                    Step::Superseded(found) => standing = found,
                }
            }
            Err(DeliverError::Overtaken {
                delivery: job.reply.id.to_string(),
            })
        }
        .instrument(span)
        .await
    }

    fn parts(&self, job: &Job) -> Vec<Part> {
        let target = &job.reply.delivery_context;
        let account = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
        let limit = self
            .outfit
            .channels
            .get(&target.channel)
            .and_then(|channel| channel.limit(account));
        plan(&job.reply, limit)
    }
}

async fn step(effects: &Effects<'_>, standing: Standing) -> Result<Step, DeliverError> {
    match standing {
        Standing::Past | Standing::Denied => Ok(Step::SETTLED),
        Standing::Delivered(sent) => {
            effects.event(sent).await?;
            Ok(Step::SETTLED)
        }
        Standing::GaveUp { attempts, reason } => {
            effects.dead_letter(reason, attempts).await?;
            Ok(Step::SETTLED)
        }
        Standing::Open(remaining) => open(effects, remaining).await,
    }
}

async fn open(effects: &Effects<'_>, remaining: Remaining) -> Result<Step, DeliverError> {
    let reply = &effects.job.reply;
    if let Some(rule) = effects.outfit.policy.denies(reply) {
        metrics::counter!("nexus_delivery_denied_total").increment(1);
        let written = effects
            .receipt(effects.now(), ReceiptStep::DeniedByPolicy { rule })
            .await?;
        return Ok(Step::once(written, Progress::Settled));
    }
    let name = &reply.delivery_context.channel;
    let Some(channel) = effects.outfit.channels.get(name) else {
        return give_up(effects, format!("no channel `{name}`"), remaining.attempt).await;
    };
    if let Some(sent) = remaining.event_due {
        effects.event(sent).await?;
    }
    if effects.now() < remaining.not_before {
        return Ok(Step::Progress(Progress::Later(remaining.not_before)));
    }
    if remaining.unconfirmed {
        tracing::warn!(
            delivery = %reply.id, event_id = %reply.causation.event, session = %reply.session,
            attempt = remaining.attempt, "attempt is repeated, nobody knows how it ended"
        );
    }
    send_parts(effects, channel, remaining).await
}

async fn send_parts(effects: &Effects<'_>, channel: &dyn Channel, remaining: Remaining) -> Result<Step, DeliverError> {
    let Remaining {
        attempt,
        part: first,
        mut platform_ids,
        ..
    } = remaining;
    let count = u32::try_from(effects.parts.len()).unwrap_or(u32::MAX);
    let mut seen = None;
    for part in effects.parts.iter().filter(|part| part.index >= first) {
        let index = part.index;
        if !channel.is_idempotent() {
            let started = ReceiptStep::AttemptStarted { attempt, part: index };
            if let Written::Superseded(found) = effects.receipt(effects.now(), started).await? {
                return Ok(Step::Superseded(found));
            }
        }
        let (ids, live) = match call(effects, channel, part, attempt).await? {
            Verdict::Done { platform_ids, live } => (platform_ids, live),
            Verdict::GiveUp { reason } => return give_up(effects, reason, attempt).await,
            Verdict::Retry { after, reason } => {
                // Rounded up: what a platform asked for is never cut short.
                let after_ms = u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
                let outcome = AttemptOutcome::Retry { after_ms, reason };
                let failed = ReceiptStep::AttemptFinished {
                    attempt,
                    part: index,
                    platform_ids,
                    outcome,
                };
                return fail(effects, failed, after_ms).await;
            }
        };
        platform_ids.extend(ids);
        seen = live.or(seen);
        if index + 1 < count {
            let (at, ids) = (effects.now(), platform_ids.clone());
            let outcome = AttemptOutcome::Done;
            let done = ReceiptStep::AttemptFinished {
                attempt,
                part: index,
                platform_ids: ids,
                outcome,
            };
            if let Written::Superseded(found) = effects.receipt(at, done).await? {
                return Ok(Step::Superseded(found));
            }
            effects.event(SentPart { index, at }).await?;
        }
    }
    let delivered = ReceiptStep::Delivered {
        attempts: attempt,
        parts: count,
        platform_ids,
        live: seen,
    };
    finish(effects, delivered, count).await
}

async fn call(
    effects: &Effects<'_>,
    channel: &dyn Channel,
    part: &Part,
    attempt: u32,
) -> Result<Verdict, DeliverError> {
    let Effects {
        outfit,
        job,
        parts,
        carrier,
        ..
    } = effects;
    let event_id = sent_event_id(&job.reply, part.index)?;
    let parts = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let shipment = Shipment {
        reply: &job.reply,
        part,
        parts,
        event_id: &event_id,
        carrier,
        now: effects.now(),
    };
    let call = channel.send(&shipment).await;
    Ok(judge(
        call,
        outfit.schedule.delay(attempt, jitter(outfit.ids.as_ref())),
        effects.now(),
    ))
}

/// A number in 0..1 out of a fresh id's randomness.
fn jitter(ids: &dyn IdSource) -> f64 {
    let low = ids.ulid().random() & u128::from(u32::MAX);
    u32::try_from(low).map_or(0.5, |low| f64::from(low) / (f64::from(u32::MAX) + 1.0))
}

async fn finish(effects: &Effects<'_>, delivered: ReceiptStep, parts: u32) -> Result<Step, DeliverError> {
    let at = effects.now();
    if let Written::Superseded(found) = effects.receipt(at, delivered).await? {
        return Ok(Step::Superseded(found));
    }
    effects
        .event(SentPart {
            index: parts.saturating_sub(1),
            at,
        })
        .await?;
    metrics::counter!("nexus_delivery_delivered_total").increment(1);
    Ok(Step::SETTLED)
}

async fn fail(effects: &Effects<'_>, failed: ReceiptStep, after_ms: u64) -> Result<Step, DeliverError> {
    let Effects { job, .. } = effects;
    metrics::counter!("nexus_delivery_failed_attempts_total").increment(1);
    tracing::warn!(
        delivery = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
        destination = job.destination.as_str(), after_ms, receipt = ?failed, "attempt failed"
    );
    let at = effects.now();
    let again = at.plus(i64::try_from(after_ms).unwrap_or(i64::MAX));
    Ok(Step::once(effects.receipt(at, failed).await?, Progress::Later(again)))
}

async fn give_up(effects: &Effects<'_>, reason: String, attempts: u32) -> Result<Step, DeliverError> {
    let Effects { job, .. } = effects;
    metrics::counter!("nexus_delivery_gave_up_total").increment(1);
    tracing::error!(
        delivery = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
        destination = job.destination.as_str(), attempts, reason, "delivery is given up"
    );
    let gave_up = ReceiptStep::GaveUp {
        attempts,
        reason: reason.clone(),
    };
    if let Written::Superseded(found) = effects.receipt(effects.now(), gave_up).await? {
        return Ok(Step::Superseded(found));
    }
    effects.dead_letter(reason, attempts).await?;
    Ok(Step::SETTLED)
}
