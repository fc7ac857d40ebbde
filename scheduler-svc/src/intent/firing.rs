//! The messages of a firing: an event, and a dispatch that goes directly to the session of the intent's scope. *Pure.*
//!
//! Both follow from the intent's value alone, so a repeated firing publishes the same ids. Source:
//! `docs/design/schedules.md` §3.8 (Scope, Firing); `docs/design/wire.md` §1.5.

use serde_json::{Map, Value, json};
use shared::model::dispatch::{Dispatch, DispatchCause, DispatchContext, DispatchMessage, derived_ulid, dispatch_id};
use shared::model::event::{Event, EventDirection, EventId, EventSender, MAX_HOPS, ParseEventIdError};
use shared::model::intent::{Intent, event_id};
use shared::model::origin::EventOrigin;
use shared::model::reply::Reply;
use shared::model::schedule::{ScheduleMark, ScheduleTarget};
use shared::model::session::{QueueMode, SessionRef};
use shared::model::time::UnixMillis;
use shared::wire::unknown::UnknownFields;
use ulid::Ulid;

/// Kind that runs a hook instead of a turn.
pub const RUN_HOOK: &str = "run_hook";
/// Kind that sends a text instead of running a turn.
pub const SEND_MESSAGE: &str = "send_message";
/// Channel of all timer events.
const CHANNEL: &str = "timer";

/// Returns the name of the hook that `intent` runs; empty if it names none.
#[must_use]
pub fn hook_of(intent: &Intent) -> &str {
    let hook = intent.intent.parameters.get("hook");
    hook.and_then(Value::as_str).unwrap_or_default()
}

/// Returns the value of a dispatch's `hook_id` for an intent of `kind`.
#[must_use]
pub fn hook_id(kind: &str) -> String {
    format!("intent:{kind}")
}

/// Returns the id of `intent`'s dispatch at `nominal`, or `None` for a kind that runs no turn.
///
/// # Errors
/// Never fails for an id made of these parts; the type of the event's id demands the check.
pub fn dispatch_of(intent: &Intent, nominal: UnixMillis) -> Result<Option<Ulid>, ParseEventIdError> {
    if [RUN_HOOK, SEND_MESSAGE].contains(&intent.intent.kind.as_str()) {
        return Ok(None);
    }
    let event = event_id(intent.intent.id, nominal)?;
    Ok(Some(dispatch_id(&event, nominal, &hook_id(&intent.intent.kind))))
}

/// Returns the event of `intent`'s firing at `nominal`. Each session has a conversation of its own, so that sessions
/// fire in parallel.
///
/// # Errors
/// Fails as [`dispatch_of`] does.
pub fn firing_event(intent: &Intent, nominal: UnixMillis, at: UnixMillis) -> Result<Event, ParseEventIdError> {
    let target = intent.target();
    let mut event = Event::new(
        event_id(intent.intent.id, nominal)?,
        CHANNEL,
        &conversation_of(&target),
        nominal,
    );
    // Only the runtime itself may publish this origin.
    event.origin = EventOrigin::System;
    event.received_at = at;
    event.direction = EventDirection::Created;
    event.from = EventSender {
        id: format!("agent:{}", intent.intent.agent),
        ..EventSender::default()
    };

    event.content = turn_content(intent);
    event.hops = firing_hops(intent);

    let metadata = json!({
        "intent": intent.intent.id.to_string(),
        "kind": intent.intent.kind,
        "persona": target.persona,
        "session": target.session,
        "parameters": intent.intent.parameters,
        "reason": intent.intent.reason,
    });

    if let Value::Object(metadata) = metadata {
        event.metadata = metadata;
    }

    // The trace of the turn that requested the intent continues with this event.
    if let Some(turn) = intent.intent.turn {
        event.metadata.insert("turn".to_owned(), json!(turn));
    }

    // The mark makes hook-svc call this hook alone.
    if intent.intent.kind == RUN_HOOK {
        let mark = ScheduleMark {
            id: format!("intent:{}", intent.intent.id),
            target: ScheduleTarget::Hook(hook_of(intent).to_owned()),
        };
        event.metadata.insert("schedule".to_owned(), json!(mark));
    }

    Ok(event)
}

fn conversation_of(target: &SessionRef) -> String {
    target.to_string()
}

