//! Sessions whose ledgers hold an entry that only a later release knows.
//!
//! Such a session is neither folded nor quarantined: its claim is handed back until a broker of that release takes it.
//! Nothing about it is stored; a broker knows those whose claims it had lately.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shared::clock::pause;
use shared::model::session::SessionRef;
use shared::process::Health;

use super::BrokerContext;

/// Time after which a claim that was handed back is delivered again.
pub const TRY_AGAIN: Duration = Duration::from_secs(2);
/// Time for which a session counts as waiting after this broker had its claim. Another broker may have it by then.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Interval at which what is known is told.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of sessions that a health page names.
const MAX_NAMED: usize = 3;

/// One waiting session.
#[derive(Debug, Clone)]
struct WaitingSession {
    /// Sequence of the record, and what in it is not known.
    what: String,
    seen: Instant,
}

/// The sessions that wait for a broker of a later release.
#[derive(Debug, Default)]
pub struct NewerLedgers(Mutex<BTreeMap<SessionRef, WaitingSession>>);

impl NewerLedgers {
    /// Notes at `now` that `session` waits because of `what`. Returns whether that is news.
    pub fn note(&self, session: &SessionRef, what: String, now: Instant) -> bool {
        let noted = WaitingSession { what, seen: now };
        self.lock().insert(session.clone(), noted).is_none()
    }

    /// Returns whether `session` waits.
    #[must_use]
    pub fn contains(&self, session: &SessionRef) -> bool {
        self.lock().contains_key(session)
    }

    /// Forgets `session`, which could be read.
    pub fn forget(&self, session: &SessionRef) {
        self.lock().remove(session);
    }

    /// Forgets the sessions whose claims were not here lately, and describes the others; `None` if there are none.
    fn describe(&self, now: Instant) -> (usize, Option<String>) {
        let mut waiting = self.lock();
        waiting.retain(|_, session| now.saturating_duration_since(session.seen) < KNOWN_FOR);
        let mut named: Vec<String> = waiting
            .iter()
            .take(MAX_NAMED)
            .map(|(session, waiting)| format!("{session} ({})", waiting.what))
            .collect();
        if waiting.len() > MAX_NAMED {
            named.push(format!("{} more", waiting.len() - MAX_NAMED));
        }

        let told = (!waiting.is_empty()).then(|| format!("wait for a broker of a later release: {}", named.join(", ")));
        (waiting.len(), told)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionRef, WaitingSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the health page and the metric current until shutdown is requested.
pub async fn serve(broker: Arc<BrokerContext>, health: Health) {
    loop {
        let (count, told) = broker.newer.describe(broker.clock.monotonic());
        metrics::gauge!("nexus_broker_sessions_awaiting_release").set(u32::try_from(count).unwrap_or(u32::MAX));
        match told {
            Some(told) => health.set_degraded("ledgers", &told),
            None => health.set("ledgers", true, "all read are of this release"),
        }

        tokio::select! {
            () = broker.shutdown.requested() => return,
            () = pause(TELL_EVERY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::Clock as _;
    use shared::model::time::UnixMillis;
    use shared::testing::ManualClock;

    use super::*;

    fn start() -> Instant {
        ManualClock::at(UnixMillis(0)).monotonic()
    }

    fn session(name: usize) -> SessionRef {
        SessionRef {
            persona: "ann".to_owned(),
            session: format!("s{name}"),
        }
    }

    #[test]
    fn a_session_waits_while_its_claims_come() {
        let (waiting, start) = (NewerLedgers::default(), start());
        assert!(waiting.note(&session(0), "record 7".to_owned(), start));
        assert!(!waiting.note(&session(0), "record 7".to_owned(), start + KNOWN_FOR / 2));
        let (count, told) = waiting.describe(start + KNOWN_FOR);
        assert_eq!(count, 1, "its claim was here half of the time ago");
        assert!(told.is_some_and(|told| told.contains("ann/s0 (record 7)")));

        assert_eq!(waiting.describe(start + KNOWN_FOR * 2), (0, None));
        assert!(
            waiting.note(&session(0), "record 7".to_owned(), start),
            "that is news again"
        );
        waiting.forget(&session(0));
        assert!(!waiting.contains(&session(0)));
    }

    #[test]
    fn a_page_names_only_some() {
        let (waiting, start) = (NewerLedgers::default(), start());
        for number in 0..5 {
            waiting.note(&session(number), "record 7".to_owned(), start);
        }
        let (count, told) = waiting.describe(start);
        assert_eq!(count, 5);
        assert!(told.is_some_and(|told| told.ends_with("2 more")));
    }
}
