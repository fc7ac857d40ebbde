//! Shows on the chat page that a turn is worked on; and in the log, on that page, and to `nexus session show` and
//! `nexus trace` by a note in KV, that its agent is unreachable, for as long as that lasts.
//!
//! Short trouble is not shown. A notice is repeated every few seconds and expires by itself soon after: a broker that
//! dies leaves nothing that would stay.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use shared::bus::Bus;
use shared::clock::{SharedClock, pause};
use shared::model::dispatch::DeliveryContext;
use shared::model::event::DEFAULT_ACCOUNT;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::envelope::PayloadFormat;
use shared::wire::headers::{CONTENT_TYPE, Headers};
use shared::wire::session_mark::AgentAway;
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_CHECKPOINTS;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use ulid::Ulid;

/// Time within which trouble may end without being shown.
const SHOWN_AFTER: Duration = Duration::from_secs(3);
/// Interval at which a notice is repeated while it lasts.
const AGAIN_EVERY: Duration = Duration::from_secs(5);
/// Time for which a notice is valid, milliseconds.
const HOLDS_MS: i64 = 20_000;
/// Channel whose pages show the notice.
const WEBCHAT: &str = "webchat";
/// Maximum length of the reason that is kept, bytes.
const MAX_WHY_BYTES: usize = 300;

/// Notice to the open pages of a visitor, without the reason, which is for the operator alone.
#[derive(Debug, Serialize)]
struct Notice<'a> {
    /// Id of the turn.
    turn: Ulid,
    /// Thread of the conversation that waits for the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    /// Whether the turn's agent is unreachable.
    away: bool,
}

/// Notice to the open pages while the turn is worked on.
#[derive(Debug, Serialize)]
struct Work<'a> {
    /// Id of the turn.
    turn: Ulid,
    /// Thread of the conversation that waits for the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    /// Whether the turn is still worked on.
    working: bool,
}

#[derive(Debug, Default)]
struct Trouble {
    /// Time since which the agent is unreachable.
    since: Option<UnixMillis>,
    why: String,
    /// Whether a task shows the trouble.
    shown: bool,
    /// Whether the agent has answered since; otherwise it is not asked any more.
    answered: bool,
}

#[derive(Debug, Default)]
struct State {
    trouble: Mutex<Trouble>,
    changed: Notify,
}

impl State {
    fn lock_trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn whose agent is watched, and the pages to notify.
#[derive(Debug, Clone)]
struct Whose {
    bus: Bus,
    clock: SharedClock,
    session: SessionRef,
    turn: Ulid,
    /// Subject of the open pages of the visitor who waits.
    pages: Option<String>,
    /// Thread of the conversation in which the visitor waits.
    thread: Option<String>,
}

/// Reachability of one turn's agent. After the last copy is dropped, the agent is not asked any more.
#[derive(Debug, Clone)]
pub struct AgentAbsence(Arc<Held>);

#[derive(Debug)]
struct Held {
    state: Arc<State>,
    whose: Whose,
    /// Task that tells open pages that the turn is worked on.
    working: Option<AbortHandle>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(working) = &self.working {
            working.abort();
            let whose = self.whose.clone();
            // If the whole broker ends, no page is notified: the last notice expires by itself.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(async move { whose.publish_working(false).await });
            }
        }

        self.state.lock_trouble().since = None;
        self.state.changed.notify_one();
    }
}

impl PartialEq for AgentAbsence {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AgentAbsence {
    /// Creates the indicator for the agent of `turn` of `session`, whose answer goes to `delivery`.
    #[must_use]
    pub fn for_turn(bus: Bus, clock: SharedClock, session: SessionRef, turn: Ulid, delivery: &DeliveryContext) -> Self {
        // Only a chat page shows work and absence; other channels get the answer alone.
        let peer = delivery.peer_id.as_ref().filter(|_| delivery.channel == WEBCHAT);
        let account = delivery.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
        let whose = Whose {
            pages: peer.map(|peer| subject::webchat(account, peer)),
            thread: delivery.thread_id.clone(),
            bus,
            clock,
            session,
            turn,
        };

        // The notice is repeated, because a page may be opened at any time.
        let working = whose.pages.is_some().then(|| {
            let whose = whose.clone();
            let telling = async move {
                loop {
                    whose.publish_working(true).await;
                    pause(AGAIN_EVERY).await;
                }
            };

            tokio::spawn(telling).abort_handle()
        });

        let state = Arc::default();
        Self(Arc::new(Held { state, whose, working }))
    }