/// Returns the number of hops of `intent`'s messages, at most [`MAX_HOPS`].
#[must_use]
pub const fn firing_hops(intent: &Intent) -> u8 {
    let hops = intent.depth.saturating_add(1);
    if hops > MAX_HOPS { MAX_HOPS } else { hops }
}

/// Returns the dispatch of `intent`'s firing at `nominal`, whose event is stored at `event_seq`; `None` for a kind that
/// runs no turn.
///
/// # Errors
/// Fails as [`dispatch_of`] does.
pub fn firing_dispatch(
    intent: &Intent,
    nominal: UnixMillis,
    at: UnixMillis,
    event_seq: u64,
) -> Result<Option<Dispatch>, ParseEventIdError> {
    // The id in the value is the one that the firing began with.
    let running = intent.running.as_ref().filter(|running| running.nominal == nominal);
    let begun = running.and_then(|running| running.dispatch);
    let Some(id) = begun.or(dispatch_of(intent, nominal)?) else {
        return Ok(None);
    };

    let event: EventId = event_id(intent.intent.id, nominal)?;
    let record = &intent.intent;
    let extracted: Map<String, Value> = [
        ("intent".to_owned(), Value::from(record.id.to_string())),
        ("kind".to_owned(), Value::from(record.kind.clone())),
        ("parameters".to_owned(), Value::Object(record.parameters.clone())),
    ]
    .into_iter()
    .collect();

    Ok(Some(Dispatch {
        id,
        event_id: event.clone(),
        event_seq,
        hook_id: hook_id(&record.kind),
        priority: 50,
        timestamp: at,
        target: intent.target(),
        queue_mode: Some(QueueMode::Followup),
        message: DispatchMessage {
            from: format!("agent:{}", record.agent),
            channel: None,
            content: turn_content(intent),
            content_type: "text".to_owned(),
            metadata: Map::new(),
            attachments: Vec::new(),
            origin: EventOrigin::System,
            proven: true,
            person: None,
        },
        permissions: intent.permissions.clone(),
        context: DispatchContext {
            system_prompt: Some(turn_instruction(intent)),
            extracted: Some(extracted),
            include_thread_history: true,
        },
        delivery_context: intent.delivery_context.clone(),
        causation: DispatchCause {
            event,
            hops: firing_hops(intent),
        },
        unknown: UnknownFields::default(),
    }))
}

/// Returns the text that `intent` sends at `nominal`, or `None` for a kind that sends no text.
///
/// # Errors
/// Fails as [`dispatch_of`] does.
pub fn firing_reply(intent: &Intent, nominal: UnixMillis) -> Result<Option<Reply>, ParseEventIdError> {
    let record = &intent.intent;
    if record.kind != SEND_MESSAGE {
        return Ok(None);
    }

    let id = derived_ulid(nominal, &["intent-send", &record.id.to_string()]);
    Ok(Some(Reply {
        id,
        turn: record.turn.unwrap_or(id),
        session: intent.target(),
        delivery_context: intent.delivery_context.clone(),
        content: string_parameter(intent, "text").to_owned(),
        attachments: Vec::new(),
        interactive: None,
        causation: DispatchCause {
            event: event_id(record.id, nominal)?,
            hops: firing_hops(intent),
        },
        action: None,
        unknown: UnknownFields::default(),
        send: None,
        failed: false,
    }))
}

fn string_parameter<'a>(intent: &'a Intent, name: &str) -> &'a str {
    let value = intent.intent.parameters.get(name);
    value.and_then(Value::as_str).unwrap_or_default()
}

/// Returns the message of the turn.
fn turn_content(intent: &Intent) -> String {
    match intent.intent.kind.as_str() {
        "remind" => format!(
            "Reminder: {}. {}",
            string_parameter(intent, "subject"),
            string_parameter(intent, "message")
        ),
        "follow_up" => string_parameter(intent, "prompt").to_owned(),
        SEND_MESSAGE => string_parameter(intent, "text").to_owned(),
        other => format!("{other} {}", Value::Object(intent.intent.parameters.clone())),
    }
}

