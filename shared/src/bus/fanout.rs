//! One reading of a stream shared in this process: its reader passes each message on, and owners of partitions receive
//! theirs from here instead of requesting them from the server a second time.
//!
//! The reader has priority and must not be held up: a taker that falls behind alone, or whose messages do not fit into
//! the memory limit, is dropped. It finds the messages it missed in the stream, as a taker that was never here does
//! (`partition/reading.rs`). If all takers are behind, because the replica reads faster than it works, the reader
//! waits for them, so that even a flood is read only once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::clock::pause;
use crate::wire::partition::stored_partition;
use crate::wire::topology::partition_filter;

use super::connect::Bus;
use super::floor::Floor;
use super::message::{IncomingMessage, MessageAcker};

/// Maximum number of messages that wait for one taker.
const ROOM: usize = 512;
/// Memory limit of all waiting messages, in KiB; each message counts as at least one.
const ROOM_KIB: usize = 64 * 1024;
/// Time for which the reader waits for one taker before it checks whether the others are behind as well.
const PATIENCE: Duration = Duration::from_millis(10);
/// Number of these checks: a taker that has taken nothing for this many times [`PATIENCE`] is stuck.
const LOOKS: u32 = 100;
/// Pause before the partitions of this process are read again.
const READ_AGAIN: Duration = Duration::from_millis(500);
/// Number of messages before the reader up to which it counts as keeping up.
const NEAR: u64 = 1_000;

/// One reading of a stream, to be shared; clones share the same one.
#[derive(Debug, Clone)]
pub struct StreamTap(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<TapState>,
    memory: Arc<Semaphore>,
    /// Partitions that this process holds.
    held: watch::Sender<Vec<u16>>,
}

#[derive(Debug, Default)]
struct TapState {
    /// Sequence of the last message passed on; every later one is passed on too, or its taker is dropped.
    passed: u64,
    /// Whether the stream is being read, and the reader has come close to its end.
    keeps_up: bool,
    /// Partitions that are read; `None` if the whole stream is.
    only: Option<Vec<u16>>,
    /// Takers by the number of their partition.
    takers: HashMap<u16, TapTaker>,
}

#[derive(Debug)]
struct TapTaker {
    messages: mpsc::Sender<Waiting>,
    floor: Arc<Floor>,
}

type Waiting = (IncomingMessage, OwnedSemaphorePermit);

/// Receiver of a partition's messages from now on.
#[derive(Debug)]
pub(super) struct TakenSubjects {
    messages: mpsc::Receiver<Waiting>,
    /// Sequence after which every message of the partition arrives here.
    pub(super) from: u64,
}

impl TakenSubjects {
    /// Returns the next message of the partition, or `None` if this taker was dropped: later messages are only in the
    /// stream.
    pub(super) async fn next(&mut self) -> Option<IncomingMessage> {
        self.messages.recv().await.map(|(incoming, _)| incoming)
    }
}

/// Handle of the reader, which passes messages on while this lives. Dropping it drops all takers.
#[derive(Debug)]
pub struct PassingMessage(StreamTap);

/// Reason why a message was not passed on yet.
enum Refused {
    /// Queue of its taker is full; contains the sender to wait on.
    Full(mpsc::Sender<Waiting>),
    /// Memory limit of all waiting messages is reached.
    Memory,
}

impl Default for StreamTap {
    fn default() -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            memory: Arc::new(Semaphore::new(ROOM_KIB)),
            held: watch::Sender::new(Vec::new()),
        }))
    }
}

impl StreamTap {
    fn state(&self) -> MutexGuard<'_, TapState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a reading of the stream after `position`; `keeps_up` states that this is close to the stream's end.
    #[must_use]
    pub fn begin_behind(&self, position: u64, keeps_up: bool) -> PassingMessage {
        self.begin_of(None, position, keeps_up)
    }

    fn begin_of(&self, only: Option<Vec<u16>>, position: u64, keeps_up: bool) -> PassingMessage {
        *self.state() = TapState {
            passed: position,
            keeps_up,
            only,
            takers: HashMap::new(),
        };
        PassingMessage(self.clone())
    }

    /// Records the partitions that this process holds, ascending.
    pub(super) fn note_held(&self, partitions: Vec<u16>) {
        self.0.held.send_if_modified(|held| {
            let differs = *held != partitions;
            *held = partitions;
            differs
        });
    }

