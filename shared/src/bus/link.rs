//! State of the client's connection: when it was lost, and when a new one was made.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::clock::{Clock as _, SystemClock, pause};

/// Number of losses within [`WINDOW`] that are no accident: a server that restarts loses the connection once.
const LOSSES: usize = 3;
/// Time for which a loss counts. A durable consumer redelivers the messages that were lost with a connection after its
/// ack wait, at most half a minute, so that a repeated loss falls into this window.
const WINDOW: Duration = Duration::from_secs(200);
/// Time for which a new connection must last before readers start again.
const STEADY: Duration = Duration::from_millis(200);

/// Time in which a server answers over a new connection what it was asked over the former one, if it does.
const ANSWERED_AGAIN: Duration = Duration::from_millis(500);

/// State of one client's connection.
#[derive(Debug, Default)]
pub(super) struct ServerLink {
    lost_at: Mutex<VecDeque<Instant>>,
    lost: Notify,
    connected: watch::Sender<u64>,
}

impl ServerLink {
    /// Handles an event of the client.
    pub(super) fn handle_event(&self, event: &async_nats::Event) {
        match event {
            async_nats::Event::Connected => {
                tracing::info!("connected to NATS");
                self.connected.send_modify(|times| *times += 1);
            }
            async_nats::Event::Disconnected => {
                tracing::warn!("disconnected from NATS");
                self.note_loss(SystemClock.monotonic());
            }
            // A denied publish or subscribe is reported only by this event.
            async_nats::Event::ServerError(error) => tracing::warn!(%error, "error from NATS"),
            async_nats::Event::SlowConsumer(id) => tracing::warn!(id, "slow consumer: messages dropped"),
            event @ (async_nats::Event::LameDuckMode
            | async_nats::Event::Draining
            | async_nats::Event::Closed
            | async_nats::Event::ClientError(_)) => tracing::debug!(%event, "event of the NATS client"),
        }
    }

    fn note_loss(&self, now: Instant) {
        let mut lost_at = self.lost_at.lock().unwrap_or_else(PoisonError::into_inner);
        if lost_at.len() == LOSSES {
            lost_at.pop_front();
        }
        lost_at.push_back(now);
        self.lost.notify_one();
    }

    /// Counts a new connection, because a reader found that its stream was replaced: every user of positions then
    /// checks whether they are still valid.
    pub(super) fn stands_for_another(&self) {
        self.connected.send_modify(|times| *times += 1);
    }

    /// Returns the number of the current connection, counted from 1; 0 if there was none yet.
    pub(super) fn number(&self) -> u64 {
        *self.connected.borrow()
    }

    /// Waits until an answer to what was sent over connection `number` is lost with it: another one was made, and the answer
    /// has not come over that one either.
    pub(super) async fn wait_for_lost_answer(&self, number: u64) {
        let mut connections = self.connected.subscribe();
        // The sender lives as long as this.
        let _ = connections.wait_for(|current| *current != number).await;
        pause(ANSWERED_AGAIN).await;
    }

    /// Waits until the connection is lost.
    pub(super) async fn wait_lost(&self) {
        self.lost.notified().await;
    }

    /// Returns whether the connection was lost too often lately, and resets the count if so.
    pub(super) fn is_lost_often(&self, now: Instant) -> bool {
        let mut lost_at = self.lost_at.lock().unwrap_or_else(PoisonError::into_inner);
        lost_at.retain(|then| now.saturating_duration_since(*then) < WINDOW);
        let often = lost_at.len() == LOSSES;
        if often {
            lost_at.clear();
        }
        often
    }

    /// Returns a receiver that changes with every new connection. Messages in flight over the old one are lost, and
    /// the server does not redeliver them to a reader without acks: such a reader must start again after its last
    /// message.
    pub(super) fn connections(&self) -> watch::Receiver<u64> {
        self.connected.subscribe()
    }
}

/// Waits until there is a new connection that has lasted for [`STEADY`]. A connection that ends again and again would
/// leave a consumer behind each time.
pub(super) async fn stands_anew(connections: &mut watch::Receiver<u64>) {
    loop {
        if connections.changed().await.is_err() {
            return std::future::pending().await;
        }

        // If the caller drops this future while it waits, the change is reported again.
        connections.mark_changed();
        let mut later = connections.clone();
        later.mark_unchanged();

        if tokio::time::timeout(STEADY, later.changed()).await.is_err() {
            connections.mark_unchanged();
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_new_connection_is_told_also_to_whoever_stopped_waiting_for_it_to_stand() {
        let link = ServerLink::default();
        let mut connections = link.connections();
        link.handle_event(&async_nats::Event::Connected);
        let cut_short = tokio::time::timeout(STEADY / 10, stands_anew(&mut connections)).await;
        assert!(cut_short.is_err(), "it does not stand yet");
        let told = tokio::time::timeout(STEADY * 100, stands_anew(&mut connections)).await;
        assert!(told.is_ok());
        let again = tokio::time::timeout(STEADY * 2, stands_anew(&mut connections)).await;
        assert!(again.is_err(), "once");
    }

    #[test]
    fn losses_count_where_they_come_close_together_and_once() {
        let then = SystemClock.monotonic();
        let at = |seconds| then + Duration::from_secs(seconds);

        let link = ServerLink::default();
        for second in [0, 70, 240, 250] {
            link.note_loss(at(second));
        }

        assert!(link.is_lost_often(at(260)) && !link.is_lost_often(at(260)));

        for second in [300, 450, 510] {
            link.note_loss(at(second));
        }

        assert!(!link.is_lost_often(at(510)));
    }
}
