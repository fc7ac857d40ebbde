//! One attempt at one delivery: call → receipt → sent event, each durable before the next.
//!
//! Crashed between any two steps, the delivery is taken up again where its last receipt says (`resume`): a call is
//! repeated only where its outcome is not written down, an event only under its own id.

use std::time::Duration;

use shared::bus::{Bus, Outgoing, PublishError, ReadStreamError};
use shared::clock::{SharedClock, SharedIds};
use shared::model::event::ParseEventIdError;
use shared::model::receipt::{AttemptOutcome, ReceiptStep};
use shared::model::time::UnixMillis;
use shared::process::trace::{carrier_of, consumer_span};
use shared::retry::Schedule;
use shared::wire::headers::{CAUSATION, Carrier, HOPS};
use shared::wire::subject;
use tracing::Instrument as _;

use crate::attempt::{Verdict, judge};
use crate::channel::{Channel, Channels, Shipment};
use crate::job::Job;
use crate::outbound::{sent_event, sent_event_id};
use crate::plan::{Part, plan};
use crate::policy::SendPolicy;
use crate::receipts::{Receipts, WriteReceiptError, Written};
use crate::resume::{Remaining, SentPart, Standing};

/// How often another owner may overtake us within one delivery.
const MAX_OVERTAKEN: u32 = 8;

/// What all deliveries of this process share.
pub struct Outfit {
    /// The bus.
    pub bus: Bus,
    /// The platforms.
    pub channels: Channels,
    /// What may leave.
    pub policy: SendPolicy,
    /// When a failed call is tried again.
    pub schedule: Schedule,
    /// The time.
    pub clock: SharedClock,
    /// Where jitter comes from.
    pub ids: SharedIds,
}

impl std::fmt::Debug for Outfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outfit").field("channels", &self.channels).finish_non_exhaustive()
    }
}

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

