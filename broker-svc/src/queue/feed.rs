//! Feeds the window: every broker reads `DISPATCHES` once, in order, for all sessions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shared::bus::{Bus, OrderedReader, StoredMessage};
use shared::clock::pause;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::topology::streams::DISPATCHES;
use tokio::sync::watch;

use crate::queue::window::DispatchWindow;

/// Wait before reading is started again after it could not start.
const BEGIN_AGAIN: Duration = Duration::from_millis(200);

/// The window, and a signal for tasks that wait for it.
#[derive(Debug)]
pub struct DispatchFeed {
    window: Mutex<DispatchWindow>,
    through: watch::Sender<u64>,
}

impl Default for DispatchFeed {
    fn default() -> Self {
        Self {
            window: Mutex::default(),
            through: watch::Sender::new(0),
        }
    }
}

impl DispatchFeed {
    /// Calls `ask` with the window.
    pub fn with_window<T>(&self, ask: impl FnOnce(&mut DispatchWindow) -> T) -> T {
        ask(&mut self.window.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits at most `patience` until the window has reached `sequence`. Returns whether it has.
    pub async fn wait_reached(&self, sequence: u64, patience: Duration) -> bool {
        let mut through = self.through.subscribe();
        tokio::select! {
            reached = through.wait_for(|through| *through >= sequence) => reached.is_ok(),
            () = pause(patience) => false,
        }
    }

    fn take(&self, stored: StoredMessage) {
        let sequence = stored.sequence;
        self.with_window(|window| window.feed_message(stored));
        self.through.send_replace(sequence);
    }
}

/// Feeds the window of `feed` from `bus` until `stop` is requested.
pub async fn serve(feed: Arc<DispatchFeed>, bus: Bus, stop: ShutdownSignal) {
    // Created before the first read, so that a reconnection during it is not missed.
    let mut connections = bus.connections();

    let mut messages = tokio::select! {
        () = stop.requested() => return,
        messages = open_feed(&feed, &bus) => messages,
    };
    loop {
        let message = tokio::select! {
            () = stop.requested() => return,
            // The stream may be another one now: the window's messages belong to the former one.
            () = connections.stands_anew() => {
                connections.count_from_now();
                messages = tokio::select! {
                    () = stop.requested() => return,
                    messages = open_feed(&feed, &bus) => messages,
                };
                continue;
            }
            message = messages.next() => message,
        };

        feed.take(StoredMessage {
            subject: message.subject,
            headers: message.headers,
            payload: message.payload,
            sequence: message.sequence,
            published_at: message.published_at,
            stored_at_ns: message.stored_at_ns,
        });
    }
}

async fn open_feed(feed: &DispatchFeed, bus: &Bus) -> OrderedReader {
    loop {
        match bus.stream_state(DISPATCHES).await {
            Ok(state) => match bus.read_ordered(DISPATCHES, &[], state.last + 1).await {
                Ok(messages) => {
                    feed.with_window(|window| window.begin_from(state.last + 1));
                    return messages;
                }
                Err(error) => tracing::debug!(%error, "failed to read dispatches; retrying"),
            },
            Err(error) => tracing::debug!(%error, "failed to read dispatches; retrying"),
        }

        pause(BEGIN_AGAIN).await;
    }
}
