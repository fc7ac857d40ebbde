//! One ownership of one partition: its messages in memory, and the events that wait.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use shared::bus::Incoming;
use shared::bus::dead_letter::Verdict;
use shared::bus::partition::{Again, Owned};
use shared::model::event::Event;
use shared::wire::seal::Trust;
use shared::wire::topology::MAX_PAST_FLOOR;
use tokio::sync::OwnedSemaphorePermit;

use super::owed::{OwedEvent, OwedEvents};
use crate::conversations::{Conversations, Numbers};
use crate::gate::Gate;
use crate::inherited::Inherited;
use crate::order::Conversation;
use crate::task::Task;

/// A message that is kept in memory.
pub(super) struct Held {
    pub(super) work: Work,
    /// Conversation of the message; `None` if it has none.
    pub(super) conversation: Option<Conversation>,
}

/// A task of a partition.
pub(super) enum Job {
    /// Handle a message to its end, with or without one of the shared places.
    Perform(Box<Held>, Option<OwnedSemaphorePermit>),
    /// Read a message of this conversation again.
    Read(Conversation, Numbers, Box<Again>),
}

/// A message that was read again, and its memory permit.
pub(super) type Reread = (Incoming, OwnedSemaphorePermit);

/// Result of a job.
pub(super) enum Ended {
    /// A message was handled, except for the evaluations that its event owes.
    Performed(Option<Conversation>, Option<Box<OwedEvent>>),
    /// A message was read again; `None` if it is gone.
    Read(Conversation, Option<Box<Reread>>),
}

/// Work on one message.
pub(super) enum Work {
    Event(Box<Task>),
    /// A message to give up, with its memory permit.
    Dead(Box<(Incoming, Verdict, OwnedSemaphorePermit)>),
}

/// One ownership of one partition.
pub(super) struct Shift {
    pub(super) partition: u16,
    pub(super) replay_through: u64,
    /// Sequence up to which former owners have handed messages out; `None` if unknown.
    handed_through: Option<u64>,
    /// Highest sequence taken so far, for the records.
    pub(super) through: Arc<AtomicU64>,
    /// Number of the first message beyond everything that former owners are known to have taken.
    past_known_from: Option<u64>,
    /// State that former owners have left; `None` until it is read.
    pub(super) inherited: Option<Inherited>,
    pub(super) gate: Gate,
    pub(super) conversations: Conversations<Held>,
    /// Messages of no conversation that are about to begin.
    pub(super) apart: Vec<Held>,
    /// Events whose deferred evaluations must be made.
    pub(super) owed: OwedEvents,
    /// Whether the first undone message was noted.
    pub(super) noted: bool,
    /// Whether it was noted before, so that messages that may have been under way then are handled one by one.
    pub(super) careful: bool,
}

/// Reads the event in `incoming` as `trust` admits it. Returns the reason for the dead letter if that fails.
pub(super) fn read(incoming: &Incoming, trust: &Trust) -> Result<Event, Verdict> {
    incoming.event(trust).map_err(|error| {
        metrics::counter!("nexus_hook_refused_total", "reason" => error.reason()).increment(1);
        Verdict::new(error.reason(), error.to_string())
    })
}

impl Held {
    /// Creates an entry for a message that is given up, regardless of its conversation.
    pub(super) fn dead(incoming: Incoming, verdict: Verdict, memory: OwnedSemaphorePermit) -> Self {
        Self {
            work: Work::Dead(Box::new((incoming, verdict, memory))),
            conversation: None,
        }
    }
}

impl Shift {
    pub(super) fn of(owned: &Owned, per_conversation: usize) -> Self {
        Self {
            partition: owned.partition,
            replay_through: owned.replay_through,
            handed_through: owned.handed_through,
            through: Arc::default(),
            past_known_from: None,
            inherited: None,
            gate: Gate::default(),
            conversations: Conversations::new(per_conversation),
            apart: Vec::new(),
            owed: OwedEvents::default(),
            noted: false,
            careful: false,
        }
    }

    /// Returns whether a former owner may have handled the message, which was stored before the partition was taken.
    /// That is the case up to `named` (the highest event that a record may belong to), up to the stored position of
    /// messages handed out, and for the next [`MAX_PAST_FLOOR`] messages, which may have been under way. A message that
    /// is read again counts by the time when it was first handed out.
    pub(super) fn may_be_done(&mut self, incoming: &Incoming, named: Option<u64>) -> bool {
        const UNDER_WAY: u64 = MAX_PAST_FLOOR.unsigned_abs() + 1;
        let Some(named) = named else { return true };
        if incoming.sequence <= named.max(self.handed_through.unwrap_or(0)) {
            return true;
        }
        let handed = incoming.consumer_sequence;
        let from = *self.past_known_from.get_or_insert(handed);
        handed < from.saturating_add(UNDER_WAY)
    }
}
