//! Where an owned partition's messages come from: a consumer of its own, or a [`Tap`](crate::bus::Tap) on somebody who
//! reads the stream whole.
//!
//! It goes over to the tap where that leaves no message out: the tap is asked first, and passes on everything behind some
//! sequence; then the stream's leader says which message of the partition is the last one up to now (a consumer would say
//! what its own server knows, which may be less). Once that one is read, or one at that sequence, the tap has the rest.
//! Let go by the tap, it makes a consumer again, behind what it has read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::wire::topology::partition_filter;

use super::super::link;
use super::super::message::{Acker, Incoming};
use super::super::tap::{Taken, Tap};
use super::floor::Floor;
use super::lease::Tenure;

/// How long the server holds a pull: longer ones of a former owner may still stand after a take-over.
pub(super) const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// How often an idle pull shows that it lives.
const PULL_HEARTBEAT: Duration = Duration::from_millis(1_500);
/// After how long without a pull the server forgets a consumer that was made for one holding: longer than an owner takes
/// no message because all it has are slow, short enough that those of owners that crash again and again do not pile up.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);
/// Least time between two questions to the tap, each of which makes a consumer.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// A partition's messages, in order.
pub(super) struct Reading {
    place: Place,
    from: Origin,
}

/// How far a partition was read.
struct Place {
    tenure: Arc<Tenure>,
    /// Where settled messages are noted; none = the server is told.
    floor: Option<Arc<Floor>>,
    /// The last message that was read, or where reading began.
    last: u64,
    connections: watch::Receiver<u64>,
    /// How often the partition was begun in this holding before.
    generation: u32,
    /// Consumers that were made since.
    made: u32,
    /// When the tap was asked last.
    asked_at: Instant,
}

/// Where the next message comes from.
enum Origin {
    /// A consumer of the partition alone.
    Own(Box<Own>),
    /// One that is being made.
    Opening(JoinHandle<Result<Origin, String>>),
    /// Whoever reads the whole stream.
    Tap(Taken),
}

/// A consumer of the partition alone.
struct Own {
    /// None where it is there for all owners.
    name: Option<String>,
    messages: pull::Stream,
    /// The consumer sequence of the next message.
    expected: u64,
    /// What comes after the message of this sequence, or one behind it.
    then: Option<(u64, Taken)>,
}

/// Why there is no next message: the partition is to be begun anew.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenReading {
    #[error("the connection was lost")]
    Connection,
    #[error("the pull is broken: {0}")]
    Pull(String),
    #[error("a message went elsewhere: {found} came where {expected} was expected")]
    Elsewhere { found: u64, expected: u64 },
}

impl Reading {
    /// Begins at the durable consumer's ack floor.
    pub(super) async fn at_ack_floor(tenure: &Arc<Tenure>) -> Result<Self, String> {
        let place = Place::new(tenure, None, 0, 0);
        let own = Own {
            name: None,
            messages: messages_of(tenure, &reset(tenure).await?).await?,
            expected: 1,
            then: None,
        };

        Ok(Self {
            place,
            from: Origin::Own(Box::new(own)),
        })
    }

    /// Begins behind `start`, for the time number `generation` in this holding.
    pub(super) async fn behind(
        tenure: &Arc<Tenure>,
        floor: &Arc<Floor>,
        start: u64,
        generation: u32,
    ) -> Result<Self, String> {
        let mut place = Place::new(tenure, Some(floor), start, generation);
        let from = place.open(true).await.map_err(|error| error.to_string())??;
        Ok(Self { place, from })
    }

    /// The next message. Whoever drops this while it waits loses nothing.
    pub(super) async fn next(&mut self) -> Result<Incoming, BrokenReading> {
        loop {
            self.go_over();

            match &mut self.from {
                Origin::Opening(opening) => {
                    let made = opening.await.unwrap_or_else(|error| Err(error.to_string()));
                    self.from = made.map_err(BrokenReading::Pull)?;
                }
                Origin::Own(_) => {
                    if let Some(incoming) = self.pull().await? {
                        return Ok(incoming);
                    }
                }
                Origin::Tap(taken) => match taken.next().await {
                    Some(incoming) if incoming.sequence > self.place.last => {
                        self.place.last = incoming.sequence;
                        return Ok(incoming);
                    }
                    Some(_) => {}
                    None => {
                        let may_ask = self.place.may_ask();
                        self.from = Origin::Opening(self.place.open(may_ask));
                    }
                },
            }
        }
    }

    /// The server need not keep what this was read from.
    pub(super) fn forget(self) {
        if let Origin::Own(own) = self.from
            && let Some(name) = own.name
        {
            forget(&self.place.tenure, name);
        }
    }

    /// Goes over to the tap where the consumer has nothing more that the tap has not.
    fn go_over(&mut self) {
        let Origin::Own(own) = &mut self.from else { return };
        let last = self.place.last;
        let Some((_, taken)) = own.then.take_if(|(after, _)| last >= *after) else {
            return;
        };
        if let Some(name) = own.name.take() {
            forget(&self.place.tenure, name);
        }
        self.from = Origin::Tap(taken);
    }

