//! The built-in tools: hooks, the session's own future, the search, other agents, messages of the conversation.
//!
//! Source: seed 003 §9.4; `docs/design/schedules.md` §3; `docs/design/sessions.md` §6.4. If no service responds, a
//! tool fails with `not available`.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::model::dispatch::derived_ulid;
use shared::model::hook::MadeIn;
use shared::model::time::UnixMillis;

use super::agents::{AgentStatus, SendMessage};
use super::files::SendFile;
use super::messages::change_tools;
use super::service::{QuestionBuilder, ServiceTool, described};
use super::{Tool, ToolCall};

/// A tool that sends a request to a service.
struct Row {
    name: &'static str,
    subject: &'static str,
    idempotent: bool,
    question: QuestionBuilder,
    description: &'static str,
    properties: fn() -> Value,
    required: &'static [&'static str],
}

/// Returns all built-in tools.
pub(super) fn builtin_tools(bus: &Bus, clock: &SharedClock) -> Vec<Arc<dyn Tool>> {
    let services = ROWS.iter().map(|row| -> Arc<dyn Tool> {
        Arc::new(ServiceTool {
            description: described(row.name, row.description, &(row.properties)(), row.required),
            subject: row.subject,
            idempotent: row.idempotent,
            question: row.question,
            bus: bus.clone(),
            clock: Arc::clone(clock),
        })
    });

    let agents: [Arc<dyn Tool>; 2] = [
        Arc::new(SendMessage::new(bus.clone(), Arc::clone(clock))),
        Arc::new(AgentStatus::new(bus.clone())),
    ];

    let files: [Arc<dyn Tool>; 1] = [Arc::new(SendFile::new(bus, clock))];
    let changes = change_tools(bus).map(|tool| -> Arc<dyn Tool> { Arc::new(tool) });

    services.chain(agents).chain(changes).chain(files).collect()
}

/// Returns the names of all built-in tools.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    let names = ROWS.iter().map(|row| row.name);
    names
        .chain(super::agents::NAMES)
        .chain(super::messages::NAMES)
        .chain([super::files::NAME])
}

const ROWS: [Row; 10] = [
    Row {
        name: "create_hook",
        subject: "nexus.svc.hook.create",
        idempotent: false,
        question: authored_question,
        description: "Creates a hook: a TypeScript function that sees every event and may start an agent.",
        properties: || {
            json!({
                "name": {"type": "string", "maxLength": 64}, "description": {"type": "string"},
                "mode": {"enum": ["persistent", "one-shot"]},
                "script": {"type": "string", "description": "The function body; returns {fire: boolean, …}."}
            })
        },
        required: &["name", "script"],
    },
    Row {
        name: "list_hooks",
        subject: "nexus.svc.hook.list",
        idempotent: true,
        question: call_arguments,
        description: "Lists hooks with their health.",
        properties: || json!({"status": {"type": "string"}, "created_by": {"type": "string"}}),
        required: &[],
    },
    Row {
        name: "get_hook",
        subject: "nexus.svc.hook.get",
        idempotent: true,
        question: call_arguments,
        description: "Shows one hook: its source and its newest runs.",
        properties: || json!({"name": {"type": "string"}, "invocations": {"type": "integer", "minimum": 1}}),
        required: &["name"],
    },
    Row {
        name: "disable_hook",
        subject: "nexus.svc.hook.disable",
        idempotent: true,
        question: asked_question,
        description: "Disables one of your own hooks.",
        properties: || json!({"name": {"type": "string"}, "reason": {"type": "string"}}),
        required: &["name"],
    },
    Row {
        name: "delete_hook",
        subject: "nexus.svc.hook.delete",
        idempotent: false,
        question: asked_question,
        description: "Deletes one of your own hooks.",
        properties: || json!({"name": {"type": "string"}}),
        required: &["name"],
    },
    Row {
        name: "search_events",
        subject: "nexus.svc.events.search",
        idempotent: true,
        question: call_arguments,
        description: "Searches the messages and events of all channels.",
        properties: || {
            json!({
                "query": {"type": "string"}, "channels": {"type": "array", "items": {"type": "string"}},
                "since": {"type": "integer", "description": "Unix milliseconds"},
                "until": {"type": "integer", "description": "Unix milliseconds"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 100}
            })
        },
        required: &["query"],
    },
    Row {
        name: "schedule_intent",
        subject: "nexus.svc.intent.propose",
        // The intent's id follows from the call: the same request again is the same intent.
        idempotent: true,
        question: proposed_question,
        description: "Schedules a later action of your own. `schedule` is typed, never free text: \
            {type: at, local, zone} | {type: after, seconds} | {type: cron, expression, zone, until} | \
            {type: rrule, rule, start, zone} | {type: user_idle, for_seconds} | {type: chat_ended} | \
            {type: event_matches, match}. It may be refused, with the reason.",
        properties: || {
            json!({
                "kind": {"type": "string", "description": "remind, follow_up, send_message, run_hook"},
                "parameters": {"type": "object"},
                "schedule": {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]},
                "scope": {"type": "object"},
                "approval": {"enum": ["none", "before_fire", "before_admission"]},
                "expires_at": {"type": "integer", "description": "Unix milliseconds"},
                "reason": {"type": "string", "maxLength": 1024},
                "supersedes": {"type": "string"},
                "cancel_on_user_turn": {"type": "boolean"}
            })
        },
        required: &["kind", "schedule"],
    },
    Row {
        name: "reschedule_intent",
        subject: "nexus.svc.intent.reschedule",
        idempotent: true,
        question: own_question,
        description: "Changes the schedule of one of your intents.",
        properties: || {
            json!({
                "id": {"type": "string"}, "reason": {"type": "string"},
                "schedule": {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
            })
        },
        required: &["id", "schedule"],
    },
    Row {
        name: "cancel_intent",
        subject: "nexus.svc.intent.cancel",
        idempotent: true,
        question: withdrawn_question,
        description: "Cancels one of your intents. If it is running, its turn is interrupted, unless that is this one.",
        properties: || json!({"id": {"type": "string"}, "reason": {"type": "string"}}),
        required: &["id"],
    },
    Row {
        name: "list_intents",
        subject: "nexus.svc.intent.list",
        idempotent: true,
        question: own_question,
        description: "Lists your intents.",
        properties: || {
            json!({
                "status": {"enum": ["proposed", "pending", "running", "completed", "failed", "canceled", "rejected"]},
                "after": {"type": "integer"}, "limit": {"type": "integer", "minimum": 1, "maximum": 200}
            })
        },
        required: &[],
    },
];

