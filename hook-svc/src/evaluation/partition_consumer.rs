//! Owner of one partition: takes its messages in order, keeps several under way, settles each when its record is
//! stored.
//!
//! The events of a conversation wait only for each other (`conversations`): a hook that is slow for one conversation
//! delays that one alone. An event whose scripts wait, or that waits for an earlier one of its conversation, gives back
//! the resources that all events share; its author's places limit their number (`runner`), and hooks without a place
//! are called later (`owed_evaluations`).
//!
//! Three rules keep a partition from being blocked. A message that cannot be read becomes a dead letter at once. One
//! that keeps failing does so after some tries in place (so that its conversation's order holds and all others go on).
//! One that keeps killing its owner does so after some unclean take-overs. To find the killer among the messages under
//! way, the first undone one of every ownership is noted; if it was noted before, the messages that may have been under
//! way then are handled one by one, each noted before it is tried.

mod admission;
mod deferred_events;
mod owed_evaluations;
mod session;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use shared::bus::dead_letter::MessageVerdict;
use shared::bus::partition::{OwnedPartition, RedeliverySource};
use shared::bus::{IncomingMessage, PublishError};
use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::model::event::Event;
use shared::process::trace;
use shared::retry::RetryWaits;
use shared::wire::headers::TraceCarrier;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Instrument as _;

use self::deferred_events::DeferredEvent;
use self::session::{BufferedMessage, JobOutcome, MessageWork, PartitionJob, PartitionSession, read};
use crate::error::HandleEventError;
use crate::evaluation::conversations::{MessageNumbers, MessagePlacement, NextEvent};
use crate::evaluation::evaluator::{EventEvaluator, EventOutcome};
use crate::evaluation::order::ConversationHash;
use crate::evaluation::retry_budget::RetryBudget;
use crate::evaluation::task::{EvaluationRound, EventTask};

/// Name of this service in dead letters.
pub(crate) const SERVICE: &str = "hook-svc";

/// Number of runs of processes that have tried a message, and probably ended with it, after which it is given up.
const MAX_UNCLEAN: u32 = 3;

/// Wait before the second try in place; each further wait is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest wait between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Most events that this replica keeps in memory, over all partitions.
const MAX_IN_MEMORY: usize = 4_096;

/// Time limit for recording that the owner ended cleanly.
const NOTE: Duration = Duration::from_secs(1);

/// Owner of all partitions of this replica.
#[derive(Debug)]
pub(crate) struct PartitionConsumer {
    pub(crate) evaluator: EventEvaluator,
    /// Limits the events that this replica evaluates at once.
    in_flight: Arc<Semaphore>,
    /// Places of conversations that have many events under way: half of all, so that others find a free one.
    shared_places: Arc<Semaphore>,
    /// Limits the events that this replica keeps in memory.
    in_memory: Arc<Semaphore>,
    /// Memory of events that wait for an earlier one of their conversation whose script waits.
    held_back: Arc<Semaphore>,
    /// Most events of one conversation in memory.
    per_conversation: usize,
    /// Time limit for messages under way once the partition is given back.
    drain: Duration,
}

impl PartitionConsumer {
    /// Returns an owner that evaluates `in_flight` events at once, and keeps `per_conversation` of a conversation in
    /// memory. `drain`: how long messages under way may take to end once a partition is given back.
    pub(crate) fn new(evaluator: EventEvaluator, in_flight: usize, per_conversation: usize, drain: Duration) -> Self {
        Self {
            evaluator,
            in_flight: Arc::new(Semaphore::new(in_flight)),
            shared_places: Arc::new(Semaphore::new(in_flight / 2)),
            in_memory: Arc::new(Semaphore::new(MAX_IN_MEMORY)),
            held_back: Arc::new(Semaphore::new(MAX_IN_MEMORY)),
            per_conversation,
            drain,
        }
    }

