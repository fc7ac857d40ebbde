//! One broker with the session's claim, a small step at a time: the shell of the service, without its streams.

use std::collections::VecDeque;
use std::sync::Arc;

use broker_svc::agent::personas::PersonaLimits;
use broker_svc::ledger::state::{CHECKPOINT_EVERY, RunState, SessionState, advance_cursor, is_runnable};
use broker_svc::session::{InboxItem, PendingDispatch, SessionEffect, SessionInput, SessionQueue, SteeringMessage};
use broker_svc::turn::Turn;
use broker_svc::turn::steps::{INTERRUPTED, StepContext, TurnStep, next};
use shared::model::approval::ApprovalStatus;
use shared::model::ledger::{AppendId, LedgerEntry, LedgerRecord, ToolCall, ToolOutcome, TurnUsage};
use shared::model::permission::PermissionPresets;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::world::{World, session};

/// What became of an owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    On,
    /// It released the session, or found that it is not its own.
    Gone,
}

/// What it does next.
#[derive(Debug)]
enum Phase {
    Take,
    Drive,
    /// Between two steps of a turn.
    Turn(Turn),
    /// The model was asked, and its answer is not in the ledger.
    Asked(Turn, u32),
    /// A tool has run, and its end is not in the ledger.
    Ran(Turn, String),
    Release,
    /// The claim is deleted, and it was not looked again.
    Released,
}

/// The brokers of the simulation share a clock that began with it; only times of one owner are subtracted.
fn held_ms(world: &World) -> u64 {
    u64::try_from(world.now).expect("after its beginning")
}

/// A broker that has, or had, the claim.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) name: usize,
    pub(crate) claim: u64,
    pub(crate) held_until: i64,
    phase: Phase,
    pub(crate) fold: SessionState,
    pub(crate) machine: SessionQueue,
    effects: VecDeque<SessionEffect>,
    pub(crate) canceled: bool,

    looked: u64,
    staged: Vec<LedgerEntry>,
    owned: bool,
    published: Vec<Ulid>,
    /// Approvals that the ledger is about to say are superseded.
    pub(crate) superseded: Vec<String>,
}

impl Owner {
    pub(crate) fn new(name: usize, claim: u64, held_until: i64) -> Self {
        Self {
            name,
            claim,
            held_until,
            phase: Phase::Take,
            fold: SessionState::default(),
            machine: SessionQueue::default(),
            effects: VecDeque::new(),
            canceled: false,
            looked: 0,
            staged: Vec::new(),
            owned: false,
            published: Vec::new(),
            superseded: Vec::new(),
        }
    }

    pub(crate) const fn is_live(&self, now: i64) -> bool {
        now < self.held_until
    }

    /// Whether it may have an effect: it is within its deadline, and nobody has written since it last did.
    pub(crate) fn may_act(&self, now: i64, last: u64) -> bool {
        self.is_live(now) && self.owned && self.staged.is_empty() && self.fold.last_sequence == last
    }

    pub(crate) fn step(&mut self, world: &mut World, faults: bool) -> Fate {
        if !self.is_live(world.now) {
            return Fate::Gone;
        }

        match std::mem::replace(&mut self.phase, Phase::Drive) {
            Phase::Take => self.take(world, faults),
            Phase::Drive => self.drive(world, faults),
            Phase::Turn(turn) => self.turn(world, turn, faults),
            Phase::Asked(turn, step) => {
                self.answered(world, &turn, step);
                self.phase = Phase::Turn(turn);
                Fate::On
            }
            Phase::Ran(turn, call) => {
                let result = serde_json::Value::from(call.as_str());
                let outcome = ToolOutcome::Ok { result };
                self.stage(
                    world,
                    LedgerEntry::ToolFinished {
                        unseen: call.ends_with("-1"),
                        call,
                        outcome,
                    },
                );

                self.phase = Phase::Turn(turn);
                Fate::On
            }
            Phase::Release => {
                world.release(self.claim);
                self.phase = Phase::Released;
                Fate::On
            }
            Phase::Released => {
                let standing = RunState::from_fold(&self.fold, &self.published);
                let last = world.arrivals.len() as u64;
                let unseen = (last > self.looked).then_some(last);
                let may_go_on = standing.awaits.is_some() && unseen.is_some();

                if may_go_on || is_runnable(&standing, unseen, UnixMillis(world.now)) {
                    world.publish_claim();
                }

                if standing.awaits.is_none() {
                    world.caches[self.name] = Some((self.fold.clone(), self.published.clone()));
                }

                Fate::Gone
            }
        }
    }