    /// Reads the partitions of `stream` that this process holds, and no others, with one consumer; never returns. For
    /// processes that need no other message of the stream.
    pub async fn read_held(&self, bus: &Bus, stream: &'static str) {
        let mut held = self.0.held.subscribe();
        loop {
            let partitions = held.borrow_and_update().clone();
            let reading = self.read_partitions(bus, stream, partitions);
            tokio::select! {
                Err(error) = reading => {
                    tracing::debug!(stream, error, "partitions are not read; retrying");
                    pause(READ_AGAIN).await;
                }
                // Leases move one after the other: a moment later the others have moved as well.
                changed = held.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    pause(READ_AGAIN).await;
                }
            }
        }
    }

    /// Passes on the messages of `partitions` from now on. Returns only with an error.
    async fn read_partitions(&self, bus: &Bus, stream: &'static str, partitions: Vec<u16>) -> Result<(), String> {
        if partitions.is_empty() {
            return std::future::pending().await;
        }

        let filters: Vec<String> = partitions
            .iter()
            .map(|number| partition_filter(stream, *number))
            .collect();
        let state = bus.stream_state(stream).await.map_err(|error| error.to_string())?;
        let ordered = bus.read_ordered(stream, &filters, state.last.saturating_add(1)).await;
        let mut ordered = ordered.map_err(|error| error.to_string())?;

        let mut connections = bus.connections();
        connections.count_from_now();
        let passing = self.begin_of(Some(partitions), state.last, true);
        loop {
            tokio::select! {
                incoming = ordered.next() => {
                    passing.pass_on(&incoming).await;
                }
                // A server that comes back may have another stream.
                () = connections.stands_anew() => return Err("the connection was lost".to_owned()),
            }
        }
    }

    /// Returns whether a new taker will receive new messages soon.
    pub(super) fn keeps_up(&self) -> bool {
        self.state().keeps_up
    }

    /// Makes the caller the taker of `partition`, in place of any earlier one; its messages are settled at `floor`.
    /// Returns `None` if the stream is not being read, or the reader is far from its end.
    pub(super) fn take(&self, partition: u16, floor: &Arc<Floor>) -> Option<TakenSubjects> {
        let mut state = self.state();
        let is_read = state.only.as_ref().is_none_or(|only| only.contains(&partition));
        if !state.keeps_up || !is_read {
            return None;
        }

        let (sender, messages) = mpsc::channel(ROOM);
        let taker = TapTaker {
            messages: sender,
            floor: Arc::clone(floor),
        };

        state.takers.insert(partition, taker);
        Some(TakenSubjects {
            messages,
            from: state.passed,
        })
    }

    fn offer_message(&self, incoming: &IncomingMessage) -> Result<(), Refused> {
        let mut state = self.state();
        if incoming.pending <= NEAR {
            state.keeps_up = true;
        }

        let partition = stored_partition(&incoming.subject);
        match partition.and_then(|partition| state.takers.get(&partition)) {
            None => {}
            Some(taker) => match taker.messages.try_reserve() {
                Ok(place) => {
                    let kib = u32::try_from(incoming.payload.len() / 1024 + 1).unwrap_or(u32::MAX);
                    let Ok(memory) = Arc::clone(&self.0.memory).try_acquire_many_owned(kib) else {
                        return Err(Refused::Memory);
                    };
                    place.send((incoming.copy_for(MessageAcker::Floor(Arc::clone(&taker.floor))), memory));
                }
                Err(mpsc::error::TrySendError::Full(())) => return Err(Refused::Full(taker.messages.clone())),
                // The closed taker is replaced when the partition is taken again.
                Err(mpsc::error::TrySendError::Closed(())) => {}
            },
        }

        state.passed = incoming.sequence;
        Ok(())
    }

    /// Drops the taker of `incoming`: it receives neither this message nor any later one.
    fn let_go(&self, incoming: &IncomingMessage) {
        let mut state = self.state();
        let taker = stored_partition(&incoming.subject).and_then(|partition| state.takers.remove(&partition));
        if taker.is_some() {
            metrics::counter!("nexus_tap_let_go_total").increment(1);
        }
        state.passed = incoming.sequence;
    }

    /// Returns whether at least half of the room of all takers is in use.
    fn all_are_behind(&self) -> bool {
        let state = self.state();
        let room: usize = state.takers.values().map(|taker| taker.messages.capacity()).sum();
        room * 2 <= state.takers.len() * ROOM
    }
}

impl PassingMessage {
    /// Passes `incoming` on to the taker of its partition. Waits while all takers are behind, and returns whether it
    /// waited.
    pub async fn pass_on(&self, incoming: &IncomingMessage) -> bool {
        let tap = &self.0;
        let mut waited = false;
        for _ in 0..LOOKS {
            match tap.offer_message(incoming) {
                Ok(()) => return waited,
                Err(Refused::Memory) => break,
                Err(Refused::Full(taker)) => {
                    waited = true;
                    let room = tokio::time::timeout(PATIENCE, taker.reserve()).await;
                    if room.is_err() && !tap.all_are_behind() {
                        break;
                    }
                }
            }
        }

        tap.let_go(incoming);
        waited
    }

    /// Drops all takers, because the reader itself is held up. They may come back when it keeps up.
    pub fn hold_up(&self) {
        let dropped = self.drop_takers();
        metrics::counter!("nexus_tap_let_go_total").increment(u64::try_from(dropped).unwrap_or(u64::MAX));
    }

    /// Drops all takers, and returns their number.
    fn drop_takers(&self) -> usize {
        let mut state = self.0.state();
        state.keeps_up = false;
        std::mem::take(&mut state.takers).len()
    }
}

impl Drop for PassingMessage {
    fn drop(&mut self) {
        self.drop_takers();
    }
}

#[cfg(test)]
mod tests;
