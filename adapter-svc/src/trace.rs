//! The start of a trace: at the request, or at the `traceparent` that it has; and the traces of events that were posted and
//! waited.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use shared::model::event::{Event, EventId};
use shared::model::time::UnixMillis;
use shared::process::trace::{carrier_of, consumer_span, root_span};
use shared::wire::headers::{TRACEPARENT, TRACESTATE, TraceCarrier};
use tracing::Span;

/// Maximum length of a `tracestate` that is passed on, in bytes (W3C Trace Context §3.3.1.5).
const MAX_STATE_BYTES: usize = 512;

/// The traces in which events came that are stored together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventTraces {
    /// Traces by event and time of the edit: an edit has the id of the event that it changes.
    by_event: BTreeMap<(EventId, Option<UnixMillis>), TraceCarrier>,
}

impl EventTraces {
    /// Returns the traces of `events`, which are `carriers`, one for each.
    #[must_use]
    pub fn of_events(events: &[Event], carriers: Vec<TraceCarrier>) -> Self {
        let traced = events.iter().zip(carriers);
        let traced = traced.filter(|(_, carrier)| carrier.traceparent.is_some());
        Self {
            by_event: traced.map(|(event, carrier)| (version_of(event), carrier)).collect(),
        }
    }

    /// Returns the trace of `event`; empty if it came in none.
    #[must_use]
    pub fn carrier_of(&self, event: &Event) -> TraceCarrier {
        self.by_event.get(&version_of(event)).cloned().unwrap_or_default()
    }
}

fn version_of(event: &Event) -> (EventId, Option<UnixMillis>) {
    (event.id.clone(), event.edited_at)
}

/// Returns the span of an accepted request, and the trace context for its messages.
#[must_use]
pub fn accept_span(headers: &HeaderMap) -> (Span, TraceCarrier) {
    const NAME: &str = "event.accept";
    let incoming = incoming_context(headers);
    let span = if incoming.traceparent.is_some() {
        consumer_span(NAME, &incoming)
    } else {
        root_span(NAME)
    };
    let carrier = carrier_of(&span, &incoming);
    (span, carrier)
}

/// Returns the trace context of a request; empty if it is malformed.
fn incoming_context(headers: &HeaderMap) -> TraceCarrier {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };

    let traceparent = text(TRACEPARENT).filter(|parent| is_traceparent(parent));
    let tracestate = text(TRACESTATE).filter(|state| traceparent.is_some() && state.len() <= MAX_STATE_BYTES);

    TraceCarrier {
        traceparent,
        tracestate,
    }
}

/// Returns whether `text` is `00-{32 hex}-{16 hex}-{2 hex}` with nonzero ids.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lower_hex = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [2, 32, 16, 2]
        && parts[0] == "00"
        && parts.iter().all(|part| lower_hex(part))
        && [parts[1], parts[2]].iter().all(|id| id.bytes().any(|b| b != b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_has_a_trace_of_its_own_and_other_events_have_none() {
        let event = |edited_at: Option<i64>| {
            let id = EventId::parse("telegram:main/5/1").expect("an id");
            let mut event = Event::new(id, "telegram", "5", UnixMillis(1));
            event.edited_at = edited_at.map(UnixMillis);
            event
        };
        let carrier = |parent: &str| TraceCarrier {
            traceparent: Some(parent.to_owned()),
            tracestate: None,
        };
        let events = [event(None), event(Some(2)), event(Some(3))];
        let traces = EventTraces::of_events(&events, vec![carrier("a"), carrier("b"), TraceCarrier::default()]);
        let told = events.map(|event| traces.carrier_of(&event).traceparent);
        assert_eq!(told, [Some("a".to_owned()), Some("b".to_owned()), None]);
    }

    #[test]
    fn only_a_well_formed_parent_is_taken() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(is_traceparent(good));

        for bad in [
            "",
            "00",
            &good[..54],
            &good.replace('f', "F"),
            &good.replace("00-4", "ff-4"),
            &format!("{good}-x"),
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }

        assert!(!is_traceparent(
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01"
        ));
    }
}