/// Returns the instruction that explains the turn to its agent.
fn turn_instruction(intent: &Intent) -> String {
    let record = &intent.intent;
    let task = match record.kind.as_str() {
        "remind" => "Remind the user of this now, in your own words.",
        "follow_up" => "Continue the conversation as this prompt from yourself says.",
        _ => "Do what this says.",
    };

    let why = if record.reason.is_empty() {
        String::new()
    } else {
        format!(" Your reason was: {}", record.reason)
    };
    format!(
        "No user requested this turn: it is the intent {} (`{}`) that you scheduled yourself ({}).{why} {task}",
        record.id, record.kind, record.schedule
    )
}

#[cfg(test)]
mod tests {
    use shared::model::dispatch::DeliveryContext;
    use shared::model::intent::service::ProposeIntent;
    use shared::model::permission::PermissionSet;

    use super::*;
    use crate::intent::admission::record;
    use crate::intent::machine::{AdmissionContext, StepCause, new_intent};
    use crate::intent::registry::KindRegistry;

    const NOW: UnixMillis = UnixMillis(1_795_305_600_000);

    #[expect(clippy::needless_pass_by_value, reason = "it is written at the place of the call")]
    fn intent(kind: &str, parameters: Value) -> Intent {
        let proposal = ProposeIntent {
            id: None,
            wish: serde_json::from_value(json!({
                "kind": kind, "parameters": parameters, "schedule": { "type": "after", "seconds": 60 },
                "scope": { "within": "thread", "thread": "t" }, "reason": "because"
            }))
            .expect("a wish"),
            agent: "anna".to_owned(),
            session: "main".to_owned(),
            turn: None,
            permissions: PermissionSet::default(),
            delivery_context: DeliveryContext {
                channel: "webchat".to_owned(),
                ..DeliveryContext::default()
            },
            causation: None,
        };

        let registry = KindRegistry::shipped_registry().expect("right");
        let setting = AdmissionContext {
            permissions: proposal.permissions.clone(),
            delivery_context: proposal.delivery_context.clone(),
            asked_in: None,
            depth: 2,
        };

        let cause = StepCause {
            by: "agent:anna",
            why: "",
            at: NOW,
        };

        new_intent(record(&registry, &proposal, Ulid::from_parts(1, 1)), setting, cause)
    }

    #[test]
    fn a_firing_repeated_is_the_same_firing() {
        let intent = intent("remind", json!({ "subject": "interview", "message": "good luck" }));
        let (first, again) = (NOW.plus(60_000), NOW.plus(90_000));
        let event = firing_event(&intent, first, first).expect("an event");
        assert_eq!(event.id.as_str(), format!("timer:intent:{}:{first}", intent.intent.id));
        let dispatched = firing_dispatch(&intent, first, first, 7).expect("ids").expect("a turn");
        let repeated = firing_dispatch(&intent, first, again, 7).expect("ids").expect("a turn");
        assert_eq!(dispatched.id, repeated.id);
        assert_eq!(Some(dispatched.id), dispatch_of(&intent, first).expect("ids"));
        assert_ne!(Some(dispatched.id), dispatch_of(&intent, again).expect("ids"));
    }

    #[test]
    fn it_goes_straight_to_its_scope_with_what_its_asker_might_do() {
        let intent = intent("remind", json!({ "subject": "interview", "message": "good luck" }));
        let dispatch = firing_dispatch(&intent, NOW, NOW, 7).expect("ids").expect("a turn");
        assert_eq!(dispatch.target.to_string(), "anna/main:thread:t");
        assert_eq!(dispatch.message.content, "Reminder: interview. good luck");
        assert_eq!(dispatch.permissions, PermissionSet::default());
        assert_eq!(dispatch.causation.hops, 3);
        let told = dispatch.context.system_prompt.expect("an instruction");
        assert!(told.contains("because") && told.contains("after 60 s"), "{told}");
    }

    #[test]
    fn a_hook_needs_no_turn() {
        let intent = intent(RUN_HOOK, json!({ "hook": "a" }));
        assert_eq!(dispatch_of(&intent, NOW), Ok(None));
        assert_eq!(firing_dispatch(&intent, NOW, NOW, 1), Ok(None));
        let metadata = firing_event(&intent, NOW, NOW).expect("an event").metadata;
        assert_eq!(metadata["schedule"]["target"], json!({ "kind": "hook", "id": "a" }));
    }
}
