//! `nexus.svc.events.{find,history,trace,search}`: questions to the read model, answered by any replica.

use std::sync::Arc;

use shared::bus::{Bus, ServiceSpec};
use shared::projection::api::{FindRequest, HistoryRequest, SearchRequest, Trace, TraceRequest};
use shared::projection::given_up::GivenUp;
use shared::projection::{Projection, QueryProjectionError};

use crate::given_up::Letters;

/// The code of an answer that could not be given.
const UNAVAILABLE: usize = 503;

/// The service over `projection`; `bus` is where dead letters are read.
#[must_use]
pub fn spec(projection: &Projection, bus: &Bus) -> ServiceSpec {
    let letters = Arc::new(Letters::new(bus.clone()));
    let (find, history, trace) = (projection.clone(), projection.clone(), projection.clone());
    let search = projection.clone();
    ServiceSpec::new("events", "What happened, and what it led to")
        .endpoint("find", move |question: FindRequest| {
            let projection = find.clone();
            async move { projection.find(question).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("history", move |question: HistoryRequest| {
            let projection = history.clone();
            async move { projection.history(question).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("trace", move |question: TraceRequest| {
            let (projection, letters) = (trace.clone(), Arc::clone(&letters));
            async move {
                let answer = traced(&projection, &letters, question).await;
                answer.map_err(|error| refusal(&error))
            }
        })
        .endpoint("search", move |question: SearchRequest| {
            let projection = search.clone();
            async move { projection.search(question).await.map_err(|error| refusal(&error)) }
        })
}

/// What an event led to. Only a chain that waits for something is held against the dead letters.
async fn traced(
    projection: &Projection,
    letters: &Letters,
    question: TraceRequest,
) -> Result<Trace, QueryProjectionError> {
    let trace = projection.trace(question.clone(), GivenUp::default()).await?;
    if trace.complete || trace.event.is_none() {
        return Ok(trace);
    }
    projection.trace(question, letters.given_up().await).await
}

fn refusal(error: &QueryProjectionError) -> (usize, String) {
    tracing::warn!(
        error = crate::error::chain(error),
        "a question to the read model has no answer"
    );
    (UNAVAILABLE, error.to_string())
}
