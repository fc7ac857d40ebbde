//! The metrics of hook-svc.

use shared::metric::{Metric, READ_EVENT_REASONS, label};

/// Every metric that this crate names.
pub const METRICS: &[Metric] = &[
    Metric::counter("nexus_hook_events_total", "events by how their evaluation ended").by(&[label(
        "outcome",
        &[
            "again",
            "already_done",
            "beyond_records",
            "dead_letter",
            "deferred",
            "evaluated",
            "late_duplicate",
        ],
    )]),
    Metric::counter("nexus_hook_refused_total", "messages of EVENTS that are no events")
        .by(&[label("reason", READ_EVENT_REASONS)]),
    Metric::counter("nexus_hook_dispatches_total", "fires that became dispatches"),
    Metric::counter("nexus_hook_suppressed_total", "fires that became no dispatches"),
    Metric::counter("nexus_hook_failures_total", "hooks that failed"),
    Metric::histogram("nexus_hook_wait_seconds", "time that events waited in the stream"),
    Metric::histogram(
        "nexus_hook_evaluate_seconds",
        "time from the first hook's start to the ack of the event's record",
    ),
    Metric::gauge("nexus_hook_in_flight_events", "events under way"),
    Metric::gauge("nexus_hook_hooks_total", "hooks in force"),
    Metric::counter("nexus_hook_worker_deaths_total", "Bun workers that died"),
    Metric::gauge("nexus_hook_sandbox", "1 for the level at which hooks are confined")
        .by(&[label("level", &["full", "covered", "degraded"])]),
    Metric::counter(
        "nexus_hook_output_dropped_total",
        "seconds in which a worker printed too much, the rest of which was dropped",
    ),
    Metric::gauge(
        "nexus_hook_deferred_events",
        "events whose deferred hooks are still to be called here",
    ),
    Metric::counter(
        "nexus_hook_deferred_total",
        "events with deferred hooks by how those ended",
    )
    .by(&[label("end", &["done_before", "given_up", "made"])]),
    Metric::gauge("nexus_hook_breakers_open", "hooks that are paused"),
    Metric::gauge("nexus_hooks_degraded", "hooks of whose evaluations a quarter failed"),
    Metric::counter(
        "nexus_hook_breaker_transitions_total",
        "breakers that opened or closed here",
    )
    .by(&[label("to", &["closed", "open"])]),
    Metric::gauge(
        "nexus_hook_read_model_copy",
        "this replica's copy of the read model: 2 = it answers, 1 = it is being built, 0 = there is none",
    ),
    Metric::gauge(
        "nexus_hook_read_model_answers",
        "1 while a copy of the read model answers this replica",
    ),
    Metric::gauge(
        "nexus_hook_read_model_unwritable",
        "1 while this replica's copy of the read model cannot be written, as on a full disk",
    ),
    Metric::counter(
        "nexus_hook_first_unknown_total",
        "events that no copy could tell to be new",
    ),
    Metric::gauge(
        "nexus_hook_projection_lag_seconds",
        "how far this replica's copy of the read model is behind",
    ),
    Metric::gauge(
        "nexus_hook_backlog_events",
        "events of the cluster that no owner has settled; only where a copy of the read model is kept",
    ),
    Metric::gauge(
        "nexus_hook_oldest_unsettled_seconds",
        "age of the oldest of them; only where a copy of the read model is kept",
    ),
    Metric::gauge("nexus_projection_wal_bytes", "size of the read model's write-ahead log"),
    Metric::counter(
        "nexus_hook_lost_dispatches_total",
        "dispatches that the records had, and neither DISPATCHES nor the ledger",
    ),
];