    /// Folds the ledger, looks, and takes up a turn that somebody began.
    fn take(&mut self, world: &mut World, faults: bool) -> Fate {
        self.load(world);
        self.machine = SessionQueue::new(&self.fold, Arc::default());
        self.looked = self.fold.cursor.floor;
        self.look(world);

        if self.stays_suspended(world) {
            return self.rest(world, faults);
        }

        if let Some(running) = self.fold.running.clone() {
            let answers: Vec<u64> = running.own_dispatches().iter().map(|own| own.sequence).collect();
            let found: Vec<PendingDispatch> = world
                .dispatches()
                .filter(|p| answers.contains(&p.sequence))
                .cloned()
                .collect();

            self.phase = Phase::Turn(Turn::from_running(&session(), &self.fold, &running, &found));
        } else if !self.fold.replies.unpublished.is_empty() {
            // What a former owner left is published by an owner only.
            return self.commit_and_publish(world, faults);
        }

        Fate::On
    }

    /// What it remembers of the session, or what the ledger says from its newest checkpoint on.
    fn load(&mut self, world: &mut World) {
        if let Some((fold, published)) = world.caches[self.name].take() {
            self.fold = fold;
            self.published = published;
            return;
        }

        let is_checkpoint =
            |(_, record): &(u64, LedgerRecord)| matches!(record.entries.first(), Some(LedgerEntry::Checkpoint { .. }));
        let from = world.ledger.iter().rposition(is_checkpoint).unwrap_or(0);
        self.fold = broker_svc::ledger::state::fold_records(&world.ledger[from..]).expect("a whole ledger");

        assert_eq!(self.fold, world.truth, "a checkpoint and the tail are the whole");
    }

    /// Gives the session back while its turn waits.
    pub(crate) fn rest(&mut self, world: &mut World, faults: bool) -> Fate {
        self.phase = Phase::Release;
        if self.staged.is_empty() {
            return Fate::On;
        }
        self.commit_and_publish(world, faults)
    }

    pub(crate) fn goes_on(&mut self, turn: Turn) {
        self.phase = Phase::Turn(turn);
    }

    fn look(&mut self, world: &mut World) {
        let cursor = self.fold.cursor.clone();
        let is_new = |sequence: u64| sequence > self.looked && !cursor.contains(sequence);
        let found = world.arrivals.iter().filter(|arrival| is_new(arrival.sequence()));
        let found: Vec<InboxItem> = found.cloned().collect();
        self.looked = world.arrivals.len() as u64;
        let effects = self.machine.handle(SessionInput::Arrived(found), UnixMillis(world.now));
        self.note(world, effects);
    }

    fn note(&mut self, world: &mut World, effects: Vec<SessionEffect>) {
        for effect in effects {
            match effect {
                SessionEffect::Drop { pending, reason } => {
                    let cursor = self.cursor_after(&[pending.sequence]);
                    let dropped = LedgerEntry::DispatchDropped {
                        dispatch: pending.dispatch_ref(),
                        reason,
                        detail: None,
                        cursor,
                    };

                    self.stage(world, dropped);
                }
                SessionEffect::Cancel { .. } => self.canceled = true,
                SessionEffect::Start { .. } | SessionEffect::Wake { .. } => self.effects.push_back(effect),
                SessionEffect::Carry { placed } => self.carry(world, placed),
                SessionEffect::Repeated { placed } => self.drop_named(world, "order", placed.order.id, placed.sequence),
                SessionEffect::Decide { told } => self.take_decision(world, told),
            }
        }
    }

    pub(crate) fn cursor_after(&self, consumed: &[u64]) -> shared::model::ledger::LedgerCursor {
        let open = self.machine.lowest_open(consumed);
        let start = self.fold.cursor.clone();
        consumed.iter().fold(start, |cursor, &sequence| {
            advance_cursor(&cursor, sequence, self.looked, open)
        })
    }

