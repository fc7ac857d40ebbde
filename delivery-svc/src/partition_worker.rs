//! The worker of one partition: it receives messages, runs works side by side, and follows the order of the lanes.
//!
//! All works of a partition run in one task, so that one busy account uses at most one core and no locks. Two limits
//! bound the messages that are pulled: the works that run, and the unacknowledged messages.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use shared::bus::IncomingMessage;
use shared::bus::dead_letter::MessageVerdict;
use shared::bus::partition::OwnedPartition;
use shared::clock::pause;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::envelope::DecodeError;
use shared::wire::headers::{DISPATCH, MSG_ID};
use shared::wire::topology::MAX_PAST_FLOOR;
use tokio::sync::Semaphore;

use crate::deliverer::{DeliveryProgress, PartitionDeliverer};
use crate::destination::Destination;
use crate::effects::DelivererContext;
use crate::job::{DeliveryJob, SERVICE};
use crate::keyed_queue::{KeyedQueue, LaneWork};
use crate::parked_drain::{drain_destination, list_parked};
use crate::repair_pause::{REPAIR_PAUSE, wait};

/// Maximum number of unacknowledged messages per partition, which is the server's limit.
const MAX_HELD: usize = MAX_PAST_FLOOR.unsigned_abs() as usize;

/// Interval of progress acks for waiting messages; well below the consumer's ack wait.
const PROGRESS_EVERY: Duration = Duration::from_secs(15);

/// The limits of a worker.
#[derive(Debug, Clone, Copy)]
pub struct WorkerBounds {
    /// Maximum number of deliveries that run at once in one partition.
    pub in_flight: usize,
    /// Maximum time for running works to end when the partition is given up.
    pub drain: Duration,
}

/// A message with its decoded delivery.
struct Message {
    incoming: IncomingMessage,
    job: DeliveryJob,
    /// Whether no process can have started the delivery before.
    untried: bool,
}

/// The end of a work.
enum Ended {
    Delivered(Destination, u64),
    Failed(Destination, Arc<Message>),
    Stored(Destination, u64),
    Drained(Destination),
    /// The partition is given up; the message is unchanged.
    Interrupted,
}

/// Works on one partition until it is taken away or the process stops.
pub async fn run_partition(
    owned: OwnedPartition,
    outfit: Arc<DelivererContext>,
    parked_slots: Arc<Semaphore>,
    bounds: WorkerBounds,
) {
    let _typing = outfit
        .typing
        .own_partition(owned.partition, owned.lease(), outfit.clock.now());
    let deliverer = PartitionDeliverer::new(&outfit, owned.lease());
    let stop = ShutdownSignal::default();
    let mut desk = Desk {
        deliverer: &deliverer,
        parked_slots: &parked_slots,
        stop: &stop,
        replay_through: owned.replay_through,
        lanes: KeyedQueue::default(),
        held: HashSet::new(),
        works: FuturesUnordered::new(),
        drains: FuturesUnordered::new(),
    };

    // Destinations with parked replies must be known first: newer replies wait behind those.
    if desk.find_parked(&owned).await {
        desk.run(owned, bounds.in_flight).await;
    }

    // Running works end at their next wait, and no other starts.
    stop.trigger();
    desk.finish_under_way(bounds.drain).await;
}

struct Desk<'a> {
    deliverer: &'a PartitionDeliverer<'a>,
    parked_slots: &'a Semaphore,
    stop: &'a ShutdownSignal,
    replay_through: u64,
    lanes: KeyedQueue<Destination, Arc<Message>>,
    /// Sequences of the messages that are not settled.
    held: HashSet<u64>,
    works: FuturesUnordered<BoxFuture<'a, Ended>>,
    drains: FuturesUnordered<BoxFuture<'a, Ended>>,
}