    /// Handles `owned` until it ends.
    pub(crate) async fn run_partition(self: Arc<Self>, mut owned: OwnedPartition) {
        let mut shift = PartitionSession::of_partition(&owned, self.per_conversation);
        let mut running = FuturesUnordered::new();

        // Dropped at the end in any state: the next owner makes them again.
        let mut owing = FuturesUnordered::new();
        loop {
            // In careful mode messages run one by one, so that the one under way when the owner dies is known.
            let is_full = shift.careful && !running.is_empty();
            let came = tokio::select! {
                biased;
                Some(ended) = running.next(), if !running.is_empty() => {
                    self.after_job(&mut shift, &owned, ended).await
                }
                Some(made) = owing.next(), if !owing.is_empty() => Ok(Some(shift.owed.note_made(made))),
                came = self.next(&mut owned), if !is_full => match came {
                    Some((incoming, memory)) => self.take(&mut shift, &owned, incoming, memory).await,
                    None => break,
                },
            };

            let conversation = match came {
                Ok(conversation) => conversation,
                Err(error) => {
                    tracing::warn!(partition = shift.partition, %error, "restarting a partition");
                    break;
                }
            };

            let mut jobs = self.next_jobs(&mut shift, &owned, conversation);

            while let Some(owed) = conversation.and_then(|conversation| shift.owed.next(conversation)) {
                owing.push(self.make_owed(owed, shift.partition, Arc::clone(&shift.through), owned.reread_source()));
            }

            // Wakes conversations until one of them starts a job; when it ends, the loop wakes the next.
            while let Some(woken) = shift.owed.wake_waiting() {
                let of_woken = self.next_jobs(&mut shift, &owned, Some(woken));
                let goes_on = !of_woken.is_empty();
                jobs.extend(of_woken);
                if goes_on {
                    break;
                }
            }

            running.extend(jobs.into_iter().map(|job| self.perform_job(job)));
        }

        let drained = tokio::time::timeout(self.drain, async { while running.next().await.is_some() {} });
        if drained.await.is_err() {
            tracing::warn!(
                partition = shift.partition,
                events = running.len(),
                "leaving events in flight to the next owner"
            );
        }

        if shift.noted {
            let cleared = tokio::time::timeout(NOTE, owned.note_attempt(None));
            if !matches!(cleared.await, Ok(Ok(_))) {
                tracing::debug!(partition = shift.partition, "failed to record a clean end of ownership");
            }
        }
    }

    /// Returns the next message, once there is memory for it.
    async fn next(&self, owned: &mut OwnedPartition) -> Option<(IncomingMessage, OwnedSemaphorePermit)> {
        // The semaphore is never closed.
        let memory = Arc::clone(&self.in_memory).acquire_owned().await.ok()?;
        Some((owned.next().await?, memory))
    }

    /// Takes a message that has just arrived. Returns the conversation in which an event may begin now.
    async fn take(
        &self,
        shift: &mut PartitionSession,
        owned: &OwnedPartition,
        incoming: IncomingMessage,
        memory: OwnedSemaphorePermit,
    ) -> Result<Option<ConversationHash>, HandleEventError> {
        let event = match read(&incoming, self.evaluator.performer.bus.trust()) {
            Ok(event) => event,
            // A message that is no event becomes a dead letter; until then the floor must not pass it.
            Err(verdict) => {
                shift.apart.push(BufferedMessage::given_up(incoming, verdict, memory));
                return Ok(None);
            }
        };

        let conversation = ConversationHash::of_event(&event);
        let numbers = MessageNumbers {
            sequence: incoming.sequence,
            handed: incoming.consumer_sequence,
        };

        // Fewer are allowed while many events wait: a flood of one conversation must not take the room of others.
        let allowed = self.allowed_events(shift, conversation);
        match shift.conversations.place_message(conversation, numbers, allowed) {
            MessagePlacement::Numbers => {
                // Only the number is kept; the event itself is read again later.
                let numbers = shift.conversations.numbered_count();
                tracing::trace!(
                    partition = shift.partition,
                    numbers,
                    "event is read again when its conversation has room"
                );

                Ok(None)
            }
            MessagePlacement::Memory => {
                self.hold_event(shift, owned, conversation, event, incoming, memory)
                    .await?;
                Ok(Some(conversation))
            }
        }
    }

    /// Adds an event to those of its conversation that wait, unless it was done before.
    async fn hold_event(
        &self,
        shift: &mut PartitionSession,
        owned: &OwnedPartition,
        conversation: ConversationHash,
        event: Arc<Event>,
        incoming: IncomingMessage,
        memory: OwnedSemaphorePermit,
    ) -> Result<(), HandleEventError> {
        match self.admit_message(shift, owned, event, incoming, memory).await? {
            Some(work) => {
                let held = BufferedMessage {
                    work,
                    conversation: Some(conversation),
                };
                shift.conversations.hold_event(conversation, held);
            }
            None => tracing::trace!(partition = shift.partition, "event was done before"),
        }

        Ok(())
    }

