//! Partition that this replica owns, as its handler uses it.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};

use crate::model::position::{PositionStanding, StreamPlace, StreamPosition};
use crate::wire::session_mark::{GroupMember, LeaseRecord};
use crate::wire::settled::{PartitionFloor, SettledSet};
use crate::wire::topology::{PARTITIONS, buckets, partition_filter};

use super::super::connect::Bus;
use super::super::error::{CasError, ReadStreamError};
use super::super::floor::Floor;
use super::super::kv::Kv;
use super::super::message::IncomingMessage;
use super::super::position;
use super::super::writer::run_name;
use super::ended_runs::find_ended_runs;
use super::floors::{PartitionFloorStore, carry_floor, floor_name};
use super::reading::{PULL_EXPIRES, PartitionReader};
use super::tenure::{LeaseDeadline, LeaseTenure, PartitionLease};

/// A partition that this replica owns until [`OwnedPartition::next`] returns `None`.
pub struct OwnedPartition {
    /// Number of the partition.
    pub partition: u16,
    /// Epoch of the ownership; each owner has a higher one than the last.
    pub epoch: u64,
    /// Stream sequence up to which messages may have been handled by a former owner, or by this one before the
    /// partition was restarted: the handler must look up their done-markers.
    pub replay_through: u64,
    /// Sequence up to which former owners have handed out messages; they handed out at most
    /// [`MAX_PAST_FLOOR`](crate::wire::topology::MAX_PAST_FLOOR) messages of the partition beyond it. `None` if that
    /// is unknown: every message up to [`OwnedPartition::replay_through`] may have been handled.
    pub handed_through: Option<u64>,
    bus: Bus,
    stream: &'static str,
    attempts: Kv<LeaseRecord>,
    attempts_key: String,
    members: Kv<GroupMember>,
    group: &'static str,
    holder: String,
    deadline: LeaseDeadline,
    /// Source of the messages; `None` once it broke.
    reading: Option<PartitionReader>,
    /// Number of messages that were handed out.
    handed: u64,
    /// Record of settled messages; `None` if each message is acked to the server.
    floor: Option<Arc<Floor>>,
    /// Longest wait for the first message of an ownership, because a forgotten pull may have swallowed it; `None`
    /// afterwards.
    watchdog: Option<Duration>,
}

// By hand: the stream of messages has no `Debug`.
impl std::fmt::Debug for OwnedPartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedPartition")
            .field("partition", &self.partition)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl OwnedPartition {
    /// Returns the next message, in order. After `None` the handler must finish the messages in flight and return: the
    /// partition was given to another replica, has to be restarted, or the process stops.
    pub async fn next(&mut self) -> Option<IncomingMessage> {
        loop {
            let mut incoming = self.read_next().await?;
            let mark = (incoming.sequence, incoming.stored_at_ns);

            // Messages that a former owner has settled are skipped.
            if self.floor.as_ref().is_none_or(|floor| floor.hand_out(mark)) {
                self.handed += 1;
                incoming.consumer_sequence = self.handed;
                return Some(incoming);
            }
        }
    }

    /// Returns the next message of the partition, settled or not.
    async fn read_next(&mut self) -> Option<IncomingMessage> {
        if let Some(floor) = &self.floor {
            tokio::select! {
                biased;
                () = self.deadline.stop.cancelled() => return None,
                () = floor.wait_room() => {}
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
                tracing::debug!(partition = self.partition, "no message since the take-over; restarting");
                return None;
            }
        };

        // A message arrived, so none was swallowed.
        self.watchdog = None;

        // The wait may have taken longer than the lease lasts.
        if !self.deadline.is_live() {
            return None;
        }

        match message {
            Ok(incoming) => Some(incoming),
            Err(error) => {
                tracing::debug!(partition = self.partition, %error, "restarted");
                if let Some(reading) = self.reading.take() {
                    reading.delete_consumer();
                }
                None
            }
        }
    }

    /// Returns a handle that shows whether the partition is still owned, for work outside the handler.
    #[must_use]
    pub fn lease(&self) -> PartitionLease {
        PartitionLease(self.deadline.clone())
    }

    /// Returns whether this replica may still act on the partition.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.deadline.is_live() && !self.deadline.stop.is_cancelled()
    }

    /// Stores that the message at `place` is about to be tried (`None` = no message is in progress), and returns the
    /// number of runs of processes that have tried it: this one, and those that have ended since. Needed for messages up
    /// to [`OwnedPartition::replay_through`], whose handling may have killed a former owner; only for those, because it
    /// costs a write per message. If another run has tried the message, it takes a moment to learn whether that one
    /// lives.
    ///
    /// # Errors
    /// Returns [`CasError`] if it cannot be stored.
    pub async fn note_attempt(&self, place: Option<StreamPlace>) -> Result<u32, CasError> {
        let (before, _) = self.attempts.find(&self.attempts_key).await?;
        let run = run_name();
        let before = before.filter(|noted| noted.in_progress == place);

        // A run that has noted the message before has lost its lease since, and the message has not ended it; nor has it
        // ended another run that lives.
        let mut others = before.map_or_else(Vec::new, |noted| noted.runs);
        others.retain(|other| *other != run);
        let mut runs = match place {
            Some(_) => find_ended_runs(&self.members, self.group, others).await?,
            None => Vec::new(),
        };
        runs.push(run);

        let tried = u32::try_from(runs.len()).unwrap_or(u32::MAX);
        let record = LeaseRecord {
            holder: self.holder.clone(),
            epoch: self.epoch,
            in_progress: place,
            runs,
            released: false,
            session: String::new(),
        };

        self.attempts.put(&self.attempts_key, &record).await?;
        Ok(tried)
    }

    /// Returns a reader for messages of the partition that were handed out before.
    #[must_use]
    pub fn reread_source(&self) -> RedeliverySource {
        RedeliverySource {
            bus: self.bus.clone(),
            stream: self.stream,
            floor: self.floor.clone(),
        }
    }

    /// The bus that the partition is on.
    #[must_use]
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }
}

