//! Feeds the window: a broker reads the dispatches of its own parts, each in order.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shared::bus::{Bus, OrderedReader, StoredMessage};
use shared::clock::pause;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::partition::PartSet;
use shared::wire::topology::streams::DISPATCHES;
use shared::wire::topology::{SESSION_PARTS, partition_filter};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::queue::window::DispatchWindow;

/// Wait before reading is started again after it could not start.
const BEGIN_AGAIN: Duration = Duration::from_millis(200);

/// The window, and signals for tasks that wait for it.
#[derive(Debug)]
pub struct DispatchFeed {
    window: Mutex<DispatchWindow>,
    /// By part: the last sequence that was fed.
    through: Vec<watch::Sender<u64>>,
}

impl Default for DispatchFeed {
    fn default() -> Self {
        Self {
            window: Mutex::default(),
            through: (0..SESSION_PARTS).map(|_| watch::Sender::new(0)).collect(),
        }
    }
}

impl DispatchFeed {
    /// Calls `ask` with the window.
    pub fn with_window<T>(&self, ask: impl FnOnce(&mut DispatchWindow) -> T) -> T {
        ask(&mut self.window.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits at most `patience` until the window of `part` has reached `sequence`. Returns whether it has.
    pub async fn wait_reached(&self, part: u16, sequence: u64, patience: Duration) -> bool {
        let mut through = self.through[usize::from(part)].subscribe();
        tokio::select! {
            reached = through.wait_for(|through| *through >= sequence) => reached.is_ok(),
            () = pause(patience) => false,
        }
    }

    fn begin_part(&self, part: u16, first: u64) {
        self.with_window(|window| window.begin_part(part, first));
        // The stream may be another one, with lower sequences.
        self.through[usize::from(part)].send_replace(first.saturating_sub(1));
    }

    fn take(&self, part: u16, stored: StoredMessage) {
        let sequence = stored.sequence;
        self.with_window(|window| window.feed_message(part, stored));
        self.through[usize::from(part)].send_replace(sequence);
    }
}

/// Feeds the window of `feed` from `bus` with the dispatches of the `parts` that this broker reads, until `stop` is
/// requested.
pub async fn serve(feed: Arc<DispatchFeed>, bus: Bus, parts: watch::Sender<PartSet>, stop: ShutdownSignal) {
    let mut reading = JoinSet::new();
    for part in 0..SESSION_PARTS {
        let part = PartFeed {
            feed: Arc::clone(&feed),
            bus: bus.clone(),
            part,
            parts: parts.subscribe(),
        };
        let stop = stop.clone();

        reading.spawn(async move {
            tokio::select! {
                () = stop.requested() => {}
                never = part.run() => match never {},
            }
        });
    }

    while reading.join_next().await.is_some() {}
}

/// The feed of one part.
struct PartFeed {
    feed: Arc<DispatchFeed>,
    bus: Bus,
    part: u16,
    parts: watch::Receiver<PartSet>,
}

impl PartFeed {
    /// Reads the part whenever it is this broker's.
    async fn run(mut self) -> std::convert::Infallible {
        let part = self.part;
        loop {
            // The broker holds the sender, so it outlives this task.
            let is_known = self.parts.wait_for(|parts| parts.contains(part)).await.is_ok();
            if !is_known {
                std::future::pending::<()>().await;
            }

            let mut given_up = self.parts.clone();
            tokio::select! {
                _ = given_up.wait_for(|parts| !parts.contains(part)) => {}
                never = self.read() => match never {},
            }
            self.feed.with_window(|window| window.drop_part(part));
        }
    }

    async fn read(&self) -> std::convert::Infallible {
        // Created before the first read, so that a reconnection during it is not missed.
        let mut connections = self.bus.connections();
        let mut messages = self.open().await;
        loop {
            let message = tokio::select! {
                // The stream may be another one now: the window's messages belong to the former one.
                () = connections.stands_anew() => {
                    connections.count_from_now();
                    messages = self.open().await;
                    continue;
                }
                message = messages.next() => message,
            };

            let stored = StoredMessage {
                subject: message.subject,
                headers: message.headers,
                payload: message.payload,
                sequence: message.sequence,
                published_at: message.published_at,
                stored_at_ns: message.stored_at_ns,
            };
            self.feed.take(self.part, stored);
        }
    }

    async fn open(&self) -> OrderedReader {
        let filters = [partition_filter(DISPATCHES, self.part)];
        loop {
            match self.bus.stream_state(DISPATCHES).await {
                Ok(state) => match self.bus.read_ordered(DISPATCHES, &filters, state.last + 1).await {
                    Ok(messages) => {
                        self.feed.begin_part(self.part, state.last + 1);
                        return messages;
                    }
                    Err(error) => tracing::debug!(%error, "failed to read dispatches; retrying"),
                },
                Err(error) => tracing::debug!(%error, "failed to read dispatches; retrying"),
            }

            pause(BEGIN_AGAIN).await;
        }
    }
}
