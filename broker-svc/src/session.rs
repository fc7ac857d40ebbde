//! The session machine: decides which dispatches run, in which order, which together, and which never. *Pure.*
//!
//! Source: `docs/design/sessions.md` §2. Every dispatch handed in ends exactly once: as a turn or part of one, as
//! steered, or dropped with a reason (a dispatch of `steer-backlog` is steered as well), and a turn is never started
//! while another runs. Every owner builds the machine again from `DISPATCHES` and the ledger.

pub mod arrival;
mod places;
pub mod settings;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use shared::model::ledger::DropReason;
use shared::model::order::OrderKind;
use shared::model::permission::PermissionSet;
use shared::model::session::{OverflowPolicy, QueueMode, QueueSettings};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::ledger::state::SessionState;
use crate::turn::journal::JournalEntry;
pub use arrival::{ApprovalNotification, InboxItem, PendingDispatch, PlacedOrder};
use arrival::{same_target, sort_key, target_of};
use settings::{DispatchSettings, QueuePolicy};

/// Maximum delay of a `collect` turn after the first arrival, in debounce times.
const MOST_DEBOUNCES: u64 = 10;

/// An event for the session.
#[derive(Debug, Clone)]
pub enum SessionInput {
    /// Messages that one look at the session's subject found, in any order.
    Arrived(Vec<InboxItem>),
    /// The running turn is over: completed, failed or interrupted.
    TurnEnded,
    /// Time has passed; debounces are checked.
    Tick,
}

/// An action that the worker must take.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionEffect {
    /// Run one turn for these dispatches, in order.
    Start {
        /// The dispatches; at least one.
        pendings: Vec<PendingDispatch>,
        /// Time that the first waited since its hook was evaluated, milliseconds; never negative.
        waited_ms: u64,
    },
    /// Record that a dispatch is not run.
    Drop {
        /// The dispatch that is dropped.
        pending: PendingDispatch,
        /// Reason for dropping the dispatch.
        reason: DropReason,
    },
    /// Cancel the running turn.
    Cancel {
        /// Reason for the cancellation.
        reason: String,
    },
    /// Record that an order is carried out; a reset begins a new history.
    Carry {
        /// The order to record.
        placed: PlacedOrder,
    },
    /// Record that an order was given before.
    Repeated {
        /// The repeated order.
        placed: PlacedOrder,
    },
    /// Record the decision of an approval, if the turn waits for it.
    Decide {
        /// The notice with the decision.
        told: ApprovalNotification,
    },
    /// Hand in [`SessionInput::Tick`] at this time.
    Wake {
        /// Time of the next tick.
        at: UnixMillis,
    },
}

#[derive(Debug, Clone)]
struct Waiting {
    pending: PendingDispatch,
    collect: bool,
    debounce_ms: u64,
    cap: usize,
}

/// A message to be put into the running turn.
#[derive(Debug, Clone, PartialEq)]
pub struct SteeringMessage {
    /// The dispatch of the message.
    pub pending: PendingDispatch,
    /// Whether the dispatch also gets a turn of its own.
    pub backlog: bool,
}

/// A dispatch of the running turn.
#[derive(Debug, Clone, Copy)]
struct OwnDispatch {
    id: Ulid,
    /// Sequence of the dispatch; of one that is not read yet, the sequence that the ledger names.
    sequence: u64,
    /// Whether the dispatch was read at its sequence. After a restore of the stream, it may be at another one.
    is_read: bool,
}

#[derive(Debug, Default)]
struct Busy {
    own: Vec<OwnDispatch>,
    permissions: Vec<PermissionSet>,
    canceled: bool,
}

/// Queue of one session in its owner's memory.
#[derive(Debug, Default)]
pub struct SessionQueue {
    policy: Arc<QueuePolicy>,
    own: QueueSettings,
    running: Option<Busy>,
    waiting: VecDeque<Waiting>,
    steering: VecDeque<SteeringMessage>,
    /// Resets that wait for the end of the running turn.
    resets: Vec<PlacedOrder>,
    /// Sequences handed in since the session was taken; bounded by the number of messages that one owner reads.
    seen: BTreeSet<u64>,
    /// The newest copy of each dispatch that is not done and came more than once.
    copies: BTreeMap<Ulid, PendingDispatch>,
    /// Ids consumed by earlier turns or handed in since.
    ids: BTreeSet<Ulid>,
    /// Ids of messages that the running turn has seen and that get a turn of their own as well.
    steered: BTreeSet<Ulid>,
}