    /// Records the end of a job. Returns the conversation in which an event may begin now.
    async fn after_job(
        &self,
        shift: &mut PartitionSession,
        owned: &OwnedPartition,
        ended: JobOutcome,
    ) -> Result<Option<ConversationHash>, HandleEventError> {
        let (conversation, read_again) = match ended {
            JobOutcome::Performed(None, _) => return Ok(None),
            JobOutcome::Performed(Some(conversation), owed) => {
                shift.conversations.note_ended(conversation);
                // Deferred hooks are called later, by a task of their own, so that the conversation goes on.
                if let Some(owed) = owed {
                    shift.owed.add(*owed);
                }
                return Ok(Some(conversation));
            }
            JobOutcome::Read(conversation, read_again) => (conversation, read_again),
        };

        shift.conversations.was_read(conversation);

        match read_again {
            None => tracing::debug!(partition = shift.partition, "event no longer in its stream"),
            // The message was readable before, so its conversation was known.
            Some(reread) => {
                let (incoming, memory) = *reread;
                match read(&incoming, self.evaluator.performer.bus.trust()) {
                    Ok(event) => {
                        self.hold_event(shift, owned, conversation, event, incoming, memory)
                            .await?;
                    }
                    Err(verdict) => shift.apart.push(BufferedMessage::given_up(incoming, verdict, memory)),
                }
            }
        }

        Ok(Some(conversation))
    }

    /// Returns the jobs that begin now: messages of no conversation, and those of `conversation` for which there is
    /// room.
    fn next_jobs(
        &self,
        shift: &mut PartitionSession,
        owned: &OwnedPartition,
        conversation: Option<ConversationHash>,
    ) -> Vec<PartitionJob> {
        // Messages that are no events belong to no conversation, and need not wait.
        let apart = std::mem::take(&mut shift.apart).into_iter();
        let mut jobs: Vec<PartitionJob> = apart.map(|held| PartitionJob::Perform(Box::new(held), None)).collect();
        let Some(conversation) = conversation else {
            return jobs;
        };

        let allowed = self.allowed_events(shift, conversation);
        let conversations = &mut shift.conversations;
        loop {
            let place = match conversations.next(conversation) {
                NextEvent::Nothing => break,
                NextEvent::Free => None,
                NextEvent::Place => match Arc::clone(&self.shared_places).try_acquire_owned() {
                    Ok(place) => Some(place),
                    Err(_) => break,
                },
            };

            if let Some(held) = conversations.start(conversation) {
                jobs.push(PartitionJob::Perform(Box::new(held), place));
            }
        }

        // Events of which only the number is kept are read as soon as there is room.
        if let Some(numbers) = conversations.read_next(conversation, allowed) {
            jobs.push(PartitionJob::Read(
                conversation,
                numbers,
                Box::new(owned.reread_source()),
            ));
        }

        conversations.forget_idle(conversation);
        jobs
    }

    /// Performs one job.
    async fn perform_job(&self, job: PartitionJob) -> JobOutcome {
        match job {
            PartitionJob::Perform(held, place) => {
                let BufferedMessage { work, conversation } = *held;
                let owed = match work {
                    MessageWork::Dead(given_up) => {
                        let (incoming, verdict, _memory) = &*given_up;
                        self.give_up(incoming, verdict).await;
                        None
                    }
                    MessageWork::Event(task) => self.finish_event(*task, place).await,
                };

                JobOutcome::Performed(conversation, owed.map(Box::new))
            }
            PartitionJob::Read(conversation, numbers, again) => {
                // The semaphore is never closed.
                let memory = Arc::clone(&self.in_memory).acquire_owned().await.ok();
                let incoming = self.read_again(numbers, &again).await;
                JobOutcome::Read(conversation, incoming.zip(memory).map(Box::new))
            }
        }
    }

