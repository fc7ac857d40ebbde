//! Floors of one group, if the owners keep them and not the server (`PartitionGroup::settled`).
//!
//! A durable consumer writes a file on the server several times a second and costs an ack per message. If every
//! message leaves a done-marker of its own, a floor is enough, together with the messages that are settled beyond it.
//! Owners keep both in memory and store them every second, all partitions of the group in one record, merged by
//! compare-and-set. A settled message stays settled while the stream is the same, so the merge keeps both records,
//! whichever replica wrote them. Each floor names its message ([`StreamPosition`](crate::model::position::StreamPosition)). If the
//! leader does not confirm that message, the floor is void, and the owner starts again and replaces it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::wire::session_mark::PartitionFloors;
use crate::wire::settled::PartitionFloor;
use crate::wire::topology::{PARTITIONS, buckets};

use super::super::connect::Bus;
use super::super::error::{CasError, ReadStreamError};
use super::super::floor::Floor;
use super::super::kv::Kv;
use super::super::position::told_sound;
use super::super::stream_info::StreamInfo;

/// Interval at which floors are stored.
const STORE_EVERY: Duration = Duration::from_secs(1);
/// Number of times that a store is repeated because another replica wrote first.
const MERGES: u32 = 8;

/// Returns the name of a partition's floor for log lines.
pub(super) fn floor_name(group: &str, partition: u16) -> String {
    format!("floor of {group}-{partition}")
}

/// Returns the key of the group's floors in the bucket `attempts`.
fn key_of(group: &str) -> String {
    format!("floors.{group}")
}

/// Returns the floors of all partitions of `group` from the leader; none are known of a group that has not begun.
///
/// # Errors
/// Returns [`ReadStreamError`] if the leader cannot be asked.
pub async fn read_floors(bus: &Bus, group: &str) -> Result<PartitionFloors, ReadStreamError> {
    let (record, _) = bus
        .kv::<PartitionFloors>(buckets::ATTEMPTS)
        .find(&key_of(group))
        .await?;
    Ok(record.unwrap_or_default())
}

/// Floors of one group, for the partitions that this replica holds.
#[derive(Debug)]
pub(super) struct PartitionFloorStore {
    kv: Kv<PartitionFloors>,
    group: String,
    key: String,
    held: Mutex<HashMap<u16, Arc<Floor>>>,
    soon: Arc<Notify>,
    /// Record that is stored, and its revision.
    stored: tokio::sync::Mutex<(PartitionFloors, u64)>,
}

/// Progress that one partition's owner has to store.
#[derive(Debug, Clone)]
struct ReachedFloor {
    partition: u16,
    floor: PartitionFloor,
    void: Option<PartitionFloor>,
}

/// Returns `record` completed with everything in `reached` that it lacks.
fn merge_reached(mut record: PartitionFloors, reached: &[ReachedFloor]) -> PartitionFloors {
    for ReachedFloor { partition, floor, void } in reached {
        if floor.read.sequence == 0 {
            continue;
        }

        if record.incarnation != floor.at.incarnation {
            // The other floors of the record count a stream that no longer exists.
            record = PartitionFloors {
                incarnation: floor.at.incarnation.clone(),
                ..PartitionFloors::default()
            };
        }

        let former = record
            .floor_of(*partition)
            .filter(|former| Some(former) != void.as_ref());
        let together = former
            .as_ref()
            .map_or_else(|| floor.clone(), |former| floor.with(former));
        if former.as_ref() != Some(&together) {
            record.set_floor(*partition, &together);
        }
    }

    record
}

/// Converts `floor`, which counts a former incarnation of the stream `found`, to the current incarnation. Returns
/// `None` if it counts no former incarnation of this stream, or if the floor lies beyond the copy that was restored.
pub(super) fn carry_floor(floor: &PartitionFloor, found: &StreamInfo) -> Option<PartitionFloor> {
    let through = found.lineage.through(&floor.at.incarnation)?;
    if floor.at.sequence > through {
        return None;
    }

    let mut carried = if floor.read.sequence > through {
        floor.without_settled()
    } else {
        floor.clone()
    };
    carried.at.incarnation.clone_from(&found.incarnation);
    carried.read.incarnation.clone_from(&found.incarnation);

    Some(carried)
}

