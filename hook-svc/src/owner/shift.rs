//! One ownership of one partition: its messages in memory, and what it waits for.

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

/// A message in memory.
pub(super) struct Held {
    pub(super) work: Work,
    /// Its conversation; none if it is of none.
    pub(super) conversation: Option<Conversation>,
}

/// What a partition waits for.
pub(super) enum Job {
    /// A message is brought to its end, on one of the shared places or without.
    Perform(Box<Held>, Option<OwnedSemaphorePermit>),
    /// A message of this conversation is read again.
    Read(Conversation, Numbers, Box<Again>),
}

/// A message that was read again, and its place in memory.
pub(super) type Reread = (Incoming, OwnedSemaphorePermit);

/// What has come of a job.
pub(super) enum Ended {
    /// A message has come to its end, but for what its event owes.
    Performed(Option<Conversation>, Option<Box<OwedEvent>>),
    /// The message; none if it is gone.
    Read(Conversation, Option<Box<Reread>>),
}

/// A message to be brought to its end.
pub(super) enum Work {
    Event(Box<Task>),
    /// To be given up, with its place in memory.
    Dead(Box<(Incoming, Verdict, OwnedSemaphorePermit)>),
}

/// One ownership of one partition.
pub(super) struct Shift {
    pub(super) partition: u16,
    pub(super) replay_through: u64,
    /// Up to where former owners have handed messages out; none = nobody can tell.
    handed_through: Option<u64>,
    /// The highest sequence in hand, for the records.
    pub(super) through: Arc<AtomicU64>,
    /// The number of the first message that was taken behind everything that former owners are known to have had in hand.
    past_known_from: Option<u64>,
    /// What former owners have left; none until it is asked for.
    pub(super) inherited: Option<Inherited>,
    pub(super) gate: Gate,
    pub(super) conversations: Conversations<Held>,
    /// Messages of no conversation that are to begin.
    pub(super) apart: Vec<Held>,
    /// Events whose deferred evaluations are to be made.
    pub(super) owed: OwedEvents,
    /// The first undone message was noted.
    pub(super) noted: bool,
    /// It was noted before: handle one by one what may have been under way then.
    pub(super) careful: bool,
}

/// Reads the event in `incoming` as `trust` admits it, or says why it must be given up.
pub(super) fn read(incoming: &Incoming, trust: &Trust) -> Result<Event, Verdict> {
    incoming.event(trust).map_err(|error| {
        metrics::counter!("nexus_hook_refused_total", "reason" => error.reason()).increment(1);
        Verdict::new(error.reason(), error.to_string())
    })
}

impl Held {
    /// A message that is given up, whatever conversation it may be of.
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

    /// Whether a former owner may have handled the message, which was stored before the partition was taken: it comes up to
    /// `named`, the highest event that a record may be of, or up to where messages are stored to have been handed out, or
    /// among the [`MAX_PAST_FLOOR`] messages behind both that may have been in hand. A message that is read again
    /// counts as of when it was handed out.
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
