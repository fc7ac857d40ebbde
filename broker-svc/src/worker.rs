//! Runs one claimed session: take, look, run, publish, release. The ten rules of `docs/design/sessions.md` §1 apply
//! in their order.
//!
//! Nothing with an effect happens before the first append succeeds; only the echo is asked earlier, because it has no
//! effect. Turns of such agents that wait together share one append. A cached fold may be stale: then the first
//! append is refused, the tail is read, and the same work is done once more. If the fence is lost after that, the
//! session has another owner, and this worker stops without a trace.
//!
//! The trunk is here: `take_in` (read and sift messages) → the session machine → `turn` (begin, answer, end, `flush`).
//! Beside it: `ask`, `steps`, `stepped_turn` (agents outside), `approve`, `approval_sync`, `approval_notices` (people), `hooks`,
//! `post_hooks`, `wait`, `older_turn`, `own_dispatches`, `lost_turn`, `intent_extraction`.

mod approval_notices;
mod approval_sync;
mod approve;
mod ask;
mod hooks;
mod inbox_reader;
mod intent_extraction;
mod lost_turn;
mod older_turn;
mod own_dispatches;
mod post_hooks;
mod queue;
mod step;
mod stepped_turn;
mod steps;
mod turn;
mod turn_counts;
mod wait;
mod writing;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shared::bus::claim;
use shared::clock::pause;
use shared::model::event::EventId;
use shared::model::ledger::{LedgerCursor, TurnFailure};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use ulid::Ulid;

use crate::broker::BrokerContext;
use crate::broker::stream_facts::StreamEra;
use crate::error::RunSessionError;
use crate::ledger::state::{RunState, is_runnable};
use crate::ledger::state_cache::CachedSession;
use crate::ledger::writer::{LedgerWriter, load};
use crate::queue::claim_deadline::ClaimDeadline;
use crate::queue::doubt;
use crate::queue::slot::SessionSlot;
use crate::session::{PendingDispatch, SessionEffect, SessionInput, SessionQueue};
use crate::turn::Turn;
use approval_sync::ApprovalSync;
use inbox_reader::InboxReader;
use intent_extraction::IntentProposer;
use own_dispatches::WhileWaiting;
use post_hooks::PostHookRunner;
use turn::TurnOutcome;
use turn_counts::TurnRunner;

/// A claim that this broker holds, with its session.
#[derive(Debug)]
pub struct ClaimedSession {
    /// The session that the claim is for.
    pub session: SessionRef,
    /// Sequence of the claim in `CLAIMS`.
    pub sequence: u64,
    /// Trace context of the service that published the claim.
    pub carrier: TraceCarrier,
    /// How long the claim belongs to this broker.
    pub hold: Arc<ClaimDeadline>,
    /// Slot of the session among those that run at once.
    pub slot: SessionSlot,
    /// Event and dispatch of the newest turn that was begun or resumed under this claim and whose reply is not
    /// published; the log names them if the turn breaks off.
    pub begun: Mutex<Option<(EventId, Ulid)>>,
}

/// Runs a claimed session until nothing is left to do, another session must have the slot, or the claim is lost.
///
/// # Errors
/// Returns [`RunSessionError`] if the claim must not be released; the server is then sent nothing.
pub async fn run(broker: &Arc<BrokerContext>, claimed: &ClaimedSession) -> Result<(), RunSessionError> {
    let era = broker.current_era().await?;
    let known = broker.cache.take(&claimed.session);
    let was_known = known.is_some();
    let remembered = match known {
        Some(remembered) => remembered,
        None => load(broker, &claimed.session, None).await?,
    };

    // A cached fold may be stale: the copy is brought up to date if the first append is refused.
    let retry = was_known.then(|| remembered.clone());
    let mut worker = Worker::from_remembered(broker, claimed, &era, remembered).await?;
    if !was_known {
        worker.repeat_last_beat().await;
    }
    match worker.serve().await {
        Err(RunSessionError::FenceLost) if !worker.owner.has_appended() => {
            metrics::counter!("nexus_broker_stale_folds_total").increment(1);
            // A stream may have been restored since the first try and then has another era.
            let era = broker.current_era().await?;
            let fresh = load(broker, &claimed.session, retry).await?;
            worker = Worker::from_remembered(broker, claimed, &era, fresh).await?;
            worker.repeat_last_beat().await;
            worker.serve().await?;
        }
        // Nothing of the record is stored, and the next try would build the same record: its turn ends instead.
        Err(error) if error.is_too_large() => {
            let era = broker.current_era().await?;
            let fresh = load(broker, &claimed.session, None).await?;
            worker = Worker::from_remembered(broker, claimed, &era, fresh).await?;
            worker.turns = TurnRunner::failing(TurnFailure::Agent {
                error: "the events of the turn exceed the size of a ledger record".to_owned(),
            });
            worker.serve().await?;
        }
        outcome => outcome?,
    }

    worker.release_session().await
}