/// Converts every floor of `record` as [`carry_floor`] does.
fn all_carried(record: &PartitionFloors, found: &StreamInfo) -> PartitionFloors {
    let mut all = PartitionFloors {
        incarnation: found.incarnation.clone(),
        ..PartitionFloors::default()
    };
    for partition in 0..PARTITIONS {
        let floor = record.floor_of(partition).and_then(|floor| carry_floor(&floor, found));
        if let Some(floor) = floor {
            all.set_floor(partition, &floor);
        }
    }

    all
}

impl PartitionFloorStore {
    pub(super) fn new(bus: &Bus, group: &str) -> Self {
        Self {
            kv: bus.kv(buckets::ATTEMPTS),
            group: group.to_owned(),
            key: key_of(group),
            held: Mutex::default(),
            soon: Arc::default(),
            stored: tokio::sync::Mutex::default(),
        }
    }

    fn lock_held(&self) -> MutexGuard<'_, HashMap<u16, Arc<Floor>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the floor of a partition that was just taken.
    pub(super) fn take(&self, partition: u16) -> Arc<Floor> {
        let floor = Arc::new(Floor::new(Arc::clone(&self.soon)));
        self.lock_held().insert(partition, Arc::clone(&floor));
        floor
    }

    /// Removes the floor of a partition that is no longer held.
    pub(super) fn forget_partition(&self, partition: u16) {
        self.lock_held().remove(&partition);
    }

    /// Returns the stored floor of `partition` from the leader, or `None` if nothing is stored.
    pub(super) async fn read(&self, partition: u16) -> Result<Option<PartitionFloor>, ReadStreamError> {
        let (record, _) = self.kv.find(&self.key).await?;
        Ok(record.and_then(|record| record.floor_of(partition)))
    }

