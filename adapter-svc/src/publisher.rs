//! The publisher: it sends encoded events to JetStream, one at a time per conversation, many conversations at once.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use shared::bus::{Bus, PublishError};
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::process::ShutdownSignal;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

use crate::attachments::note::FetchNotes;
use crate::encoded_event::EncodedEvent;
use crate::error::AcceptEventsError;
use crate::keyed_queue::KeyedQueue;
use crate::outbox::{DurableMark, EventSpool, SpoolKey};

/// Name of this service in dead letters.
const SERVICE: &str = "adapter-svc";
/// Number of spool entries read at once.
const PAGE_ENTRIES: usize = 128;
/// Wait before a missing stream or a failing disk is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The recipient of a publish's outcome.
enum Waiting {
    /// The spool, which removes the published entry.
    Spool(EventSpool, SpoolKey),
    /// A caller that waits for the outcome.
    Caller(oneshot::Sender<Result<(), PublishError>>),
}

/// A parcel with the recipient of its outcome.
struct Job {
    parcel: EncodedEvent,
    waiting: Waiting,
}

/// A handle to the task that publishes parcels. Clones share it.
#[derive(Debug, Clone)]
pub struct SpoolPublisher {
    jobs: mpsc::Sender<Job>,
}

impl SpoolPublisher {
    /// Starts publishing on `bus`, with at most `in_flight` parcels at once. The task ends once every [`SpoolPublisher`]
    /// is dropped and all parcels are published.
    #[must_use]
    pub fn start(bus: Bus, clock: SharedClock, in_flight: usize) -> (Self, tokio::task::JoinHandle<()>) {
        let (jobs, waiting) = mpsc::channel(in_flight);
        let notes = FetchNotes::new(&bus, Arc::clone(&clock));
        let desk = Arc::new(Desk { bus, clock, notes });
        (Self { jobs }, tokio::spawn(run_worker(desk, waiting, in_flight)))
    }

    /// Publishes `parcels` and waits until the stream has all of them.
    ///
    /// # Errors
    /// Returns the [`AcceptEventsError`] of the first parcel that failed. Those before it are stored, and may be sent
    /// again.
    pub async fn publish_all(&self, parcels: Vec<EncodedEvent>) -> Result<(), AcceptEventsError> {
        let mut answers = Vec::with_capacity(parcels.len());
        for parcel in parcels {
            let (done, answer) = oneshot::channel();
            let id = parcel.id.clone();
            let job = Job {
                parcel,
                waiting: Waiting::Caller(done),
            };

            self.jobs.send(job).await.map_err(|_| AcceptEventsError::Busy)?;
            answers.push((id, answer));
        }

        // All parcels are sent before the first outcome is awaited, so that they are published side by side.
        for (id, answer) in answers {
            let outcome = answer.await.map_err(|_| AcceptEventsError::Busy)?;
            outcome.map_err(|source| AcceptEventsError::NotStored { id, source })?;
        }

        Ok(())
    }

