//! Event of a firing. *Pure.* Source: seed 003 §4, §7; `docs/design/schedules.md` §2.1.

use serde_json::{Value, json};
use shared::model::event::{Event, EventDirection, EventId, EventSender, ParseEventIdError};
use shared::model::origin::EventOrigin;
use shared::model::schedule::{ScheduleMark, ScheduleSpec};
use shared::model::time::UnixMillis;

use crate::tick::TIMER_CHANNEL;

/// Returns the event `timer:{schedule_id}:{nominal ms}`: one conversation per schedule, with the target under
/// `metadata.schedule`.
///
/// All replicas build the same bytes for the same firing, except for `received_at`.
///
/// # Errors
/// Fails if the schedule's id makes no event id, because it is too long or has control characters.
pub fn firing_event(
    spec: &ScheduleSpec,
    nominal: UnixMillis,
    received_at: UnixMillis,
) -> Result<Event, ParseEventIdError> {
    let id = EventId::parse(format!("{TIMER_CHANNEL}:{}:{nominal}", spec.id))?;
    let mut event = Event::new(id, TIMER_CHANNEL, &spec.id, nominal);
    event.origin = EventOrigin::System;
    event.received_at = received_at;
    event.direction = EventDirection::Created;
    event.from = EventSender {
        id: TIMER_CHANNEL.to_owned(),
        ..EventSender::default()
    };

    event.content.clone_from(&spec.content);
    event.metadata.clone_from(&spec.metadata);
    let mark = ScheduleMark {
        id: spec.id.clone(),
        target: spec.target.clone(),
    };

    event.metadata.insert("schedule".to_owned(), json!(mark));
    event.metadata.insert("nominal".to_owned(), Value::from(nominal.0));

    Ok(event)
}

#[cfg(test)]
mod tests {
    use shared::model::schedule::ScheduleTarget;

    use super::*;

    #[test]
    fn an_event_carries_its_schedules_target() {
        let spec = ScheduleSpec {
            id: "hook:a/b:0".to_owned(),
            schedule: "every 30m".to_owned(),
            zone: "UTC".to_owned(),
            target: ScheduleTarget::Hook("a/b".to_owned()),
            policies: shared::model::schedule::SchedulePolicies::default(),
            active_hours: None,
            content: "wake".to_owned(),
            metadata: serde_json::Map::new(),
        };

        let event = firing_event(&spec, UnixMillis(1_800_000), UnixMillis(1_800_009)).expect("an event");
        assert_eq!(event.id.as_str(), "timer:hook:a/b:0:1800000");
        assert_eq!(event.conversation(), ("timer", "default", "hook:a/b:0"));
        assert_eq!(
            event.metadata["schedule"],
            json!({"id": "hook:a/b:0", "target": {"kind": "hook", "id": "a/b"}})
        );
        assert_eq!(
            (event.timestamp, event.content.as_str()),
            (UnixMillis(1_800_000), "wake")
        );
    }
}
