//! Hearing that a firing's turn may have ended: a core subscription on its session's ledger, while it runs.
//!
//! Only a bell: it may ring twice, too early or not at all. What is true is read from the ledger, and the timer of the
//! firing looks too. So no ledger record of any other session is ever delivered here.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Bus, CoreSubscription};
use shared::clock::pause;
use shared::model::ledger::LedgerRecord;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::envelope::decode;
use shared::wire::subject;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use ulid::Ulid;

use super::clerk::IntentExecutor;
use super::outcome::ends_something;

/// Firings listened for at once; what is above is left to the timers.
const MAX_EARS: usize = 16_384;
/// How long one is listened for; then it is left to its timer.
const LISTEN: Duration = Duration::from_secs(600);
/// Waits between looks after the bell rang: a record is heard before it is stored.
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

/// One session being listened to.
#[derive(Debug)]
pub struct SessionListener {
    heard: CoreSubscription,
    _permit: OwnedSemaphorePermit,
}

impl TurnListener {
    /// On `bus`, until `shutdown`.
    #[must_use]
    pub fn new(bus: Bus, shutdown: ShutdownSignal) -> Self {
        Self {
            bus,
            ears: Arc::new(Semaphore::new(MAX_EARS)),
            shutdown,
        }
    }

    /// Begins to listen to `session`; to be called before anything is published that could end there.
    pub async fn listen(&self, session: &SessionRef) -> Option<SessionListener> {
        let permit = Arc::clone(&self.ears).try_acquire_owned().ok()?;
        let heard = self.bus.core_subscribe(&subject::ledger(session)).await.ok()?;
        Some(SessionListener { heard, _permit: permit })
    }

    /// Has `clerk` look whenever `ear` hears of an end, until the firing `nominal` of `id` is over.
    pub fn await_end(
        &self,
        clerk: Arc<IntentExecutor>,
        mut ear: SessionListener,
        agent: String,
        id: Ulid,
        nominal: UnixMillis,
    ) {
        let shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            let listening = async {
                while let Some(message) = ear.heard.next().await {
                    let ended = decode::<LedgerRecord>(&message.headers, &message.payload);
                    if !ended.is_ok_and(|record| ends_something(&record)) {
                        continue;
                    }

                    for wait in LOOKS {
                        pause(wait).await;
                        if matches!(clerk.look_for_end(&agent, id, nominal).await, Ok(true)) {
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
