//! One claimed session: take, look, run, publish, release. The ten rules of `docs/design/sessions.md` §1 in their
//! order.
//!
//! Until the first append succeeds nothing with an effect happens; the echo is asked before, because it has none.
//! Turns of such agents that wait together share one append. A cached fold may be stale: the first append is refused
//! then, the tail is read, and the same is done once more. A fence lost after that means another owner: this one
//! stops without a trace.

mod approval_sync;
mod approve;
mod ask;
mod bell;
mod hooks;
mod inbox_reader;
mod intent_extraction;
mod post_hooks;
mod queue;
mod step;
mod steps;
mod think;
mod told;
mod turn;
mod turn_runner;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shared::bus::claim;
use shared::clock::pause;
use shared::model::event::EventId;
use shared::model::ledger::{Cursor, TurnFailure};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::headers::Carrier;
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use ulid::Ulid;

use crate::broker::{Broker, Era};
use crate::cache::Remembered;
use crate::doubt;
use crate::error::RunSessionError;
use crate::fold::{Standing, runnable};
use crate::hold::Hold;
use crate::inbox;
use crate::owner::{Owner, load};
use crate::session::{Effect, Input, Session};
use crate::slot::Slot;
use crate::turn::Turn;
use approval_sync::ApprovalSync;
use inbox_reader::InboxReader;
use intent_extraction::IntentProposer;
use post_hooks::PostHookRunner;
use turn::Ended;
use turn_runner::TurnRunner;

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
    /// Its place among those that run.
    pub slot: Slot,
    /// Event and dispatch of the newest turn that was begun or taken up under it and whose reply is not out: where it breaks
    /// off, the log names them.
    pub begun: Mutex<Option<(EventId, Ulid)>>,
}

/// Runs a claimed session until nothing is left to do, somebody else shall have a turn, or it is not ours any more.
///
/// # Errors
/// [`RunSessionError`] says why the claim is not released; nothing is said to the server then.
pub async fn run(broker: &Arc<Broker>, claimed: &Claimed) -> Result<(), RunSessionError> {
    let era = broker.era().await?;
    let known = broker.cache.take(&claimed.session);
    let was_known = known.is_some();
    let remembered = match known {
        Some(remembered) => remembered,
        None => load(broker, &claimed.session, None).await?,
    };

    let retry = was_known.then(|| remembered.clone());
    let mut worker = Worker::of(broker, claimed, &era, remembered).await?;
    match worker.serve().await {
        Err(RunSessionError::FenceLost) if !worker.owner.has_appended() => {
            metrics::counter!("nexus_broker_stale_folds_total").increment(1);
            // A stream may have been put back since the first try: its era is another one then.
            let era = broker.era().await?;
            let fresh = load(broker, &claimed.session, retry).await?;
            worker = Worker::of(broker, claimed, &era, fresh).await?;
            worker.serve().await?;
        }
        // Nothing of the record is stored, and the next try would make the same: its turn ends instead.
        Err(error) if error.is_too_large() => {
            let era = broker.era().await?;
            let fresh = load(broker, &claimed.session, None).await?;
            worker = Worker::of(broker, claimed, &era, fresh).await?;
            worker.turns = TurnRunner::failing(TurnFailure::Agent {
                error: "what happened in the turn is larger than a ledger record may be".to_owned(),
            });
            worker.serve().await?;
        }
        outcome => outcome?,
    }

    worker.release().await
}

/// The loop over one claimed session; each part of its work keeps its own state.
struct Worker<'a> {
    broker: &'a Arc<Broker>,
    claimed: &'a Claimed,
    owner: Owner,
    machine: Session,
    /// What the machine wants done next: turns and waits; everything else is done at once.
    effects: VecDeque<Effect>,
    /// Why the running turn is to be cancelled.
    cancelled: Option<String>,
    /// The session is given back although work is left.
    yields: bool,
    taken_at: Instant,
    inbox: InboxReader,
    turns: TurnRunner,
    approvals: ApprovalSync,
    intents: IntentProposer,
    post_hooks: PostHookRunner,
}

impl<'a> Worker<'a> {
    /// The worker of a session as it is `remembered`. Where its cursor is void, everything on its subject is looked at
    /// again, and the ledger says what was handled.
    async fn of(
        broker: &'a Arc<Broker>,
        claimed: &'a Claimed,
        era: &Arc<Era>,
        mut remembered: Remembered,
    ) -> Result<Self, RunSessionError> {
        let is_void = !doubt::is_sound(broker, era, &claimed.session, &mut remembered).await?;
        if is_void {
            // Which events it has seen stays known: copies of older ones are still recognised.
            remembered.fold.cursor = Cursor {
                event_seq: remembered.fold.cursor.event_seq,
                ..Cursor::default()
            };
        }

        let inbox = InboxReader::new(Arc::clone(era), &remembered.fold.cursor, is_void);
        Ok(Self::new(broker, claimed, inbox, remembered))
    }

    fn new(broker: &'a Arc<Broker>, claimed: &'a Claimed, inbox: InboxReader, remembered: Remembered) -> Self {
        let owner = Owner::new(
            Arc::clone(broker),
            claimed.session.clone(),
            Arc::clone(&claimed.hold),
            remembered,
        );

        Self {
            broker,
            claimed,
            machine: Session::new(owner.fold(), broker.policy(&claimed.session.persona)),
            owner,
            effects: VecDeque::new(),
            cancelled: None,
            yields: false,
            taken_at: broker.clock.monotonic(),
            inbox,
            turns: TurnRunner::default(),
            approvals: ApprovalSync::default(),
            intents: IntentProposer::default(),
            post_hooks: PostHookRunner::default(),
        }
    }

