//! Source of an owned partition's messages: a consumer of its own, or a [`StreamTap`] on a reader of the
//! whole stream.
//!
//! The source changes from the consumer to the tap without leaving out a message. The tap is asked first, and passes
//! on everything after some sequence. Then the stream's leader returns the partition's last message up to now (a
//! consumer knows only its own server's state, which may be older). Once that message is read, or one at the tap's
//! first sequence, the tap has the rest. If the tap drops the partition, a new consumer is created after the last
//! message read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::wire::topology::partition_filter;

use super::super::fanout::{StreamTap, TakenSubjects};
use super::super::floor::Floor;
use super::super::link;
use super::super::message::{IncomingMessage, MessageAcker};
use super::tenure::LeaseTenure;

/// How long the server holds a pull; pulls of a former owner may stay open this long after a take-over.
pub(super) const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// Interval of the heartbeats of an idle pull.
const PULL_HEARTBEAT: Duration = Duration::from_millis(1_500);
/// Time without a pull after which the server removes a consumer that was created for one holding. Longer than an
/// owner with slow work takes no message; short enough that the consumers of owners that crash again and again do not
/// pile up.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);
/// Minimum time between two requests to the tap, each of which creates a consumer.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Messages of a partition, in order.
pub(super) struct PartitionReader {
    place: ReadPlace,
    from: ConsumerOrigin,
}

/// Position up to which a partition was read.
struct ReadPlace {
    tenure: Arc<LeaseTenure>,
    /// Record of settled messages; `None` if each message is acked to the server.
    floor: Option<Arc<Floor>>,
    /// Sequence of the last message that was read, or after which reading started.
    last: u64,
    connections: watch::Receiver<u64>,
    /// Number of earlier starts of the partition in this holding.
    generation: u32,
    /// Number of consumers created since then.
    made: u32,
    /// Time of the last request to the tap.
    asked_at: Instant,
}

/// Source of the next message.
enum ConsumerOrigin {
    /// A consumer of this partition alone.
    Own(Box<OwnConsumer>),
    /// A consumer that is being created.
    Opening(JoinHandle<Result<ConsumerOrigin, String>>),
    /// The reader of the whole stream.
    Tap(TakenSubjects),
}

/// A consumer of the partition alone.
struct OwnConsumer {
    /// Name of the consumer; `None` for the durable one that all owners share.
    name: Option<String>,
    messages: pull::Stream,
    /// Consumer sequence that the next message must have.
    expected: u64,
    /// Tap that takes over after the message of this sequence, or the first one beyond it.
    then: Option<(u64, TakenSubjects)>,
}

/// Reason why there is no next message: the partition must be restarted.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenReading {
    #[error("the connection was lost")]
    Connection,
    #[error("pull failed: {0}")]
    Pull(String),
    #[error("sequence gap: expected {expected}, got {found}")]
    Elsewhere { found: u64, expected: u64 },
}

impl PartitionReader {
    /// Starts at the ack floor of the durable consumer.
    pub(super) async fn at_ack_floor(tenure: &Arc<LeaseTenure>) -> Result<Self, String> {
        let place = ReadPlace::new(tenure, None, 0, 0);
        let own = OwnConsumer {
            name: None,
            messages: messages_of(tenure, &reset(tenure).await?).await?,
            expected: 1,
            then: None,
        };

        Ok(Self {
            place,
            from: ConsumerOrigin::Own(Box::new(own)),
        })
    }

    /// Starts after `start`, for the time number `generation` in this holding.
    pub(super) async fn begin_behind(
        tenure: &Arc<LeaseTenure>,
        floor: &Arc<Floor>,
        start: u64,
        generation: u32,
    ) -> Result<Self, String> {
        let mut place = ReadPlace::new(tenure, Some(floor), start, generation);
        let from = place.open(true).await.map_err(|error| error.to_string())??;
        Ok(Self { place, from })
    }

    /// Returns the next message. Dropping the future while it waits loses no message.
    pub(super) async fn next(&mut self) -> Result<IncomingMessage, BrokenReading> {
        loop {
            self.go_over();

            match &mut self.from {
                ConsumerOrigin::Opening(opening) => {
                    let made = opening.await.unwrap_or_else(|error| Err(error.to_string()));
                    self.from = made.map_err(BrokenReading::Pull)?;
                }
                ConsumerOrigin::Own(_) => {
                    if let Some(incoming) = self.next_message().await? {
                        return Ok(incoming);
                    }
                }
                ConsumerOrigin::Tap(taken) => match taken.next().await {
                    // The tap may pass on messages that the consumer has returned already.
                    Some(incoming) if incoming.sequence > self.place.last => {
                        self.place.last = incoming.sequence;
                        return Ok(incoming);
                    }
                    Some(_) => {}
                    None => {
                        let may_ask = self.place.may_ask();
                        self.from = ConsumerOrigin::Opening(self.place.open(may_ask));
                    }
                },
            }
        }
    }