/// Reads messages of an owned partition again, for an owner that kept only their sequences.
#[derive(Debug, Clone)]
pub struct RedeliverySource {
    bus: Bus,
    stream: &'static str,
    floor: Option<Arc<Floor>>,
}

impl RedeliverySource {
    /// Reads the message at `sequence`, which was message number `handed` of this holding; it must be settled as if it
    /// came for the first time. Returns `None` if the message is gone from the stream; it is settled then. Also
    /// returns `None` if the server keeps the partition's progress: the server redelivers those messages itself.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn read(&self, sequence: u64, handed: u64) -> Result<Option<IncomingMessage>, ReadStreamError> {
        let Some(floor) = &self.floor else {
            return Ok(None);
        };

        match self.bus.at_sequence(self.stream, sequence).await? {
            Some(stored) => Ok(Some(IncomingMessage::from_reread(
                stored,
                self.stream,
                handed,
                Arc::clone(floor),
            ))),
            None => {
                floor.settle_message(sequence);
                Ok(None)
            }
        }
    }
}

/// Starts the partition of `tenure` at its floor; `generation` is the number of starts before this one.
pub(super) async fn begin_partition(
    tenure: &Arc<LeaseTenure>,
    floor: Option<&Arc<Floor>>,
    generation: u32,
) -> Result<OwnedPartition, String> {
    let LeaseTenure {
        bus,
        group,
        floors,
        partition,
        epoch,
        deadline,
    } = tenure.as_ref();

    let (reading, handed_through) = match floor {
        None => (PartitionReader::at_ack_floor(tenure).await?, None),
        Some(floor) => {
            let (start, handed_through) = start(tenure, floors, floor).await?;
            (
                PartitionReader::begin_behind(tenure, floor, start, generation).await?,
                handed_through,
            )
        }
    };

    // Messages up to this sequence may have been handled by a former owner.
    let state = bus
        .stream_state(group.stream)
        .await
        .map_err(|error| error.to_string())?;

    // If all owners share one consumer, a former owner's pull may still be open at the server.
    let may_be_swallowed = generation == 0 && floor.is_none();
    Ok(OwnedPartition {
        partition: *partition,
        epoch: *epoch,
        replay_through: state.last,
        handed_through,
        bus: bus.clone(),
        stream: group.stream,
        attempts: bus.kv(buckets::ATTEMPTS),
        attempts_key: format!("attempts.{}.{partition}", group.name),
        members: bus.kv(buckets::MEMBERS),
        group: group.name,
        holder: group.instance.clone(),
        deadline: deadline.clone(),
        reading: Some(reading),
        handed: 0,
        floor: floor.cloned(),
        watchdog: may_be_swallowed.then_some(PULL_EXPIRES + Duration::from_secs(1)),
    })
}