impl<'a> Desk<'a> {
    /// Starts a drain for every destination that a former owner left parked. Returns `false` if the partition was
    /// lost.
    async fn find_parked(&mut self, owned: &OwnedPartition) -> bool {
        let partition = owned.partition;
        while owned.is_live() {
            match list_parked(self.deliverer.bus(), partition).await {
                Ok(found) => {
                    for destination in found {
                        let work = self.lanes.found_parked(&destination);
                        self.begin_works(&destination, [work]);
                    }
                    return true;
                }
                Err(error) => tracing::warn!(partition, %error, "failed to list parked replies; retrying"),
            }

            pause(REPAIR_PAUSE).await;
        }

        false
    }

    async fn run(&mut self, mut owned: OwnedPartition, in_flight: usize) {
        let mut progress = tokio::time::interval(PROGRESS_EVERY);
        loop {
            let has_room = self.works.len() < in_flight && self.held.len() < MAX_HELD;
            tokio::select! {
                Some(ended) = self.works.next(), if !self.works.is_empty() => self.handle_end(ended),
                Some(ended) = self.drains.next(), if !self.drains.is_empty() => self.handle_end(ended),
                incoming = owned.next(), if has_room => match incoming {
                    Some(incoming) => self.handle_arrival(incoming).await,
                    None => return,
                },
                _ = progress.tick() => self.show_progress().await,
            }
        }
    }

    /// Waits for the running works to end, at most for `deadline`. Starts no others.
    async fn finish_under_way(&mut self, deadline: Duration) {
        let Self { works, drains, .. } = self;
        let all = futures_util::future::join(async { while works.next().await.is_some() {} }, async {
            while drains.next().await.is_some() {}
        });
        if tokio::time::timeout(deadline, all).await.is_err() {
            tracing::warn!(
                works = works.len(),
                drains = drains.len(),
                "deliveries interrupted; the next owner resumes them"
            );
        }
    }

    async fn handle_arrival(&mut self, incoming: IncomingMessage) {
        if self.held.contains(&incoming.sequence) {
            // The ack wait passed and the server sent a copy. The first one is still running and will be
            // acknowledged.
            return incoming.send_progress().await;
        }

        let Some(destination) = Destination::of_delivery(&incoming.subject) else {
            return self
                .dead_letter(
                    &incoming,
                    &MessageVerdict::new("malformed", "not a subject of a delivery"),
                )
                .await;
        };

        match DeliveryJob::read(destination, incoming.place(), &incoming.headers, &incoming.payload) {
            Ok(job) => {
                self.held.insert(incoming.sequence);
                let untried = incoming.sequence > self.replay_through && incoming.delivered <= 1;
                let destination = job.destination.clone();
                let message = Arc::new(Message { incoming, job, untried });
                let work = self.lanes.on_arrival(&destination, message);
                self.begin_works(&destination, work);
            }
            Err(error) => self.dead_letter(&incoming, &unreadable(&error)).await,
        }
    }

    /// Stores the message as a dead letter. If that fails, it stays unacknowledged and is delivered again.
    async fn dead_letter(&mut self, incoming: &IncomingMessage, verdict: &MessageVerdict) {
        match self
            .deliverer
            .bus()
            .dead_letter(SERVICE, incoming, verdict, self.deliverer.now())
            .await
        {
            Ok(()) => incoming.ack().await,
            Err(error) => {
                tracing::error!(
                    delivery_id = incoming.headers.get(MSG_ID), event_id = incoming.headers.event_id(),
                    subject = %incoming.subject, sequence = incoming.sequence, %error, "failed to store a dead letter"
                );
                incoming.nak(Some(PROGRESS_EVERY)).await;
            }
        }
    }

    fn handle_end(&mut self, ended: Ended) {
        match ended {
            Ended::Delivered(destination, sequence) => {
                self.held.remove(&sequence);
                let work = self.lanes.on_delivered(&destination);
                self.begin_works(&destination, work);
            }
            Ended::Failed(destination, message) => {
                let work = self.lanes.on_failed(&destination, message);
                self.begin_works(&destination, [work]);
            }
            Ended::Stored(destination, sequence) => {
                self.held.remove(&sequence);
                let works = self.lanes.on_stored(&destination);
                self.begin_works(&destination, works.into_iter().flatten());
            }
            Ended::Drained(destination) => {
                let work = self.lanes.on_drained(&destination);
                self.begin_works(&destination, work);
            }
            Ended::Interrupted => {}
        }
    }

