//! Whether the last firing of a schedule is still under way.
//!
//! The read model follows an event's whole chain: while its trace is not complete, it is. A heartbeat waits for its
//! session besides: while a claim stands there, the session has something to run. Where nobody can tell, nothing is
//! under way: a firing is rather doubled than lost.

use std::time::Duration;

use shared::bus::Bus;
use shared::model::event::{Event, EventId};
use shared::model::heartbeat::HeartbeatMark;
use shared::model::schedule::{ScheduleRecord, ScheduleTarget};
use shared::model::session::SessionRef;
use shared::projection::api::{Trace, TraceRequest};
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams;

/// Who follows events.
const TRACE: &str = "nexus.svc.events.trace";
/// How long the answer may take. Twice that, for a firing that is looked at again, is less than the ack wait of its timer
/// (15 s); a busy machine takes its time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Whether the last firing of `record`, the event `last` if it is not too long ago, is under way, or its persona busy.
pub(super) async fn is_under_way(bus: &Bus, record: &ScheduleRecord, last: Option<&Event>) -> bool {
    if let ScheduleTarget::Persona(persona) = &record.spec.target
        && is_busy(bus, persona, record).await
    {
        return true;
    }
    match last {
        Some(last) => !is_complete(bus, &last.id).await,
        None => false,
    }
}

async fn is_complete(bus: &Bus, id: &EventId) -> bool {
    let question = TraceRequest { event_id: id.clone() };
    match bus.request::<_, Trace>(TRACE, Headers::new(), &question, TIMEOUT).await {
        Ok(trace) => trace.complete,
        Err(error) => {
            tracing::debug!(event_id = %id, %error, "nobody can tell whether the last firing is under way");
            true
        }
    }
}

/// Whether the persona's heartbeat session has something to run.
pub(super) async fn is_busy(bus: &Bus, persona: &str, record: &ScheduleRecord) -> bool {
    let mark = record.spec.metadata.get("heartbeat").cloned().unwrap_or_default();
    let Ok(mark) = serde_json::from_value::<HeartbeatMark>(mark) else {
        return false;
    };
    let session = SessionRef {
        persona: persona.to_owned(),
        session: mark.session,
    };
    match bus.last_on_subject(streams::CLAIMS, &subject::claim(&session)).await {
        Ok(claim) => claim.is_some(),
        Err(error) => {
            tracing::debug!(%session, %error, "nobody can tell whether the session is busy");
            false
        }
    }
}
