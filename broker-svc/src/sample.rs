//! Dispatches for tests.

use std::sync::Arc;

use shared::model::dispatch::Dispatch;
use shared::model::event::EventId;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::testing::sample;
use shared::wire::headers::TraceCarrier;

use crate::session::PendingDispatch;

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
