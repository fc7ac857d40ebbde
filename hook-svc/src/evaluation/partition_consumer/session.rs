//! One ownership of one partition: its messages in memory, and the events that wait.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use shared::bus::IncomingMessage;
use shared::bus::dead_letter::MessageVerdict;
use shared::bus::partition::{OwnedPartition, RedeliverySource};
use shared::model::event::Event;
use shared::wire::seal::TrustKeys;
use shared::wire::topology::MAX_PAST_FLOOR;
use tokio::sync::OwnedSemaphorePermit;

use super::deferred_events::{DeferredEvent, DeferredEvents};
use crate::evaluation::conversations::{ConversationQueues, MessageNumbers};
use crate::evaluation::order::ConversationHash;
use crate::evaluation::order_gate::OrderGate;
use crate::evaluation::redelivery_check::RedeliveryCheck;
use crate::evaluation::task::EventTask;

/// A message that is kept in memory.
pub(super) struct BufferedMessage {
    pub(super) work: MessageWork,
    /// Conversation of the message; `None` if it has none.
    pub(super) conversation: Option<ConversationHash>,
}

/// A task of a partition.
pub(super) enum PartitionJob {
    /// Handle a message to its end, with or without one of the shared places.
    Perform(Box<BufferedMessage>, Option<OwnedSemaphorePermit>),
    /// Read a message of this conversation again.
    Read(ConversationHash, MessageNumbers, Box<RedeliverySource>),
}

/// A message that was read again, and its memory permit.
pub(super) type RereadMessage = (IncomingMessage, OwnedSemaphorePermit);

/// Result of a job.
pub(super) enum JobOutcome {
    /// A message was handled, except for the evaluations that its event owes.
    Performed(Option<ConversationHash>, Option<Box<DeferredEvent>>),
    /// A message was read again; `None` if it is gone.
    Read(ConversationHash, Option<Box<RereadMessage>>),
}

/// Work on one message.
pub(super) enum MessageWork {
    Event(Box<EventTask>),
    /// A message to give up, with its memory permit.
    Dead(Box<(IncomingMessage, MessageVerdict, OwnedSemaphorePermit)>),
}

/// One ownership of one partition.
pub(super) struct PartitionSession {
    pub(super) partition: u16,
    pub(super) replay_through: u64,
    /// Sequence up to which former owners have handed messages out; `None` if unknown.
    handed_through: Option<u64>,
    /// Highest sequence taken so far, for the records.
    pub(super) through: Arc<AtomicU64>,
    /// Number of the first message beyond everything that former owners are known to have taken.
    past_known_from: Option<u64>,
    /// State that former owners have left; `None` until it is read.
    pub(super) inherited: Option<RedeliveryCheck>,
    pub(super) gate: OrderGate,
    pub(super) conversations: ConversationQueues<BufferedMessage>,
    /// Messages of no conversation that are about to begin.
    pub(super) apart: Vec<BufferedMessage>,
    /// Events whose deferred evaluations must be made.
    pub(super) owed: DeferredEvents,
    /// Whether the first undone message was noted.
    pub(super) noted: bool,
    /// Whether it was noted before, so that messages that may have been under way then are handled one by one.
    pub(super) careful: bool,
}

/// Reads the event in `incoming` as `trust` admits it. Returns the reason for the dead letter if that fails.
pub(super) fn read(incoming: &IncomingMessage, trust: &TrustKeys) -> Result<Arc<Event>, MessageVerdict> {
    incoming.read_event(trust).map_err(|error| {
        metrics::counter!("nexus_hook_refused_total", "reason" => error.reason()).increment(1);
        MessageVerdict::new(error.reason(), error.to_string())
    })
}

impl BufferedMessage {
    /// Creates an entry for a message that is given up, regardless of its conversation.
    pub(super) fn given_up(incoming: IncomingMessage, verdict: MessageVerdict, memory: OwnedSemaphorePermit) -> Self {
        Self {
            work: MessageWork::Dead(Box::new((incoming, verdict, memory))),
            conversation: None,
        }
    }
}

impl PartitionSession {
    pub(super) fn of_partition(owned: &OwnedPartition, per_conversation: usize) -> Self {
        Self {
            partition: owned.partition,
            replay_through: owned.replay_through,
            handed_through: owned.handed_through,
            through: Arc::default(),
            past_known_from: None,
            inherited: None,
            gate: OrderGate::default(),
            conversations: ConversationQueues::new(per_conversation),
            apart: Vec::new(),
            owed: DeferredEvents::default(),
            noted: false,
            careful: false,
        }
    }

    /// Returns whether a former owner may have handled the message, which was stored before the partition was taken.
    /// That is the case up to `named` (the highest event that a record may belong to), up to the stored position of
    /// messages handed out, and for the next [`MAX_PAST_FLOOR`] messages, which may have been under way. A message that
    /// is read again counts by the time when it was first handed out.
    pub(super) fn may_be_done(&mut self, incoming: &IncomingMessage, named: Option<u64>) -> bool {
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