    pub(crate) fn stage(&mut self, world: &mut World, entry: LedgerEntry) {
        if self.staged.is_empty() {
            self.open_record(world);
        }
        self.push(entry);
    }

    fn open_record(&mut self, world: &mut World) {
        self.fold.at = UnixMillis(world.now);
        self.fold.held_ms = held_ms(world);

        if self.fold.last_sequence > 0 && world.chance.once_in(12) {
            let due = SessionState {
                since_checkpoint: CHECKPOINT_EVERY,
                ..self.fold.clone()
            };
            self.push(due.due_checkpoint().expect("it is small"));
        }

        if self.fold.session.is_none() {
            self.push(LedgerEntry::SessionOpened { session: session() });
        }

        if !self.owned {
            self.owned = true;
            let (epoch, broker) = (self.fold.epoch + 1, self.name.to_string());
            self.push(LedgerEntry::Owned { epoch, broker });
        }

        for turn in std::mem::take(&mut self.published) {
            if self.fold.replies.unpublished.iter().any(|reply| reply.turn == turn) {
                self.push(LedgerEntry::ReplyPublished { turn });
            }
        }
    }

    fn push(&mut self, entry: LedgerEntry) {
        self.fold.apply_entry(&entry);
        self.staged.push(entry);
    }

    /// Appends what is staged; false where the fence is lost.
    pub(crate) fn commit(&mut self, world: &mut World, faults: bool) -> bool {
        if !self.owned {
            self.open_record(world);
        }

        if self.staged.is_empty() {
            // Nothing to append: whoever acts on it is fenced by its deadline.
            return self.is_live(world.now);
        }

        world.appends += 1;
        let append = AppendId {
            broker: self.name.to_string(),
            epoch: self.fold.epoch,
            counter: world.appends,
        };

        let record = LedgerRecord {
            append: append.clone(),
            at: self.fold.at,
            held_ms: self.fold.held_ms,
            entries: std::mem::take(&mut self.staged),
        };

        match world.append(self.fold.last_sequence, record, faults) {
            Some(sequence) => {
                self.fold.note_appended(sequence, append);
                true
            }
            None => {
                // What it remembered was old: whoever takes the session next reads the ledger.
                world.caches[self.name] = None;
                false
            }
        }
    }

    fn commit_and_publish(&mut self, world: &mut World, faults: bool) -> Fate {
        if !self.commit(world, faults) {
            return Fate::Gone;
        }

        for reply in &self.fold.replies.unpublished {
            if !self.published.contains(&reply.turn) {
                // A crash between two publishes, or before the first.
                if faults && world.chance.once_in(12) {
                    return Fate::Gone;
                }
                world.publish(reply.turn);
                self.published.push(reply.turn);
            }
        }

        Fate::On
    }

    fn drive(&mut self, world: &mut World, faults: bool) -> Fate {
        match self.effects.pop_front() {
            Some(SessionEffect::Start { pendings, .. }) => {
                let limits = PersonaLimits::default();
                let turn = Turn::for_pendings(
                    &session(),
                    &self.fold,
                    &pendings,
                    &limits,
                    &PermissionPresets::default(),
                );

                self.stage(world, turn.started_entry());

                if !self.commit(world, faults) {
                    return Fate::Gone;
                }

                self.phase = Phase::Turn(turn);
                Fate::On
            }
            Some(SessionEffect::Wake { at }) if at.0 > world.now => {
                let later = self.effects.is_empty();
                self.look(world);
                if later && self.effects.is_empty() {
                    self.effects.push_back(SessionEffect::Wake { at });
                }
                Fate::On
            }
            Some(SessionEffect::Wake { .. }) => {
                let effects = if self.machine.is_running() {
                    Vec::new()
                } else {
                    self.machine.handle(SessionInput::Tick, UnixMillis(world.now))
                };
                self.note(world, effects);

                Fate::On
            }
            Some(_) => panic!("it is done at once"),
            None => {
                self.look(world);

                if self.effects.is_empty() {
                    self.phase = Phase::Release;
                    if !self.staged.is_empty() {
                        return self.commit_and_publish(world, faults);
                    }
                }

                Fate::On
            }
        }
    }