    fn begin_works(&mut self, destination: &Destination, works: impl IntoIterator<Item = LaneWork<Arc<Message>>>) {
        for work in works {
            let (deliverer, stop) = (self.deliverer, self.stop);
            match work {
                LaneWork::Deliver(message) => self.works.push(Box::pin(deliver_or_park(deliverer, message, stop))),
                LaneWork::Park(message) => self.works.push(Box::pin(park_message(deliverer, message, stop))),
                LaneWork::Drain => {
                    let (destination, slots) = (destination.clone(), self.parked_slots);
                    self.drains.push(Box::pin(async move {
                        let empty = drain_destination(deliverer, &destination, slots, stop).await;
                        if empty {
                            Ended::Drained(destination)
                        } else {
                            Ended::Interrupted
                        }
                    }));
                }
            }
        }
    }

    async fn show_progress(&mut self) {
        metrics::gauge!("nexus_delivery_parked_destinations").set(count(self.lanes.parked_count()));
        let queued: Vec<_> = self.lanes.queued_messages().cloned().collect();
        for message in queued {
            message.incoming.send_progress().await;
        }
    }
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn unreadable(error: &DecodeError) -> MessageVerdict {
    MessageVerdict::new(error.reason(), error.to_string())
}

/// Delivers `message`, or returns that it must be parked. Retries after errors of the bus.
async fn deliver_or_park(deliverer: &PartitionDeliverer<'_>, message: Arc<Message>, stop: &ShutdownSignal) -> Ended {
    let job = &message.job;
    let mut untried = message.untried;
    while !stop.is_requested() {
        let standing = match deliverer.find_standing(job, untried).await {
            // The state is read from the receipts for each attempt: another process may have advanced it.
            Ok(standing) => deliverer.advance_job(job, standing).await,
            Err(error) => Err(error.into()),
        };
        match standing {
            Ok(DeliveryProgress::Settled) => {
                message.incoming.ack().await;
                let waited = deliverer.now().since(message.incoming.published_at).max(0);
                let waited = Duration::from_millis(waited.unsigned_abs());
                metrics::histogram!("nexus_delivery_seconds").record(waited.as_secs_f64());
                return Ended::Delivered(job.destination.clone(), job.place.sequence);
            }
            // A destination that fails must not hold back the others: its replies are parked.
            Ok(DeliveryProgress::Later(_)) => return Ended::Failed(job.destination.clone(), Arc::clone(&message)),
            Err(error) => {
                tracing::warn!(
                    delivery_id = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
                    dispatch_id = message.incoming.headers.get(DISPATCH), error = %error, "delivery restarted"
                );
                // The failed attempt may have made the call.
                untried = false;
                wait(REPAIR_PAUSE, stop).await;
            }
        }
    }

    Ended::Interrupted
}

/// Stores `message` on its destination's parked subject and acknowledges it.
async fn park_message(deliverer: &PartitionDeliverer<'_>, message: Arc<Message>, stop: &ShutdownSignal) -> Ended {
    let job = &message.job;
    while !stop.is_requested() {
        match deliverer.bus().publish(job.parked_copy()).await {
            Ok(_) => {
                message.incoming.ack().await;
                metrics::counter!("nexus_delivery_parked_total").increment(1);
                return Ended::Stored(job.destination.clone(), job.place.sequence);
            }
            Err(error) => {
                tracing::error!(
                    delivery_id = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
                    dispatch_id = message.incoming.headers.get(DISPATCH), error = %error, "failed to park a reply"
                );
                wait(REPAIR_PAUSE, stop).await;
            }
        }
    }

    Ended::Interrupted
}
