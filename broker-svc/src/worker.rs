//! One claimed session: take, look, run, publish, release. The ten rules of `sessions.md` in their order.
//!
//! Until the first append succeeds nothing with an effect happens; the echo is asked before, because it has none.
//! Turns of such agents that wait together share one append. A cached fold may be stale: the first append is refused
//! then, the tail is read, and the same is done once more. A fence lost after that means another owner: this one
//! stops without a trace.

mod ask;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use shared::bus::claim;
use shared::model::ledger::{Cursor, LedgerEntry};
use shared::model::session::SessionRef;
use shared::process::trace;
use shared::wire::headers::Carrier;
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use tracing::Instrument as _;

use crate::broker::Broker;
use crate::cache::Remembered;
use crate::context::{Setting, assemble};
use crate::error::RunSessionError;
use crate::fold::{Standing, advanced, runnable};
use crate::hold::Hold;
use crate::inbox::{self, Bad, Look};
use crate::owner::{Owner, load};
use crate::session::{DropReason, Effect, Input, Pending, Session};
use crate::turn::{Answer, Turn};

/// Text staged at most before it is appended, bytes: records stay far below the server's largest payload.
const MAX_STAGED_BYTES: usize = 128 * 1_024;

/// A claim at hand.
#[derive(Debug)]
pub struct Claimed {
    /// The session.
    pub session: SessionRef,
    /// The claim's sequence in `CLAIMS`.
    pub sequence: u64,
    /// The trace of whoever claimed.
    pub carrier: Carrier,
    /// How long it is ours.
    pub hold: Arc<Hold>,
}

/// Runs a claimed session until nothing is left to do, somebody else shall have a turn, or it is not ours any more.
///
/// # Errors
/// [`RunSessionError`] says why the claim is not released; nothing is said to the server then.
pub async fn run(broker: &Arc<Broker>, claimed: &Claimed) -> Result<(), RunSessionError> {
    let known = broker.cache.take(&claimed.session);
    let was_known = known.is_some();
    let remembered = match known {
        Some(remembered) => remembered,
        None => load(broker, &claimed.session, None).await?,
    };
    let retry = was_known.then(|| remembered.clone());
    let mut worker = Worker::new(broker, claimed, remembered);
    match worker.serve().await {
        Err(RunSessionError::FenceLost) if !worker.owner.has_appended() => {
            metrics::counter!("nexus_broker_stale_folds_total").increment(1);
            let fresh = load(broker, &claimed.session, retry).await?;
            worker = Worker::new(broker, claimed, fresh);
            worker.serve().await?;
        }
        outcome => outcome?,
    }
    worker.release().await
}

struct Worker<'a> {
    broker: &'a Arc<Broker>,
    claimed: &'a Claimed,
    owner: Owner,
    machine: Session,
    /// Everything on the session's subject up to here was handed to the machine.
    looked_through: u64,
    /// Bad ones that were found and are not given up yet: the cursor's floor stays below them.
    bad: BTreeSet<u64>,
    taken_at: Instant,
    turns: u32,
    staged_bytes: usize,
    /// Sequences whose consumption is staged or appended since the last flush.
    consumed: Vec<u64>,
    /// Turns staged or appended whose latency is told once their replies are out: when the dispatch was made.
    unmeasured: Vec<shared::model::time::UnixMillis>,
    /// The session is given back although work is left.
    yields: bool,
}

impl<'a> Worker<'a> {
    fn new(broker: &'a Arc<Broker>, claimed: &'a Claimed, remembered: Remembered) -> Self {
        let owner = Owner::new(
            Arc::clone(broker),
            claimed.session.clone(),
            Arc::clone(&claimed.hold),
            remembered,
        );
        Self {
            broker,
            claimed,
            machine: Session::new(owner.fold()),
            looked_through: owner.fold().cursor.floor,
            owner,
            bad: BTreeSet::new(),
            taken_at: broker.clock.monotonic(),
            turns: 0,
            staged_bytes: 0,
            consumed: Vec::new(),
            unmeasured: Vec::new(),
            yields: false,
        }
    }

    async fn serve(&mut self) -> Result<(), RunSessionError> {
        self.resume().await?;
        loop {
            let look = self.look().await?;
            let found = look.found();
            let effects = self.take_in(look).await?;
            self.drive(effects).await?;
            // One that came alone is usually the only one, and the look after the release sees any other.
            if found <= 1 || self.yields {
                break;
            }
        }
        self.flush().await
    }

