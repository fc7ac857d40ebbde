//! `nexus.svc.events.{find,history,threads,trace,search}`: queries of the read model, answered by any
//! replica that keeps a copy.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Bus, ServiceSpec};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::projection::api::{
    EventTrace, FindRequest, HistoryRequest, MAX_TRACE_STEPS, SearchRequest, ThreadsRequest, TraceRequest, TraceStage,
    TraceStep,
};
use shared::projection::given_up::GivenUp;
use shared::projection::{FeedSource, Projection, QueryProjectionError};
use shared::wire::topology::streams;

use crate::read_model::given_up::DeadLetterReader;

/// Name of the service.
pub(crate) const SERVICE: &str = "events";

/// Its endpoints.
pub(crate) const ENDPOINTS: [&str; 5] = ["find", "history", "threads", "trace", "search"];

/// Error code of a query that could not be answered.
const UNAVAILABLE: usize = 503;

/// Most queued replies that are searched for approval cards; if there are more, a chain with approvals is never
/// reported as complete.
const MAX_QUEUED: usize = 2_000;

/// Number of messages read at a time.
const PAGE: usize = 256;

/// Time limit for the read model to apply the newest receipt.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Returns the service over `projection`; dead letters are read on `bus`.
#[must_use]
pub fn service_spec(projection: &Projection, bus: &Bus) -> ServiceSpec {
    let (letters, queues) = (Arc::new(DeadLetterReader::new(bus.clone())), bus.clone());
    let (find, history, trace) = (projection.clone(), projection.clone(), projection.clone());
    let (threads, search) = (projection.clone(), projection.clone());

    ServiceSpec::new(SERVICE, "events and their traces")
        .endpoint("find", move |question: FindRequest| {
            let projection = find.clone();
            async move { projection.find(question).await.map_err(|error| query_refusal(&error)) }
        })
        .endpoint("history", move |question: HistoryRequest| {
            let projection = history.clone();
            async move {
                projection
                    .history(question)
                    .await
                    .map_err(|error| query_refusal(&error))
            }
        })
        .endpoint("threads", move |question: ThreadsRequest| {
            let projection = threads.clone();
            async move {
                projection
                    .threads(question)
                    .await
                    .map_err(|error| query_refusal(&error))
            }
        })
        .endpoint("trace", move |question: TraceRequest| {
            let (projection, letters, bus) = (trace.clone(), Arc::clone(&letters), queues.clone());
            async move {
                let answer = trace_event(&projection, &letters, &bus, question).await;
                answer.map_err(|error| query_refusal(&error))
            }
        })
        .endpoint("search", move |question: SearchRequest| {
            let projection = search.clone();
            async move { projection.search(question).await.map_err(|error| query_refusal(&error)) }
        })
}

/// Traces the consequences of an event. Only an incomplete chain is compared with dead letters and held messages, and
/// only one with approvals against the queues, because a waiting card has no other record.
async fn trace_event(
    projection: &Projection,
    letters: &DeadLetterReader,
    bus: &Bus,
    question: TraceRequest,
) -> Result<EventTrace, QueryProjectionError> {
    let trace = projection.trace(question.clone(), GivenUp::default()).await?;
    let has_asked = trace.steps.iter().any(|step| step.stage == TraceStage::Approval);
    // A complete chain needs no look at dead letters and queues.
    if trace.event.is_none() || (trace.complete && !has_asked) {
        return Ok(trace);
    }

    let queued = match has_asked {
        true => queued_replies(bus, projection).await,
        false => Some(Vec::new()),
    };
    let given_up = letters.given_up(&trace.may_be_held).await;
    let mut trace = projection.trace(question, given_up).await?;
    match queued {
        Some(queued) => queued.iter().for_each(|reply| wait_for(&mut trace, reply)),
        None => trace.complete = false,
    }

    Ok(trace)
}

/// A reply that waits in a queue.
struct Queued {
    id: String,
    event: String,
    channel: String,
    at: UnixMillis,
}