    /// Drops the reader, and deletes its consumer on the server.
    pub(super) fn delete_consumer(self) {
        if let ConsumerOrigin::Own(own) = self.from
            && let Some(name) = own.name
        {
            delete_consumer(&self.place.tenure, name);
        }
    }

    /// Changes to the tap if the consumer has no message left that the tap lacks.
    fn go_over(&mut self) {
        let ConsumerOrigin::Own(own) = &mut self.from else {
            return;
        };
        let last = self.place.last;
        let Some((_, taken)) = own.then.take_if(|(after, _)| last >= *after) else {
            return;
        };
        if let Some(name) = own.name.take() {
            delete_consumer(&self.place.tenure, name);
        }
        self.from = ConsumerOrigin::Tap(taken);
    }

    /// Returns the next message of the own consumer, or `None` if there is none yet or another consumer is created
    /// first.
    async fn next_message(&mut self) -> Result<Option<IncomingMessage>, BrokenReading> {
        let ConsumerOrigin::Own(own) = &mut self.from else {
            return Ok(None);
        };

        // Only a reader that is not on its way to the tap already asks for it.
        let place = &mut self.place;
        let taps = place.tenure.group.tap.is_some() && own.then.is_none();
        let message = tokio::select! {
            biased;
            message = own.messages.next() => message,
            () = link::stands_anew(&mut place.connections) => return Err(BrokenReading::Connection),
            () = crate::clock::pause(ASK_AGAIN), if taps => {
                self.ask_again();
                return Ok(None);
            }
        };

        let mut incoming = match message {
            Some(Ok(message)) => {
                IncomingMessage::new(message).ok_or_else(|| BrokenReading::Pull("no message".to_owned()))?
            }
            Some(Err(error)) => return Err(BrokenReading::Pull(error.to_string())),
            None => return Err(BrokenReading::Pull("it has ended".to_owned())),
        };
        let (found, expected) = (incoming.consumer_sequence, own.expected);
        // The consumer counts without a gap: any other number means a lost or foreign message.
        if found != expected {
            return Err(BrokenReading::Elsewhere { found, expected });
        }

        own.expected += 1;

        if let Some(floor) = &place.floor {
            // A server that has not received the start sequence yet starts at its own end.
            if incoming.sequence <= place.last {
                return Ok(None);
            }
            incoming.acker = MessageAcker::Floor(Arc::clone(floor));
        }

        place.last = incoming.sequence;

        // The consumer is at the end, so the tap may be able to take over without a gap.
        if taps && incoming.pending == 0 {
            self.ask_again();
        }

        Ok(Some(incoming))
    }

    /// Creates a new consumer, and asks the tap before that, if there is a tap that keeps up.
    fn ask_again(&mut self) {
        let place = &mut self.place;
        let keeps_up = place.tenure.group.tap.as_ref().is_some_and(StreamTap::keeps_up);
        if !keeps_up || !place.may_ask() {
            return;
        }

        let opening = ConsumerOrigin::Opening(place.open(true));
        if let ConsumerOrigin::Own(own) = std::mem::replace(&mut self.from, opening)
            && let Some(name) = own.name
        {
            delete_consumer(&self.place.tenure, name);
        }
    }
}

impl ReadPlace {
    fn new(tenure: &Arc<LeaseTenure>, floor: Option<&Arc<Floor>>, start: u64, generation: u32) -> Self {
        Self {
            tenure: Arc::clone(tenure),
            floor: floor.cloned(),
            last: start,
            connections: tenure.bus.link.connections(),
            generation,
            made: 0,
            asked_at: tenure.group.clock.monotonic(),
        }
    }

    /// Returns whether the last request to the tap is at least [`ASK_AGAIN`] ago.
    fn may_ask(&self) -> bool {
        let now = self.tenure.group.clock.monotonic();
        now.saturating_duration_since(self.asked_at) >= ASK_AGAIN
    }