    fn turn(&mut self, world: &mut World, turn: Turn, faults: bool) -> Fate {
        self.look(world);

        if self.canceled {
            let cursor = self.turn_cursor();
            return self.end(
                world,
                turn.interrupted_entry("canceled".to_owned(), String::new(), cursor),
                faults,
            );
        }

        let situation = StepContext {
            held_ms: held_ms(world),
            steering: self.machine.is_steering(),
        };
        let running = self.fold.running.as_ref().expect("a turn runs");
        match next(running, situation) {
            TurnStep::Ask { step } => {
                for SteeringMessage { pending, backlog } in self.machine.take_steering() {
                    let dispatch = pending.dispatch_ref();
                    self.stage(world, LedgerEntry::Steered { dispatch, backlog });
                }

                if !self.commit(world, faults) {
                    return Fate::Gone;
                }
                world.effect(turn.id, &format!("model {step}"), self.name);
                self.phase = Phase::Asked(turn, step);
            }
            TurnStep::Run { call } => return self.admit(world, turn, call, faults),
            TurnStep::Recover { call } if call.name == "look" => return self.call(world, turn, call, faults),
            TurnStep::Recover { call } => {
                let reason = INTERRUPTED.to_owned();
                let outcome = ToolOutcome::Unknown { reason };
                self.stage(
                    world,
                    LedgerEntry::ToolFinished {
                        call: call.call,
                        outcome,
                        unseen: false,
                    },
                );

                self.phase = Phase::Turn(turn);
            }
            TurnStep::Observe { call, outcome } | TurnStep::Skip { call, outcome } => {
                self.stage(
                    world,
                    LedgerEntry::ToolFinished {
                        call: call.call,
                        outcome,
                        unseen: false,
                    },
                );

                self.phase = Phase::Turn(turn);
            }
            TurnStep::Finish { content, .. } => {
                let cursor = self.turn_cursor();
                return self.end(world, turn.settled_entry(content, Vec::new(), cursor), faults);
            }
            TurnStep::Fail { limit } => {
                let limit = limit.to_owned();
                let failure = shared::model::ledger::TurnFailure::Limit { limit };
                let cursor = self.turn_cursor();
                return self.end(world, turn.failed_entry(failure, cursor), faults);
            }
        }

        Fate::On
    }

    pub(crate) fn call(&mut self, world: &mut World, turn: Turn, call: ToolCall, faults: bool) -> Fate {
        if !self.commit(world, faults) {
            return Fate::Gone;
        }
        world.effect(turn.id, &format!("{} {}", call.name, call.call), self.name);
        self.phase = Phase::Ran(turn, call.call);
        Fate::On
    }

    /// What the model says follows from the turn and the step alone.
    fn answered(&mut self, world: &mut World, turn: &Turn, step: u32) {
        let random = u32::try_from(turn.id.random() % 5).unwrap_or(0);
        let tools: &[&str] = match (step, random) {
            (1, 0 | 1) => &["look", "pay", "look"],
            (2, 0) => &["pay"],
            (1, 2) => &["pay", "pay"],
            _ => &[],
        };

        let call = |(index, name): (usize, &&str)| ToolCall {
            call: format!("{step}-{}", index + 1),
            name: (*name).to_owned(),
            arguments: serde_json::Value::Null,
        };
        let answered = LedgerEntry::ModelAnswered {
            step,
            content: format!("said {step}"),
            tool_calls: tools.iter().enumerate().map(call).collect(),
            usage: TurnUsage::default(),
            opaque: None,
            attachments: Vec::new(),
            model: None,
        };

        self.stage(world, answered);
    }

    fn turn_cursor(&self) -> shared::model::ledger::LedgerCursor {
        self.cursor_after(&self.machine.own_sequences())
    }

    fn end(&mut self, world: &mut World, entry: LedgerEntry, faults: bool) -> Fate {
        if let Some(awaited) = self.fold.awaited_approval().cloned() {
            self.decided(world, &awaited.approval, ApprovalStatus::Canceled);
        }

        let marks = self.give_up();
        self.stage(world, entry);
        self.canceled = false;

        let fate = self.commit_and_publish(world, faults);
        if fate == Fate::On {
            marks.into_iter().for_each(|(id, status)| world.bring(&id, status));
        }

        let effects = self.machine.handle(SessionInput::TurnEnded, UnixMillis(world.now));
        self.note(world, effects);

        fate
    }
}
