//! Reading ahead of the file: whoever takes messages at the tap gets them while batches are still being stored.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::bus::{Incoming, Ordered, Passing};

/// Messages that are read and not gathered at most.
const AHEAD: usize = 2_048;
/// Their payload at most, KiB; a message counts as one at least, and as all of it at most.
const AHEAD_KIB: u32 = 32 * 1024;

/// Where the next message of a stream comes from.
pub(super) trait Messages {
    /// The next message; whoever drops this while it waits loses nothing.
    fn next(&mut self) -> impl Future<Output = Incoming> + Send;
}

impl Messages for Ordered {
    async fn next(&mut self) -> Incoming {
        Self::next(self).await
    }
}

type Room = (Incoming, OwnedSemaphorePermit);

/// What was read ahead.
pub(super) struct Ahead(mpsc::Receiver<Room>);

impl Messages for Ahead {
    async fn next(&mut self) -> Incoming {
        match self.0.recv().await {
            Some((incoming, _)) => incoming,
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
    loop {
        let incoming = ordered.next().await;
        passing.pass(&incoming).await;
        let kib = u32::try_from(incoming.payload.len() / 1024 + 1)
            .unwrap_or(AHEAD_KIB)
            .min(AHEAD_KIB);
        let memory = Arc::clone(&into.memory);
        if memory.available_permits() < kib as usize || into.messages.capacity() == 0 {
            passing.hold_up();
        }
        // Neither end is ever closed while this runs.
        if let Ok(room) = memory.acquire_many_owned(kib).await {
            let _ = into.messages.send((incoming, room)).await;
        }
    }
}
