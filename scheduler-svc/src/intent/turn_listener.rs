//! Listens for the end of a firing's turn: a core subscription on the ledger of its session, while the firing runs.
//!
//! The subscription is only a hint: it may fire twice, too early or not at all. The outcome is read from the ledger,
//! and the timer of the firing polls as well. No ledger record of another session is delivered here.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Bus, CoreSubscription};
use shared::clock::pause;
use shared::model::session::SessionRef;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::ledger_kinds::decode_known;
use shared::wire::subject;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::outcome::ends_something;

/// Largest number of firings listened for at once; others are left to their timers.
const MAX_EARS: usize = 16_384;
/// Longest time that one firing is listened for; after it the timer polls.
const LISTEN: Duration = Duration::from_secs(600);
/// Pauses before the polls after a hint: a record is heard before it is stored.
const LOOKS: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_millis(1_000),
];

/// Listens for the ends of turns.
#[derive(Debug)]
pub struct TurnListener {
    bus: Bus,
    ears: Arc<Semaphore>,
    shutdown: ShutdownSignal,
}

/// Subscription on one session's ledger.
#[derive(Debug)]
pub struct SessionListener {
    heard: CoreSubscription,
    _permit: OwnedSemaphorePermit,
}

impl TurnListener {
    /// Creates a listener on `bus` that ends with `shutdown`.
    #[must_use]
    pub fn new(bus: Bus, shutdown: ShutdownSignal) -> Self {
        Self {
            bus,
            ears: Arc::new(Semaphore::new(MAX_EARS)),
            shutdown,
        }
    }

    /// Starts to listen to `session`. Must be called before the message is published that could end the firing. Returns
    /// `None` if too many firings are listened for, or if the server does not accept the subscription.
    pub async fn listen(&self, session: &SessionRef) -> Option<SessionListener> {
        let permit = Arc::clone(&self.ears).try_acquire_owned().ok()?;
        let heard = self.bus.core_subscribe(&subject::ledger(session)).await.ok()?;
        Some(SessionListener { heard, _permit: permit })
    }

    /// Polls with `has_ended` whenever `ear` receives an end, until it returns true.
    pub fn await_end<F>(&self, mut ear: SessionListener, has_ended: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = bool> + Send + 'static,
    {
        let shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            let listening = async {
                while let Some(message) = ear.heard.next().await {
                    let ended = decode_known(&message.headers, &message.payload);
                    if !ended.is_ok_and(|record| ends_something(&record)) {
                        continue;
                    }

                    // The record is heard before it is stored, so the first polls may come too early.
                    for wait in LOOKS {
                        pause(wait).await;
                        if has_ended().await {
                            return;
                        }
                    }
                }
            };

            tokio::select! {
                () = listening => {}
                () = pause(LISTEN) => {}
                () = shutdown.requested() => {}
            }
        });
    }
}