/// Returns the sequence after which the partition of `tenure` starts, and the sequence up to which former owners have
/// handed out messages, if the leader confirms it. A void floor is reported and replaced: the partition then starts
/// with its first message, and the records show which work is done.
async fn start(
    tenure: &Arc<LeaseTenure>,
    floors: &PartitionFloorStore,
    floor: &Floor,
) -> Result<(u64, Option<u64>), String> {
    let LeaseTenure {
        bus, group, partition, ..
    } = tenure.as_ref();
    let what = floor_name(group.name, *partition);
    let found = bus.stream_info(group.stream).await.map_err(|error| error.to_string())?;

    let mut stored = floors.read(*partition).await.map_err(|error| error.to_string())?;
    // The stream was created again: the floors must be moved to positions in the new one.
    if stored
        .as_ref()
        .is_some_and(|stored| stored.at.incarnation != found.incarnation)
    {
        floors.carry_floors(&found).await.map_err(|error| error.to_string())?;
        stored = floors.read(*partition).await.map_err(|error| error.to_string())?;
    }

    // This process may know more than the store: it writes its floor only at intervals.
    let own = Some(floor.progress_to_store()).filter(|own| own.read.sequence > 0);
    let own = own.map(|own| carry_floor(&own, &found).unwrap_or(own));

    let candidates = start_candidates(own, stored.clone());
    let mut why = "";
    for candidate in &candidates {
        let standing = bus.check_position(group.stream, &candidate.at).await;
        match standing.map_err(|error| error.to_string())? {
            PositionStanding::Holds => {}
            PositionStanding::Void(reason) => {
                why = reason;
                continue;
            }
        }

        // The floor and the read position are checked apart, because a restore may void only the newer one.
        let sequence = candidate.at.sequence;
        let standing = if candidate.read == candidate.at {
            Ok(PositionStanding::Holds)
        } else {
            bus.check_position(group.stream, &candidate.read).await
        };

        return Ok(match standing.map_err(|error| error.to_string())? {
            PositionStanding::Holds => {
                position::told_sound(&what);
                floor.begin_behind(candidate, None);
                (sequence, Some(candidate.read.sequence))
            }
            // The settled sequences may belong to other messages now.
            PositionStanding::Void(reason) => {
                position::told_void(&what, group.stream, &candidate.read, reason);
                floor.begin_behind(&candidate.without_settled(), stored.as_ref());
                (sequence, None)
            }
        });
    }

    // No position holds: the partition is read from the beginning, and records tell which work was done.
    if let Some(void) = candidates.first() {
        position::told_void(&what, group.stream, &void.at, why);
    }

    let at = StreamPosition {
        incarnation: found.incarnation,
        sequence: 0,
        stored_at_ns: 0,
    };
    let begun = PartitionFloor {
        read: at.clone(),
        at,
        settled: SettledSet::default(),
    };

    floor.begin_behind(&begun, stored.as_ref());
    Ok((0, None))
}

/// Returns the floors at which a partition may start, best first, from its owner's count and the stored floor.
fn start_candidates(own: Option<PartitionFloor>, stored: Option<PartitionFloor>) -> Vec<PartitionFloor> {
    match (own, stored) {
        (Some(own), Some(stored)) if own.at.incarnation == stored.at.incarnation => {
            let together = own.with(&stored);
            let lower = if own.at.sequence < stored.at.sequence {
                own
            } else {
                stored
            };

            vec![together, lower]
        }
        (own, stored) => {
            let mut all: Vec<PartitionFloor> = [own, stored].into_iter().flatten().collect();
            all.sort_by_key(|candidate| std::cmp::Reverse(candidate.at.sequence));
            all
        }
    }
}

/// Returns the number of messages of `group`'s partitions of `stream`, kept [`super::SettledOutcome::ByOwner`], that are not
/// settled yet according to the stored floors.
///
/// # Errors
/// Returns [`ReadStreamError`] if the server cannot be asked.
pub async fn count_unsettled(bus: &Bus, stream: &str, group: &str) -> Result<u64, ReadStreamError> {
    let floors = PartitionFloorStore::new(bus, group);
    let mut sum = 0;
    for partition in 0..PARTITIONS {
        let from = match floors.read(partition).await? {
            Some(floor) if bus.check_position(stream, &floor.at).await?.holds() => floor.at.sequence + 1,
            Some(_) | None => 1,
        };
        let config = pull::Config {
            filter_subject: partition_filter(stream, partition),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: from },
            ack_policy: AckPolicy::None,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: Duration::from_secs(1),
            ..pull::Config::default()
        };

        // The number of messages pending for a new consumer is the count; it is never pulled, and the server removes
        // it.
        let made = bus.jetstream.create_consumer_on_stream(config, stream).await;
        let made = made.map_err(|error| ReadStreamError::Unavailable {
            stream: stream.to_owned(),
            detail: error.to_string(),
        })?;

        sum += made.cached_info().num_pending;
    }

    Ok(sum)
}
