//! Samples of what operators order: of a session, and after a restore.

use shared::model::order::{OrderKind, SessionOrder};
use shared::model::restore::{HoldDecision, RestoreHold};
use shared::model::session::{OverflowPolicy, QueueMode, QueueSettings};

use crate::samples::{AT, session, ulid};

pub(crate) fn session_order() -> SessionOrder {
    SessionOrder {
        id: ulid(7),
        target: session(),
        wanted: OrderKind::Queue {
            settings: QueueSettings {
                mode: Some(QueueMode::Collect),
                debounce_ms: Some(500),
                cap: Some(5),
                overflow: Some(OverflowPolicy::Summarize),
            },
        },
        by: "operator".to_owned(),
        reason: "busy".to_owned(),
        at: AT,
    }
}

pub(crate) fn withdrawal() -> SessionOrder {
    SessionOrder {
        wanted: OrderKind::Withdraw {
            dispatch: ulid(8),
            spares_turn: true,
        },
        by: "agent:default".to_owned(),
        reason: "changed my mind".to_owned(),
        ..session_order()
    }
}

pub(crate) fn restore_hold(decision: HoldDecision) -> RestoreHold {
    RestoreHold {
        backup: "01BX5ZZKBKACTAV9WEVGEMMVRZ".to_owned(),
        until: AT,
        at: Some(AT),
        decision,
    }
}