    /// A turn that a former owner began goes first; where its dispatch is gone, it is written down as interrupted.
    async fn resume(&mut self) -> Result<(), RunSessionError> {
        let standing = Standing::of(self.owner.fold(), self.owner.published());
        let Some(running) = self.owner.fold().running.clone() else {
            return Ok(());
        };
        if !runnable(&standing, None, self.broker.clock.now()) {
            return Ok(());
        }
        let sequences: Vec<u64> = running.dispatches.iter().map(|d| d.sequence).collect();
        let found = inbox::fetch(&self.broker.bus, &self.claimed.session, &sequences).await?;
        if found.len() < sequences.len() {
            let mut cursor = self.owner.fold().cursor.clone();
            for sequence in sequences {
                cursor = advanced(&cursor, sequence, self.looked_through, None);
            }
            let reason = "its dispatch is gone".to_owned();
            let partial = running
                .answered()
                .map(|(_, content, _)| content.to_owned())
                .unwrap_or_default();
            self.owner.stage(LedgerEntry::TurnInterrupted {
                turn: running.turn,
                reason,
                partial,
                cursor,
            });
            self.machine = Session::new(self.owner.fold());
            return Ok(());
        }
        // The first look puts the others behind it, and knows which of them is the lowest that is open.
        let mut look = self.look().await?;
        look.good.extend(found);
        let effects = self.take_in(look).await?;
        self.drive(effects).await
    }

    async fn look(&mut self) -> Result<Look, RunSessionError> {
        let look = inbox::look(self.broker, &self.claimed.session, self.looked_through + 1).await?;
        self.looked_through = look.through.unwrap_or(self.looked_through);
        Ok(look)
    }

    /// Hands what a look found to the machine; what cannot be run is given up.
    async fn take_in(&mut self, mut look: Look) -> Result<VecDeque<Effect>, RunSessionError> {
        look.good
            .retain(|pending| !self.owner.fold().cursor.contains(pending.sequence));
        look.bad
            .retain(|bad| !self.owner.fold().cursor.contains(bad.stored.sequence));
        self.bad.extend(look.bad.iter().map(|bad| bad.stored.sequence));
        let effects = self.machine.handle(Input::Arrived(look.good), self.broker.clock.now());
        for bad in look.bad {
            self.give_up(&bad).await?;
        }
        Ok(effects.into())
    }

    async fn give_up(&mut self, bad: &Bad) -> Result<(), RunSessionError> {
        self.owner.own().await?;
        self.broker
            .bus
            .dead_letter_record(bad.letter(self.broker.clock.now()))
            .await?;
        let dispatch = bad.reference();
        self.bad.remove(&dispatch.sequence);
        let cursor = self.cursor_after(dispatch.sequence);
        let reason = format!("{}: {}", bad.reason, bad.detail);
        self.owner.stage(LedgerEntry::DispatchDropped {
            dispatch,
            reason,
            cursor,
        });
        self.owner.commit().await
    }

    fn cursor_after(&mut self, consumed: u64) -> Cursor {
        self.consumed.push(consumed);
        let bad = self.bad.first().copied();
        let open = self.machine.lowest_open(consumed).into_iter().chain(bad).min();
        advanced(&self.owner.fold().cursor, consumed, self.looked_through, open)
    }

