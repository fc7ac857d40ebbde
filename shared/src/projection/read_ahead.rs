//! Reading ahead of the file: takers at the tap receive messages while batches are still being stored.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::bus::{IncomingMessage, OrderedReader, PassingMessage};
use crate::clock::{Clock as _, SystemClock};
use crate::model::time::UnixMillis;

/// Maximum number of messages that are read and not yet collected into a batch. Under load the next batch is collected when
/// the one before it, and those of the other streams, are stored; what arrives meanwhile must find room, or all takers at the
/// tap are dropped and read their partitions from the server.
const AHEAD: usize = 16_384;
/// Maximum payload of these messages, in KiB; a message counts as at least one and at most all of it.
const AHEAD_KIB: u32 = 32 * 1024;

/// A message that was read.
pub(super) struct ReadResult {
    pub(super) incoming: IncomingMessage,
    /// Time since which the read model is behind if it lacks the next message: the time at which this one was stored,
    /// or at which it was read if reading waits for takers at the tap.
    pub(super) since: UnixMillis,
}

/// Source of a stream's messages.
pub(super) trait AheadMessages {
    /// Returns the next message. Dropping the future while it waits loses no message.
    fn next(&mut self) -> impl Future<Output = ReadResult> + Send;
}

impl AheadMessages for OrderedReader {
    async fn next(&mut self) -> ReadResult {
        let incoming = Self::next(self).await;
        let since = incoming.published_at;
        ReadResult { incoming, since }
    }
}

type Room = (ReadResult, OwnedSemaphorePermit);

/// Messages that were read ahead.
pub(super) struct ReadAhead(mpsc::Receiver<Room>);

impl AheadMessages for ReadAhead {
    async fn next(&mut self) -> ReadResult {
        match self.0.recv().await {
            Some((read, _)) => read,
            // The reader lives as long as this receiver.
            None => std::future::pending().await,
        }
    }
}

/// Sender of the messages that are read ahead.
pub(super) struct ReadInto {
    messages: mpsc::Sender<Room>,
    memory: Arc<Semaphore>,
}

/// Returns the two ends of a queue for reading ahead.
pub(super) fn read_ahead() -> (ReadInto, ReadAhead) {
    let (messages, read) = mpsc::channel(AHEAD);
    let memory = Arc::new(Semaphore::new(AHEAD_KIB as usize));
    (ReadInto { messages, memory }, ReadAhead(read))
}

/// Passes the messages of `ordered` on at the tap and to `note`, then sends them to `into`. If there is no room, the
/// takers at the tap are dropped first, so that they do not wait for the file.
pub(super) async fn read_on(
    mut ordered: OrderedReader,
    passing: &PassingMessage,
    into: ReadInto,
    note: impl Fn(&IncomingMessage),
) -> Infallible {
    // If reading had to wait for takers at the tap since it was last at the stream's end, the lag is caused by them.
    let mut was_held = false;
    loop {
        let incoming = ordered.next().await;
        note(&incoming);
        was_held |= passing.pass_on(&incoming).await;
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
            let _ = into.messages.send((ReadResult { incoming, since }, room)).await;
        }
    }
}