impl SessionQueue {
    /// Creates the machine of a session that was just taken, whose ledger folds to `fold`. A turn of a former owner
    /// runs.
    #[must_use]
    pub fn new(fold: &SessionState, policy: Arc<QueuePolicy>) -> Self {
        let mut machine = Self {
            policy,
            own: fold.queue,
            ids: fold.recent.iter().copied().collect(),
            ..Self::default()
        };

        if let Some(turn) = &fold.running {
            machine.ids.extend(turn.dispatches.iter().map(|d| d.id));
            machine
                .steered
                .extend(turn.passages.iter().filter_map(|passage| match passage {
                    JournalEntry::Steered { dispatch } => Some(dispatch.id),
                    JournalEntry::Answered { .. } | JournalEntry::Called { .. } | JournalEntry::Injected { .. } => None,
                }));

            machine.running = Some(Busy {
                own: turn.dispatches.iter().map(OwnDispatch::from_ledger).collect(),
                permissions: vec![turn.permissions.clone()],
                canceled: false,
            });
        }

        machine
    }

    /// Notes messages that were handed in and are done already: their `ids` and their `sequences`.
    pub fn note_known(&mut self, ids: impl IntoIterator<Item = Ulid>, sequences: &[u64]) {
        self.ids.extend(ids);
        self.seen.extend(sequences);
    }

    /// Handles `input` and returns the effects that follow.
    #[must_use]
    pub fn handle(&mut self, input: SessionInput, now: UnixMillis) -> Vec<SessionEffect> {
        let mut effects = Vec::new();
        match input {
            SessionInput::Arrived(batch) => self.handle_arrived(batch, &mut effects),
            SessionInput::TurnEnded => self.handle_turn_end(),
            SessionInput::Tick => {}
        }

        self.drop_copies(&mut effects);
        if self.running.is_none() {
            effects.extend(self.resets.drain(..).map(|placed| SessionEffect::Carry { placed }));
            effects.extend(self.start(now));
        }

        effects
    }

    fn handle_arrived(&mut self, mut batch: Vec<InboxItem>, effects: &mut Vec<SessionEffect>) {
        batch.retain(|arrival| self.is_new(arrival));
        batch.sort_by_key(InboxItem::sequence);

        let mut dispatches = Vec::new();
        for arrival in batch {
            match arrival {
                InboxItem::Dispatch(pending) => dispatches.push(pending),
                InboxItem::Order(placed) => {
                    self.take_in(std::mem::take(&mut dispatches), effects);
                    self.handle_order(placed, effects);
                }
                InboxItem::Decision(told) => effects.push(SessionEffect::Decide { told }),
            }
        }

        self.take_in(dispatches, effects);
    }

    fn take_in(&mut self, mut pendings: Vec<PendingDispatch>, effects: &mut Vec<SessionEffect>) {
        pendings.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
        for pending in pendings {
            if self.ids.insert(pending.dispatch.id) {
                self.queue_dispatch(pending, effects);
            } else {
                self.take_known(pending, effects);
            }
        }
    }

    fn queue_dispatch(&mut self, pending: PendingDispatch, effects: &mut Vec<SessionEffect>) {
        let rules = self.policy.rules_for(self.own, &pending.dispatch);
        // A turn with fewer rights must not read the message, and a canceled turn will not read it.
        let steers = self.running.as_ref().is_some_and(|busy| {
            let may_join = |turn| self.policy.may_join(turn, &pending.dispatch.permissions);
            !busy.canceled && busy.permissions.iter().all(may_join)
        });

        let waiting = Waiting {
            pending: pending.clone(),
            collect: rules.mode == QueueMode::Collect,
            debounce_ms: rules.debounce_ms,
            cap: rules.cap,
        };

        match rules.mode {
            // The newer message replaces all: those that wait, and the turn itself.
            QueueMode::Interrupt => {
                self.clear(DropReason::Superseded, effects);
                self.cancel_turn(&format!("interrupted by dispatch {}", pending.dispatch.id), effects);
                self.waiting.push_back(waiting);
            }
            QueueMode::Steer if steers => self.steering.push_back(SteeringMessage {
                pending,
                backlog: false,
            }),
            // It joins the running turn and gets a turn of its own as well.
            QueueMode::SteerBacklog if steers && !self.steered.contains(&pending.dispatch.id) => {
                self.steering.push_back(SteeringMessage { pending, backlog: true });
                self.waiting.push_back(waiting);
            }
            QueueMode::Followup | QueueMode::Collect | QueueMode::Steer | QueueMode::SteerBacklog => {
                self.waiting.push_back(waiting);
            }
        }

        // Without a running turn the next step takes messages out, so there is room.
        if self.running.is_some() {
            self.make_room(rules, effects);
        }
    }

