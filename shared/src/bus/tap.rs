//! One reading of a stream for everybody in this process: who reads it whole passes each message on, and owners of
//! partitions take theirs from here instead of asking the server for it a second time.
//!
//! The reader comes first, so nobody may hold it up: a taker that falls behind while others do not, or that holds more
//! than its share of memory, is let go. It finds what it missed in the stream, as one that was never here does
//! (`partition/reading.rs`). Where everybody is behind, which is a replica that reads faster than it works, the reader
//! waits for them, so that a flood is read once all the same.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::message::{Acker, Incoming};
use super::partition::Floor;

/// Messages that wait for one taker at most.
const ROOM: usize = 512;
/// Memory of all messages that wait, KiB; each counts as one at least.
const ROOM_KIB: usize = 64 * 1024;
/// How long the reader waits for one taker before it looks whether the others are behind as well.
const PATIENCE: Duration = Duration::from_millis(10);
/// How often it looks: a taker that has taken nothing for so many times [`PATIENCE`] stands still.
const LOOKS: u32 = 100;
/// A reader that has so many messages before it, or fewer, keeps up.
const NEAR: u64 = 1_000;

/// One reading of a stream, to be shared; clones are the same one.
#[derive(Debug, Clone)]
pub struct Tap(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    memory: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    /// The last message that was passed on; every later one will be, or its taker is let go.
    passed: u64,
    /// Somebody reads, and has come close to the stream's end.
    keeps_up: bool,
    /// By partition.
    takers: HashMap<u16, Taker>,
}

#[derive(Debug)]
struct Taker {
    messages: mpsc::Sender<Waiting>,
    floor: Arc<Floor>,
}

type Waiting = (Incoming, OwnedSemaphorePermit);

/// What a partition's owner is passed from now on.
#[derive(Debug)]
pub(super) struct Taken {
    messages: mpsc::Receiver<Waiting>,
    /// Everything behind this sequence comes here.
    pub(super) from: u64,
}

impl Taken {
    /// The next message of the partition; none where this taker was let go: what comes next is in the stream alone.
    pub(super) async fn next(&mut self) -> Option<Incoming> {
        self.messages.recv().await.map(|(incoming, _)| incoming)
    }
}

/// Somebody reads the stream and passes on what comes, as long as this lives. Then all takers are let go.
#[derive(Debug)]
pub struct Passing(Tap);

/// Why a message was not passed on yet.
enum Refused {
    /// Its taker's queue is full.
    Full(mpsc::Sender<Waiting>),
    /// All that may wait does.
    Memory,
}

impl Default for Tap {
    fn default() -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            memory: Arc::new(Semaphore::new(ROOM_KIB)),
        }))
    }
}

impl Tap {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream is read from behind `position` on, which is its end where `keeps_up`.
    #[must_use]
    pub fn begin(&self, position: u64, keeps_up: bool) -> Passing {
        *self.state() = State {
            passed: position,
            keeps_up,
            takers: HashMap::new(),
        };
        Passing(self.clone())
    }

    /// Whether whoever comes now is passed what is new soon.
    pub(super) fn keeps_up(&self) -> bool {
        self.state().keeps_up
    }

    /// From now on `partition`'s messages go to whoever calls this, settled at `floor`, and to nobody who called before;
    /// none where nobody reads the stream, or somebody far from its end.
    pub(super) fn take(&self, partition: u16, floor: &Arc<Floor>) -> Option<Taken> {
        let mut state = self.state();
        if !state.keeps_up {
            return None;
        }

        let (sender, messages) = mpsc::channel(ROOM);
        let taker = Taker {
            messages: sender,
            floor: Arc::clone(floor),
        };

        state.takers.insert(partition, taker);
        Some(Taken {
            messages,
            from: state.passed,
        })
    }

    fn offer(&self, incoming: &Incoming) -> Result<(), Refused> {
        let mut state = self.state();
        if incoming.pending <= NEAR {
            state.keeps_up = true;
        }

        let partition = partition_of(&incoming.subject);
        match partition.and_then(|partition| state.takers.get(&partition)) {
            None => {}
            Some(taker) => match taker.messages.try_reserve() {
                Ok(place) => {
                    let kib = u32::try_from(incoming.payload.len() / 1024 + 1).unwrap_or(u32::MAX);
                    let Ok(memory) = Arc::clone(&self.0.memory).try_acquire_many_owned(kib) else {
                        return Err(Refused::Memory);
                    };
                    place.send((incoming.copy(Acker::Floor(Arc::clone(&taker.floor))), memory));
                }
                Err(mpsc::error::TrySendError::Full(())) => return Err(Refused::Full(taker.messages.clone())),
                // It is replaced when the partition is taken again.
                Err(mpsc::error::TrySendError::Closed(())) => {}
            },
        }

        state.passed = incoming.sequence;
        Ok(())
    }

    /// Lets `incoming`'s taker go: it is passed neither this message nor any later one.
    fn let_go(&self, incoming: &Incoming) {
        let mut state = self.state();
        let taker = partition_of(&incoming.subject).and_then(|partition| state.takers.remove(&partition));
        if taker.is_some() {
            metrics::counter!("nexus_tap_let_go_total").increment(1);
        }
        state.passed = incoming.sequence;
    }

    /// Whether at least half of what all takers may have waiting does.
    fn all_are_behind(&self) -> bool {
        let state = self.state();
        let room: usize = state.takers.values().map(|taker| taker.messages.capacity()).sum();
        room * 2 <= state.takers.len() * ROOM
    }
}

impl Passing {
    /// Passes `incoming` on to whoever takes its partition. Waits while everybody is behind, and says whether it did.
    pub async fn pass(&self, incoming: &Incoming) -> bool {
        let tap = &self.0;
        let mut waited = false;
        for _ in 0..LOOKS {
            match tap.offer(incoming) {
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

    /// Lets everybody go: the reader itself is held up. They may come again when it keeps up.
    pub fn hold_up(&self) {
        let mut state = self.0.state();
        state.takers.clear();
        state.keeps_up = false;
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.hold_up();
    }
}

/// The partition that a stored message's `subject` names (`nexus.<stream>.<partition>.…`).
fn partition_of(subject: &str) -> Option<u16> {
    subject.split('.').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests;
