//! Whether an event is done already: by its record, by its age, by the first occurrence of its id.

use std::sync::atomic::Ordering;

use shared::model::invocation::EventInvocations;
use shared::wire::subject;
use shared::wire::topology::streams::INVOCATIONS;

use crate::error::HandleEventError;
use crate::evaluation::evaluator::{EventEvaluator, EventOutcome, StoredMarker};
use crate::evaluation::redelivery_check::{RedeliveryCheck, outlives_records};
use crate::evaluation::task::EventTask;

impl EventEvaluator {
    /// Returns the end of `task`'s event if no hook is called for it now: it was handled before, its id occurred before, or
    /// its record may be gone. `again`: an earlier attempt failed half-way.
    pub(super) async fn ended_before(
        &self,
        task: &EventTask,
        again: bool,
    ) -> Result<Option<EventOutcome>, HandleEventError> {
        let meters = &self.performer.meters;
        match self.stored_marker(task, again).await? {
            StoredMarker::None => {}
            StoredMarker::Done => {
                meters.already_done.increment(1);
                return Ok(Some(EventOutcome::Done));
            }
            StoredMarker::Owes(hooks) => {
                // Decides in the order of the conversation, as in the first attempt.
                task.place.wait_turn().await;
                task.place.decide_owed(hooks.clone());
                task.place.narrow_to([]);
                task.settle_change();
                return Ok(Some(EventOutcome::Deferred(hooks)));
            }
        }

        if task.is_shown() && self.is_late_duplicate(task).await {
            meters.late_duplicates.increment(1);
            return Ok(Some(EventOutcome::Done));
        }

        let is_beyond = self.is_beyond_records(task).await?;
        Ok(is_beyond.then_some(EventOutcome::Done))
    }

    /// Returns the stored state of a redelivered event. After an earlier attempt here, it is read from the leader.
    async fn stored_marker(&self, task: &EventTask, again: bool) -> Result<StoredMarker, HandleEventError> {
        match task.inherited {
            None => Ok(StoredMarker::None),
            Some(_) if task.marker_read => Ok(StoredMarker::None),
            Some(_) if again => self.read_marker(task).await,
            Some(inherited) => self.marker_of(task, inherited).await,
        }
    }

    /// Returns the state that a former owner, who left `inherited`, has stored for the event.
    pub(crate) async fn marker_of(
        &self,
        task: &EventTask,
        inherited: RedeliveryCheck,
    ) -> Result<StoredMarker, HandleEventError> {
        if inherited.has_no_record(&task.event.id, &self.model).await {
            return Ok(StoredMarker::None);
        }
        self.read_marker(task).await
    }

    async fn read_marker(&self, task: &EventTask) -> Result<StoredMarker, HandleEventError> {
        let Some(record) = self.record_of(task).await? else {
            return Ok(StoredMarker::None);
        };
        let owed: Vec<String> = record.deferred_hooks().map(str::to_owned).collect();
        Ok(if owed.is_empty() {
            StoredMarker::Done
        } else {
            StoredMarker::Owes(owed)
        })
    }

    /// Returns the last record of the event, read from the leader. An event that is sent again after `EVENTS` was
    /// restored has another sequence and its old record; one that an operator republished counts only the record of
    /// that message.
    pub(crate) async fn record_of(&self, task: &EventTask) -> Result<Option<EventInvocations>, HandleEventError> {
        let subject = subject::invocation(task.partition, &task.key);
        let Some(stored) = self.performer.bus.last_on_subject(INVOCATIONS, &subject).await? else {
            return Ok(None);
        };

        match stored.decode::<EventInvocations>() {
            Ok(record) if task.is_redriven() && record.event_seq != task.sequence => Ok(None),
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                tracing::warn!(event_id = %task.event.id, %error, "failed to read an event's record; evaluating the event again");
                Ok(None)
            }
        }
    }

    /// Returns whether the event is so old that its record may have expired, so that it is unknown whether it was
    /// evaluated. Such events are counted and logged but not evaluated: a partition that starts over would otherwise
    /// repeat the costs and replies of its whole history. Uses the server's clock, by which records expire.
    async fn is_beyond_records(&self, task: &EventTask) -> Result<bool, HandleEventError> {
        let stored_at = task.incoming.published_at;
        let now = self.clock.now();
        if task.is_redriven() || !outlives_records(stored_at, now) {
            return Ok(false);
        }

        // This machine's clock may be wrong: the server's decides.
        let server = self.performer.bus.server_clock(self.clock.as_ref()).await?;
        if !outlives_records(stored_at, now.plus(server.ahead_ms)) {
            return Ok(false);
        }

        let meters = &self.performer.meters;
        meters.beyond_records.increment(1);

        let settled = self.beyond_records.fetch_add(1, Ordering::Relaxed) + 1;
        // A backlog may have millions of such events.
        if settled.is_power_of_two() {
            tracing::error!(
                event_id = %task.event.id, sequence = task.sequence, partition = task.partition, settled,
                "events are older than their records are kept; settling them without evaluation"
            );
        } else {
            tracing::debug!(event_id = %task.event.id, sequence = task.sequence, "event settled without evaluation");
        }

        Ok(true)
    }

    /// Returns whether the id first occurred at another sequence: the read model also knows ids beyond the server's
    /// duplicate window. A dead letter that an operator republishes is meant to be evaluated.
    async fn is_late_duplicate(&self, task: &EventTask) -> bool {
        if task.is_redriven() {
            return false;
        }

        let is_first = self.model.is_first(&task.event.id, task.sequence).await;
        if !is_first {
            tracing::debug!(event_id = %task.event.id, sequence = task.sequence, "duplicate event");
        }
        !is_first
    }
}