/// The loop over one claimed session; each part of the work keeps its own state.
struct Worker<'a> {
    broker: &'a Arc<BrokerContext>,
    claimed: &'a ClaimedSession,
    owner: LedgerWriter,
    machine: SessionQueue,
    /// Turns and waits that the machine wants done next; every other effect is applied at once.
    effects: VecDeque<SessionEffect>,
    /// Reason for which the running turn is to be canceled.
    canceled: Option<String>,
    /// Whether the session is given back although work is left.
    yields: bool,
    taken_at: Instant,
    inbox: InboxReader,
    turns: TurnRunner,
    approvals: ApprovalSync,
    intents: IntentProposer,
    post_hooks: PostHookRunner,
}

impl<'a> Worker<'a> {
    /// Creates the worker of a session from its `remembered` state. If the cursor is void, everything on the
    /// session's subject is looked at again, and the ledger says which messages were handled.
    async fn from_remembered(
        broker: &'a Arc<BrokerContext>,
        claimed: &'a ClaimedSession,
        era: &Arc<StreamEra>,
        mut remembered: CachedSession,
    ) -> Result<Self, RunSessionError> {
        let is_void = !doubt::is_sound(broker, era, &claimed.session, &mut remembered).await?;
        if is_void {
            // The events already seen stay known, so that copies of older ones are still recognized.
            remembered.fold.cursor = LedgerCursor {
                event_seq: remembered.fold.cursor.event_seq,
                ..LedgerCursor::default()
            };
        }

        let inbox = InboxReader::new(Arc::clone(era), &remembered.fold.cursor, is_void);
        Ok(Self::new(broker, claimed, inbox, remembered))
    }