/// Returns the arguments unchanged.
fn call_arguments(call: &ToolCall) -> Value {
    call.call.call.arguments.clone()
}

fn with(call: &ToolCall, added: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let mut question = match call_arguments(call) {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    // Facts of the runtime replace a model's claims about itself.
    question.extend(added.into_iter().map(|(key, value)| (key.to_owned(), value)));
    Value::Object(question)
}

fn authored_question(call: &ToolCall) -> Value {
    let asked = &call.call;
    let made_in = MadeIn {
        session: asked.session.clone(),
        permissions: asked.permissions.clone(),
        place: asked.origin.delivery.clone(),
        is_owners: asked.is_owners,
    };
    with(call, [("created_by", author_name(call)), ("made_in", json!(made_in))])
}

fn asked_question(call: &ToolCall) -> Value {
    with(call, [("asked_by", author_name(call))])
}

fn author_name(call: &ToolCall) -> Value {
    json!(format!("agent:{}", call.call.session.persona))
}

fn own_question(call: &ToolCall) -> Value {
    with(call, [("agent", json!(call.call.session.persona))])
}

fn withdrawn_question(call: &ToolCall) -> Value {
    let asked = &call.call;
    with(
        call,
        [("agent", json!(asked.session.persona)), ("turn", json!(asked.turn))],
    )
}

fn proposed_question(call: &ToolCall) -> Value {
    let asked = &call.call;
    let at = UnixMillis(i64::try_from(asked.turn.timestamp_ms()).unwrap_or(i64::MAX));
    json!({
        "id": derived_ulid(at, &["intent", &asked.turn.to_string(), &asked.call.call]),
        "wish": asked.call.arguments,
        "agent": asked.session.persona,
        "session": asked.session.session,
        "turn": asked.turn,
        "permissions": asked.permissions,
        "delivery_context": asked.origin.delivery,
        "causation": asked.origin.causation.event,
    })
}

#[cfg(test)]
mod tests {
    use shared::json_schema::JsonSchema;

    use super::*;

    #[test]
    fn tools_spell_the_same_thing_alike() {
        for row in &ROWS {
            let properties = (row.properties)();
            assert!(properties.get("why").is_none(), "{}: `reason`", row.name);
            let reason = properties.get("reason").map(|reason| reason["type"].clone());
            assert!(reason.is_none_or(|kind| kind == "string"), "{}", row.name);
        }
        let with_reason = ["disable_hook", "schedule_intent", "reschedule_intent", "cancel_intent"];
        let told = ROWS.iter().filter(|row| (row.properties)().get("reason").is_some());
        assert_eq!(told.map(|row| row.name).collect::<Vec<_>>(), with_reason);
    }

    #[test]
    fn schemas_of_built_in_tools_have_no_keyword_that_is_not_checked() {
        for row in &ROWS {
            let described = described(row.name, row.description, &(row.properties)(), row.required);
            let parsed = JsonSchema::parse_own(&described.parameters);
            assert!(parsed.is_ok(), "{}: {parsed:?}", row.name);
        }
    }
}