    /// Converts the stored floors that count a former incarnation of the stream to the current one, `found` by the
    /// leader, as far as the restored copy reaches. Several replicas may do so at once.
    ///
    /// # Errors
    /// Returns [`CasError`] if the record cannot be asked or written. A write by another replica counts as ours.
    pub(super) async fn carry_floors(&self, found: &StreamInfo) -> Result<(), CasError> {
        let (record, revision) = self.kv.find(&self.key).await?;
        let Some(record) = record.filter(|record| found.lineage.through(&record.incarnation).is_some()) else {
            return Ok(());
        };
        match self.kv.update(&self.key, &all_carried(&record, found), revision).await {
            Ok(_) | Err(CasError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Stores floors every second, and sooner if a partition waits for it. Never returns.
    pub(super) async fn run_storing(&self) {
        loop {
            tokio::select! {
                () = crate::clock::pause(STORE_EVERY) => {}
                () = self.soon.notified() => {}
            }
            self.store_moved().await;
        }
    }

    /// Stores the floors that moved. If that fails, they are stored the next time.
    pub(super) async fn store_moved(&self) {
        let mut stored = self.stored.lock().await;
        let held: Vec<(u16, Arc<Floor>)> = self
            .lock_held()
            .iter()
            .map(|(partition, floor)| (*partition, Arc::clone(floor)))
            .collect();

        let reached: Vec<ReachedFloor> = held
            .iter()
            .map(|(partition, floor)| ReachedFloor {
                partition: *partition,
                floor: floor.progress_to_store(),
                void: floor.void_floor(),
            })
            .collect();

        for _ in 0..MERGES {
            let record = merge_reached(stored.0.clone(), &reached);
            if record == stored.0 {
                break;
            }

            match self.kv.update(&self.key, &record, stored.1).await {
                Ok(revision) => *stored = (record, revision),
                Err(CasError::Conflict { .. }) => match self.kv.find(&self.key).await {
                    Ok((Some(record), revision)) => *stored = (record, revision),
                    // The record is gone or broken: it is written again from the floors known here.
                    Ok((None, revision)) => stored.1 = revision,
                    Err(error) => {
                        tracing::debug!(key = self.key, %error, "failed to read floors");
                        return;
                    }
                },
                Err(error) => {
                    tracing::debug!(key = self.key, %error, "failed to store floors");
                    return;
                }
            }
        }

        for (one, (_, floor)) in reached.iter().zip(&held) {
            let Some(at) = stored.0.floor_of(one.partition) else {
                continue;
            };
            if at.at.incarnation == one.floor.at.incarnation && Some(&at) != one.void.as_ref() {
                floor.mark_stored(at.read.sequence);
                if one.void.is_some() {
                    // The next owner starts at a floor that is valid, so that the doubt ends here.
                    floor.is_sound();
                    told_sound(&floor_name(&self.group, one.partition));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::position::{StreamLineage, StreamPosition};
    use crate::wire::settled::SettledSet;

    fn at(incarnation: &str, sequence: u64, read: u64) -> PartitionFloor {
        let position = |sequence: u64| StreamPosition {
            incarnation: incarnation.to_owned(),
            sequence,
            stored_at_ns: i64::try_from(sequence).expect("small"),
        };
        let mut settled = SettledSet::default();
        if read > sequence {
            settled.push(sequence + 2, read);
        }

        PartitionFloor {
            at: position(sequence),
            read: position(read),
            settled,
        }
    }

    fn reached(floor: PartitionFloor, void: Option<PartitionFloor>) -> ReachedFloor {
        ReachedFloor {
            partition: 3,
            floor,
            void,
        }
    }

    #[test]
    fn the_highest_floor_counts_with_what_is_settled_behind_it_unless_it_is_void() {
        let stored = merge_reached(PartitionFloors::default(), &[reached(at("a", 20, 40), None)]);
        assert_eq!(stored.floor_of(3), Some(at("a", 20, 40)));
        assert_eq!(stored.position(3), Some(at("a", 20, 40).at));

        let lower = reached(at("a", 9, 15), None);
        assert_eq!(
            merge_reached(stored.clone(), &[lower]),
            stored,
            "another owner came further"
        );

        let further = merge_reached(stored.clone(), &[reached(at("a", 30, 50), None)]);
        let together = PartitionFloor {
            settled: {
                let mut settled = SettledSet::default();
                settled.push(31, 50);
                settled
            },
            ..at("a", 30, 50)
        };

        assert_eq!(further.floor_of(3), Some(together));

        let replaces = reached(at("a", 9, 9), Some(at("a", 20, 40)));
        assert_eq!(merge_reached(stored, &[replaces]).floor_of(3), Some(at("a", 9, 9)));
    }

    #[test]
    fn where_the_first_message_is_not_settled_the_others_are() {
        let stored = merge_reached(PartitionFloors::default(), &[reached(at("a", 0, 40), None)]);
        assert_eq!((stored.floor_of(3), stored.position(3)), (Some(at("a", 0, 40)), None));
    }

    #[test]
    fn floors_of_another_incarnation_are_all_dropped() {
        let mut stored = merge_reached(PartitionFloors::default(), &[reached(at("a", 20, 20), None)]);
        stored.floors[7] = 30;
        let stored = merge_reached(stored, &[reached(at("b", 2, 2), None)]);
        assert_eq!((stored.floor_of(3), stored.floor_of(7)), (Some(at("b", 2, 2)), None));
    }

    #[test]
    fn floors_of_a_former_life_go_on_as_far_as_the_copy_reaches() {
        let found = StreamInfo {
            incarnation: "b".to_owned(),
            lineage: StreamLineage::default().restored_from("a", 30),
            ..StreamInfo::default()
        };
        let mut record = PartitionFloors {
            incarnation: "a".to_owned(),
            ..PartitionFloors::default()
        };

        record.set_floor(1, &at("a", 20, 30));
        record.set_floor(2, &at("a", 20, 31));
        record.set_floor(3, &at("a", 31, 31));

        let all = all_carried(&record, &found);
        assert_eq!(all.floor_of(1), Some(at("b", 20, 30)));
        assert_eq!(
            all.floor_of(2),
            Some(at("b", 20, 31).without_settled()),
            "messages of another stand there now"
        );
        assert_eq!(all.floor_of(3), None);
        assert_eq!(carry_floor(&at("c", 1, 1), &found), None, "no life of it");
    }
}