    async fn drive(&mut self, mut effects: VecDeque<Effect>) -> Result<(), RunSessionError> {
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Drop { pending, reason } => self.drop_one(&pending, reason),
                Effect::Start { pending, waited_ms } => {
                    if self.must_yield() {
                        self.yields = true;
                        return Ok(());
                    }
                    metrics::histogram!("nexus_broker_queue_wait_seconds").record(seconds(waited_ms));
                    effects.extend(self.turn(&pending).await?);
                    effects.extend(self.machine.handle(Input::TurnEnded, self.broker.clock.now()));
                }
            }
        }
        Ok(())
    }

    fn drop_one(&mut self, pending: &Pending, reason: DropReason) {
        let cursor = self.cursor_after(pending.sequence);
        tracing::info!(
            session = %self.claimed.session, dispatch_id = %pending.dispatch.id, event_id = %pending.dispatch.event_id,
            reason = reason.name(), "dispatch is dropped"
        );
        self.owner.stage(LedgerEntry::DispatchDropped {
            dispatch: pending.reference(),
            reason: reason.name().to_owned(),
            cursor,
        });
    }

    fn must_yield(&self) -> bool {
        if self.broker.shutdown.is_requested() {
            return true;
        }
        let config = &self.broker.config;
        let held = self
            .broker
            .clock
            .monotonic()
            .saturating_duration_since(self.taken_at)
            .as_millis();
        let long = self.turns >= config.fairness_turns || held >= u128::from(config.fairness_ms);
        long && self.broker.claims_waiting() > 0
    }

    /// Runs one turn; answers what came in meanwhile.
    async fn turn(&mut self, pending: &Pending) -> Result<Vec<Effect>, RunSessionError> {
        let span = trace::consumer_span("broker.turn", &pending.carrier);
        span.record("event_id", tracing::field::display(&pending.dispatch.event_id));
        span.record("dispatch_id", tracing::field::display(pending.dispatch.id));
        span.record("session", tracing::field::display(&self.claimed.session));
        self.owner.carrier = trace::carrier_of(&span, &pending.carrier);
        self.turn_within(pending).instrument(span).await
    }

    async fn turn_within(&mut self, pending: &Pending) -> Result<Vec<Effect>, RunSessionError> {
        let persona = self.broker.personas.of(&self.claimed.session.persona);
        let turn = Turn::of(&self.claimed.session, self.owner.fold(), pending, &persona.limits);
        let agent = self.broker.agent(persona.runner);
        let mut meanwhile = Vec::new();
        let outcome = match turn.recovered(self.owner.fold()) {
            Some(Some(answer)) => Ok(answer),
            recovered if agent.is_pure() => {
                let presets = &self.broker.personas.permission_levels;
                let setting = Setting {
                    persona,
                    tools: &[],
                    presets,
                };
                let now = self.broker.clock.now();
                let request = assemble(setting, &self.claimed.session, self.owner.fold(), &turn, pending, now);
                if recovered.is_none() {
                    self.owner.stage(turn.started());
                }
                let timeout = std::time::Duration::from_millis(persona.limits.wall_ms);
                agent.ask(&request, timeout).await.map_err(|error| failure_of(&error))
            }
            recovered => {
                self.flush().await?;
                if recovered.is_none() {
                    self.owner.stage(turn.started());
                }
                self.owner.own().await?;
                self.ask(&turn, pending, persona, agent.as_ref(), &mut meanwhile)
                    .await?
            }
        };
        self.end(&turn, pending, outcome);
        if !agent.is_pure() || self.staged_bytes > MAX_STAGED_BYTES || self.turns.is_multiple_of(MAX_STAGED_TURNS) {
            self.flush().await?;
        }
        Ok(meanwhile)
    }

    fn end(&mut self, turn: &Turn, pending: &Pending, outcome: Result<Answer, shared::model::ledger::TurnFailure>) {
        let cursor = self.cursor_after(pending.sequence);
        let label = match outcome {
            Ok(answer) => {
                self.staged_bytes += 2 * answer.content.len() + pending.dispatch.message.content.len();
                for entry in turn.completed(answer, cursor) {
                    self.owner.stage(entry);
                }
                "completed"
            }
            Err(failure) => {
                tracing::warn!(
                    session = %self.claimed.session, turn = %turn.id, dispatch_id = %pending.dispatch.id,
                    event_id = %pending.dispatch.event_id, ?failure, "turn failed"
                );
                self.owner.stage(turn.failed(failure, cursor));
                "failed"
            }
        };
        self.turns += 1;
        self.unmeasured.push(pending.dispatch.timestamp);
        metrics::counter!("nexus_broker_turns_total", "outcome" => label).increment(1);
    }

    /// Appends what is staged, then publishes the replies that the ledger holds now.
    async fn flush(&mut self) -> Result<(), RunSessionError> {
        self.owner.commit().await?;
        self.staged_bytes = 0;
        // Only what the ledger says is settled: the sweeper takes our word for it.
        let consumed = std::mem::take(&mut self.consumed);
        self.broker
            .settled(|settled| consumed.into_iter().for_each(|sequence| settled.add(sequence)));
        self.owner.publish_replies().await?;
        let now = self.broker.clock.now();
        for dispatched in self.unmeasured.drain(..) {
            let took = u64::try_from(now.since(dispatched)).unwrap_or(0);
            metrics::histogram!("nexus_broker_turn_latency_seconds").record(seconds(took));
        }
        Ok(())
    }

    /// Gives the session back: delete the claim by its sequence, then look once more; who finds something claims.
    async fn release(self) -> Result<(), RunSessionError> {
        let standing = Standing::of(self.owner.fold(), self.owner.published());
        let Self {
            broker,
            claimed,
            owner,
            looked_through,
            yields,
            ..
        } = self;
        broker.cache.put(claimed.session.clone(), owner.into_remembered());
        if !claimed.hold.is_live() {
            return Err(RunSessionError::Stale);
        }
        claim::release(&broker.bus, claimed.sequence).await?;
        let left = if yields {
            true
        } else {
            let subject = subject::dispatch(&claimed.session);
            let last = broker
                .bus
                .last_on_subject(DISPATCHES, &subject)
                .await?
                .map(|stored| stored.sequence);
            runnable(
                &standing,
                last.filter(|&last| last > looked_through),
                broker.clock.now(),
            )
        };
        if left {
            claim::publish(&broker.bus, &claimed.session, &claimed.carrier).await?;
        }
        Ok(())
    }
}

/// Turns staged at most before they are appended.
const MAX_STAGED_TURNS: u32 = 8;

/// A pure agent has nobody to wait for: what it says first is final.
fn failure_of(error: &crate::turn::AskAgentError) -> shared::model::ledger::TurnFailure {
    shared::model::ledger::TurnFailure::Agent {
        error: error.to_string(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 ms are 285,000 years")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}
