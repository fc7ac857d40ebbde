//! Turns a heartbeat's event into a fire for its persona's session, without a script. *Pure.* Source:
//! `docs/design/schedules.md` §2.6.

use shared::model::dispatch::DeliveryContext;
use shared::model::event::Event;
use shared::model::heartbeat::{EVENT_PREFIX, HeartbeatMark};
use shared::model::hook::{HookResult, HookRouting};
use shared::model::origin::EventOrigin;
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::model::schedule::{ScheduleMark, ScheduleTarget};

/// Hook id under which heartbeats fire.
pub(crate) const HOOK_ID: &str = "@heartbeat";

/// Channel of the scheduler, for which adapters accept no events.
const CHANNEL: &str = "timer";

/// Returns the fire for `event` if it is a heartbeat: a turn of its persona, in the session that its configuration
/// names. The operator wrote the prompt, so the turn has the operator's permissions.
#[must_use]
pub(crate) fn heartbeat_result(event: &Event) -> Option<HookResult> {
    // Only the scheduler's own events count: any other could name a persona and a session.
    if event.origin != EventOrigin::System || event.channel != CHANNEL || !event.id.as_str().starts_with(EVENT_PREFIX) {
        return None;
    }

    let mark: ScheduleMark = serde_json::from_value(event.metadata.get("schedule")?.clone()).ok()?;
    let ScheduleTarget::Persona(persona) = mark.target else {
        return None;
    };

    let beat: HeartbeatMark = serde_json::from_value(event.metadata.get("heartbeat")?.clone()).ok()?;
    Some(HookResult {
        fire: true,
        routing: Some(HookRouting {
            persona: Some(persona),
            session: Some(beat.session),
            ..HookRouting::default()
        }),
        permissions: Some(PermissionSet {
            level: PermissionLevel::Full,
            tools: None,
            credentials: None,
        }),
        delivery_context: Some(beat.deliver.unwrap_or_else(|| DeliveryContext {
            channel: event.channel.clone(),
            ..DeliveryContext::default()
        })),
        ..HookResult::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    fn check(id: &str, schedule: serde_json::Value) -> Option<HookResult> {
        on("timer", id, schedule)
    }

    fn on(channel: &str, id: &str, schedule: serde_json::Value) -> Option<HookResult> {
        let mut event = Event::new(
            EventId::parse(id).expect("an id"),
            channel,
            "persona:atlas",
            UnixMillis(5),
        );

        event.origin = EventOrigin::System;
        event.metadata.insert("schedule".to_owned(), schedule);
        event
            .metadata
            .insert("heartbeat".to_owned(), json!({"session": "inner"}));

        heartbeat_result(&event)
    }

    #[test]
    fn a_heartbeat_goes_to_its_personas_session() {
        let mark = json!({"id": "persona:atlas", "target": {"kind": "persona", "id": "atlas"}});
        let result = check("timer:persona:atlas:5", mark.clone()).expect("a fire");
        let routing = result.routing.expect("a routing");

        assert_eq!(
            (routing.persona.as_deref(), routing.session.as_deref()),
            (Some("atlas"), Some("inner"))
        );
        assert_eq!(
            check("webhook:persona:atlas:5", mark),
            None,
            "only the scheduler's own events"
        );

        let mark = json!({"id": "persona:atlas", "target": {"kind": "persona", "id": "atlas"}});
        assert_eq!(on("webchat", "timer:persona:atlas:5", mark), None, "on its own channel");

        let hook = json!({"id": "hook:a:0", "target": {"kind": "hook", "id": "a"}});
        assert_eq!(check("timer:hook:a:0:5", hook), None);
    }
}
