//! The metrics of broker-svc.

use shared::metric::{Metric, label};
use shared::model::ledger::DropReason;

/// Every metric that this crate names.
pub const METRICS: &[Metric] = &[
    Metric::counter("nexus_broker_turns_total", "turns that ended")
        .by(&[label("outcome", &["completed", "failed", "held", "interrupted"])]),
    Metric::counter("nexus_broker_dropped_total", "dispatches dropped or superseded")
        .by(&[label("reason", &DropReason::NAMES)]),
    Metric::counter("nexus_broker_tool_calls_total", "calls of tools"),
    Metric::counter(
        "nexus_broker_repeated_dispatches_total",
        "dispatches recognised as repetitions",
    ),
    Metric::counter(
        "nexus_broker_recovered_dispatches_total",
        "dispatches found handled by the ledger while the cursor was void",
    ),
    Metric::counter(
        "nexus_broker_refused_words_total",
        "words on approvals that did not count",
    ),
    Metric::counter("nexus_broker_code_looks_total", "looks at all approvals for a code"),
    Metric::histogram(
        "nexus_broker_turn_latency_seconds",
        "time from a dispatch to its committed turn",
    ),
    Metric::histogram(
        "nexus_broker_queue_wait_seconds",
        "time from a dispatch to the start of its turn",
    ),
    Metric::gauge("nexus_broker_slots_in_use", "sessions running here"),
    Metric::gauge(
        "nexus_broker_claims_pending",
        "claims on the server, held or waiting; of the whole cluster",
    ),
    Metric::counter("nexus_broker_sweeper_wakeups_total", "lost wake-ups that were repaired"),
    Metric::counter("nexus_broker_stale_folds_total", "session states that were read again"),
    Metric::counter(
        "nexus_broker_approvals_total",
        "changes of approvals after they were requested, by new status",
    )
    .by(&[label(
        "status",
        &[
            "approved",
            "canceled",
            "consumed",
            "denied",
            "escalated",
            "expired",
            "pending",
            "superseded",
            "voted",
        ],
    )]),
    Metric::counter("nexus_broker_quarantined_total", "sessions that were quarantined"),
    Metric::gauge("nexus_broker_sessions_quarantined", "sessions that are quarantined now"),
    Metric::gauge(
        "nexus_broker_sessions_awaiting_release",
        "sessions whose ledgers only a broker of a later release can read",
    ),
];
