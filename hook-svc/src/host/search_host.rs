//! Host that answers `ctx.search()` from the read model.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::projection::api::SearchRequest;
use tokio::sync::Semaphore;

use crate::read_model::access::ModelAccess;
use crate::runner::{CallError, CallResult, CallUsage, HostCall, ScriptHost, not_available};

/// Most searches that run at once; more wait for their turn.
const SEARCHES_AT_ONCE: usize = 4;

/// Longest time for a search, including the wait for its turn.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Search host of one replica's workers.
#[derive(Debug)]
pub struct SearchHost {
    model: ModelAccess,
    searches: Semaphore,
}

impl SearchHost {
    /// Creates a host that searches `model`.
    #[must_use]
    pub(crate) fn new(model: ModelAccess) -> Self {
        Self {
            model,
            searches: Semaphore::new(SEARCHES_AT_ONCE),
        }
    }

    async fn search(&self, call: HostCall) -> Result<Value, CallError> {
        let request: SearchRequest = serde_json::from_value(call.args)
            .map_err(|error| CallError::new("bad_arguments", format!("search(): {error}")))?;
        let search = async {
            // Searches take their turn, so that a busy hook cannot take all readers.
            let _turn = self.searches.acquire().await;
            self.model.search(request, call.sequence).await
        };

        let late = |_| CallError::new("timed_out", "search() took too long");
        let found = tokio::time::timeout(SEARCH_TIMEOUT, search).await.map_err(late)?;
        let reply = found.map_err(|error| {
            tracing::warn!(
                event_id = %call.event_id, hook_id = call.hook.id, error = shared::error_chain::describe_error(&error),
                "search() failed"
            );
            CallError::new("unavailable", error.to_string())
        })?;

        let hits = reply.hits.iter();
        Ok(hits
            .map(|hit| json!({"eventId": hit.event_id, "score": hit.score}))
            .collect())
    }
}

#[async_trait]
impl ScriptHost for SearchHost {
    async fn call(&self, call: HostCall) -> CallResult {
        match call.name.as_str() {
            "search" => CallResult {
                outcome: self.search(call).await,
                spent: CallUsage {
                    search_calls: 1,
                    ..CallUsage::default()
                },
            },
            other => not_available(other),
        }
    }
}