    fn make_room(&mut self, rules: DispatchSettings, effects: &mut Vec<SessionEffect>) {
        while self.queued_count() > rules.cap {
            let (newest, reason) = match rules.overflow {
                OverflowPolicy::Summarize => (false, DropReason::OverflowSummarized),
                OverflowPolicy::Old => (false, DropReason::OverflowOld),
                OverflowPolicy::New => (true, DropReason::OverflowNew),
            };
            let sequences = self.waiting.iter().map(|w| w.pending.sequence);
            let sequences = sequences.chain(self.steering.iter().map(|s| s.pending.sequence));
            let victim = if newest { sequences.max() } else { sequences.min() };
            let Some(pending) = victim.and_then(|sequence| self.remove(sequence)) else {
                return;
            };

            effects.push(drop_effect(pending, reason));
        }
    }

    /// Removes a waiting dispatch from any of the queues.
    fn remove(&mut self, sequence: u64) -> Option<PendingDispatch> {
        let steering = self.steering.iter().position(|s| s.pending.sequence == sequence);
        let steering = steering.and_then(|at| self.steering.remove(at)).map(|s| s.pending);
        let waiting = self.waiting.iter().position(|w| w.pending.sequence == sequence);
        let waiting = waiting.and_then(|at| self.waiting.remove(at)).map(|w| w.pending);
        waiting.or(steering)
    }

    fn clear(&mut self, reason: DropReason, effects: &mut Vec<SessionEffect>) {
        while let Some(sequence) = self.lowest_waiting() {
            effects.extend(self.remove(sequence).map(|pending| drop_effect(pending, reason)));
        }
    }

    fn cancel_turn(&mut self, reason: &str, effects: &mut Vec<SessionEffect>) {
        if let Some(busy) = self.running.as_mut().filter(|busy| !busy.canceled) {
            busy.canceled = true;
            let reason = reason.to_owned();
            effects.push(SessionEffect::Cancel { reason });
        }
    }

    fn handle_order(&mut self, placed: PlacedOrder, effects: &mut Vec<SessionEffect>) {
        if !self.ids.insert(placed.order.id) {
            effects.push(SessionEffect::Repeated { placed });
            return;
        }

        let by = format!("{} by {}", placed.order.wanted.name(), placed.order.by);
        match &placed.order.wanted {
            OrderKind::Abort => {
                self.clear(DropReason::Aborted, effects);
                self.cancel_turn(&by, effects);
            }
            OrderKind::Interrupt => self.cancel_turn(&by, effects),
            OrderKind::Queue { settings } => self.own = *settings,
            OrderKind::Withdraw { dispatch, spares_turn } => {
                self.withdraw_dispatch(*dispatch, *spares_turn, &by, effects);
            }
            // A reset waits for the end of the turn, whose history it ends.
            OrderKind::Reset if self.running.is_some() => {
                self.resets.push(placed);
                return;
            }
            // Later turns read it from the ledger.
            OrderKind::Send { .. } | OrderKind::Edit { .. } | OrderKind::Reset => {}
        }

        effects.push(SessionEffect::Carry { placed });
    }

    fn withdraw_dispatch(&mut self, dispatch: Ulid, spares_turn: bool, by: &str, effects: &mut Vec<SessionEffect>) {
        // A dispatch with this id that comes later counts as known, and is dropped.
        self.ids.insert(dispatch);
        let waiting = self.waiting.iter().map(|w| &w.pending);
        let mut waiting = waiting.chain(self.steering.iter().map(|s| &s.pending));
        let waits = waiting.find(|pending| pending.dispatch.id == dispatch);

        if let Some(sequence) = waits.map(|pending| pending.sequence) {
            let taken = self.remove(sequence);
            effects.extend(taken.map(|pending| drop_effect(pending, DropReason::Withdrawn)));
        }

        let alone = |busy: &Busy| matches!(busy.own[..], [only] if only.id == dispatch);
        if !spares_turn && self.running.as_ref().is_some_and(alone) {
            self.cancel_turn(by, effects);
        }
    }

    /// Ends the running turn; messages that were not put into it get a turn of their own, in their order.
    fn handle_turn_end(&mut self) {
        self.running = None;
        self.steered.clear();

        for SteeringMessage { pending, backlog } in std::mem::take(&mut self.steering) {
            if backlog {
                continue;
            }

            let DispatchSettings { debounce_ms, cap, .. } = self.policy.rules_for(self.own, &pending.dispatch);
            let place = self.waiting.partition_point(|w| w.pending.sequence < pending.sequence);
            let waiting = Waiting {
                pending,
                collect: false,
                debounce_ms,
                cap,
            };

            self.waiting.insert(place, waiting);
        }
    }