    /// Notes that the agent was unreachable, for the reason `why`; it will be asked again.
    pub fn note_unreachable(&self, why: &str) {
        let Held { state, whose, .. } = &*self.0;
        let mut trouble = state.lock_trouble();
        trouble.since.get_or_insert_with(|| whose.clock.now());
        trouble.answered = false;
        why[..why.floor_char_boundary(MAX_WHY_BYTES)].clone_into(&mut trouble.why);
        if !std::mem::replace(&mut trouble.shown, true) {
            tokio::spawn(show(Arc::clone(state), whose.clone()));
        }
    }

    /// Notes that the agent answers.
    pub fn note_reachable(&self) {
        let mut trouble = self.0.state.lock_trouble();
        if trouble.since.take().is_some() {
            trouble.answered = true;
            self.0.state.changed.notify_one();
        }
    }
}

/// Shows trouble while there is any, until the agent is not asked any more.
async fn show(state: Arc<State>, whose: Whose) {
    loop {
        let begun = {
            let mut trouble = state.lock_trouble();
            trouble.shown = trouble.since.is_some();
            trouble.since
        };
        let Some(since) = begun else { return };
        // A short absence is not worth a notice: most agents answer the next attempt.
        if wait_until_over(&state, since, SHOWN_AFTER).await {
            continue;
        }

        let why = state.lock_trouble().why.clone();
        let (session, turn) = (&whose.session, whose.turn);
        tracing::warn!(%session, %turn, error = why, "agent unreachable; retrying");

        // Repeated, because a page that was opened meanwhile, and a note that expires, need the state again.
        loop {
            let why = state.lock_trouble().why.clone();
            whose.store_note(since, &why).await;
            whose.publish_notice(true).await;
            if wait_until_over(&state, since, AGAIN_EVERY).await {
                break;
            }
        }

        // Read before the note is deleted, so that the log line has the length of the whole absence.
        let away_ms = whose.clock.now().since(since);
        match state.lock_trouble().answered {
            true => tracing::info!(%session, %turn, away_ms, "agent is reachable again"),
            false => tracing::info!(%session, %turn, away_ms, "gave up on an unreachable agent"),
        }

        whose.clear().await;
    }
}

/// Waits until the trouble that began at `since` is over, for at most `limit`. Returns whether it is over.
async fn wait_until_over(state: &State, since: UnixMillis, limit: Duration) -> bool {
    let limit = pause(limit);
    tokio::pin!(limit);

    loop {
        if state.lock_trouble().since != Some(since) {
            return true;
        }

        tokio::select! {
            () = &mut limit => return state.lock_trouble().since != Some(since),
            () = state.changed.notified() => {}
        }
    }
}

impl Whose {
    async fn store_note(&self, since: UnixMillis, why: &str) {
        let away = AgentAway {
            session: self.session.clone(),
            turn: self.turn,
            why: why.to_owned(),
            since,
            until: self.clock.now().plus(HOLDS_MS),
        };

        let notes = self.bus.kv::<AgentAway>(SESSION_CHECKPOINTS);
        if let Err(error) = notes.put(&subject::away_key(&self.session), &away).await {
            tracing::debug!(session = %self.session, %error, "failed to record that an agent is unreachable");
        }
    }

    async fn publish_notice(&self, away: bool) {
        let (turn, thread) = (self.turn, self.thread.as_deref());
        self.publish_to_pages(&Notice { turn, thread, away }).await;
    }

    async fn publish_working(&self, working: bool) {
        let (turn, thread) = (self.turn, self.thread.as_deref());
        self.publish_to_pages(&Work { turn, thread, working }).await;
    }

    async fn publish_to_pages(&self, word: &impl Serialize) {
        let Some(pages) = &self.pages else { return };
        let headers: Headers = [(CONTENT_TYPE, PayloadFormat::Json.content_type())]
            .into_iter()
            .collect();
        let payload = serde_json::to_vec(word).unwrap_or_default();
        self.bus
            .core_publish(pages, &headers, bytes::Bytes::from(payload))
            .await;
    }

    async fn clear(&self) {
        self.publish_notice(false).await;
        let notes = self.bus.kv::<AgentAway>(SESSION_CHECKPOINTS);
        if let Err(error) = notes.delete(&subject::away_key(&self.session), None).await {
            tracing::debug!(session = %self.session, %error, "failed to delete the record of an unreachable agent; it expires");
        }
    }
}

/// Returns the valid note about the agent of `turn` of `session`, if there is one.
///
/// # Errors
/// Returns the server's error text if the note cannot be read.
pub async fn read_away_note(
    bus: &Bus,
    session: &SessionRef,
    turn: Ulid,
    now: UnixMillis,
) -> Result<Option<AgentAway>, String> {
    let notes = bus.kv::<AgentAway>(SESSION_CHECKPOINTS);
    let found = notes.get(&subject::away_key(session)).await;
    let found = found.map_err(|error| error.to_string())?;
    Ok(found
        .map(|entry| entry.value)
        .filter(|away| away.turn == turn && away.until > now))
}
