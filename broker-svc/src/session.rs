//! The session machine: which dispatches run, in which order, together with which, and which never. *Pure.*
//!
//! Source: `docs/design/sessions.md` §2. Every dispatch handed in ends exactly once as a turn or part of one, as
//! steered, or dropped with a reason (one of `steer-backlog` is steered besides), and a turn is never started while
//! another runs. The machine is rebuilt from `DISPATCHES` and the ledger by every owner.

pub mod arrival;
pub mod settings;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use shared::model::ledger::DropReason;
use shared::model::order::Wanted;
use shared::model::permission::PermissionSet;
use shared::model::session::{Overflow, QueueMode, QueueSettings};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::fold::Fold;
use crate::turn::journal::Passage;
pub use arrival::{Arrival, Pending, Placed, Told};
use arrival::{order, same_target, target_of};
use settings::{Policy, Rules};

/// A `collect` turn begins at the latest this many debounce times after the first arrival.
const MOST_DEBOUNCES: u64 = 10;

/// What happens to a session.
#[derive(Debug, Clone)]
pub enum Input {
    /// What one look at the session's subject found, in any order.
    Arrived(Vec<Arrival>),
    /// The running turn is over: completed, failed or interrupted.
    TurnEnded,
    /// Time has passed.
    Tick,
}

/// What is to be done about it.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Run one turn for these dispatches, in order.
    Start {
        /// Which; at least one.
        pendings: Vec<Pending>,
        /// How long the first waited since its hook was evaluated, milliseconds; never negative.
        waited_ms: u64,
    },
    /// Write down that it is not run.
    Drop {
        /// Which.
        pending: Pending,
        /// Why.
        reason: DropReason,
    },
    /// Cancel the running turn.
    Cancel {
        /// Why.
        reason: String,
    },
    /// Write down that an order is carried out; a reset begins history anew.
    Carry {
        /// Which.
        placed: Placed,
    },
    /// Write down that an order was given before.
    Repeated {
        /// Which.
        placed: Placed,
    },
    /// Write down what became of an approval, where the turn waits for it.
    Decide {
        /// What.
        told: Told,
    },
    /// Hand in [`Input::Tick`] at this time.
    Wake {
        /// When.
        at: UnixMillis,
    },
}

#[derive(Debug, Clone)]
struct Waiting {
    pending: Pending,
    collect: bool,
    debounce_ms: u64,
    cap: usize,
}

/// A message to be put into the running turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Steering {
    /// Which.
    pub pending: Pending,
    /// It also gets a turn of its own.
    pub backlog: bool,
}

#[derive(Debug, Default)]
struct Busy {
    /// The turn's dispatches: where they stand, and their ids.
    own: Vec<(u64, Ulid)>,
    permissions: Vec<PermissionSet>,
    cancelled: bool,
}

/// The queue of one session in its owner's memory.
#[derive(Debug, Default)]
pub struct Session {
    policy: Arc<Policy>,
    own: QueueSettings,
    running: Option<Busy>,
    waiting: VecDeque<Waiting>,
    steering: VecDeque<Steering>,
    /// A reset that waits for the end of the running turn.
    resets: Vec<Placed>,
    /// Sequences handed in since the session was taken; bounded by what one taking reads.
    seen: BTreeSet<u64>,
    /// Ids consumed by earlier turns or handed in since.
    ids: BTreeSet<Ulid>,
    /// Those that the running turn has seen, and that get a turn of their own as well.
    steered: BTreeSet<u64>,
}

impl Session {
    /// The machine of a session just taken, whose ledger folds to `fold`. A turn that a former owner began runs.
    #[must_use]
    pub fn new(fold: &Fold, policy: Arc<Policy>) -> Self {
        let mut machine = Self {
            policy,
            own: fold.queue,
            ids: fold.recent.iter().copied().collect(),
            ..Self::default()
        };

        if let Some(turn) = &fold.running {
            machine.seen.extend(turn.dispatches.iter().map(|d| d.sequence));
            machine.ids.extend(turn.dispatches.iter().map(|d| d.id));
            machine
                .steered
                .extend(turn.passages.iter().filter_map(|passage| match passage {
                    Passage::Steered { dispatch } => Some(dispatch.sequence),
                    Passage::Answered { .. } | Passage::Called { .. } | Passage::Injected { .. } => None,
                }));

            machine.running = Some(Busy {
                own: turn.dispatches.iter().map(|d| (d.sequence, d.id)).collect(),
                permissions: vec![turn.permissions.clone()],
                cancelled: false,
            });
        }

        machine
    }

    /// Takes note of what was handed in and is over already: its `ids`, and the `sequences` at which it stands.
    pub fn know(&mut self, ids: impl IntoIterator<Item = Ulid>, sequences: &[u64]) {
        self.ids.extend(ids);
        self.seen.extend(sequences);
    }

