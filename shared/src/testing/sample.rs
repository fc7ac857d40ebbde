//! Sample messages for tests: a dispatch of hook-svc, and its turn as a broker records it.

use ulid::Ulid;

use crate::model::dispatch::{DeliveryContext, Dispatch, DispatchCause, DispatchContext, DispatchMessage, dispatch_id};
use crate::model::event::EventId;
use crate::model::ledger::{AppendId, DispatchRef, LedgerCursor, LedgerEntry, LedgerRecord, TurnLimits};
use crate::model::origin::EventOrigin;
use crate::model::permission::PermissionSet;
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;
use crate::wire::unknown::UnknownFields;

/// Returns the dispatch of the hook `hook` to `target` at `timestamp`, for event `event_id` with this `number`:
/// "message {number}" from "v1", to be answered in the web chat.
#[must_use]
pub fn dispatch(event_id: EventId, number: u64, hook: &str, target: SessionRef, timestamp: UnixMillis) -> Dispatch {
    Dispatch {
        id: dispatch_id(&event_id, timestamp, hook),
        event_seq: number,
        hook_id: hook.to_owned(),
        priority: 50,
        timestamp,
        target,
        queue_mode: None,
        message: DispatchMessage {
            from: "v1".to_owned(),
            channel: None,
            content: format!("message {number}"),
            content_type: "text".to_owned(),
            metadata: serde_json::Map::new(),
            attachments: Vec::new(),
            origin: EventOrigin::visitor("default", "v1"),
            proven: true,
            person: None,
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
        causation: DispatchCause {
            event: event_id.clone(),
            hops: 0,
        },
        event_id,
        unknown: UnknownFields::default(),
    }
}

/// Returns the start of a turn that handles only `dispatch`.
#[must_use]
pub fn turn_started(turn: Ulid, dispatch: &Dispatch) -> LedgerEntry {
    LedgerEntry::TurnStarted {
        turn,
        parent: None,
        dispatches: vec![DispatchRef {
            id: dispatch.id,
            sequence: 1,
            event_id: dispatch.event_id.clone(),
            content: String::new(),
            stranger: None,
        }],
        permissions: PermissionSet::default(),
        limits: TurnLimits::default(),
    }
}

/// Returns a turn that handles only `dispatch`, started and completed without a reply in one append at `at`.
#[must_use]
pub fn whole_turn(dispatch: &Dispatch, at: UnixMillis) -> LedgerRecord {
    let turn = Ulid::from_parts(9, dispatch.id.into());
    let completed = LedgerEntry::TurnCompleted {
        turn,
        reply: None,
        head: turn,
        cursor: LedgerCursor::default(),
    };

    LedgerRecord {
        append: AppendId {
            broker: "b".to_owned(),
            epoch: 1,
            counter: 1,
        },
        at,
        held_ms: 0,
        entries: vec![turn_started(turn, dispatch), completed],
    }
}
