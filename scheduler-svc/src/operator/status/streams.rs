//! Positions of the streams, and sessions that have something to run.

use shared::bus::{Bus, ReadStreamError};
use shared::model::invocation::EventInvocations;
use shared::model::session::SessionRef;
use shared::wire::operator::status::{BusySession, MAX_BUSY_SESSIONS, StreamCount, StreamsStatus};
use shared::wire::subject::{dispatch, parse_session, untoken};
use shared::wire::topology::streams;

/// Streams that are counted.
const COUNTED: [&str; 8] = [
    streams::EVENTS,
    streams::INVOCATIONS,
    streams::DISPATCHES,
    streams::CLAIMS,
    streams::LEDGER,
    streams::DELIVERIES,
    streams::PARKED,
    streams::DLQ,
];

/// Returns the state of the streams, with at most `sessions` names of sessions.
pub(super) async fn read(bus: &Bus, sessions: usize) -> Result<StreamsStatus, ReadStreamError> {
    let mut status = StreamsStatus::default();
    for name in COUNTED {
        let state = bus.stream_state(name).await?;
        status.streams.push(StreamCount {
            name: name.to_owned(),
            last: state.last,
            messages: state.messages,
        });
    }

    let newest = bus.last_on_subject(streams::INVOCATIONS, ">").await?;
    let record = newest.and_then(|stored| stored.decode::<EventInvocations>().ok());
    status.evaluated = record.map_or(0, |record| record.event_seq);

    let claims = bus.list_subjects(streams::CLAIMS, "nexus.claim.>").await?;
    status.busy = claims.len();
    let named = claims.keys().filter_map(|claim| session_of(claim));
    let named: Vec<SessionRef> = named.take(sessions.min(MAX_BUSY_SESSIONS)).collect();
    for session in named {
        let subject = dispatch(&session);
        let stored = bus.list_subjects(streams::DISPATCHES, &subject).await?;
        status.sessions.push(BusySession {
            session,
            dispatches: stored.values().sum(),
        });
    }
    Ok(status)
}

/// Returns the session whose claim is at `claim`; `None` if its name was shortened there.
fn session_of(claim: &str) -> Option<SessionRef> {
    let (persona, session) = parse_session(claim)?;
    Some(SessionRef {
        persona: untoken(persona)?,
        session: untoken(session)?,
    })
}
