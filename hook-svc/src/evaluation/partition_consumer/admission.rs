//! Admission of a message: whether a former owner may have worked on it, and whether it may have ended its owners.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use shared::bus::IncomingMessage;
use shared::bus::dead_letter::MessageVerdict;
use shared::bus::partition::OwnedPartition;
use shared::model::event::Event;
use shared::wire::seal::record_key;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::session::{MessageWork, PartitionSession};
use super::{MAX_UNCLEAN, PartitionConsumer};
use crate::error::HandleEventError;
use crate::evaluation::evaluator::StoredMarker;
use crate::evaluation::redelivery_check::RedeliveryCheck;
use crate::evaluation::retry_budget::UnreadTries;
use crate::evaluation::task::{EvaluationRound, EventTask, SharedPermits};

impl PartitionConsumer {
    /// Decides how to handle a message; returns `None` if it was done before.
    pub(super) async fn admit_message(
        &self,
        shift: &mut PartitionSession,
        owned: &OwnedPartition,
        event: Arc<Event>,
        incoming: IncomingMessage,
        memory: OwnedSemaphorePermit,
    ) -> Result<Option<MessageWork>, HandleEventError> {
        let inherited = self.former_work(shift, &incoming).await;
        shift.through.fetch_max(incoming.sequence, Ordering::Relaxed);
        let place = shift.gate.enter_event(&event);
        let partition = shift.partition;

        let mut task = EventTask {
            key: record_key(&event),
            event,
            sequence: incoming.sequence,
            partition,
            inherited,
            marker_read: false,
            through: Arc::clone(&shift.through),
            place,
            incoming,
            pass: EvaluationRound::First,
            lent: SharedPermits::new(Some(memory), &self.held_back),
            deferred: Mutex::default(),
            is_in_loop: OnceCell::new(),
            unread: UnreadTries::default(),
        };

        let Some(inherited) = inherited else {
            shift.careful = false;
            return Ok(Some(MessageWork::Event(Box::new(task))));
        };

        // Only the first undone message of an ownership is noted, unless care is taken.
        if shift.noted && !shift.careful {
            return Ok(Some(MessageWork::Event(Box::new(task))));
        }

        match self.evaluator.marker_of(&task, inherited).await? {
            StoredMarker::None => task.marker_read = true,
            // Its owed evaluations are made again, and may crash the owner like any other.
            StoredMarker::Owes(_) => {}
            StoredMarker::Done => {
                self.evaluator.performer.meters.already_done.increment(1);
                task.incoming.ack().await;
                return Ok(None);
            }
        }

        let tried = owned.note_attempt(Some(task.incoming.place())).await;
        let attempts = tried.map_err(HandleEventError::Attempt)?;
        shift.noted = true;
        shift.careful = attempts > 1;

        if attempts > MAX_UNCLEAN {
            let detail = format!(
                "event {}: hook-svc crashed {MAX_UNCLEAN} times while it evaluated the event",
                task.event.id
            );
            let verdict = MessageVerdict::new("kills_its_owner", detail);
            let memory = task.lent.take_memory();

            return Ok(memory.map(|memory| MessageWork::Dead(Box::new((task.incoming, verdict, memory)))));
        }

        Ok(Some(MessageWork::Event(Box::new(task))))
    }

    /// Returns the state that a former owner may have left for `incoming`; `None` if it cannot have handled the
    /// message.
    async fn former_work(&self, shift: &mut PartitionSession, incoming: &IncomingMessage) -> Option<RedeliveryCheck> {
        if incoming.sequence > shift.replay_through {
            return None;
        }

        let inherited = match shift.inherited {
            Some(inherited) => inherited,
            None => {
                let (bus, model) = (&self.evaluator.performer.bus, &self.evaluator.model);
                let asked = RedeliveryCheck::of_former_owners(bus, model, shift.partition).await;
                // Records from now on show a successor as much as the former ones did.
                shift
                    .through
                    .fetch_max(asked.highest_sequence().unwrap_or(0), Ordering::Relaxed);
                *shift.inherited.insert(asked)
            }
        };

        shift
            .may_be_done(incoming, inherited.highest_sequence())
            .then_some(inherited)
    }
}
