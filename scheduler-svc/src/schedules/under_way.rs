//! Check of whether the last firing of a schedule is still in progress.
//!
//! The read model follows an event's whole chain: while its trace is not complete, the firing is in progress. A
//! heartbeat also waits for its session: while the session has a claim, it has something to run. A request without a
//! response does not count as "no"; `decide` handles that case.

use std::time::Duration;

use shared::bus::Bus;
use shared::model::event::{Event, EventId};
use shared::model::heartbeat::HeartbeatMark;
use shared::model::schedule::{ScheduleRecord, ScheduleTarget};
use shared::model::session::SessionRef;
use shared::projection::api::{EventTrace, TraceRequest};
use shared::wire::subject;
use shared::wire::topology::streams;

use super::decide::{MAX_UNDER_WAY_MS, UnderWay};

/// Subject of the service that follows events.
const TRACE: &str = "nexus.svc.events.trace";
/// Timeout of a response. Twice this time, for a firing that is checked again, is less than the ack wait of its timer
/// (15 s); a busy machine needs some time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns whether the last firing of `record` (the event `last`, if it is recent enough) is in progress, or its
/// persona is busy.
pub(super) async fn find_out(bus: &Bus, record: &ScheduleRecord, last: Option<&Event>) -> UnderWay {
    let busy = match &record.spec.target {
        ScheduleTarget::Persona(persona) => is_busy(bus, persona, record).await,
        ScheduleTarget::Hook(_) | ScheduleTarget::Config(_) => UnderWay::No,
    };
    let unfinished = match (busy, last) {
        (UnderWay::Yes, _) | (_, None) => return busy,
        (UnderWay::No | UnderWay::Unknown, Some(last)) => is_unfinished(bus, &last.id).await,
    };

    match (busy, unfinished) {
        (UnderWay::Yes, _) | (_, UnderWay::Yes) => UnderWay::Yes,
        (UnderWay::Unknown, _) | (_, UnderWay::Unknown) => UnderWay::Unknown,
        (UnderWay::No, UnderWay::No) => UnderWay::No,
    }
}

async fn is_unfinished(bus: &Bus, id: &EventId) -> UnderWay {
    let question = TraceRequest { event_id: id.clone() };
    match bus.ask::<_, EventTrace>(TRACE, &question, TIMEOUT).await {
        Ok(EventTrace { complete: true, .. }) => UnderWay::No,
        Ok(EventTrace { complete: false, .. }) => UnderWay::Yes,
        Err(error) => {
            tracing::debug!(event_id = %id, %error, "unknown if the last firing is still running");
            UnderWay::Unknown
        }
    }
}

/// Returns whether the persona's heartbeat session has something to run.
async fn is_busy(bus: &Bus, persona: &str, record: &ScheduleRecord) -> UnderWay {
    let mark = record.spec.metadata.get("heartbeat").cloned().unwrap_or_default();
    let Ok(mark) = serde_json::from_value::<HeartbeatMark>(mark) else {
        return UnderWay::No;
    };

    let session = SessionRef {
        persona: persona.to_owned(),
        session: mark.session,
    };
    match bus.last_on_subject(streams::CLAIMS, &subject::claim(&session)).await {
        Ok(Some(_)) => UnderWay::Yes,
        Ok(None) => UnderWay::No,
        Err(error) => {
            tracing::debug!(%session, %error, "unknown if the session is busy");
            UnderWay::Unknown
        }
    }
}

/// Reports that a firing of `record` may be held back because no service responds, and until when.
pub(super) fn tell_unknown(record: &ScheduleRecord) {
    metrics::counter!("nexus_scheduler_overlap_unknown_total").increment(1);
    let until = record.last.map(|last| last.at.plus(MAX_UNDER_WAY_MS).0);
    tracing::warn!(
        schedule = %record.spec.id,
        until_ms = until,
        "unknown if the last firing is still running: treating it as running for one hour"
    );
}