    /// Reads a message again of which only the numbers were kept; returns `None` if it is gone.
    async fn read_again(&self, numbers: MessageNumbers, again: &RedeliverySource) -> Option<IncomingMessage> {
        let mut waits = RetryWaits::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            match again.read(numbers.sequence, numbers.handed).await {
                Ok(incoming) => return incoming,
                Err(error) => {
                    tracing::debug!(sequence = numbers.sequence, %error, "failed to read an event again; retrying");
                }
            }

            pause(waits.next_wait()).await;
        }
    }

    /// Evaluates an event to its end, with or without one of the shared places. Returns the evaluations that it owes.
    async fn finish_event(&self, task: EventTask, place: Option<OwnedSemaphorePermit>) -> Option<DeferredEvent> {
        // The semaphore is closed only after every partition has ended.
        let slot = Arc::clone(&self.in_flight).acquire_owned().await.ok()?;
        task.lent.begin_holding(slot, place);

        let meters = &self.evaluator.performer.meters;
        if matches!(task.pass, EvaluationRound::First) {
            let waited = self.evaluator.clock.now().since(task.incoming.published_at);
            meters.lag.record(waited.max(0) as f64 / 1_000.0);
        }

        meters.in_flight.increment(1.0);
        let began = self.evaluator.clock.monotonic();
        let from = task.incoming.carrier();
        let span = trace::consumer_span("hook.evaluate", &from);
        span.record("event_id", task.event.id.as_str());
        let carrier = trace::carrier_of(&span, &from);
        let deferred = self.try_until_done(&task, &carrier).instrument(span).await;
        meters.in_flight.decrement(1.0);
        meters
            .seconds
            .record(self.evaluator.clock.monotonic().duration_since(began).as_secs_f64());

        deferred.map(|hooks| DeferredEvent::from_task(task, hooks, self.evaluator.clock.monotonic()))
    }

    /// Tries `task` until it ends. Returns the hooks that are called later.
    async fn try_until_done(&self, task: &EventTask, carrier: &TraceCarrier) -> Option<Vec<String>> {
        let mut patience = RetryBudget::default();
        let mut again = false;

        let mut waits = RetryWaits::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let error = match self.evaluator.handle(task, again, carrier).await {
                Ok(EventOutcome::Deferred(hooks)) => return Some(hooks),
                Ok(EventOutcome::Done) => {
                    task.incoming.ack().await;
                    return None;
                }
                Err(error) => error,
            };

            // From now on the attempt must look for decisions of the one before.
            again = true;
            self.evaluator.performer.meters.again.increment(1);

            if error.is_stop() {
                return None;
            }

            // An absent server or copy says nothing against the event, so it does not use up the attempts.
            let ends = if error.is_absence() {
                patience.note_absence();
                false
            } else {
                let longest = self.evaluator.longest_timeout(&task.event);
                patience.is_over(self.evaluator.clock.monotonic(), longest)
            };

            let (detail, tries) = (describe_error(&error), patience.failed_tries());
            // An event that fails again and again would hold back its whole conversation.
            if ends {
                let detail = format!("event {}: {detail}", task.event.id);
                self.give_up(&task.incoming, &MessageVerdict::new("keeps_failing", detail))
                    .await;
                return None;
            }

            tracing::warn!(event_id = %task.event.id, tries, error = detail, "evaluation failed; retrying the event");
            pause(waits.next_wait()).await;
        }
    }

    /// Publishes the whole message as a dead letter, then terminates it.
    async fn give_up(&self, incoming: &IncomingMessage, verdict: &MessageVerdict) {
        self.evaluator.performer.meters.dead.increment(1);
        let event_id = incoming.headers.event_id();

        let mut waits = RetryWaits::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let bus = &self.evaluator.performer.bus;
            let letter = bus.dead_letter(SERVICE, incoming, verdict, self.evaluator.clock.now());
            match letter.await {
                Ok(()) => break,
                // The event itself stays in its stream; blocking all others would not help.
                Err(error @ PublishError::TooLarge { .. }) => {
                    tracing::error!(
                        event_id, sequence = incoming.sequence, %error, "dead letter is too large to store"
                    );
                    break;
                }
                Err(error) => {
                    tracing::error!(event_id, sequence = incoming.sequence, %error, "failed to store a dead letter; retrying");
                }
            }

            pause(waits.next_wait()).await;
        }

        incoming.term().await;
    }
}
