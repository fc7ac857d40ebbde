//! The sessions that run at one broker, are quarantined there, or wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use shared::model::session::SessionRef;
use shared::wire::topology::SESSION_PARTS;

/// Time after trouble with the server in which no session is quarantined.
const TROUBLE_LASTS: Duration = Duration::from_secs(60);

type RunningSessions = Mutex<HashMap<SessionRef, usize>>;

/// The sessions that run at one broker, are quarantined there, or wait.
#[derive(Debug)]
pub struct BrokerActivity {
    running: Arc<RunningSessions>,
    /// Quarantined sessions, by their subject tokens.
    parked: RwLock<BTreeMap<String, SessionRef>>,
    /// By part: the number of claims that wait, as last reported.
    waiting: Vec<AtomicU64>,
    trouble: Mutex<Option<Instant>>,
    stopping: OnceLock<Instant>,
}

impl Default for BrokerActivity {
    fn default() -> Self {
        Self {
            running: Arc::default(),
            parked: RwLock::default(),
            waiting: (0..SESSION_PARTS).map(|_| AtomicU64::new(0)).collect(),
            trouble: Mutex::default(),
            stopping: OnceLock::new(),
        }
    }
}

impl BrokerActivity {
    /// Notes that a worker runs `session`, until the guard is dropped.
    #[must_use]
    pub fn enter_session(&self, session: &SessionRef) -> RunningGuard {
        *lock(&self.running).entry(session.clone()).or_default() += 1;
        RunningGuard {
            running: Arc::clone(&self.running),
            session: session.clone(),
        }
    }

    /// Returns whether a worker of this broker runs `session`.
    #[must_use]
    pub fn runs_session(&self, session: &SessionRef) -> bool {
        lock(&self.running).contains_key(session)
    }

    /// Returns whether the session of these subject tokens is quarantined.
    #[must_use]
    pub fn is_parked(&self, key: &str) -> bool {
        self.parked
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(key)
    }

    /// Notes whether the session of these subject tokens is quarantined (some) or not; returns the note before.
    pub fn set_parked(&self, key: &str, session: Option<SessionRef>) -> Option<SessionRef> {
        let mut all = self.parked.write().unwrap_or_else(PoisonError::into_inner);
        let before = match session {
            Some(session) => all.insert(key.to_owned(), session),
            None => all.remove(key),
        };

        metrics::gauge!("nexus_broker_sessions_quarantined").set(u32::try_from(all.len()).unwrap_or(u32::MAX));
        before
    }

    /// Returns the number of claims that wait for a broker, as last reported for the parts that this broker reads or
    /// helps with.
    #[must_use]
    pub fn claims_waiting(&self) -> u64 {
        self.waiting.iter().map(|claims| claims.load(Ordering::Relaxed)).sum()
    }

    /// Notes the number of waiting claims of `part`.
    pub fn note_waiting(&self, part: u16, claims: u64) {
        self.waiting[usize::from(part)].store(claims, Ordering::Relaxed);
    }

    /// Notes that a session could not be run at `now` because the server did not answer as it should.
    pub fn note_trouble(&self, now: Instant) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Returns whether there was trouble lately: then a claim that came again and again says nothing about its
    /// session.
    #[must_use]
    pub fn had_trouble(&self, now: Instant) -> bool {
        let at = *self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| now.saturating_duration_since(at) < TROUBLE_LASTS)
    }

    /// Notes that the request to stop was received at `now`.
    pub fn begin_stop(&self, now: Instant) {
        let _ = self.stopping.set(now);
    }

    /// Returns the time at which the request to stop was received.
    #[must_use]
    pub fn stopping_since(&self) -> Option<Instant> {
        self.stopping.get().copied()
    }
}

/// Guard that counts a session as run here while it lives.
#[derive(Debug)]
pub struct RunningGuard {
    running: Arc<RunningSessions>,
    session: SessionRef,
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        if let Some(count) = running.get_mut(&self.session) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.session);
            }
        }
    }
}

fn lock(running: &RunningSessions) -> MutexGuard<'_, HashMap<SessionRef, usize>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
