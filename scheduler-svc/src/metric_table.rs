//! The metrics of scheduler-svc.

use shared::metric::{Metric, label};
use shared::model::intent::IntentStatus;
use shared::wire::topology::{INTENT_TIMERS, SCHEDULE_TIMERS};

/// Every metric that this crate names.
pub const METRICS: &[Metric] = &[
    Metric::counter("nexus_scheduler_ticks_total", "ticks that were published")
        .by(&[label("outcome", &["another_was_first", "stored"])]),
    Metric::counter("nexus_scheduler_firings_total", "schedules that were due")
        .by(&[label("outcome", &["another_was_first", "stored"])]),
    Metric::counter("nexus_scheduler_timers_fired_total", "timers that fired")
        .by(&[label("consumer", &[INTENT_TIMERS, SCHEDULE_TIMERS])]),
    Metric::counter(
        "nexus_scheduler_overlap_unknown_total",
        "firings for which it was unknown whether the one before had ended",
    ),
    Metric::counter("nexus_scheduler_intents_total", "changes of intents by new status").by(&[label(
        "status",
        &[
            IntentStatus::Proposed.name(),
            IntentStatus::Pending.name(),
            IntentStatus::Running.name(),
            IntentStatus::Completed.name(),
            IntentStatus::Failed.name(),
            IntentStatus::Canceled.name(),
            IntentStatus::Rescheduled.name(),
            IntentStatus::Rejected.name(),
        ],
    )]),
    Metric::counter("nexus_scheduler_intents_rejected_total", "refused intents").by(&[label(
        "code",
        &[
            "bad_parameters",
            "bad_schedule",
            "expired",
            "no_capability",
            "over_budget",
            "sensitivity",
            "too_many_pending",
            "unknown_kind",
        ],
    )]),
    Metric::histogram("nexus_scheduler_intent_lateness_seconds", "how late intents fired"),
    Metric::counter(
        "nexus_scheduler_intents_behind_total",
        "intents whose value in KV was older than their history in AUDIT, and was brought up to it",
    ),
    Metric::counter(
        "nexus_scheduler_lost_firings_total",
        "firings that were in no record and waited nowhere, and were published again",
    ),
];