    fn new(
        broker: &'a Arc<BrokerContext>,
        claimed: &'a ClaimedSession,
        inbox: InboxReader,
        remembered: CachedSession,
    ) -> Self {
        let owner = LedgerWriter::new(
            Arc::clone(broker),
            claimed.session.clone(),
            Arc::clone(&claimed.hold),
            remembered,
        );

        Self {
            broker,
            claimed,
            machine: SessionQueue::new(owner.fold(), broker.queue_policy(&claimed.session.persona)),
            owner,
            effects: VecDeque::new(),
            canceled: None,
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
        self.drop_older_hooks();
        self.resume_turn().await?;

        loop {
            let look = self.read_inbox().await?;
            let found = look.found_count();
            self.take_in(look).await?;
            self.drive_machine().await?;

            // A message that came alone is usually the only one; the look after the release finds any other.
            if found <= 1 || self.yields {
                break;
            }
        }

        self.settle_hooks().await?;
        self.settle_intents().await
    }

    /// Resumes a turn that a former owner began, before any other turn. If a dispatch of the turn is lost, the turn ends
    /// as interrupted; so does a turn that an older ledger has, which may have gone on.
    async fn resume_turn(&mut self) -> Result<(), RunSessionError> {
        let Some(running) = self.owner.fold().running.clone() else {
            return Ok(());
        };

        if Box::pin(self.end_older_turn(&running)).await? {
            self.turn_ended();
            let look = self.read_inbox().await?;
            self.take_in(look).await?;
            return self.drive_machine().await;
        }

        self.mark_again().await;
        // The first look puts the other messages behind the turn and finds the lowest open one.
        let look = self.read_inbox().await?;
        self.take_in(look).await?;

        if self.stays_suspended().await? {
            return Ok(());
        }

        let suspended = self.is_suspended();
        let wanted = running.own_dispatches();
        let search = Box::pin(self.find_dispatches(wanted, WhileWaiting::ReadInbox)).await?;
        let mut found = search.found();
        found.iter_mut().for_each(|pending| self.apply_edit(pending));
        // Read as any other message too, so that the cursor can name it when the turn is over.
        if found
            .iter()
            .any(|pending| pending.sequence > self.inbox.looked_through())
        {
            self.look_up().await?;
        }
        self.machine.note_found(&found);

        let is_canceled = suspended || !search.is_complete();
        if let Some(reason) = self.canceled.take_if(|_| is_canceled) {
            let partial = running.last_answer().map(|(_, content, _)| content.to_owned());
            let turn = Turn::from_running(&self.claimed.session, self.owner.fold(), &running, &found);
            let partial = partial.unwrap_or_default();
            self.settle_outside().await?;
            self.end_turn(&turn, &found, TurnOutcome::Canceled { reason, partial });
        } else if !search.is_complete() {
            // A turn without all its dispatches cannot be answered.
            Box::pin(self.end_lost_turn(&running, &found)).await?;
        } else {
            self.run_turn(&found).await?;
            if self.is_suspended() {
                return Ok(());
            }
        }

        self.turn_ended();
        self.drive_machine().await
    }

    /// Gives `pending` its new text if its sender has edited it; the stream has the first one.
    fn apply_edit(&self, pending: &mut PendingDispatch) {
        self.owner.fold().edits.apply_to(pending);
    }

    fn turn_ended(&mut self) {
        let effects = self.machine.handle(SessionInput::TurnEnded, self.broker.clock.now());
        self.note_effects(effects);
    }

    /// Applies the machine's effects until none is left or another session must have the slot.
    async fn drive_machine(&mut self) -> Result<(), RunSessionError> {
        while let Some(effect) = self.effects.pop_front() {
            match effect {
                SessionEffect::Start { .. } | SessionEffect::Wake { .. } if self.must_yield() => {
                    self.yields = true;
                    return Ok(());
                }
                SessionEffect::Start {
                    mut pendings,
                    waited_ms,
                } => {
                    pendings.iter_mut().for_each(|pending| self.apply_edit(pending));
                    metrics::histogram!("nexus_broker_queue_wait_seconds").record(millis_to_seconds(waited_ms));
                    self.run_turn(&pendings).await?;

                    if self.is_suspended() {
                        return Ok(());
                    }
                    self.turn_ended();

                    // Turns that wait for nothing share an append; without this they would run on together.
                    tokio::task::yield_now().await;
                }
                SessionEffect::Wake { at } if self.effects.is_empty() => self.wait_until(at).await?,
                // A newer effect follows and replaces this one.
                SessionEffect::Wake { at: _ } => {}
                other @ (SessionEffect::Drop { .. }
                | SessionEffect::Cancel { .. }
                | SessionEffect::Carry { .. }
                | SessionEffect::Decide { .. }
                | SessionEffect::Repeated { .. }) => self.note_effects(vec![other]),
            }
        }

        Ok(())
    }

    /// Waits until the end of a debounce, `at`; a message that arrives meanwhile may move the end.
    async fn wait_until(&mut self, at: UnixMillis) -> Result<(), RunSessionError> {
        self.flush().await?;
        self.listen().await?;

        if !self.effects.is_empty() {
            return Ok(());
        }

        let wait = u64::try_from(at.since(self.broker.clock.now())).unwrap_or(0);
        let wait = std::pin::pin!(pause(Duration::from_millis(wait)));
        if self.wait_beside(wait).await?.is_some() {
            let effects = self.machine.handle(SessionInput::Tick, self.broker.clock.now());
            self.note_effects(effects);
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
        long && self.broker.activity.claims_waiting() > 0
    }

    /// Gives the session back: deletes the claim by its sequence, then looks once more, and claims again if work is
    /// left.
    async fn release_session(self) -> Result<(), RunSessionError> {
        let standing = RunState::from_fold(self.owner.fold(), self.owner.published_turns());
        let Self {
            broker,
            claimed,
            owner,
            inbox,
            yields,
            ..
        } = self;

        // A turn that waits for a human may wait for days, and its journal may be long: it is not cached.
        if standing.awaits.is_none() {
            broker.cache.insert(claimed.session.clone(), owner.into_remembered());
        }

        // Past the deadline another broker may hold the claim: it must not be deleted.
        if !claimed.hold.is_live() {
            return Err(RunSessionError::Stale);
        }

        claim::release(&broker.bus, claimed.sequence).await?;
        // The ledger says which messages were handled, independent of the cursor.
        broker.streams.note_cursor(&claimed.session, None);

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
            // The message that arrived may be the one that a suspended turn waits for.
            let may_go_on = standing.awaits.is_some() && unseen.is_some();

            may_go_on || is_runnable(&standing, unseen, broker.clock.now())
        };

        if left {
            claim::publish(&broker.bus, &claimed.session, &claimed.carrier).await?;
        }

        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 ms are 285,000 years")]
fn millis_to_seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}
