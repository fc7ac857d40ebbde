//! Samples of orders to sessions and after a restore, and of the record that leads from a changed message to its session.

use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::order::{OrderKind, SessionOrder};
use shared::model::restore::{HoldDecision, RestoreHold};
use shared::model::session::{OverflowPolicy, QueueMode, QueueSettings};

use crate::samples::{AT, invocations, session, ulid};

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

pub(crate) fn edit() -> SessionOrder {
    SessionOrder {
        wanted: OrderKind::Edit {
            dispatch: ulid(8),
            from: "u1".to_owned(),
            content: "tomorrow, not today".to_owned(),
            edited_at: AT,
        },
        by: "verified:telegram/default".to_owned(),
        reason: "edited at its source".to_owned(),
        ..session_order()
    }
}

/// The record of an event of which the session of its dispatch is known.
pub(crate) fn invocations_with_target() -> EventInvocations {
    let mut invocations = invocations();
    for hook in &mut invocations.hooks {
        if let HookOutcome::Fired { target, .. } = &mut hook.outcome {
            *target = Some(session());
        }
    }
    invocations
}

pub(crate) fn restore_hold(decision: HoldDecision) -> RestoreHold {
    RestoreHold {
        backup: "01BX5ZZKBKACTAV9WEVGEMMVRZ".to_owned(),
        until: AT,
        at: Some(AT),
        decision,
    }
}