const SETTLED: Step = Step::Progress(Progress::Settled);

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
        Self { outfit, receipts: Receipts::new(outfit.bus.clone()) }
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

    /// Where `job` stands. A delivery that nobody can have begun (`fresh`) is not looked up where the destination's
    /// last receipt is known to be ours.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the leader cannot be asked.
    pub async fn standing(&self, job: &Job, fresh: bool) -> Result<Standing, ReadStreamError> {
        if fresh && self.receipts.knows(&job.destination) {
            return Ok(Standing::Open(Remaining::ALL));
        }
        self.receipts.standing(job).await
    }

    /// Brings `job` on from where it stands, by at most one failed call.
    ///
    /// # Errors
    /// [`DeliverError`]: it is as its last receipt says.
    pub async fn advance(&self, job: &Job, mut standing: Standing) -> Result<Progress, DeliverError> {
        let span = consumer_span("delivery.attempt", &job.carrier());
        let carrier = carrier_of(&span, &job.carrier());
        async {
            for _ in 0..MAX_OVERTAKEN {
                match self.step(job, standing, &carrier).await? {
                    Step::Progress(progress) => return Ok(progress),
                    Step::Superseded(found) => standing = found,
                }
            }
            Err(DeliverError::Overtaken { delivery: job.reply.id.to_string() })
        }
        .instrument(span)
        .await
    }

    async fn step(&self, job: &Job, standing: Standing, carrier: &Carrier) -> Result<Step, DeliverError> {
        match standing {
            Standing::Past | Standing::Denied => Ok(SETTLED),
            Standing::Delivered(sent) => {
                let parts = self.parts(job);
                self.publish_sent(job, &parts, sent, carrier).await?;
                Ok(SETTLED)
            }
            Standing::GaveUp { reason } => {
                self.dead_letter(job, reason, 0).await?;
                Ok(SETTLED)
            }
            Standing::Open(remaining) => self.open(job, remaining, carrier).await,
        }
    }

    async fn open(&self, job: &Job, remaining: Remaining, carrier: &Carrier) -> Result<Step, DeliverError> {
        if let Some(rule) = self.outfit.policy.denies(&job.reply) {
            metrics::counter!("nexus_delivery_denied_total").increment(1);
            return self.settle(job, ReceiptStep::DeniedByPolicy { rule }, carrier).await;
        }
        let name = &job.reply.delivery_context.channel;
        let Some(channel) = self.outfit.channels.get(name) else {
            return self.give_up(job, format!("no channel `{name}`"), remaining.attempt, carrier).await;
        };
        let parts = self.parts(job);
        if let Some(sent) = remaining.event_due {
            self.publish_sent(job, &parts, sent, carrier).await?;
        }
        if self.now() < remaining.not_before {
            return Ok(Step::Progress(Progress::Later(remaining.not_before)));
        }
        if remaining.unconfirmed {
            tracing::warn!(
                delivery = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
                attempt = remaining.attempt, "attempt is repeated, nobody knows how it ended"
            );
        }
        self.send_parts(job, channel, &parts, remaining, carrier).await
    }

    fn parts(&self, job: &Job) -> Vec<Part> {
        let target = &job.reply.delivery_context;
        let account = target.account_id.as_deref().unwrap_or(shared::model::event::DEFAULT_ACCOUNT);
        let limit = self.outfit.channels.get(&target.channel).and_then(|channel| channel.limit(account));
        plan(&job.reply, limit)
    }

    async fn send_parts(
        &self,
        job: &Job,
        channel: &dyn Channel,
        parts: &[Part],
        remaining: Remaining,
        carrier: &Carrier,
    ) -> Result<Step, DeliverError> {
        let Remaining { attempt, part: first, mut platform_ids, .. } = remaining;
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let mut seen = None;
        for part in parts.iter().filter(|part| part.index >= first) {
            if !channel.is_idempotent() {
                let started = ReceiptStep::AttemptStarted { attempt, part: part.index };
                if let Written::Superseded(found) = self.write(job, self.now(), started, carrier).await? {
                    return Ok(Step::Superseded(found));
                }
            }
            let (ids, live) = match self.call(job, channel, part, count, attempt, carrier).await? {
                Verdict::Done { platform_ids, live } => (platform_ids, live),
                Verdict::Retry { after, reason } => {
                    return self.fail(job, part, attempt, platform_ids, (after, reason), carrier).await;
                }
                Verdict::GiveUp { reason } => return self.give_up(job, reason, attempt, carrier).await,
            };
            platform_ids.extend(ids);
            seen = live.or(seen);
            if part.index + 1 < count {
                let outcome = AttemptOutcome::Done;
                let ids = platform_ids.clone();
                let step = ReceiptStep::AttemptFinished { attempt, part: part.index, platform_ids: ids, outcome };
                let at = self.now();
                if let Written::Superseded(found) = self.write(job, at, step, carrier).await? {
                    return Ok(Step::Superseded(found));
                }
                self.publish_sent(job, parts, SentPart { index: part.index, at }, carrier).await?;
            }
        }
        let step = ReceiptStep::Delivered { attempts: attempt, parts: count, platform_ids, live: seen };
        self.finish(job, parts, step, carrier).await
    }

    async fn call(
        &self,
        job: &Job,
        channel: &dyn Channel,
        part: &Part,
        parts: u32,
        attempt: u32,
        carrier: &Carrier,
    ) -> Result<Verdict, DeliverError> {
        let event_id = sent_event_id(&job.reply, part.index)?;
        let shipment = Shipment { reply: &job.reply, part, parts, event_id: &event_id, carrier, now: self.now() };
        let call = channel.send(&shipment).await;
        Ok(judge(call, self.outfit.schedule.delay(attempt, self.jitter()), self.now()))
    }

    /// A number in 0..1 out of a fresh id's randomness.
    fn jitter(&self) -> f64 {
        const BITS: u32 = 32;
        let random = u32::try_from(self.outfit.ids.ulid().random() & u128::from(u32::MAX)).unwrap_or_default();
        f64::from(random) / f64::from(2.0_f32.powi(BITS.cast_signed()))
    }

    async fn finish(
        &self,
        job: &Job,
        parts: &[Part],
        step: ReceiptStep,
        carrier: &Carrier,
    ) -> Result<Step, DeliverError> {
        let at = self.now();
        if let Written::Superseded(found) = self.write(job, at, step, carrier).await? {
            return Ok(Step::Superseded(found));
        }
        let index = parts.last().map_or(0, |part| part.index);
        self.publish_sent(job, parts, SentPart { index, at }, carrier).await?;
        metrics::counter!("nexus_delivery_delivered_total").increment(1);
        Ok(SETTLED)
    }

    async fn fail(
        &self,
        job: &Job,
        part: &Part,
        attempt: u32,
        platform_ids: Vec<String>,
        (after, reason): (Duration, String),
        carrier: &Carrier,
    ) -> Result<Step, DeliverError> {
        metrics::counter!("nexus_delivery_failed_attempts_total").increment(1);
        // Rounded up: what a platform asked for is never cut short.
        let after_ms = u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        tracing::warn!(
            delivery = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
            destination = job.destination.as_str(), attempt, after_ms, reason, "attempt failed"
        );
        let outcome = AttemptOutcome::Retry { after_ms, reason };
        let step = ReceiptStep::AttemptFinished { attempt, part: part.index, platform_ids, outcome };
        let at = self.now();
        Ok(match self.write(job, at, step, carrier).await? {
            Written::Stored => {
                Step::Progress(Progress::Later(at.plus(i64::try_from(after_ms).unwrap_or(i64::MAX))))
            }
            Written::Superseded(found) => Step::Superseded(found),
        })
    }

    async fn give_up(
        &self,
        job: &Job,
        reason: String,
        attempts: u32,
        carrier: &Carrier,
    ) -> Result<Step, DeliverError> {
        metrics::counter!("nexus_delivery_gave_up_total").increment(1);
        tracing::error!(
            delivery = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
            destination = job.destination.as_str(), attempts, reason, "delivery is given up"
        );
        let step = ReceiptStep::GaveUp { attempts, reason: reason.clone() };
        if let Written::Superseded(found) = self.write(job, self.now(), step, carrier).await? {
            return Ok(Step::Superseded(found));
        }
        self.dead_letter(job, reason, attempts).await?;
        Ok(SETTLED)
    }

    async fn settle(&self, job: &Job, step: ReceiptStep, carrier: &Carrier) -> Result<Step, DeliverError> {
        Ok(match self.write(job, self.now(), step, carrier).await? {
            Written::Stored => SETTLED,
            Written::Superseded(found) => Step::Superseded(found),
        })
    }

    async fn write(
        &self,
        job: &Job,
        at: UnixMillis,
        step: ReceiptStep,
        carrier: &Carrier,
    ) -> Result<Written, DeliverError> {
        Ok(self.receipts.write(job, &job.receipt(at, step), carrier).await?)
    }

    async fn dead_letter(&self, job: &Job, reason: String, attempts: u32) -> Result<(), DeliverError> {
        let letter = job.dead_letter(reason, attempts, self.now());
        tolerate_size(self.bus().dead_letter_record(letter).await, job)?;
        Ok(())
    }

    async fn publish_sent(
        &self,
        job: &Job,
        parts: &[Part],
        sent: SentPart,
        carrier: &Carrier,
    ) -> Result<(), DeliverError> {
        let Some(part) = parts.iter().find(|part| part.index == sent.index) else { return Ok(()) };
        let event = sent_event(&job.reply, part, sent.at)?;
        let out = Outgoing::new(subject::event(&event), &event)
            .msg_id(event.id.as_str())
            .header(CAUSATION, job.reply.causation.event.as_str())
            .header(HOPS, event.hops.to_string())
            .carrier(carrier);
        tolerate_size(self.bus().publish(out).await.map(|_| ()), job)?;
        Ok(())
    }
}

/// What is larger than the server takes never will be stored: said aloud, and left behind, so that the destination
/// does not stand still for ever.
fn tolerate_size(stored: Result<(), PublishError>, job: &Job) -> Result<(), PublishError> {
    match stored {
        Err(error @ PublishError::TooLarge { .. }) => {
            metrics::counter!("nexus_delivery_oversize_total").increment(1);
            tracing::error!(
                delivery = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
                %error, "message is too large to be stored"
            );
            Ok(())
        }
        other => other,
    }
}