    /// The next message of the own consumer; none where there is none yet, or another consumer is made first.
    async fn pull(&mut self) -> Result<Option<Incoming>, BrokenReading> {
        let Origin::Own(own) = &mut self.from else {
            return Ok(None);
        };

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
            Some(Ok(message)) => Incoming::new(message).ok_or_else(|| BrokenReading::Pull("no message".to_owned()))?,
            Some(Err(error)) => return Err(BrokenReading::Pull(error.to_string())),
            None => return Err(BrokenReading::Pull("it has ended".to_owned())),
        };
        let (found, expected) = (incoming.consumer_sequence, own.expected);
        if found != expected {
            return Err(BrokenReading::Elsewhere { found, expected });
        }

        own.expected += 1;

        if let Some(floor) = &place.floor {
            // A server that does not know the start yet begins at its own end.
            if incoming.sequence <= place.last {
                return Ok(None);
            }
            incoming.acker = Acker::Floor(Arc::clone(floor));
        }

        place.last = incoming.sequence;

        if taps && incoming.pending == 0 {
            self.ask_again();
        }

        Ok(Some(incoming))
    }

    /// Makes the consumer anew, the tap asked before, where there is one that keeps up.
    fn ask_again(&mut self) {
        let place = &mut self.place;
        let keeps_up = place.tenure.group.tap.as_ref().is_some_and(Tap::keeps_up);
        if !keeps_up || !place.may_ask() {
            return;
        }

        let opening = Origin::Opening(place.open(true));
        if let Origin::Own(own) = std::mem::replace(&mut self.from, opening)
            && let Some(name) = own.name
        {
            forget(&self.place.tenure, name);
        }
    }
}

impl Place {
    fn new(tenure: &Arc<Tenure>, floor: Option<&Arc<Floor>>, start: u64, generation: u32) -> Self {
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

    /// Whether the tap was not asked lately.
    fn may_ask(&self) -> bool {
        let now = self.tenure.group.clock.monotonic();
        now.saturating_duration_since(self.asked_at) >= ASK_AGAIN
    }

    /// What comes behind what was read; first the tap is asked, where `asks`.
    fn open(&mut self, asks: bool) -> JoinHandle<Result<Origin, String>> {
        self.connections.mark_unchanged();
        let (tenure, last) = (Arc::clone(&self.tenure), self.last);
        let name = format!(
            "{}-{}-{}-{}-{}",
            tenure.group.name, tenure.partition, tenure.epoch, self.generation, self.made
        );

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
                let after = stored(&tenure).await?.min(taken.from);
                if after <= last {
                    return Ok(Origin::Tap(taken));
                }
                then = Some((after, taken));
            }

            let consumer = make(&tenure, &name, last).await?;
            Ok(Origin::Own(Box::new(Own {
                messages: messages_of(&tenure, &consumer).await?,
                name: Some(name),
                expected: 1,
                then,
            })))
        })
    }
}

/// The last message of the partition, as the leader of its stream says; 0 = there is none.
async fn stored(tenure: &Tenure) -> Result<u64, String> {
    let stream = tenure.group.stream;
    let filter = partition_filter(stream, tenure.partition);
    let last = tenure.bus.last_on_subject(stream, &filter).await;
    Ok(last.map_err(|error| error.to_string())?.map_or(0, |last| last.sequence))
}

/// Has the server delete the consumer `name`, which nobody pulls any more; where that fails it forgets it soon.
fn forget(tenure: &Arc<Tenure>, name: String) {
    let tenure = Arc::clone(tenure);
    tokio::spawn(async move {
        let (bus, stream) = (&tenure.bus, tenure.group.stream);
        if let Err(error) = bus.jetstream.delete_consumer_from_stream(&name, stream).await {
            tracing::debug!(name, %error, "the former consumer is left to be forgotten");
        }
    });
}

/// What comes from `consumer`.
async fn messages_of(tenure: &Tenure, consumer: &PullConsumer) -> Result<pull::Stream, String> {
    consumer
        .stream()
        .max_messages_per_batch(tenure.group.batch)
        .expires(PULL_EXPIRES)
        .heartbeat(PULL_HEARTBEAT)
        .messages()
        .await
        .map_err(|error| error.to_string())
}

/// The partition's durable consumer, at its ack floor.
async fn reset(tenure: &Tenure) -> Result<PullConsumer, String> {
    let Tenure {
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

/// The consumer `name` of this holding alone, behind `last`; the server forgets it soon after nobody pulls it any more.
async fn make(tenure: &Tenure, name: &str, last: u64) -> Result<PullConsumer, String> {
    let Tenure {
        bus, group, partition, ..
    } = tenure;

    // Each holding has a consumer of its own, in the server's memory: a former owner's pull cannot swallow a successor's
    // messages, and the server writes no state file for it.
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