    fn start(&mut self, now: UnixMillis) -> Option<SessionEffect> {
        let head = self.waiting.front()?;
        if !head.collect {
            let head = self.waiting.pop_front()?;
            return Some(self.begin_turn(vec![head.pending], now));
        }

        // Messages that collect wait for a pause in writing, but only if no other message waits behind them.
        let together = self.waiting.iter().take_while(|w| w.collect).count();
        if together == self.waiting.len() && together < head.cap {
            let arrived = || self.waiting.iter().map(|w| w.pending.arrived);
            let wait = |debounces: u64| i64::try_from(head.debounce_ms.saturating_mul(debounces)).unwrap_or(i64::MAX);
            let quiet = arrived().max()?.plus(wait(1));
            let at = quiet.min(arrived().min()?.plus(wait(MOST_DEBOUNCES)));

            if now < at {
                return Some(SessionEffect::Wake { at });
            }
        }

        // One turn has one target; messages for another one keep their place.
        let target = target_of(&head.pending).clone();
        let (mut turn, mut rest) = (Vec::new(), VecDeque::new());
        for (index, waiting) in std::mem::take(&mut self.waiting).into_iter().enumerate() {
            if index < together && same_target(target_of(&waiting.pending), &target) {
                turn.push(waiting.pending);
            } else {
                rest.push_back(waiting);
            }
        }

        self.waiting = rest;
        Some(self.begin_turn(turn, now))
    }

    fn begin_turn(&mut self, pendings: Vec<PendingDispatch>, now: UnixMillis) -> SessionEffect {
        self.running = Some(Busy {
            own: pendings.iter().map(OwnDispatch::from_pending).collect(),
            permissions: pendings.iter().map(|p| p.dispatch.permissions.clone()).collect(),
            canceled: false,
        });
        let first = pendings.first().map_or(now, |p| p.dispatch.timestamp);
        let waited_ms = u64::try_from(now.since(first)).unwrap_or(0);
        SessionEffect::Start { pendings, waited_ms }
    }

    /// Takes the messages to be put into the running turn before its next model call.
    pub fn take_steering(&mut self) -> Vec<SteeringMessage> {
        let taken: Vec<SteeringMessage> = self.steering.drain(..).collect();
        if let Some(busy) = &mut self.running {
            let own = taken.iter().filter(|steering| !steering.backlog);
            busy.own
                .extend(own.map(|steering| OwnDispatch::from_pending(&steering.pending)));
        }
        self.steered.extend(taken.iter().map(|s| s.pending.dispatch.id));
        taken
    }

    /// Returns whether a message waits to be put into the running turn.
    #[must_use]
    pub fn is_steering(&self) -> bool {
        !self.steering.is_empty()
    }

    /// Returns the lowest sequence that was handed in and is not done, without those of `except` (they are being
    /// recorded): the cursor's floor stays below it.
    #[must_use]
    pub fn lowest_open(&self, except: &[u64]) -> Option<u64> {
        let running = self
            .running
            .iter()
            .flat_map(|busy| busy.own.iter().map(|own| own.sequence));
        let waiting = self.waiting.iter().map(|w| w.pending.sequence);
        let steering = self.steering.iter().map(|s| s.pending.sequence);
        let resets = self.resets.iter().map(|placed| placed.sequence);
        let copies = self.copies.values().map(|copy| copy.sequence);
        let open = running.chain(waiting).chain(steering).chain(resets).chain(copies);
        open.filter(|sequence| !except.contains(sequence)).min()
    }

    fn lowest_waiting(&self) -> Option<u64> {
        let waiting = self.waiting.iter().map(|w| w.pending.sequence);
        waiting.chain(self.steering.iter().map(|s| s.pending.sequence)).min()
    }

    /// Returns the number of messages that wait behind or for the running turn, each counted once.
    #[must_use]
    pub fn queued_count(&self) -> usize {
        let steering = self.steering.iter().filter(|steering| !steering.backlog);
        self.waiting.len() + steering.count()
    }

    /// Returns whether a turn runs.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

const fn drop_effect(pending: PendingDispatch, reason: DropReason) -> SessionEffect {
    SessionEffect::Drop { pending, reason }
}

#[cfg(test)]
mod tests;
