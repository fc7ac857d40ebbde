//! The session machine: which dispatches run, in which order, and which never. *Pure.*
//!
//! Source: `sessions.md` "Queue modes". Every mode but `followup` is treated as `followup`: a turn of its own
//! afterwards, in order. A dispatch handed in is started exactly once or dropped with a reason, never forgotten,
//! and a turn is never started while another runs.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use shared::model::dispatch::Dispatch;
use shared::model::ledger::DispatchRef;
use shared::model::session::QueueMode;
use shared::model::time::UnixMillis;
use shared::wire::headers::Carrier;
use ulid::Ulid;

use crate::fold::Fold;

/// A dispatch that waits, and where it stands in `DISPATCHES`.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// Its sequence in `DISPATCHES`.
    pub sequence: u64,
    /// What is to be done.
    pub dispatch: Arc<Dispatch>,
    /// The trace that it belongs to.
    pub carrier: Carrier,
}

impl Pending {
    /// How the ledger names it, without its content.
    #[must_use]
    pub fn reference(&self) -> DispatchRef {
        DispatchRef {
            id: self.dispatch.id,
            sequence: self.sequence,
            event_id: self.dispatch.event_id.clone(),
            content: String::new(),
        }
    }
}

/// What happens to a session.
#[derive(Debug, Clone)]
pub enum Input {
    /// What one look at the session's subject found, in any order.
    Arrived(Vec<Pending>),
    /// The running turn is over: completed, failed or interrupted.
    TurnEnded,
}

/// Why a dispatch is not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// A dispatch of the same id was handed in before.
    Duplicate,
}

impl DropReason {
    /// As it stands in the ledger.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
        }
    }
}

/// What is to be done about it.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Run a turn for this dispatch.
    Start {
        /// Which.
        pending: Pending,
        /// How long it waited since its hook was evaluated, milliseconds; never negative.
        waited_ms: u64,
    },
    /// Write down that it is not run.
    Drop {
        /// Which.
        pending: Pending,
        /// Why.
        reason: DropReason,
    },
}

/// The queue of one session in its owner's memory; it is rebuilt from `DISPATCHES` and the ledger by every owner.
#[derive(Debug, Default)]
pub struct Session {
    running: Option<u64>,
    waiting: VecDeque<Pending>,
    /// Sequences handed in since the session was taken; bounded by what one taking reads.
    seen: BTreeSet<u64>,
    /// Ids consumed by earlier turns or handed in since.
    ids: BTreeSet<Ulid>,
    /// The turn that a former owner began: it goes first.
    resume: Vec<u64>,
}

impl Session {
    /// The machine of a session just taken, whose ledger folds to `fold`.
    #[must_use]
    pub fn new(fold: &Fold) -> Self {
        let resume = fold
            .running
            .as_ref()
            .map(|turn| turn.dispatches.iter().map(|d| d.sequence).collect());
        Self {
            ids: fold.recent.iter().copied().collect(),
            resume: resume.unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Takes `input` in and says what follows.
    #[must_use]
    pub fn handle(&mut self, input: Input, now: UnixMillis) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Arrived(batch) => self.arrived(batch, &mut effects),
            Input::TurnEnded => self.running = None,
        }
        if self.running.is_none()
            && let Some(pending) = self.waiting.pop_front()
        {
            self.running = Some(pending.sequence);
            let waited_ms = u64::try_from(now.since(pending.dispatch.timestamp)).unwrap_or(0);
            effects.push(Effect::Start { pending, waited_ms });
        }
        effects
    }

    fn arrived(&mut self, mut batch: Vec<Pending>, effects: &mut Vec<Effect>) {
        batch.retain(|pending| self.seen.insert(pending.sequence));
        batch.sort_by(|a, b| order(a).cmp(&order(b)));
        let (resumed, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(|p| self.resume.contains(&p.sequence));
        for pending in resumed.into_iter().rev() {
            self.ids.insert(pending.dispatch.id);
            self.waiting.push_front(pending);
        }
        for pending in batch {
            if !self.ids.insert(pending.dispatch.id) {
                effects.push(Effect::Drop {
                    pending,
                    reason: DropReason::Duplicate,
                });
                continue;
            }
            match pending.dispatch.queue_mode.unwrap_or_default() {
                QueueMode::Followup
                | QueueMode::Collect
                | QueueMode::Steer
                | QueueMode::Interrupt
                | QueueMode::SteerBacklog => self.waiting.push_back(pending),
            }
        }
    }

    /// The lowest sequence that was handed in and is not over, `except` aside (it is just being written down): the
    /// cursor's floor stays below it.
    #[must_use]
    pub fn lowest_open(&self, except: u64) -> Option<u64> {
        self.waiting
            .iter()
            .map(|p| p.sequence)
            .chain(self.running)
            .filter(|&sequence| sequence != except)
            .min()
    }

    /// How many wait behind the running turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a turn runs.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

/// What orders the dispatches that one look found: event, then higher priority, then hook, then place.
fn order(pending: &Pending) -> (u64, std::cmp::Reverse<i32>, &str, u64) {
    let dispatch = &pending.dispatch;
    (
        dispatch.event_seq,
        std::cmp::Reverse(dispatch.priority),
        &dispatch.hook_id,
        pending.sequence,
    )
}

#[cfg(test)]
mod tests;
