//! Dispatches as tests make them.

use std::sync::Arc;

use shared::model::dispatch::{Causation, DeliveryContext, Dispatch, DispatchContext, Message, dispatch_id};
use shared::model::event::EventId;
use shared::model::permission::PermissionSet;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::headers::Carrier;

use crate::session::Pending;

pub(crate) fn session() -> SessionRef {
    SessionRef {
        persona: "default".to_owned(),
        session: "main".to_owned(),
    }
}

pub(crate) fn dispatch(event: u64, hook: &str, priority: i32) -> Dispatch {
    let event_id = EventId::parse(format!("test:{event}")).expect("an event id");
    let timestamp = UnixMillis(1_000 + i64::try_from(event).expect("a small number"));
    Dispatch {
        id: dispatch_id(&event_id, timestamp, hook),
        event_seq: event,
        hook_id: hook.to_owned(),
        priority,
        timestamp,
        target: session(),
        queue_mode: None,
        message: Message {
            from: "v1".to_owned(),
            channel: None,
            content: format!("message {event}"),
            content_type: "text".to_owned(),
            metadata: serde_json::Map::new(),
            attachments: Vec::new(),
        },
        permissions: PermissionSet::default(),
        context: DispatchContext {
            system_prompt: None,
            extracted: None,
            include_thread_history: true,
        },
        delivery_context: DeliveryContext {
            channel: "webchat".to_owned(),
            ..DeliveryContext::default()
        },
        causation: Causation {
            event: event_id.clone(),
            hops: 0,
        },
        event_id,
    }
}

pub(crate) fn pending(sequence: u64, event: u64, hook: &str, priority: i32) -> Pending {
    Pending {
        sequence,
        arrived: UnixMillis(1_000),
        dispatch: Arc::new(dispatch(event, hook, priority)),
        carrier: Carrier::default(),
    }
}
