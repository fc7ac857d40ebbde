//! How far partitions are settled, where that is kept by their owners and not by the server (`Group::settled`).
//!
//! A consumer that the server keeps writes a file several times a second and costs a message per ack. Where every
//! message leaves a done-marker of its own, a floor is enough: everything up to it is settled. Owners keep it in memory
//! and store it each second, all partitions of the group in one record, merged by compare-and-set: a floor that was true
//! stays true, so the highest one counts, whoever wrote it. No owner hands out more than [`MAX_PAST_FLOOR`] messages past
//! the *stored* floor, so a successor knows which messages may have been settled before.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::wire::session_mark::PartitionFloors;
use crate::wire::topology::{MAX_PAST_FLOOR, PARTITIONS, buckets};

use super::super::connect::Bus;
use super::super::error::{CasError, ReadStreamError};
use super::super::kv::Kv;

/// Messages that are handed out past the stored floor at most.
const MAX_PAST: usize = MAX_PAST_FLOOR.unsigned_abs() as usize;
/// From so many on the floor is stored at once.
const SOON: usize = MAX_PAST / 2;
/// How often floors are stored.
const STORE_EVERY: Duration = Duration::from_secs(1);
/// How often a store is begun anew because another replica was faster.
const MERGES: u32 = 8;

/// One partition's floor.
#[derive(Debug, Default)]
pub(in crate::bus) struct Floor {
    state: Mutex<State>,
    room: Notify,
    soon: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// Messages past the stored floor in the order of the stream: sequence, and whether it is settled.
    past: VecDeque<(u64, bool)>,
    /// How many of them are settled without a gap.
    settled: usize,
    /// The floor.
    reached: u64,
}

impl State {
    fn settle(&mut self, sequence: u64) {
        let Ok(found) = self.past.binary_search_by_key(&sequence, |(sequence, _)| *sequence) else {
            return;
        };
        self.past[found].1 = true;
        while let Some((sequence, true)) = self.past.get(self.settled) {
            self.reached = *sequence;
            self.settled += 1;
        }
    }

    fn stored(&mut self, floor: u64) {
        while self.settled > 0 && self.past.front().is_some_and(|(sequence, _)| *sequence <= floor) {
            self.past.pop_front();
            self.settled -= 1;
        }
    }
}

