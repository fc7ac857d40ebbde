//! Towards a worker: sets, events in batches, pings.

use std::sync::{Arc, PoisonError};

use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use super::{READ_BYTES, Run, WorkerDeath};
use crate::runner::Counters;
use crate::runner::board::Next;
use crate::runner::protocol::{self, Batch, MAX_BATCH_EVENTS};

/// Events sent and not yet answered, per worker: enough to keep it busy while answers travel, few enough that an
/// event goes to whoever has room.
const WINDOW_EVENTS: usize = 4 * MAX_BATCH_EVENTS;

/// Slots count to this, then begin again at 0: they fit a cell of the worker's note.
const SLOT_MASK: u32 = 0x3FFF_FFFF;

impl Run<'_> {
    /// Sends whatever there is to send for as long as the process listens.
    pub(super) async fn write(&self, mut stdin: ChildStdin) -> Result<(), WorkerDeath> {
        let mut buffer = Vec::with_capacity(READ_BYTES);
        let mut news = Vec::new();
        loop {
            let queued = self.common.queued.notified();
            let has_room = self.has_room();
            if self.fill(&mut buffer, &mut news) {
                stdin.write_all(&buffer).await.map_err(WorkerDeath::Pipe)?;
                if self.common.board().is_waiting() {
                    self.common.queued.notify_one();
                }
            } else if has_room {
                tokio::select! {
                    () = queued => {}
                    () = self.moved.notified() => {}
                }
            } else {
                // A full worker leaves the bell to the others.
                self.moved.notified().await;
            }
        }
    }

    fn has_room(&self) -> bool {
        let state = self.state();
        state.up.is_some() && state.loading.is_none() && !state.retires && state.unanswered < WINDOW_EVENTS
    }

    /// Fills `buffer` with the next frame; false when there is nothing to send.
    fn fill(&self, buffer: &mut Vec<u8>, news: &mut Vec<(u32, Counters)>) -> bool {
        let now = self.clock.monotonic();
        let mut state = self.state();
        if state.up.is_some() && std::mem::take(&mut state.ping) {
            protocol::write_message(buffer, &serde_json::json!({"t": "ping", "n": state.frames}));
            return true;
        }
        let replies = std::mem::take(&mut *self.replies.lock().unwrap_or_else(PoisonError::into_inner));
        if !replies.is_empty() {
            protocol::write_replies(buffer, &replies);
            return true;
        }
        if state.up.is_none() || state.loading.is_some() || state.retires || state.unanswered >= WINDOW_EVENTS {
            return false;
        }
        let mut board = self.common.board();
        let mut next = board.next(&state.held, now);
        if let Next::Load(loaded) = next {
            let message = board.load_message(self.index, &loaded, &state.held);
            protocol::write_message(buffer, &message);
            state.loading = Some(Arc::clone(&loaded));
            return true;
        }
        if let Next::Wait = next {
            return false;
        }
        board.tell(self.index, state.held.generation(), news);
        let mut batch = Batch::begin(buffer, news);
        while let Next::Run(flight) = next {
            let slot = state.next_slot;
            state.next_slot = (slot + 1) & SLOT_MASK;
            batch.push(slot, flight.job().now, flight.remaining(), &flight.job().event_json);
            state.in_flight.insert(slot, *flight);
            state.unanswered += 1;
            next = if batch.has_room() && state.unanswered < WINDOW_EVENTS {
                board.next(&state.held, now)
            } else {
                Next::Wait
            };
        }
        batch.finish();
        true
    }
}