    /// Opens the source of the messages after the last one read; asks the tap first if `asks`.
    fn open(&mut self, asks: bool) -> JoinHandle<Result<ConsumerOrigin, String>> {
        // Connections from now on count as new.
        self.connections.mark_unchanged();
        let (tenure, last) = (Arc::clone(&self.tenure), self.last);
        let name = format!(
            "{}-{}-{}-{}-{}",
            tenure.group.name, tenure.partition, tenure.epoch, self.generation, self.made
        );

        // A name is used once: the server may still know the consumer of an earlier attempt.
        self.made += 1;
        let mut taken = None;
        if asks {
            self.asked_at = tenure.group.clock.monotonic();
            let both = tenure.group.tap.as_ref().zip(self.floor.as_ref());
            taken = both.and_then(|(tap, floor)| tap.take(tenure.partition, floor));
        }

        tokio::spawn(async move {
            let mut then = None;
            if let Some(taken) = taken {
                // Messages up to this sequence come from a consumer, later ones from the tap.
                let after = last_stored(&tenure).await?.min(taken.from);
                if after <= last {
                    return Ok(ConsumerOrigin::Tap(taken));
                }
                then = Some((after, taken));
            }

            let consumer = make_consumer(&tenure, &name, last).await?;
            Ok(ConsumerOrigin::Own(Box::new(OwnConsumer {
                messages: messages_of(&tenure, &consumer).await?,
                name: Some(name),
                expected: 1,
                then,
            })))
        })
    }
}

/// Returns the sequence of the partition's last message according to the stream's leader; 0 if there is none.
async fn last_stored(tenure: &LeaseTenure) -> Result<u64, String> {
    let stream = tenure.group.stream;
    let filter = partition_filter(stream, tenure.partition);
    let last = tenure.bus.last_on_subject(stream, &filter).await;
    Ok(last.map_err(|error| error.to_string())?.map_or(0, |last| last.sequence))
}

/// Deletes the consumer `name`, which is no longer pulled. If that fails, the server removes it after
/// [`FORGOTTEN_AFTER`].
fn delete_consumer(tenure: &Arc<LeaseTenure>, name: String) {
    let tenure = Arc::clone(tenure);
    tokio::spawn(async move {
        let (bus, stream) = (&tenure.bus, tenure.group.stream);
        if let Err(error) = bus.jetstream.delete_consumer_from_stream(&name, stream).await {
            tracing::debug!(name, %error, "leaving the former consumer to expire");
        }
    });
}

/// Pulls the messages of `consumer`.
async fn messages_of(tenure: &LeaseTenure, consumer: &PullConsumer) -> Result<pull::Stream, String> {
    consumer
        .stream()
        .max_messages_per_batch(tenure.group.batch)
        .expires(PULL_EXPIRES)
        .heartbeat(PULL_HEARTBEAT)
        .messages()
        .await
        .map_err(|error| error.to_string())
}

/// Resets the partition's durable consumer to its ack floor, and returns it.
async fn reset(tenure: &LeaseTenure) -> Result<PullConsumer, String> {
    let LeaseTenure {
        bus, group, partition, ..
    } = tenure;
    let name = format!("{}-{partition}", group.name);
    let stream = bus
        .jetstream
        .get_stream_no_info(group.stream)
        .await
        .map_err(|error| error.to_string())?;

    stream
        .reset_consumer(&name, None)
        .await
        .map_err(|error| error.to_string())?;

    bus.jetstream
        .get_consumer_from_stream(&name, group.stream)
        .await
        .map_err(|error| error.to_string())
}

/// Creates the consumer `name` for this holding alone, after `last`. The server removes it some time after the last
/// pull.
async fn make_consumer(tenure: &LeaseTenure, name: &str, last: u64) -> Result<PullConsumer, String> {
    let LeaseTenure {
        bus, group, partition, ..
    } = tenure;

    // Each holding has a consumer of its own, in the server's memory: a former owner's pull cannot swallow a
    // successor's messages, and the server writes no state file for it.
    let config = pull::Config {
        name: Some(name.to_owned()),
        filter_subject: partition_filter(group.stream, *partition),
        deliver_policy: if last == 0 {
            DeliverPolicy::All
        } else {
            DeliverPolicy::ByStartSequence {
                start_sequence: last + 1,
            }
        },
        ack_policy: AckPolicy::None,
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: FORGOTTEN_AFTER,
        ..pull::Config::default()
    };

    bus.jetstream
        .create_consumer_on_stream(config, group.stream)
        .await
        .map_err(|error| error.to_string())
}
