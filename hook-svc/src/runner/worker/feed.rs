//! Messages to a worker: sets, events in batches, pings.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use super::{Bell, READ_BYTES, Role, Run, State, WorkerDeath};
use crate::runner::Counters;
use crate::runner::board::{Board, Next};
use crate::runner::protocol::{self, Batch, MAX_BATCH_EVENTS};

/// Most events sent and not yet answered, per worker: enough to keep it busy while answers travel, few enough that an
/// event goes to a worker with room.
const WINDOW_EVENTS: usize = 4 * MAX_BATCH_EVENTS;

/// Time for which one suspect is called while others wait for their turn.
const TURN: Duration = Duration::from_secs(2);

/// Largest slot; slots then begin again at 0, so that they fit a cell of the worker's note.
const SLOT_MASK: u32 = 0x3FFF_FFFF;

/// Returns the reason why writing to a worker failed. The writer may notice before the reader that it exited.
fn broken(error: std::io::Error) -> WorkerDeath {
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
            let bell = self.bell();
            let is_filled = self.fill(&mut buffer, &mut news)?;
            self.ring(is_filled || bell != Bell::Queue);

            if is_filled {
                stdin.write_all(&buffer).await.map_err(broken)?;
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
    fn ring(&self, leaves_some: bool) {
        let board = self.common.board();
        let (is_waiting, has_apart) = (board.is_waiting(), board.has_apart());
        drop(board);
        if is_waiting && leaves_some {
            self.common.queued.notify_one();
        }
        if has_apart && self.role == Role::Beside {
            self.common.apart.notify_one();
        }
    }

    /// Returns the notification to listen to: a full worker leaves it to the others.
    fn bell(&self) -> Bell {
        if !self.has_room() {
            return Bell::None;
        }
        match self.role {
            Role::Apart => Bell::Apart,
            Role::Beside if self.common.board().stands_by(self.index) => Bell::Changes,
            Role::Beside => Bell::Queue,
        }
    }

    fn has_room(&self) -> bool {
        let state = self.state();
        state.up.is_some() && state.loading.is_none() && !state.retires && state.unanswered < WINDOW_EVENTS
    }

    /// Returns the next action of this worker.
    fn next(&self, board: &mut Board, state: &State<'_>, now: Instant) -> Next {
        match self.role {
            Role::Beside => board.next(self.index, &state.held, now),
            Role::Apart => {
                let is_over = state
                    .turn
                    .is_some_and(|since| now.saturating_duration_since(since) > TURN);
                let stands = (is_over, state.in_flight.is_empty());
                board.next_apart(&state.held, state.mine.as_deref(), stands, now)
            }
        }
    }

    /// Fills `buffer` with the next frame. Returns false if there is nothing to send.
    fn fill(&self, buffer: &mut Vec<u8>, news: &mut Vec<(u32, Counters)>) -> Result<bool, WorkerDeath> {
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

        let mut board = self.common.board();
        let mut next = self.next(&mut board, &state, now);
        let load = match &next {
            Next::Load(loaded) => Some((Arc::clone(loaded), None)),
            Next::LoadAlone(loaded, hook) => Some((Arc::clone(loaded), Some(hook.clone()))),
            Next::Leave => return Err(WorkerDeath::Turn),
            Next::Wait => return Ok(false),
            Next::Run(_) => None,
        };

        if let Some((loaded, alone)) = load {
            let message = board.load_message(self.index, &loaded, &state.held, alone.as_deref());
            protocol::write_message(buffer, &message);
            if !loaded.dropped(&state.held).is_empty() {
                state.left = state.left.or(Some(now));
            }
            state.turn = state.turn.or(Some(now));
            state.mine = alone;
            state.loading = Some(loaded);
            return Ok(true);
        }

        // Counters before the events: a script must see the fires of the events before it.
        board.tell(self.index, state.held.generation(), news);
        let mut batch = Batch::begin(buffer, news);
        while let Next::Run(flight) = next {
            let slot = state.next_slot;
            state.next_slot = (slot + 1) & SLOT_MASK;
            batch.push(slot, flight.job().now, flight.remaining(), &flight.job().event_json);
            let (longest, age) = (flight.loaded().set().longest_timeout(), state.age);
            state.terms.handed(slot, longest, age);
            state.in_flight.insert(slot, *flight);
            state.unanswered += 1;
            next = if batch.has_room() && state.unanswered < WINDOW_EVENTS {
                self.next(&mut board, &state, now)
            } else {
                Next::Wait
            };
        }

        // An event beyond the window stays queued until there is room.
        batch.finish();
        Ok(true)
    }
}