    /// Publishes the entries of the outbox in order, as they arrive; after `shutdown`, until the outbox is empty.
    pub async fn drain_spool(self, outbox: EventSpool, shutdown: ShutdownSignal) {
        let mut durable = outbox.watch_durable();
        let mut at = DurableMark {
            generation: 0,
            through: SpoolKey::default(),
        };

        let mut after = None;
        loop {
            let known = *durable.borrow_and_update();
            if known.generation != at.generation {
                // The store was opened (again): its entries may include removed ones, and publishing those again has
                // no effect.
                after = None;
            }

            at = known;

            let page = outbox
                .read_page(after, at.through, PAGE_ENTRIES)
                .unwrap_or_else(|error| {
                    // The keeper meets the same error at its next write and opens the store again.
                    tracing::error!(error = describe_error(&error), "failed to read the spool");
                    Vec::new()
                });

            if page.is_empty() {
                if shutdown.is_requested() {
                    return;
                }

                tokio::select! {
                    changed = durable.changed() => if changed.is_err() { return },
                    () = shutdown.requested() => {}
                }

                continue;
            }

            for (key, parcel) in page {
                after = Some(key);
                let job = Job {
                    parcel,
                    waiting: Waiting::Spool(outbox.clone(), key),
                };
                if self.jobs.send(job).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The context of publishing.
struct Desk {
    bus: Bus,
    clock: SharedClock,
    notes: FetchNotes,
}

async fn run_worker(desk: Arc<Desk>, mut jobs: mpsc::Receiver<Job>, in_flight: usize) {
    let mut lanes = KeyedQueue::default();
    let mut under_way: FuturesUnordered<BoxFuture<'static, String>> = FuturesUnordered::new();

    let mut open = true;
    // After the end of the input the rest is still published.
    while open || lanes.held_count() > 0 {
        tokio::select! {
            // Waiting items count too, so that a slow conversation cannot fill the memory.
            job = jobs.recv(), if open && lanes.held_count() < in_flight => match job {
                None => open = false,
                Some(job) => {
                    // A conversation is one lane: its events must be stored in their order.
                    let lane = job.parcel.lane().to_owned();
                    if let Some(job) = lanes.enqueue(&lane, job) {
                        under_way.push(Box::pin(Arc::clone(&desk).handle(job)));
                    }
                }
            },
            Some(lane) = under_way.next(), if !under_way.is_empty() => {
                if let Some(next) = lanes.finish_item(&lane) {
                    under_way.push(Box::pin(Arc::clone(&desk).handle(next)));
                }
            }
        }

        metrics::gauge!("nexus_adapter_publish_in_hand").set(lanes.held_count() as f64);
    }
}

impl Desk {
    /// Publishes one parcel and reports the outcome. Returns the lane that is free afterwards.
    async fn handle(self: Arc<Self>, job: Job) -> String {
        let Job { parcel, waiting } = job;
        match waiting {
            Waiting::Caller(done) => {
                let outcome = self
                    .bus
                    .publish(parcel.to_outgoing())
                    .await
                    .map(|published| count(published.duplicate));

                // The caller may be gone.
                let _ = done.send(outcome);
            }
            Waiting::Spool(outbox, key) => self.publish_entry(&outbox, &key, &parcel).await,
        }

        parcel.lane().to_owned()
    }

    /// Publishes a spool entry until the stream has it, or gives it up if the server refuses it for good.
    async fn publish_entry(&self, outbox: &EventSpool, key: &SpoolKey, parcel: &EncodedEvent) {
        if !parcel.note.is_settled() {
            self.settle_note(parcel).await;
        }
        loop {
            match self.bus.publish(parcel.to_outgoing()).await {
                Ok(published) => {
                    count(published.duplicate);
                    outbox.remove_entry(key, parcel);
                    return;
                }
                // The process is stopping; the entry stays in the spool.
                Err(PublishError::Closed { .. }) => return,
                Err(error) if error.may_pass() => {
                    tracing::warn!(error = describe_error(&error), event_id = %parcel.id, "failed to publish an event; it stays in the spool");
                    pause(TRY_AGAIN_AFTER).await;
                }
                Err(error) => return self.give_up(outbox, key, parcel, &error).await,
            }
        }
    }

    /// Makes what is left to be done about the note of a spool entry, before it is published.
    async fn settle_note(&self, parcel: &EncodedEvent) {
        while let Err(error) = self.notes.settle(parcel).await {
            let (error, may_pass) = (describe_error(&error), error.may_pass());
            tracing::warn!(error, event_id = %parcel.id, may_pass, "failed to note the files of an event in the spool");
            if !may_pass {
                return;
            }
            pause(TRY_AGAIN_AFTER).await;
        }
    }

    async fn give_up(&self, outbox: &EventSpool, key: &SpoolKey, parcel: &EncodedEvent, error: &PublishError) {
        let letter = parcel.dead_letter(SERVICE, error.to_string(), self.clock.now());
        match self.bus.dead_letter_record(letter).await {
            Ok(()) => outbox.remove_entry(key, parcel),
            Err(PublishError::Closed { .. }) => {}
            Err(second) => {
                tracing::error!(error = describe_error(&second), event_id = %parcel.id, "event rejected by the stream; quarantined in the spool");
                outbox.set_aside(key, parcel);
            }
        }
    }
}

fn count(duplicate: bool) {
    let outcome = if duplicate { "duplicate" } else { "stored" };
    metrics::counter!("nexus_adapter_published_total", "outcome" => outcome).increment(1);
}
