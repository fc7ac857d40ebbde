//! Tools that are a question to a service of the bus.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::bus::{Bus, RequestError};
use shared::clock::SharedClock;
use shared::model::ledger::ToolOutcome;
use shared::wire::agent::ToolDescription;
use shared::wire::headers::{CALL, EPOCH, Headers, TURN};

use super::{Tool, ToolCall, failed};

/// The longest that a service may take.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Makes the service's question out of the call: the arguments, and what the runtime knows of the asker.
pub type Question = fn(&ToolCall) -> Value;

/// See the module.
#[derive(Debug, Clone)]
pub struct ServiceTool {
    /// Name, description, schema.
    pub description: ToolDescription,
    /// Whom to ask: `nexus.svc.…`.
    pub subject: &'static str,
    /// Whether asking the same again changes nothing more.
    pub idempotent: bool,
    /// The question.
    pub question: Question,
    /// The bus.
    pub bus: Bus,
    /// The clock.
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
            .request::<Value, Value>(self.subject, named(&call), &question, left.min(MAX_WAIT));
        let cancel = call.call.cancel;
        tokio::select! {
            answer = asked => outcome(answer),
            () = cancel.cancelled() => ToolOutcome::Unknown { reason: "interrupted".to_owned() },
        }
    }
}

/// Which call it is, so that a service can tell one that is made again from a new one.
fn named(call: &ToolCall) -> Headers {
    let call = &call.call;
    let named = [
        (TURN, call.turn.to_string()),
        (CALL, call.call.call.clone()),
        (EPOCH, call.epoch.to_string()),
    ];
    named.into_iter().collect()
}

fn outcome(answer: Result<Value, RequestError>) -> ToolOutcome {
    match answer {
        Ok(result) => ToolOutcome::Ok { result },
        Err(RequestError::NoResponder { .. }) => failed("not available"),
        Err(RequestError::Service { code, text, .. }) => failed(format!("{code}: {text}")),
        // It may have been done, and it may not.
        Err(error @ (RequestError::Timeout { .. } | RequestError::Answer { .. })) => ToolOutcome::Unknown {
            reason: error.to_string(),
        },
    }
}

/// A tool's description; `properties` are those of its arguments, of which no others are taken.
pub(super) fn described(name: &str, description: &str, properties: &Value, required: &[&str]) -> ToolDescription {
    ToolDescription {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters: json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false
        }),
    }
}
