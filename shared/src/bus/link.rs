//! What the client tells of its connection: when it was lost, and that it stands anew.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::clock::{Clock as _, SystemClock};

/// Losses within [`WINDOW`] that are no accident any more: a server that restarts is lost once.
const LOSSES: usize = 3;
/// How long a loss counts: a durable consumer gives what was lost with the connection again after its ack wait, at most
/// half a minute.
const WINDOW: Duration = Duration::from_secs(200);
/// How long a new connection has to stand before readers begin again.
const STEADY: Duration = Duration::from_millis(200);

/// One client's connection.
#[derive(Debug, Default)]
pub(super) struct Link {
    lost_at: Mutex<VecDeque<Instant>>,
    lost: Notify,
    connected: watch::Sender<u64>,
}

impl Link {
    /// Takes in what the client tells.
    pub(super) fn hear(&self, event: &async_nats::Event) {
        match event {
            async_nats::Event::Connected => {
                tracing::info!("connected to nats");
                self.connected.send_modify(|times| *times += 1);
            }
            async_nats::Event::Disconnected => {
                tracing::warn!("disconnected from nats");
                self.note_loss(SystemClock.monotonic());
            }
            // A denied publish or subscribe is told here and nowhere else.
            async_nats::Event::ServerError(error) => tracing::warn!(%error, "nats refuses"),
            async_nats::Event::SlowConsumer(id) => tracing::warn!(id, "messages were dropped unread"),
            event @ (async_nats::Event::LameDuckMode
            | async_nats::Event::Draining
            | async_nats::Event::Closed
            | async_nats::Event::ClientError(_)) => tracing::debug!(%event, "nats client"),
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

    /// A reader found that its stream is another one: that counts as a new connection, upon which everybody asks whether
    /// their positions hold.
    pub(super) fn stands_for_another(&self) {
        self.connected.send_modify(|times| *times += 1);
    }

    /// Waits until the connection is lost.
    pub(super) async fn lost(&self) {
        self.lost.notified().await;
    }

    /// Whether it was lost too often lately; forgets that once it is told.
    pub(super) fn is_lost_often(&self, now: Instant) -> bool {
        let mut lost_at = self.lost_at.lock().unwrap_or_else(PoisonError::into_inner);
        lost_at.retain(|then| now.saturating_duration_since(*then) < WINDOW);
        let often = lost_at.len() == LOSSES;
        if often {
            lost_at.clear();
        }
        often
    }

    /// Changes whenever the connection stands anew. What was on its way over the old one is lost, and the server does not
    /// give it again where nobody acks: such a reader has to begin again behind what it has.
    pub(super) fn connections(&self) -> watch::Receiver<u64> {
        self.connected.subscribe()
    }
}

/// Tells when the connection stands anew, or a stream that is read turned out to be another one: what counts with
/// positions asks then whether they hold.
#[derive(Debug)]
pub struct Connections(watch::Receiver<u64>);

impl Connections {
    /// Counts connections from now on.
    pub fn begin(&mut self) {
        self.0.mark_unchanged();
    }

    /// Waits until the connection was lost and stands anew.
    pub async fn stands_anew(&mut self) {
        stands_anew(&mut self.0).await;
    }
}

impl super::connect::Bus {
    /// Which connection stands, counted from 1; 0 = none has stood yet.
    #[must_use]
    pub fn connection_number(&self) -> u64 {
        *self.link.connections().borrow()
    }

    /// The connections that stand from now on.
    #[must_use]
    pub fn connections(&self) -> Connections {
        Connections(self.link.connections())
    }
}

/// Waits until the connection stands anew, and has for a moment: one that ends again and again would leave a consumer
/// behind each time.
pub(super) async fn stands_anew(connections: &mut watch::Receiver<u64>) {
    loop {
        if connections.changed().await.is_err() {
            return std::future::pending().await;
        }

        // Whoever drops this while it waits is told again.
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
        let link = Link::default();
        let mut connections = link.connections();
        link.hear(&async_nats::Event::Connected);
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

        let link = Link::default();
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
