//! Tools that send a request to a service of the bus.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::bus::{Bus, RequestError};
use shared::clock::SharedClock;
use shared::model::ledger::ToolOutcome;
use shared::wire::agent::ToolDescription;
use shared::wire::headers::{CALL, EPOCH, Headers, TURN};

use super::{Tool, ToolCall, failed_outcome};

/// Maximum wait for a service.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Builds the service's request from the call: the arguments, and facts of the runtime about the caller.
pub type QuestionBuilder = fn(&ToolCall) -> Value;

/// A tool that sends a request to a service.
#[derive(Debug, Clone)]
pub struct ServiceTool {
    /// Name, description and argument schema of the tool.
    pub description: ToolDescription,
    /// Subject of the service: `nexus.svc.…`.
    pub subject: &'static str,
    /// Whether sending the same request again has no further effect.
    pub idempotent: bool,
    /// Function that builds the request.
    pub question: QuestionBuilder,
    /// Bus that the request is sent on.
    pub bus: Bus,
    /// Clock for the call's deadline.
    pub clock: SharedClock,
}

#[async_trait]
impl Tool for ServiceTool {
    fn description(&self) -> &ToolDescription {
        &self.description
    }

    fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    async fn call(&self, call: ToolCall) -> ToolOutcome {
        let question = (self.question)(&call);
        let left = call.call.deadline.saturating_duration_since(self.clock.monotonic());
        let asked = self
            .bus
            .request::<Value, Value>(self.subject, call_headers(&call), &question, left.min(MAX_WAIT));
        let cancel = call.call.cancel;
        tokio::select! {
            answer = asked => answer_outcome(answer),
            () = cancel.cancelled() => ToolOutcome::Unknown { reason: "interrupted".to_owned() },
        }
    }
}

/// Returns headers with the call's id, so that a service can tell a repeated call from a new one.
fn call_headers(call: &ToolCall) -> Headers {
    let call = &call.call;
    let named = [
        (TURN, call.turn.to_string()),
        (CALL, call.call.call.clone()),
        (EPOCH, call.epoch.to_string()),
    ];
    named.into_iter().collect()
}

fn answer_outcome(answer: Result<Value, RequestError>) -> ToolOutcome {
    match answer {
        Ok(result) => ToolOutcome::Ok { result },
        Err(RequestError::NoResponder { .. }) => failed_outcome("not available"),
        Err(RequestError::Service { code, text, .. }) => failed_outcome(format!("{code}: {text}")),
        // The request may or may not have been carried out.
        Err(error @ (RequestError::Timeout { .. } | RequestError::Answer { .. })) => ToolOutcome::Unknown {
            reason: error.to_string(),
        },
    }
}

/// Returns a tool's description; `properties` are those of its arguments, and no others are accepted.
pub(super) fn described(name: &str, description: &str, properties: &Value, required: &[&str]) -> ToolDescription {
    ToolDescription {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters: json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false
        }),
    }
}
