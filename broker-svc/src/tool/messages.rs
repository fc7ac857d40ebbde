//! Tools with which an agent changes messages of its own conversation: edit and delete one that it has sent, react to any.
//!
//! A change is a reply with an action, so that it goes out in the order of the conversation's replies and has receipts.
//! Its id follows from the turn and the call, so that a call that is made again is the same change. Source:
//! `docs/design/channels.md` §2.3.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::model::ledger::ToolOutcome;
use shared::model::reply::{Reply, ReplyAction};
use shared::wire::agent::ToolDescription;

use super::call_reply::{empty_reply, queue_reply, read_arguments};
use super::service::described;
use super::{Tool, ToolCall};

/// Names of the tools in this module.
pub(super) const NAMES: [&str; 3] = ["edit_message", "delete_message", "react_to_message"];

/// Maximum length of a message, bytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1_024;

/// The kind of change that a tool makes.
#[derive(Debug, Clone, Copy)]
enum ChangeKind {
    Edit,
    Delete,
    React,
}

/// A tool that changes a message.
#[derive(Debug)]
pub struct ChangeMessage {
    bus: Bus,
    kind: ChangeKind,
    description: ToolDescription,
}

#[derive(Debug, Deserialize)]
struct Wanted {
    /// Event id of the message; `None` = the message that the turn answers.
    message: Option<String>,
    #[serde(default)]
    content: String,
    #[serde(default)]
    emoji: String,
    #[serde(default)]
    remove: bool,
}

/// Returns the tools, which publish over `bus`.
pub(super) fn change_tools(bus: &Bus) -> [ChangeMessage; 3] {
    let of_sent = "Event id of a message that you have sent to this conversation, as in out:…/0.";
    let message = |text: &str| json!({"type": "string", "minLength": 1, "maxLength": 512, "description": text});
    let tool = |kind, name, text: &str, properties: &Value, required: &[&str]| ChangeMessage {
        bus: bus.clone(),
        kind,
        description: described(name, text, properties, required),
    };

    let content = json!({"type": "string", "minLength": 1, "maxLength": MAX_MESSAGE_BYTES});
    let emoji = json!({
        "type": "string", "minLength": 1, "maxLength": 100,
        "description": "An emoji. Slack also takes names, as in :eyes:."
    });
    let remove = json!({"type": "boolean", "description": "Whether to take the reaction back."});
    let any =
        "Event id of a message of this conversation, as search_events finds it. Default: the message that you answer.";
    [
        tool(
            ChangeKind::Edit,
            NAMES[0],
            "Replaces the text of a message that you have sent to this conversation.",
            &json!({"message": message(of_sent), "content": content}),
            &["message", "content"],
        ),
        tool(
            ChangeKind::Delete,
            NAMES[1],
            "Deletes a message that you have sent to this conversation.",
            &json!({"message": message(of_sent)}),
            &["message"],
        ),
        tool(
            ChangeKind::React,
            NAMES[2],
            "Adds a reaction to a message of this conversation, or takes it back.",
            &json!({"message": message(any), "emoji": emoji, "remove": remove}),
            &["emoji"],
        ),
    ]
}

/// Returns the action that is `wanted` by a turn that answers the event `answered`, and its text.
fn change_action(kind: ChangeKind, wanted: Wanted, answered: &str) -> (ReplyAction, String) {
    let target = wanted.message.unwrap_or_else(|| answered.to_owned());
    match kind {
        ChangeKind::Edit => (ReplyAction::Edit { target }, wanted.content),
        ChangeKind::Delete => (ReplyAction::Delete { target }, String::new()),
        ChangeKind::React => {
            let (emoji, removed) = (wanted.emoji, wanted.remove);
            (ReplyAction::React { target, emoji, removed }, String::new())
        }
    }
}

/// Returns the reply that makes the change of `call`.
fn change_reply(call: &ToolCall, kind: ChangeKind, wanted: Wanted) -> Reply {
    let answered = call.call.origin.causation.event.to_string();
    let (action, content) = change_action(kind, wanted, &answered);

    Reply {
        content,
        action: Some(action),
        ..empty_reply(call, "message-change")
    }
}

#[async_trait]
impl Tool for ChangeMessage {
    fn description(&self) -> &ToolDescription {
        &self.description
    }

    fn is_idempotent(&self) -> bool {
        true
    }

    async fn call(&self, call: ToolCall) -> ToolOutcome {
        let wanted: Wanted = match read_arguments(&call) {
            Ok(wanted) => wanted,
            Err(outcome) => return outcome,
        };

        let reply = change_reply(&call, self.kind, wanted);
        queue_reply(&self.bus, &reply, "change").await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reaction_without_a_message_is_to_the_one_that_the_turn_answers() {
        let target = |arguments: Value| {
            let wanted: Wanted = serde_json::from_value(arguments).expect("arguments");
            let (action, _) = change_action(ChangeKind::React, wanted, "telegram:bot/5/7");
            action.target().to_owned()
        };
        assert_eq!(target(json!({"emoji": "👍"})), "telegram:bot/5/7");
        assert_eq!(
            target(json!({"emoji": "👍", "message": "telegram:bot/5/6"})),
            "telegram:bot/5/6"
        );
    }
}