    async fn serve(&mut self) -> Result<(), RunSessionError> {
        self.resume().await?;

        loop {
            let look = self.look().await?;
            let found = look.found();
            self.take_in(look).await?;
            self.drive().await?;

            // One that came alone is usually the only one, and the look after the release sees any other.
            if found <= 1 || self.yields {
                break;
            }
        }

        self.settle_hooks().await?;
        self.settle_intents().await
    }

    /// A turn that a former owner began goes first; where its dispatch is gone, it is written down as interrupted.
    async fn resume(&mut self) -> Result<(), RunSessionError> {
        let Some(running) = self.owner.fold().running.clone() else {
            return Ok(());
        };

        self.mark_again().await;
        // The first look puts the others behind it, and knows which of them is the lowest that is open.
        let look = self.look().await?;
        self.take_in(look).await?;

        if self.stays_suspended().await? {
            return Ok(());
        }

        let suspended = self.is_suspended();
        let sequences = running.answers();
        let mut found = inbox::fetch(&self.broker.bus, &self.claimed.session, &sequences).await?;

        // Another message may stand there, where the stream was put back.
        found.retain(|pending| running.dispatches.iter().any(|known| known.id == pending.dispatch.id));

        if suspended || found.len() < sequences.len() {
            let gone = || "its dispatch is gone".to_owned();
            let reason = self.cancelled.take().unwrap_or_else(gone);
            let partial = running.answered().map(|(_, content, _)| content.to_owned());
            let turn = Turn::resumed(&self.claimed.session, self.owner.fold(), &running, &found);
            let partial = partial.unwrap_or_default();
            self.settle_outside().await?;
            self.end(&turn, &found, Ended::Cancelled { reason, partial });
        } else {
            self.turn(&found).await?;
            if self.is_suspended() {
                return Ok(());
            }
        }

        self.turn_ended();
        self.drive().await
    }

    fn turn_ended(&mut self) {
        let effects = self.machine.handle(Input::TurnEnded, self.broker.clock.now());
        self.note(effects);
    }

    /// Does what the machine wants until it wants nothing more, or somebody else shall have a turn.
    async fn drive(&mut self) -> Result<(), RunSessionError> {
        while let Some(effect) = self.effects.pop_front() {
            match effect {
                Effect::Start { .. } | Effect::Wake { .. } if self.must_yield() => {
                    self.yields = true;
                    return Ok(());
                }
                Effect::Start { pendings, waited_ms } => {
                    metrics::histogram!("nexus_broker_queue_wait_seconds").record(seconds(waited_ms));
                    self.turn(&pendings).await?;

                    if self.is_suspended() {
                        return Ok(());
                    }
                    self.turn_ended();

                    // Turns that wait for nobody share an append: without this they would run on together.
                    tokio::task::yield_now().await;
                }
                Effect::Wake { at } if self.effects.is_empty() => self.wait_until(at).await?,
                // A newer wish stands behind it.
                Effect::Wake { at: _ } => {}
                other @ (Effect::Drop { .. }
                | Effect::Cancel { .. }
                | Effect::Carry { .. }
                | Effect::Decide { .. }
                | Effect::Repeated { .. }) => self.note(vec![other]),
            }
        }

        Ok(())
    }

    /// Waits for the end of a debounce; what comes meanwhile may end it sooner, or later.
    async fn wait_until(&mut self, at: UnixMillis) -> Result<(), RunSessionError> {
        self.flush().await?;
        self.listen().await?;

        if !self.effects.is_empty() {
            return Ok(());
        }

        let wait = u64::try_from(at.since(self.broker.clock.now())).unwrap_or(0);
        let wait = std::pin::pin!(pause(Duration::from_millis(wait)));
        if self.beside(wait).await?.is_some() {
            let effects = self.machine.handle(Input::Tick, self.broker.clock.now());
            self.note(effects);
        }

        Ok(())
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

        let long = self.turns.ended() >= config.fairness_turns || held >= u128::from(config.fairness_ms);
        long && self.broker.claims_waiting() > 0
    }

    /// Gives the session back: delete the claim by its sequence, then look once more; who finds something claims.
    async fn release(self) -> Result<(), RunSessionError> {
        let standing = Standing::of(self.owner.fold(), self.owner.published());
        let Self {
            broker,
            claimed,
            owner,
            inbox,
            yields,
            ..
        } = self;

        // A turn that waits for a human may wait for days, and its journal may be long.
        if standing.awaits.is_none() {
            broker.cache.put(claimed.session.clone(), owner.into_remembered());
        }

        if !claimed.hold.is_live() {
            return Err(RunSessionError::Stale);
        }

        claim::release(&broker.bus, claimed.sequence).await?;
        // Its ledger says what was handled, whatever the cursor said.
        broker.note_cursor(&claimed.session, None);

        let left = if yields {
            true
        } else {
            let subject = subject::dispatch(&claimed.session);
            let last = broker
                .bus
                .last_on_subject(DISPATCHES, &subject)
                .await?
                .map(|stored| stored.sequence);

            let unseen = last.filter(|&last| last > inbox.looked_through());
            // What a suspended turn waits for may be what has come.
            let may_go_on = standing.awaits.is_some() && unseen.is_some();

            may_go_on || runnable(&standing, unseen, broker.clock.now())
        };

        if left {
            claim::publish(&broker.bus, &claimed.session, &claimed.carrier).await?;
        }

        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 ms are 285,000 years")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}
