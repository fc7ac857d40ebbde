//! `nexus.svc.events.{find,history,trace,search}`: questions to the read model, answered by any replica.

use shared::bus::ServiceSpec;
use shared::projection::api::{FindRequest, HistoryRequest, SearchRequest, TraceRequest};
use shared::projection::{Projection, QueryProjectionError};

/// The code of an answer that could not be given.
const UNAVAILABLE: usize = 503;

/// The service over `projection`.
#[must_use]
pub fn spec(projection: &Projection) -> ServiceSpec {
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
            let projection = trace.clone();
            async move { projection.trace(question).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("search", move |question: SearchRequest| {
            let projection = search.clone();
            async move { projection.search(question).await.map_err(|error| refusal(&error)) }
        })
}

fn refusal(error: &QueryProjectionError) -> (usize, String) {
    tracing::warn!(
        error = crate::error::chain(error),
        "a question to the read model has no answer"
    );
    (UNAVAILABLE, error.to_string())
}
