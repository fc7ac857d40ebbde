//! An owned partition, as its handler sees it.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};

use crate::wire::session_mark::LeaseRecord;
use crate::wire::topology::{PARTITIONS, buckets, partition_filter};

use super::super::connect::Bus;
use super::super::error::{CasError, ReadStreamError};
use super::super::kv::Kv;
use super::super::message::Incoming;
use super::floor::{Floor, Floors};
use super::lease::{Deadline, Tenure};
use super::reading::{PULL_EXPIRES, Reading};

/// A partition that this replica owns until [`Owned::next`] answers none.
pub struct Owned {
    /// Which one.
    pub partition: u16,
    /// Counts up with every owner.
    pub epoch: u64,
    /// Messages up to this stream sequence may have been handled by a former owner, or by this one before the
    /// partition was begun anew: look for their done-marks.
    pub replay_through: u64,
    bus: Bus,
    attempts: Kv<LeaseRecord>,
    attempts_key: String,
    holder: String,
    deadline: Deadline,
    /// None once it broke.
    reading: Option<Reading>,
    /// Messages that were handed out.
    handed: u64,
    /// Where settled messages are noted; none = the server is told.
    floor: Option<Arc<Floor>>,
    /// The first seconds of an ownership: a forgotten pull may have swallowed what should have come first.
    watchdog: Option<Duration>,
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owned")
            .field("partition", &self.partition)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Owned {
    /// The next message, in order. None = take no more: finish what is in flight and return; the partition was
    /// given to another, has to be begun anew, or the process stops.
    pub async fn next(&mut self) -> Option<Incoming> {
        if let Some(floor) = &self.floor {
            tokio::select! {
                biased;
                () = self.deadline.stop.cancelled() => return None,
                () = floor.room() => {}
            }
        }
        let watchdog = self.watchdog;
        let patience = async move {
            match watchdog {
                Some(patience) => crate::clock::pause(patience).await,
                None => std::future::pending().await,
            }
        };
        let reading = self.reading.as_mut()?;
        let message = tokio::select! {
            biased;
            () = self.deadline.stop.cancelled() => return None,
            message = reading.next() => message,
            () = patience => {
                tracing::debug!(partition = self.partition, "nothing came since the take-over, begun anew");
                return None;
            }
        };
        self.watchdog = None;
        if !self.deadline.is_live() {
            return None;
        }
        let mut incoming = match message {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::debug!(partition = self.partition, %error, "begun anew");
                if let Some(reading) = self.reading.take() {
                    reading.forget();
                }
                return None;
            }
        };
        self.handed += 1;
        incoming.consumer_sequence = self.handed;
        if let Some(floor) = &self.floor {
            floor.given(incoming.sequence);
        }
        Some(incoming)
    }

    /// Whether this replica may still act on the partition.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.deadline.is_live() && !self.deadline.stop.is_cancelled()
    }

    /// Notes durably that the message at `sequence` is about to be tried, and answers how often it was: for messages
    /// up to [`Owned::replay_through`] whose handling may have killed a former owner. One write each, so only there.
    ///
    /// # Errors
    /// [`CasError`] where it cannot be noted.
    pub async fn attempt(&self, sequence: u64) -> Result<u32, CasError> {
        let (before, _) = self.attempts.find(&self.attempts_key).await?;
        let tried = before
            .filter(|noted| noted.in_progress == sequence)
            .map_or(0, |noted| noted.unclean);
        let record = LeaseRecord {
            holder: self.holder.clone(),
            epoch: self.epoch,
            in_progress: sequence,
            unclean: tried + 1,
            released: false,
        };
        self.attempts.put(&self.attempts_key, &record).await?;
        Ok(tried + 1)
    }

    /// The bus it came from.
    #[must_use]
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }
}

/// Begins the partition of `tenure` at its floor; `generation` counts how often that was done before.
pub(super) async fn begin(tenure: &Arc<Tenure>, floor: Option<&Arc<Floor>>, generation: u32) -> Result<Owned, String> {
    let Tenure {
        bus,
        group,
        floors,
        partition,
        epoch,
        deadline,
    } = tenure.as_ref();
    let reading = match floor {
        None => Reading::at_ack_floor(tenure).await?,
        Some(floor) => {
            let stored = match floors.read(*partition).await.map_err(|error| error.to_string())? {
                0 => kept_by_server(tenure).await?,
                stored => stored,
            };
            Reading::behind(tenure, floor, floor.begin(stored), generation).await?
        }
    };
    let state = bus
        .stream_state(group.stream)
        .await
        .map_err(|error| error.to_string())?;
    // A former owner's pull may still stand, where there is one consumer for all owners.
    let may_be_swallowed = generation == 0 && floor.is_none();
    Ok(Owned {
        partition: *partition,
        epoch: *epoch,
        replay_through: state.last,
        bus: bus.clone(),
        attempts: bus.kv(buckets::ATTEMPTS),
        attempts_key: format!("attempts.{}.{partition}", group.name),
        holder: group.instance.clone(),
        deadline: deadline.clone(),
        reading: Some(reading),
        handed: 0,
        floor: floor.cloned(),
        watchdog: may_be_swallowed.then_some(PULL_EXPIRES + Duration::from_secs(1)),
    })
}

/// How many messages of `group`'s partitions of `stream`, settled [`super::Settled::ByOwner`], are not settled yet as far
/// as is stored.
///
/// # Errors
/// [`ReadStreamError`] where the server cannot be asked.
pub async fn unsettled(bus: &Bus, stream: &str, group: &str) -> Result<u64, ReadStreamError> {
    let floors = Floors::new(bus, group);
    let mut sum = 0;
    for partition in 0..PARTITIONS {
        let from = floors.read(partition).await? + 1;
        let config = pull::Config {
            filter_subject: partition_filter(stream, partition),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from },
            ack_policy: AckPolicy::None,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: Duration::from_secs(1),
            ..pull::Config::default()
        };
        // What a new consumer has before it is the count; nobody pulls it, and it is forgotten.
        let made = bus.jetstream.create_consumer_on_stream(config, stream).await;
        let made = made.map_err(|error| ReadStreamError::Unavailable {
            stream: stream.to_owned(),
            detail: error.to_string(),
        })?;
        sum += made.cached_info().num_pending;
    }
    Ok(sum)
}

/// The ack floor of the partition's durable consumer, where data was begun with one.
async fn kept_by_server(tenure: &Tenure) -> Result<u64, String> {
    let Tenure {
        bus, group, partition, ..
    } = tenure;
    let name = format!("{}-{partition}", group.name);
    match bus.ack_floor(group.stream, &name).await {
        Ok(floor) => Ok(floor.unwrap_or(0)),
        Err(error) => Err(error.to_string()),
    }
}
