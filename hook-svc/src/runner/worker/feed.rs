//! Messages to a worker: sets, events in batches, pings.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use super::{Bell, READ_BYTES, Run, State, WorkerDeath, WorkerRole};
use crate::runner::HookCounters;
use crate::runner::protocol::{self, EventBatch, MAX_BATCH_EVENTS};
use crate::runner::work_queue::{NextTask, WorkQueue};

/// Most events sent and not yet answered, per worker: enough to keep it busy while answers travel, few enough that an
/// event goes to a worker with room.
const WINDOW_EVENTS: usize = 4 * MAX_BATCH_EVENTS;

/// Time for which one suspect is called while others wait for their turn.
const TURN: Duration = Duration::from_secs(2);

/// Largest slot; slots then begin again at 0, so that they fit a cell of the worker's note.
const SLOT_MASK: u32 = 0x3FFF_FFFF;

/// Returns the reason why writing to a worker failed. The writer may notice before the reader that it exited.
fn broken_pipe(error: std::io::Error) -> WorkerDeath {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        WorkerDeath::Exited
    } else {
        WorkerDeath::Pipe(error)
    }
}

impl Run<'_> {
    /// Sends frames to the process for as long as it reads them.
    pub(super) async fn write(&self, mut stdin: ChildStdin) -> Result<(), WorkerDeath> {
        let mut buffer = Vec::with_capacity(READ_BYTES);
        let mut news = Vec::new();
        loop {
            // Created before the queues are read, so that a notification in between is not lost.
            let (queued, apart) = (self.common.queued.notified(), self.common.apart.notified());
            let changed = self.common.changed.notified();
            let bell = self.worker_bell();
            let is_filled = self.fill_frame(&mut buffer, &mut news)?;
            self.ring_others(is_filled || bell != Bell::Queue);

            if is_filled {
                stdin.write_all(&buffer).await.map_err(broken_pipe)?;
            } else {
                tokio::select! {
                    () = queued, if bell == Bell::Queue => {}
                    () = apart, if bell == Bell::Apart => {}
                    () = changed, if bell == Bell::Changes => {}
                    () = self.moved.notified() => {}
                }
            }
        }
    }

    /// Notifies other workers of the events that this worker has left.
    fn ring_others(&self, leaves_some: bool) {
        let board = self.common.lock_board();
        let (is_waiting, has_apart) = (board.is_waiting(), board.has_apart());
        drop(board);
        if is_waiting && leaves_some {
            self.common.queued.notify_one();
        }
        if has_apart && self.role == WorkerRole::Beside {
            self.common.apart.notify_one();
        }
    }

    /// Returns the notification to listen to: a full worker leaves it to the others.
    fn worker_bell(&self) -> Bell {
        if !self.has_room() {
            return Bell::None;
        }
        match self.role {
            WorkerRole::Apart => Bell::Apart,
            WorkerRole::Beside if self.common.lock_board().stands_by(self.index) => Bell::Changes,
            WorkerRole::Beside => Bell::Queue,
        }
    }

    fn has_room(&self) -> bool {
        let state = self.state();
        state.up.is_some() && state.loading.is_none() && !state.retires && state.unanswered < WINDOW_EVENTS
    }

    /// Returns the next action of this worker.
    fn next(&self, board: &mut WorkQueue, state: &State<'_>, now: Instant) -> NextTask {
        match self.role {
            WorkerRole::Beside => board.next(self.index, &state.held, now),
            WorkerRole::Apart => {
                let is_over = state
                    .turn
                    .is_some_and(|since| now.saturating_duration_since(since) > TURN);
                let stands = (is_over, state.in_flight.is_empty());
                board.next_apart(&state.held, state.mine.as_deref(), stands, now)
            }
        }
    }

    /// Fills `buffer` with the next frame. Returns false if there is nothing to send.
    fn fill_frame(&self, buffer: &mut Vec<u8>, news: &mut Vec<(u32, HookCounters)>) -> Result<bool, WorkerDeath> {
        let now = self.clock.monotonic();
        let mut state = self.state();
        // A ping goes first: its answer decides whether the process lives.
        if state.up.is_some() && std::mem::take(&mut state.ping) {
            protocol::write_message(buffer, &serde_json::json!({"t": "ping", "n": state.frames}));
            return Ok(true);
        }

        // Replies go before new events, because scripts wait for them.
        let replies = std::mem::take(&mut *self.replies.lock().unwrap_or_else(PoisonError::into_inner));
        if !replies.is_empty() {
            protocol::write_replies(buffer, &replies);
            return Ok(true);
        }

        // The window bounds the events that a death of the worker interrupts.
        if state.up.is_none() || state.loading.is_some() || state.retires || state.unanswered >= WINDOW_EVENTS {
            return Ok(false);
        }

        let mut board = self.common.lock_board();
        let mut next = self.next(&mut board, &state, now);
        let load = match &next {
            NextTask::Load(loaded) => Some((Arc::clone(loaded), None)),
            NextTask::LoadAlone(loaded, hook) => Some((Arc::clone(loaded), Some(hook.clone()))),
            NextTask::Leave => return Err(WorkerDeath::Turn),
            NextTask::Wait => return Ok(false),
            NextTask::Run(_) => None,
        };

        if let Some((loaded, alone)) = load {
            let message = board.load_message(self.index, &loaded, &state.held, alone.as_deref());
            protocol::write_message(buffer, &message);
            if !loaded.dropped_paths(&state.held).is_empty() {
                state.left = state.left.or(Some(now));
            }
            state.turn = state.turn.or(Some(now));
            state.mine = alone;
            state.loading = Some(loaded);
            self.begun.notify_one();
            return Ok(true);
        }

        // Counters before the events: a script must see the fires of the events before it.
        board.untold_counters(self.index, state.held.generation(), news);
        let mut batch = EventBatch::begin_batch(buffer, news);
        while let NextTask::Run(flight) = next {
            let slot = state.next_slot;
            state.next_slot = (slot + 1) & SLOT_MASK;
            batch.push(
                slot,
                flight.job().now,
                flight.remaining_hooks(),
                &flight.job().event_json,
            );
            let (longest, age) = (flight.loaded().set().longest_timeout(), state.age);
            state.terms.note_handed(slot, longest, age);
            state.in_flight.insert(slot, *flight);
            state.unanswered += 1;
            next = if batch.has_room() && state.unanswered < WINDOW_EVENTS {
                self.next(&mut board, &state, now)
            } else {
                NextTask::Wait
            };
        }

        // An event beyond the window stays queued until there is room.
        batch.finish_batch();
        self.begun.notify_one();
        Ok(true)
    }
}
