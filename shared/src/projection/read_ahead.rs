//! Reading ahead of the file: whoever takes messages at the tap gets them while batches are still being stored.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::bus::{Incoming, Ordered, Passing};
use crate::clock::{Clock as _, SystemClock};
use crate::model::time::UnixMillis;

/// Messages that are read and not gathered at most.
const AHEAD: usize = 2_048;
/// Their payload at most, KiB; a message counts as one at least, and as all of it at most.
const AHEAD_KIB: u32 = 32 * 1024;

/// A message that was read.
pub(super) struct Read {
    pub(super) incoming: Incoming,
    /// Since when the read model is behind if it does not hold the next one: since this one was stored, or since it was
    /// read, where reading waits for those at the tap.
    pub(super) since: UnixMillis,
}

/// Where the next message of a stream comes from.
pub(super) trait Messages {
    /// The next message; whoever drops this while it waits loses nothing.
    fn next(&mut self) -> impl Future<Output = Read> + Send;
}

impl Messages for Ordered {
    async fn next(&mut self) -> Read {
        let incoming = Self::next(self).await;
        let since = incoming.published_at;
        Read { incoming, since }
    }
}

type Room = (Read, OwnedSemaphorePermit);

/// What was read ahead.
pub(super) struct Ahead(mpsc::Receiver<Room>);

impl Messages for Ahead {
    async fn next(&mut self) -> Read {
        match self.0.recv().await {
            Some((read, _)) => read,
            // The reader lives as long as this.
            None => std::future::pending().await,
        }
    }
}

/// Where messages that are read ahead are put.
pub(super) struct ReadInto {
    messages: mpsc::Sender<Room>,
    memory: Arc<Semaphore>,
}

/// Two ends of a reading ahead.
pub(super) fn read_ahead() -> (ReadInto, Ahead) {
    let (messages, read) = mpsc::channel(AHEAD);
    let memory = Arc::new(Semaphore::new(AHEAD_KIB as usize));
    (ReadInto { messages, memory }, Ahead(read))
}

/// Passes on what comes from `ordered`, then puts it `into` what was read ahead. Where there is no room, nobody waits
/// at the tap for the file: they are let go before.
pub(super) async fn read_on(mut ordered: Ordered, passing: &Passing, into: ReadInto) -> Infallible {
    // Whoever waited for those at the tap since it last stood at the stream's end is behind because of them.
    let mut was_held = false;
    loop {
        let incoming = ordered.next().await;
        was_held |= passing.pass(&incoming).await;
        was_held &= incoming.pending > 0;
        let kib = u32::try_from(incoming.payload.len() / 1024 + 1)
            .unwrap_or(AHEAD_KIB)
            .min(AHEAD_KIB);

        let memory = Arc::clone(&into.memory);
        if memory.available_permits() < kib as usize || into.messages.capacity() == 0 {
            passing.hold_up();
            was_held = false;
        }

        let since = if was_held {
            SystemClock.now()
        } else {
            incoming.published_at
        };

        // Neither end is ever closed while this runs.
        if let Ok(room) = memory.acquire_many_owned(kib).await {
            let _ = into.messages.send((Read { incoming, since }, room)).await;
        }
    }
}
