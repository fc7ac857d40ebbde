//! Spans that cross processes: W3C trace context from incoming messages and onto outgoing ones.
//!
//! One event is one trace. A consumer's span has the producer's span as its parent and also links to it, so that each
//! redelivery is visible as a further child of the same producer.

use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::wire::headers::{TRACEPARENT, TRACESTATE, TraceCarrier};

/// Creates a span for handling one message: child of the span that published it, and linked to it.
///
/// `name` is shown in traces. The fields `event_id`, `dispatch_id`, `session`, `turn_id` and `delivery_id` are to be
/// recorded once known (`span.record("event_id", …)`); log lines within the span carry them.
#[must_use]
pub fn consumer_span(name: &'static str, carrier: &TraceCarrier) -> Span {
    // The level is the most severe one, so that the ids appear in log lines at every log level.
    let span = tracing::error_span!(
        "message",
        otel.name = name,
        otel.kind = "consumer",
        trace_id = Empty,
        event_id = Empty,
        dispatch_id = Empty,
        session = Empty,
        turn_id = Empty,
        delivery_id = Empty,
    );

    let remote = TraceContextPropagator::new().extract(&Reading(carrier));
    let producer = remote.span().span_context().clone();
    if producer.is_valid() {
        span.record("trace_id", tracing::field::display(producer.trace_id()));
        // Fails only if traces are not exported.
        if span.set_parent(remote).is_ok() {
            span.add_link(producer);
        }
    }

    span
}

/// Creates a span that starts a trace, for an event's arrival from outside. Same fields as [`consumer_span`].
#[must_use]
pub fn root_span(name: &'static str) -> Span {
    let span = tracing::error_span!(
        parent: None,
        "message",
        otel.name = name,
        otel.kind = "producer",
        trace_id = Empty,
        event_id = Empty,
        dispatch_id = Empty,
        session = Empty,
        turn_id = Empty,
        delivery_id = Empty,
    );

    let context = span.context();
    let own = context.span().span_context().clone();
    // Without an exporter there is no trace, and its id would be zeros.
    if own.is_valid() {
        span.record("trace_id", tracing::field::display(own.trace_id()));
    }

    span
}

/// Returns the carrier for messages published within `span`. Returns `fallback` (the carrier of the message being
/// handled) if traces are not exported, so that a process that does not export does not break the trace.
#[must_use]
pub fn carrier_of(span: &Span, fallback: &TraceCarrier) -> TraceCarrier {
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return fallback.clone();
    }
    let mut carrier = TraceCarrier::default();
    TraceContextPropagator::new().inject_context(&context, &mut Writing(&mut carrier));
    carrier
}

struct Reading<'a>(&'a TraceCarrier);

impl Extractor for Reading<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            TRACEPARENT => self.0.traceparent.as_deref(),
            TRACESTATE => self.0.tracestate.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT, TRACESTATE]
    }
}

struct Writing<'a>(&'a mut TraceCarrier);

impl Injector for Writing<'_> {
    fn set(&mut self, key: &str, value: String) {
        match key {
            TRACEPARENT => self.0.traceparent = Some(value),
            TRACESTATE => self.0.tracestate = Some(value).filter(|state| !state.is_empty()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Debug, Clone, Default)]
    struct CollectedSpans(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for CollectedSpans {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().expect("not poisoned").extend(batch);
            Ok(())
        }
    }

    fn exported(act: impl FnOnce()) -> Vec<SpanData> {
        let collected = CollectedSpans::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(collected.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), act);
        let spans = collected.0.lock().expect("not poisoned");
        spans.clone()
    }

    #[test]
    fn a_consumer_is_child_of_its_producer_and_links_to_it() {
        let spans = exported(|| {
            let producer = root_span("accept");
            let carrier = carrier_of(&producer, &TraceCarrier::default());
            assert!(carrier.traceparent.is_some());
            let consumer = consumer_span("evaluate", &carrier);
            consumer.record("event_id", "webhook:1");
            drop((consumer, producer));
        });

        let [consumer, producer] = spans.as_slice() else {
            panic!("{spans:?}")
        };
        assert_eq!((producer.name.as_ref(), consumer.name.as_ref()), ("accept", "evaluate"));
        assert_eq!(consumer.parent_span_id, producer.span_context.span_id());
        assert_eq!(consumer.span_context.trace_id(), producer.span_context.trace_id());

        let links: Vec<_> = consumer.links.iter().map(|link| link.span_context.span_id()).collect();
        assert_eq!(links, [producer.span_context.span_id()]);

        let event = consumer
            .attributes
            .iter()
            .find(|attribute| attribute.key.as_str() == "event_id");
        assert_eq!(
            event.map(|attribute| attribute.value.to_string()),
            Some("webhook:1".to_owned())
        );
    }

    #[test]
    fn without_an_exporter_the_incoming_trace_is_passed_on() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let carrier = TraceCarrier {
            traceparent: Some(parent.to_owned()),
            tracestate: Some("a=b".to_owned()),
        };
        let span = consumer_span("evaluate", &carrier);
        assert_eq!(carrier_of(&span, &carrier), carrier);
    }

    #[test]
    fn a_malformed_trace_is_no_trace() {
        let carrier = TraceCarrier {
            traceparent: Some("00-zz".to_owned()),
            tracestate: None,
        };
        let spans = exported(|| drop(consumer_span("evaluate", &carrier)));
        assert!(spans[0].links.is_empty());
    }
}