impl Floor {
    fn new(soon: Arc<Notify>) -> Self {
        Self {
            state: Mutex::default(),
            room: Notify::new(),
            soon,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything up to here is settled.
    pub(super) fn reached(&self) -> u64 {
        self.state().reached
    }

    /// Counting begins at `floor`, or at what was reached here; answers where.
    pub(super) fn begin(&self, floor: u64) -> u64 {
        let mut state = self.state();
        *state = State {
            reached: state.reached.max(floor),
            ..State::default()
        };
        state.reached
    }

    /// The message `sequence` is handed out.
    pub(super) fn given(&self, sequence: u64) {
        let mut state = self.state();
        state.past.push_back((sequence, false));
        if state.past.len() == SOON {
            self.soon.notify_one();
        }
    }

    /// The message `sequence` is settled: its effects are durable.
    pub(in crate::bus) fn settle(&self, sequence: u64) {
        self.state().settle(sequence);
        if self.state().past.len() >= SOON {
            self.soon.notify_one();
        }
    }

    fn stored(&self, floor: u64) {
        self.state().stored(floor);
        self.room.notify_waiters();
    }

    /// Waits until a message may be handed out.
    pub(super) async fn room(&self) {
        loop {
            let changed = self.room.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.state().past.len() < MAX_PAST {
                return;
            }
            changed.await;
        }
    }
}

/// Where the floors of `group` are kept in `attempts`.
fn key_of(group: &str) -> String {
    format!("floors.{group}")
}

/// The stored floors of `group`, by partition; empty = none.
pub(in crate::bus) async fn stored_floors(bus: &Bus, group: &str) -> Result<Vec<u64>, ReadStreamError> {
    let (record, _) = bus
        .kv::<PartitionFloors>(buckets::ATTEMPTS)
        .find(&key_of(group))
        .await?;
    Ok(record.map_or_else(Vec::new, |record| record.floors))
}

/// The floors of one group, as far as this replica holds them.
#[derive(Debug)]
pub(super) struct Floors {
    kv: Kv<PartitionFloors>,
    key: String,
    held: Mutex<HashMap<u16, Arc<Floor>>>,
    soon: Arc<Notify>,
    /// What is stored, and its revision.
    stored: tokio::sync::Mutex<(Vec<u64>, u64)>,
}

impl Floors {
    pub(super) fn new(bus: &Bus, group: &str) -> Self {
        Self {
            kv: bus.kv(buckets::ATTEMPTS),
            key: key_of(group),
            held: Mutex::default(),
            soon: Arc::default(),
            stored: tokio::sync::Mutex::new((vec![0; usize::from(PARTITIONS)], 0)),
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<u16, Arc<Floor>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The floor of a partition that was just taken.
    pub(super) fn take(&self, partition: u16) -> Arc<Floor> {
        let floor = Arc::new(Floor::new(Arc::clone(&self.soon)));
        self.held().insert(partition, Arc::clone(&floor));
        floor
    }

    /// The partition is not held any more.
    pub(super) fn forget(&self, partition: u16) {
        self.held().remove(&partition);
    }

    /// The stored floor of `partition`, from the leader; 0 = none.
    pub(super) async fn read(&self, partition: u16) -> Result<u64, ReadStreamError> {
        let (record, _) = self.kv.find(&self.key).await?;
        Ok(record
            .and_then(|record| record.floors.get(usize::from(partition)).copied())
            .unwrap_or(0))
    }

    /// Stores floors each second, and sooner where a partition waits for it. Never ends.
    pub(super) async fn keep(&self) {
        loop {
            tokio::select! {
                () = crate::clock::pause(STORE_EVERY) => {}
                () = self.soon.notified() => {}
            }
            self.store().await;
        }
    }

    /// Stores the floors that moved; where that fails they are stored the next time.
    pub(super) async fn store(&self) {
        let mut stored = self.stored.lock().await;
        let reached: Vec<(u16, Arc<Floor>, u64)> = self
            .held()
            .iter()
            .map(|(partition, floor)| (*partition, Arc::clone(floor), floor.reached()))
            .collect();
        let moved = |floors: &[u64]| {
            reached
                .iter()
                .any(|(partition, _, reached)| *reached > floors[usize::from(*partition)])
        };
        for _ in 0..MERGES {
            if !moved(&stored.0) {
                break;
            }
            let mut floors = stored.0.clone();
            for (partition, _, reached) in &reached {
                let floor = &mut floors[usize::from(*partition)];
                *floor = (*reached).max(*floor);
            }
            let record = PartitionFloors { floors };
            match self.kv.update(&self.key, &record, stored.1).await {
                Ok(revision) => *stored = (record.floors, revision),
                Err(CasError::Conflict { .. }) => match self.kv.find(&self.key).await {
                    Ok((Some(record), revision)) => *stored = (padded(record.floors), revision),
                    // Gone or broken: it is written again, with what is known here.
                    Ok((None, revision)) => stored.1 = revision,
                    Err(error) => {
                        tracing::debug!(key = self.key, %error, "floors cannot be read");
                        return;
                    }
                },
                Err(error) => {
                    tracing::debug!(key = self.key, %error, "floors were not stored");
                    return;
                }
            }
        }
        for (partition, floor, _) in &reached {
            floor.stored(stored.0[usize::from(*partition)]);
        }
    }
}

fn padded(mut floors: Vec<u64>) -> Vec<u64> {
    floors.resize(usize::from(PARTITIONS), 0);
    floors
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn floor(given: impl IntoIterator<Item = u64>) -> Floor {
        let floor = Floor::new(Arc::default());
        given.into_iter().for_each(|sequence| floor.given(sequence));
        floor
    }

    #[test]
    fn moves_over_what_is_settled_without_a_gap() {
        let floor = floor([3, 7, 20]);
        floor.settle(7);
        assert_eq!(floor.reached(), 0);
        floor.settle(3);
        assert_eq!(floor.reached(), 7);
        floor.settle(20);
        assert_eq!(floor.reached(), 20);
    }

    #[test]
    fn nothing_is_handed_out_too_far_past_what_is_stored() {
        let floor = floor(1..=MAX_PAST as u64);
        (1..=MAX_PAST as u64).for_each(|sequence| floor.settle(sequence));
        assert!(floor.room().now_or_never().is_none(), "settled is not stored");
        floor.stored(1);
        assert!(floor.room().now_or_never().is_some());
    }

    #[test]
    fn begins_where_it_came_to_or_further_on() {
        let floor = floor([3, 4]);
        floor.settle(3);
        assert_eq!(floor.begin(1), 3);
        floor.settle(4);
        assert_eq!(
            floor.reached(),
            3,
            "what a former beginning handed out is handed out again"
        );
        assert_eq!(floor.begin(9), 9);
    }
}
