//! The metrics of delivery-svc.

use shared::metric::{Metric, label};

/// Every metric that this crate names.
pub const METRICS: &[Metric] = &[
    Metric::counter(
        "nexus_delivery_delivered_total",
        "deliveries of which the platform accepted all parts",
    ),
    Metric::counter("nexus_delivery_gave_up_total", "deliveries that were given up"),
    Metric::counter("nexus_delivery_denied_total", "deliveries that the send policy denied"),
    Metric::counter("nexus_delivery_failed_attempts_total", "attempts that failed"),
    Metric::counter(
        "nexus_delivery_limited_total",
        "calls after which the platform asked for a wait, which are no failures",
    ),
    Metric::counter(
        "nexus_delivery_unconfirmed_total",
        "deliveries of which a part may be there twice",
    ),
    Metric::counter(
        "nexus_delivery_unformattable_total",
        "parts that were sent as plain text because the platform could not read their markup",
    ),
    Metric::counter(
        "nexus_delivery_searches_total",
        "searches of a platform for a part whose sending had no answer",
    )
    .by(&[label("result", &["absent", "failed", "found", "unknown"])]),
    Metric::counter(
        "nexus_delivery_typing_total",
        "calls by which an account showed that it writes",
    ),
    Metric::counter(
        "nexus_delivery_previews_total",
        "calls that showed the beginning of an answer",
    ),
    Metric::counter(
        "nexus_delivery_replanned_total",
        "deliveries whose stored plan was lost, and which would be cut otherwise now",
    ),
    Metric::gauge(
        "nexus_delivery_stopped_accounts",
        "accounts whose token the platform refuses",
    ),
    Metric::counter(
        "nexus_delivery_told_by_events_total",
        "deliveries without a receipt whose parts were among the sent events",
    ),
    Metric::counter("nexus_delivery_panics_total", "calls whose channel panicked"),
    Metric::counter(
        "nexus_delivery_calls_told_total",
        "calls begun by a former owner that reported how they ended",
    ),
    Metric::counter(
        "nexus_delivery_calls_repeated_total",
        "calls of unknown outcome that were made again",
    ),
    Metric::counter("nexus_delivery_mute_owners_total", "former owners that were waited for"),
    Metric::histogram("nexus_delivery_seconds", "time from a reply's publication to its end"),
    Metric::counter(
        "nexus_delivery_oversize_total",
        "messages too large to be stored, left out",
    ),
    Metric::counter(
        "nexus_delivery_parked_total",
        "replies parked behind a failing destination",
    ),
    Metric::gauge(
        "nexus_delivery_parked_destinations",
        "destinations behind which replies are parked now",
    ),
    Metric::counter(
        "nexus_delivery_lost_replies_read_total",
        "messages that were read to find lost replies",
    ),
    Metric::counter(
        "nexus_delivery_lost_replies_total",
        "replies that the ledger had, and neither DELIVERIES nor a receipt; they were published again",
    ),
];
