//! Dispatches for tests.

use std::sync::Arc;

use shared::model::dispatch::Dispatch;
use shared::model::event::EventId;
use shared::model::permission::PermissionPresets;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::testing::sample;
use shared::wire::headers::TraceCarrier;

use crate::agent::personas::PersonaLimits;
use crate::ledger::state::SessionState;
use crate::session::PendingDispatch;
use crate::turn::Turn;

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
        priority,
        ..sample::dispatch(event_id, event, hook, session(), timestamp)
    }
}

pub(crate) fn pending(sequence: u64, event: u64, hook: &str, priority: i32) -> PendingDispatch {
    PendingDispatch {
        sequence,
        arrived: UnixMillis(1_000),
        dispatch: Arc::new(dispatch(event, hook, priority)),
        carrier: TraceCarrier::default(),
        is_repeated: false,
        is_redriven: false,
    }
}

/// A turn of the session in `state` that takes `pendings`, with the default limits and presets.
pub(crate) fn turn_of(state: &SessionState, pendings: &[PendingDispatch]) -> Turn {
    let (limits, presets) = (PersonaLimits::default(), PermissionPresets::default());
    Turn::for_pendings(&session(), state, pendings, &limits, &presets)
}