    /// Takes `input` in and says what follows.
    #[must_use]
    pub fn handle(&mut self, input: Input, now: UnixMillis) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Arrived(batch) => self.arrived(batch, &mut effects),
            Input::TurnEnded => self.ended(),
            Input::Tick => {}
        }

        if self.running.is_none() {
            effects.extend(self.resets.drain(..).map(|placed| Effect::Carry { placed }));
            effects.extend(self.start(now));
        }

        effects
    }

    fn arrived(&mut self, mut batch: Vec<Arrival>, effects: &mut Vec<Effect>) {
        batch.retain(|arrival| self.seen.insert(arrival.sequence()));
        batch.sort_by_key(Arrival::sequence);

        let mut dispatches = Vec::new();
        for arrival in batch {
            match arrival {
                Arrival::Dispatch(pending) => dispatches.push(pending),
                Arrival::Order(placed) => {
                    self.take_in(std::mem::take(&mut dispatches), effects);
                    self.ordered(placed, effects);
                }
                Arrival::Decision(told) => effects.push(Effect::Decide { told }),
            }
        }

        self.take_in(dispatches, effects);
    }

    fn take_in(&mut self, mut pendings: Vec<Pending>, effects: &mut Vec<Effect>) {
        pendings.sort_by(|a, b| order(a).cmp(&order(b)));
        for pending in pendings {
            if self.ids.insert(pending.dispatch.id) {
                self.queue(pending, effects);
            } else {
                effects.push(dropped(pending, DropReason::Duplicate));
            }
        }
    }

    fn queue(&mut self, pending: Pending, effects: &mut Vec<Effect>) {
        let rules = self.policy.rules(self.own, &pending.dispatch);
        let steers = self.running.as_ref().is_some_and(|busy| {
            let may_join = |turn| self.policy.may_join(turn, &pending.dispatch.permissions);
            !busy.cancelled && busy.permissions.iter().all(may_join)
        });

        let waiting = Waiting {
            pending: pending.clone(),
            collect: rules.mode == QueueMode::Collect,
            debounce_ms: rules.debounce_ms,
            cap: rules.cap,
        };

        match rules.mode {
            QueueMode::Interrupt => {
                self.clear(DropReason::Superseded, effects);
                self.cancel(&format!("interrupted by dispatch {}", pending.dispatch.id), effects);
                self.waiting.push_back(waiting);
            }
            QueueMode::Steer if steers => self.steering.push_back(Steering {
                pending,
                backlog: false,
            }),
            QueueMode::SteerBacklog if steers && !self.steered.contains(&pending.sequence) => {
                self.steering.push_back(Steering { pending, backlog: true });
                self.waiting.push_back(waiting);
            }
            QueueMode::Followup | QueueMode::Collect | QueueMode::Steer | QueueMode::SteerBacklog => {
                self.waiting.push_back(waiting);
            }
        }

        if self.running.is_some() {
            self.make_room(rules, effects);
        }
    }

    fn make_room(&mut self, rules: Rules, effects: &mut Vec<Effect>) {
        while self.queued() > rules.cap {
            let (newest, reason) = match rules.overflow {
                Overflow::Summarize => (false, DropReason::OverflowSummarized),
                Overflow::Old => (false, DropReason::OverflowOld),
                Overflow::New => (true, DropReason::OverflowNew),
            };
            let sequences = self.waiting.iter().map(|w| w.pending.sequence);
            let sequences = sequences.chain(self.steering.iter().map(|s| s.pending.sequence));
            let victim = if newest { sequences.max() } else { sequences.min() };
            let Some(pending) = victim.and_then(|sequence| self.remove(sequence)) else {
                return;
            };

            effects.push(dropped(pending, reason));
        }
    }

    /// Takes one out, wherever it waits.
    fn remove(&mut self, sequence: u64) -> Option<Pending> {
        let steering = self.steering.iter().position(|s| s.pending.sequence == sequence);
        let steering = steering.and_then(|at| self.steering.remove(at)).map(|s| s.pending);
        let waiting = self.waiting.iter().position(|w| w.pending.sequence == sequence);
        let waiting = waiting.and_then(|at| self.waiting.remove(at)).map(|w| w.pending);
        waiting.or(steering)
    }

    fn clear(&mut self, reason: DropReason, effects: &mut Vec<Effect>) {
        while let Some(sequence) = self.lowest_waiting() {
            effects.extend(self.remove(sequence).map(|pending| dropped(pending, reason)));
        }
    }

    fn cancel(&mut self, reason: &str, effects: &mut Vec<Effect>) {
        if let Some(busy) = self.running.as_mut().filter(|busy| !busy.cancelled) {
            busy.cancelled = true;
            let reason = reason.to_owned();
            effects.push(Effect::Cancel { reason });
        }
    }

    fn ordered(&mut self, placed: Placed, effects: &mut Vec<Effect>) {
        if !self.ids.insert(placed.order.id) {
            effects.push(Effect::Repeated { placed });
            return;
        }

        let by = format!("{} by {}", placed.order.wanted.name(), placed.order.by);
        match &placed.order.wanted {
            Wanted::Abort => {
                self.clear(DropReason::Aborted, effects);
                self.cancel(&by, effects);
            }
            Wanted::Interrupt => self.cancel(&by, effects),
            Wanted::Queue { settings } => self.own = *settings,
            Wanted::Withdraw { dispatch, spares_turn } => self.withdraw(*dispatch, *spares_turn, &by, effects),
            Wanted::Reset if self.running.is_some() => {
                self.resets.push(placed);
                return;
            }
            Wanted::Reset => {}
        }

        effects.push(Effect::Carry { placed });
    }

    fn withdraw(&mut self, dispatch: Ulid, spares_turn: bool, by: &str, effects: &mut Vec<Effect>) {
        // One that comes after this word counts as known, and is dropped.
        self.ids.insert(dispatch);
        let waiting = self.waiting.iter().map(|w| &w.pending);
        let mut waiting = waiting.chain(self.steering.iter().map(|s| &s.pending));
        let waits = waiting.find(|pending| pending.dispatch.id == dispatch);

        if let Some(sequence) = waits.map(|pending| pending.sequence) {
            let taken = self.remove(sequence);
            effects.extend(taken.map(|pending| dropped(pending, DropReason::Withdrawn)));
        }

        let alone = |busy: &Busy| matches!(busy.own[..], [(_, only)] if only == dispatch);
        if !spares_turn && self.running.as_ref().is_some_and(alone) {
            self.cancel(by, effects);
        }
    }

    /// What was not put into the turn any more gets a turn of its own, in its place.
    fn ended(&mut self) {
        self.running = None;
        self.steered.clear();

        for Steering { pending, backlog } in std::mem::take(&mut self.steering) {
            if backlog {
                continue;
            }

            let Rules { debounce_ms, cap, .. } = self.policy.rules(self.own, &pending.dispatch);
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

    fn start(&mut self, now: UnixMillis) -> Option<Effect> {
        let head = self.waiting.front()?;
        if !head.collect {
            let head = self.waiting.pop_front()?;
            return Some(self.begin(vec![head.pending], now));
        }

        let together = self.waiting.iter().take_while(|w| w.collect).count();
        if together == self.waiting.len() && together < head.cap {
            let arrived = || self.waiting.iter().map(|w| w.pending.arrived);
            let wait = |debounces: u64| i64::try_from(head.debounce_ms.saturating_mul(debounces)).unwrap_or(i64::MAX);
            let quiet = arrived().max()?.plus(wait(1));
            let at = quiet.min(arrived().min()?.plus(wait(MOST_DEBOUNCES)));

            if now < at {
                return Some(Effect::Wake { at });
            }
        }

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
        Some(self.begin(turn, now))
    }

    fn begin(&mut self, pendings: Vec<Pending>, now: UnixMillis) -> Effect {
        self.running = Some(Busy {
            own: pendings.iter().map(|p| (p.sequence, p.dispatch.id)).collect(),
            permissions: pendings.iter().map(|p| p.dispatch.permissions.clone()).collect(),
            cancelled: false,
        });
        let first = pendings.first().map_or(now, |p| p.dispatch.timestamp);
        let waited_ms = u64::try_from(now.since(first)).unwrap_or(0);
        Effect::Start { pendings, waited_ms }
    }

    /// Takes out what is to be put into the running turn before its next model call.
    pub fn take_steering(&mut self) -> Vec<Steering> {
        let taken: Vec<Steering> = self.steering.drain(..).collect();
        if let Some(busy) = &mut self.running {
            let own = taken.iter().filter(|steering| !steering.backlog);
            busy.own
                .extend(own.map(|steering| (steering.pending.sequence, steering.pending.dispatch.id)));
        }
        self.steered.extend(taken.iter().map(|s| s.pending.sequence));
        taken
    }

    /// Whether something waits to be put into the running turn.
    #[must_use]
    pub fn is_steering(&self) -> bool {
        !self.steering.is_empty()
    }

    /// The lowest sequence that was handed in and is not over, `except` aside (they are just being written down): the
    /// cursor's floor stays below it.
    #[must_use]
    pub fn lowest_open(&self, except: &[u64]) -> Option<u64> {
        let running = self.running.iter().flat_map(|busy| busy.own.iter().map(|own| own.0));
        let waiting = self.waiting.iter().map(|w| w.pending.sequence);
        let steering = self.steering.iter().map(|s| s.pending.sequence);
        let resets = self.resets.iter().map(|placed| placed.sequence);
        let open = running.chain(waiting).chain(steering).chain(resets);
        open.filter(|sequence| !except.contains(sequence)).min()
    }

    fn lowest_waiting(&self) -> Option<u64> {
        let waiting = self.waiting.iter().map(|w| w.pending.sequence);
        waiting.chain(self.steering.iter().map(|s| s.pending.sequence)).min()
    }

    /// How many wait behind or for the running turn, each once.
    #[must_use]
    pub fn queued(&self) -> usize {
        let steering = self.steering.iter().filter(|steering| !steering.backlog);
        self.waiting.len() + steering.count()
    }

    /// Whether a turn runs.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

const fn dropped(pending: Pending, reason: DropReason) -> Effect {
    Effect::Drop { pending, reason }
}

#[cfg(test)]
mod tests;
