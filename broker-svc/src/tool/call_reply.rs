//! A reply that a tool sends of its own, beside the answer of the turn.
//!
//! Its id follows from the turn and the call, so that a call that is made again sends the same reply.

use serde::de::DeserializeOwned;
use serde_json::json;
use shared::bus::{Bus, OutgoingMessage};
use shared::model::dispatch::derived_ulid;
use shared::model::ledger::ToolOutcome;
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::unknown::UnknownFields;

use super::{ToolCall, failed_outcome};

/// Returns the arguments of `call`, which sends a reply to the conversation of its turn.
///
/// # Errors
/// Returns the call's outcome if they cannot be read, or the turn has no conversation.
pub(super) fn read_arguments<T: DeserializeOwned>(call: &ToolCall) -> Result<T, ToolOutcome> {
    let asked = &call.call;
    let arguments = serde_json::from_value(asked.call.arguments.clone());
    let arguments = arguments.map_err(|error| failed_outcome(error.to_string()))?;
    if asked.origin.delivery.channel.is_empty() {
        return Err(failed_outcome("this turn has no conversation"));
    }

    Ok(arguments)
}

/// Returns a reply of `call` to the conversation of its turn, still without content; `kind` tells replies of different tools
/// apart.
pub(super) fn empty_reply(call: &ToolCall, kind: &str) -> Reply {
    let asked = &call.call;
    let at = UnixMillis(i64::try_from(asked.turn.timestamp_ms()).unwrap_or(i64::MAX));
    Reply {
        id: derived_ulid(at, &[kind, &asked.turn.to_string(), &asked.call.call]),
        turn: asked.turn,
        session: asked.session.clone(),
        delivery_context: asked.origin.delivery.clone(),
        content: String::new(),
        attachments: Vec::new(),
        interactive: None,
        causation: asked.origin.causation.clone(),
        action: None,
        send: asked.origin.send,
        failed: false,
        unknown: UnknownFields::default(),
    }
}

/// Queues `reply`, and returns its id to the model under the name `named`.
pub(super) async fn queue_reply(bus: &Bus, reply: &Reply, named: &str) -> ToolOutcome {
    // An earlier run of the call may have published it.
    match bus.publish(OutgoingMessage::reply(reply).repeated()).await {
        Ok(_) => ToolOutcome::Ok {
            result: json!({named: reply.id, "status": "queued"}),
        },
        Err(error) => ToolOutcome::Unknown {
            reason: error.to_string(),
        },
    }
}
