//! The metrics of adapter-svc.

use shared::metric::{Metric, PLATFORMS, label};

use crate::attachments::keeper::TASK;

/// Every metric that this crate names.
pub const METRICS: &[Metric] = &[
    Metric::counter("nexus_adapter_accepted_total", "events in").by(&[label(
        "source",
        &["discord", "http", "slack", "telegram", TASK, "webchat", "webhook"],
    )]),
    Metric::counter("nexus_adapter_refused_total", "requests refused").by(&[label("code", REFUSAL_CODES)]),
    Metric::counter("nexus_adapter_published_total", "events published")
        .by(&[label("outcome", &["stored", "duplicate"])]),
    Metric::gauge("nexus_adapter_publish_in_hand", "events in hand of the publisher"),
    Metric::histogram("nexus_adapter_request_seconds", "time to an HTTP answer"),
    Metric::gauge("nexus_adapter_webchat_sockets", "open pages of the web chat"),
    Metric::counter(
        "nexus_adapter_webchat_moved_total",
        "pages that left for one of an address with fewer",
    ),
    Metric::gauge("nexus_adapter_connections", "open connections"),
    Metric::gauge("nexus_adapter_body_bytes", "memory of requests in hand"),
    Metric::counter(
        "nexus_adapter_connections_ended_total",
        "connections that were ended here",
    )
    .by(&[label("reason", &["full", "late", "pressure"])]),
    Metric::gauge("nexus_adapter_spool_entries", "events in the spool"),
    Metric::gauge("nexus_adapter_spool_bytes", "size of the events in the spool"),
    Metric::histogram(
        "nexus_adapter_spool_group_entries",
        "events in one sync of the spool to disk",
    ),
    Metric::counter(
        "nexus_source_refused_total",
        "what platforms' accounts sent and became no event",
    )
    .by(&[label("source", PLATFORMS), label("reason", REFUSED_UPDATES)]),
    Metric::counter("nexus_source_failures_total", "calls of platforms that failed").by(&[label("source", PLATFORMS)]),
    Metric::counter("nexus_source_gaps_total", "times of which a platform's events are lost")
        .by(&[label("source", PLATFORMS)]),
    Metric::counter(
        "nexus_backfill_events_total",
        "messages of histories that were stored as events",
    )
    .by(&[label("source", PLATFORMS)]),
    Metric::counter(
        "nexus_source_slowed_total",
        "times at which a bound was reached and the platform waited",
    )
    .by(&[label("source", PLATFORMS)]),
    Metric::counter(
        "nexus_source_left_out_total",
        "what was left to histories or is missing",
    )
    .by(&[label("source", PLATFORMS)]),
    Metric::counter(
        "nexus_source_unanswered_presses_total",
        "presses of buttons that were not answered",
    )
    .by(&[label("source", PLATFORMS)]),
    Metric::gauge(
        "nexus_source_stopped_accounts",
        "accounts that this replica cannot read until an operator acts",
    )
    .by(&[label("source", PLATFORMS)]),
    Metric::counter("nexus_attachments_total", "files of messages").by(&[
        label("source", PLATFORMS),
        label(
            "outcome",
            &[
                "stored",
                "later",
                "expired",
                "forbidden_address",
                "full",
                "too_large",
                "unavailable",
            ],
        ),
    ]),
    Metric::gauge("nexus_attachments_bytes", "used space of the bucket `attachments`"),
    Metric::gauge("nexus_attachments_max_bytes", "space of the bucket `attachments`"),
    Metric::counter(
        "nexus_attachment_notes_refused_total",
        "notes of files that somebody without a key of the cluster wrote, or that cannot be read",
    )
    .by(&[label("reason", NOTE_REASONS)]),
    Metric::counter("nexus_pairing_codes_total", "codes that were sent to strangers")
        .by(&[label("channel", PLATFORMS)]),
    Metric::counter(
        "nexus_pairing_codes_given_up_total",
        "strangers who got no code within the hour, because it could not be sent",
    )
    .by(&[label("channel", PLATFORMS)]),
];

/// Codes of refused requests.
const REFUSAL_CODES: &[&str] = &[
    "bad_signature",
    "broken_body",
    "busy",
    "channel_not_allowed",
    "content_type",
    "foreign_host",
    "foreign_origin",
    "invalid",
    "malformed",
    "not_stored",
    "overloaded",
    "owner_link",
    "slow_body",
    "spool_failed",
    "spool_full",
    "timeout",
    "too_fast",
    "too_large",
    "too_many",
    "unauthorized",
    "unknown_account",
    "unknown_identity",
    "unknown_pairings",
    "unknown_path",
    "unknown_source",
    "unnoted_files",
];

/// Reasons for which an update of a platform is no event.
const REFUSED_UPDATES: &[&str] = &[
    "bounds",
    "echo",
    "id",
    "malformed",
    "no_conversation",
    "no_edit",
    "unknown_chat",
    "unreadable",
    "unsealed",
    "wrong_team",
];

/// Reasons for which a note of a file is refused.
const NOTE_REASONS: &[&str] = &[
    "content_type",
    "foreign_id",
    "invalid",
    "malformed",
    "newer_part",
    "newer_schema",
    "other_schema",
    "oversize",
    "too_old",
    "unsealed",
    "wrong_subject",
    "key",
    "origin",
    "unreadable",
];

#[cfg(test)]
mod tests {
    use shared::metric::READ_EVENT_REASONS;

    use super::*;

    #[test]
    fn notes_are_refused_for_the_reasons_of_events_as_well() {
        assert!(READ_EVENT_REASONS.iter().all(|reason| NOTE_REASONS.contains(reason)));
    }
}
