//! Lists sessions, and releases a quarantined one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shared::bus::{CasError, claim};
use shared::model::session::SessionRef;
use shared::wire::headers::TraceCarrier;
use shared::wire::session_mark::SessionMark;
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_OVERRIDES;
use shared::wire::topology::streams::LEDGER;

use super::{Parked, Refusal};
use crate::broker::BrokerContext;

/// Number of sessions listed if the request names none.
const LISTED: usize = 50;
/// Maximum number of sessions in one list.
const MAX_LISTED: usize = 1_000;

/// Request of `list`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListRequest {
    /// Lists only sessions of this persona.
    persona: Option<String>,
    /// Lists only sessions after this one, in the order of the list.
    after: Option<SessionRef>,
    /// Maximum number of sessions; 0 = [`LISTED`].
    limit: usize,
}

/// One session in the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SessionSummary {
    session: SessionRef,
    /// Number of records in its ledger.
    records: u64,
}

/// Response of `list`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SessionList {
    sessions: Vec<SessionSummary>,
    /// Total number of the sessions that the request asks for.
    total: usize,
}

/// Response of `release`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ReleaseAnswer {
    session: SessionRef,
    /// Reason for the quarantine.
    why: String,
}

pub(super) async fn list(broker: Arc<BrokerContext>, question: ListRequest) -> Result<SessionList, Refusal> {
    let persona = question.persona.as_deref();
    let filter = format!(
        "nexus.ledger.{}.*",
        persona.map_or_else(|| "*".to_owned(), subject::token)
    );

    // The server lists subjects with counts, so no ledger has to be read.
    let subjects = broker.bus.list_subjects(LEDGER, &filter).await;
    let subjects = subjects.map_err(|error| (503, error.to_string()))?;
    let after = question.after.as_ref().map(subject::ledger);
    let name = |token: &str| subject::untoken(token).unwrap_or_else(|| token.to_owned());
    let limit = if question.limit == 0 { LISTED } else { question.limit };

    let listed = |(subject, records): (&String, &u64)| {
        let (persona, session) = subject::parse_session(subject)?;
        Some(SessionSummary {
            session: SessionRef {
                persona: name(persona),
                session: name(session),
            },
            records: *records,
        })
    };

    // The page continues after a subject, so sessions created meanwhile do not shift it.
    let behind = subjects
        .iter()
        .filter(|(subject, _)| after.as_ref().is_none_or(|after| *subject > after));
    Ok(SessionList {
        sessions: behind.filter_map(listed).take(limit.min(MAX_LISTED)).collect(),
        total: subjects.len(),
    })
}

/// Returns the mark of `session` if it is quarantined, with its revision.
pub(super) async fn read_mark(broker: &BrokerContext, session: &SessionRef) -> Result<Option<(Parked, u64)>, Refusal> {
    let marks = broker.bus.kv::<SessionMark>(SESSION_OVERRIDES);
    let found = marks.get(&subject::session_key(session)).await;
    let found = found.map_err(|error| (503, error.to_string()))?;
    Ok(found.and_then(|mark| {
        let (why, since) = (mark.value.quarantined?, mark.value.since);
        Some((Parked { why, since }, mark.revision))
    }))
}

/// Removes the quarantine mark of `session` and claims it. A broker that does not know of the removal yet ends that
/// claim, and claims the session itself once it knows.
pub(super) async fn release_session(broker: Arc<BrokerContext>, session: SessionRef) -> Result<ReleaseAnswer, Refusal> {
    let unavailable = |error: String| (503, error);
    let Some((Parked { why, .. }, revision)) = read_mark(&broker, &session).await? else {
        return Err((404, format!("{session} is not quarantined")));
    };

    let marks = broker.bus.kv::<SessionMark>(SESSION_OVERRIDES);
    match marks.delete(&subject::session_key(&session), Some(revision)).await {
        Ok(()) => {}
        Err(CasError::Conflict { .. }) => {
            return Err((409, format!("{session}: concurrent update of its quarantine mark")));
        }
        Err(error) => return Err(unavailable(error.to_string())),
    }

    let claimed = claim::publish(&broker.bus, &session, &TraceCarrier::default()).await;
    claimed.map_err(|error| unavailable(error.to_string()))?;

    Ok(ReleaseAnswer { session, why })
}