/// Returns the replies that are not delivered, once `projection` has applied the receipts of all others; `None` if that
/// is unknown.
async fn queued_replies(bus: &Bus, projection: &Projection) -> Option<Vec<Queued>> {
    let mut found = Vec::new();
    for stream in [streams::DELIVERIES, streams::PARKED] {
        let mut from = 1;
        loop {
            let page = bus.read_history(stream, ">", from, PAGE).await.ok()?;
            let Some(last) = page.last() else { break };
            from = last.sequence + 1;
            let replies = page
                .iter()
                .filter_map(|stored| Some((stored, stored.decode::<Reply>().ok()?)));

            found.extend(replies.map(|(stored, reply)| Queued {
                id: reply.id.to_string(),
                event: reply.causation.event.to_string(),
                channel: reply.delivery_context.channel,
                at: stored.published_at,
            }));

            if found.len() > MAX_QUEUED {
                return None;
            }
        }
    }

    // Every reply that has left the queues has a receipt by now.
    let last = bus.stream_state(streams::RECEIPTS).await.ok()?.last;
    let reached = tokio::time::timeout(CATCH_UP, projection.wait_reached(FeedSource::Receipts, last)).await;

    matches!(reached, Ok(Ok(()))).then_some(found)
}

/// Adds `reply` to the trace as under way, if it belongs to the chain and has no delivery step.
fn wait_for(trace: &mut EventTrace, reply: &Queued) {
    if trace
        .steps
        .iter()
        .any(|step| step.stage == TraceStage::Delivery && step.id == reply.id)
    {
        return;
    }

    let cause = trace.steps.iter().find(|step| step.id == reply.event);
    let Some(depth) = cause.map(|step| step.depth) else {
        return;
    };

    // A reply that waits is not the end of its chain.
    trace.complete = false;

    if trace.steps.len() < MAX_TRACE_STEPS {
        trace.steps.push(TraceStep {
            at_ms: reply.at,
            stage: TraceStage::Delivery,
            id: reply.id.clone(),
            detail: format!("waits for {}", reply.channel),
            took_ms: None,
            depth,
            session: None,
        });
    }
}

fn query_refusal(error: &QueryProjectionError) -> (usize, String) {
    tracing::warn!(
        error = shared::error_chain::describe_error(error),
        "read model query failed"
    );
    (UNAVAILABLE, error.to_string())
}

#[cfg(test)]
mod tests {
    use shared::bus::OutgoingMessage;
    use shared::model::dispatch::{DeliveryContext, DispatchCause};
    use shared::model::event::EventId;
    use shared::model::session::SessionRef;
    use shared::wire::unknown::UnknownFields;
    use ulid::Ulid;

    use super::*;

    fn card(event: &str) -> Reply {
        Reply {
            id: Ulid::from_parts(7, 7),
            turn: Ulid::from_parts(1, 1),
            session: SessionRef {
                persona: "default".to_owned(),
                session: "main".to_owned(),
            },
            delivery_context: DeliveryContext {
                channel: "webhook".to_owned(),
                ..DeliveryContext::default()
            },
            content: "may it?".to_owned(),
            attachments: Vec::new(),
            interactive: None,
            causation: DispatchCause {
                event: EventId::parse(event).expect("an id"),
                hops: 0,
            },
            action: None,
            send: None,
            failed: false,
            unknown: UnknownFields::default(),
        }
    }

    /// Returns the complete chain of the event `id`, with a finished delivery.
    fn whole(id: &str, delivered: &str) -> EventTrace {
        let step = |stage, id: &str, took_ms| TraceStep {
            at_ms: UnixMillis(1),
            stage,
            id: id.to_owned(),
            detail: String::new(),
            took_ms,
            depth: 0,
            session: None,
        };

        EventTrace {
            steps: vec![
                step(TraceStage::Event, id, None),
                step(TraceStage::Delivery, delivered, Some(1.0)),
            ],
            complete: true,
            ..EventTrace::default()
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_card_that_waits_in_a_queue_is_under_way() {
        let (_server, bus) = shared::testing::world().await;
        let folder = tempfile::tempdir().expect("a folder");
        let projection = Projection::open(&folder.path().join("model")).expect("a read model");
        bus.publish(OutgoingMessage::reply(&card("test:1")))
            .await
            .expect("stored");
        let queued = queued_replies(&bus, &projection).await.expect("told");
        let [card] = queued.as_slice() else { panic!("one waits") };

        for (event, delivered, is_complete) in [
            ("test:1", "another", false),
            ("test:1", card.id.as_str(), true),
            ("test:2", "another", true),
        ] {
            let mut trace = whole(event, delivered);
            wait_for(&mut trace, card);
            assert_eq!(trace.complete, is_complete, "{trace:?}");
            assert_eq!(trace.steps.len(), if is_complete { 2 } else { 3 }, "{trace:?}");
        }
    }
}
