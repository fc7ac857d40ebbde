//! The metrics of `shared`, in the groups in which services have them.

use super::{Metric, label, open_label};
use crate::wire::held::{HELD_LETTER, HeldKind};
use crate::wire::topology::{buckets, streams};

/// Channels of platforms whose accounts are read.
pub const PLATFORMS: &[&str] = &["discord", "slack", "telegram"];

/// Reasons for which a message of `EVENTS` is not read as an event.
pub const READ_EVENT_REASONS: &[&str] = &[
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
];

/// Reasons of dead letters; a letter of any other reason is counted as `other`.
pub const LETTER_REASONS: &[&str] = &[
    "content_type",
    "deferred_too_long",
    "dispatch_lost",
    "foreign_id",
    "gave_up",
    HELD_LETTER,
    "invalid",
    "keeps_failing",
    "kills_its_owner",
    "malformed",
    "newer_part",
    "newer_schema",
    "no_session",
    "order_in_doubt",
    "other_schema",
    "oversize",
    "quarantined",
    "refused",
    "reply_refused",
    "too_old",
    "unreadable",
    "unreadable_headers",
    "unsealed",
    "wrong_session",
    "wrong_subject",
    OTHER_REASON,
];

/// Label of dead letters whose reason is none of [`LETTER_REASONS`].
const OTHER_REASON: &str = "other";

/// Returns the label under which a dead letter of `reason` is counted.
#[must_use]
pub fn letter_reason(reason: &str) -> &'static str {
    let known = LETTER_REASONS.iter().find(|known| **known == reason);
    known.copied().unwrap_or(OTHER_REASON)
}

/// Metrics of every process.
pub const PROCESS: &[Metric] = &[
    Metric::gauge("nexus_build_info", "1, with the service and its version")
        .by(&[open_label("service"), open_label("version")]),
    Metric::gauge(
        "nexus_nats_clock_ahead_seconds",
        "the NATS server's wall clock minus this host's",
    ),
];

/// Metrics of every process that has a connection to the bus.
pub const BUS: &[Metric] = &[
    Metric::counter("nexus_bus_publish_retries_total", "publishes tried again"),
    Metric::counter(
        "nexus_bus_gaps_total",
        "times this process was stopped for longer than its leases last, and dropped its work",
    ),
    Metric::counter("nexus_dead_letters_total", "messages given up").by(&[label("reason", LETTER_REASONS)]),
    Metric::counter(
        "nexus_held_total",
        "messages held because it is unknown whether they were handled",
    )
    .by(&[label("kind", &[HeldKind::Dispatch.name(), HeldKind::Delivery.name()])]),
    Metric::counter(
        "nexus_held_again_total",
        "messages held again that an operator had decided about",
    )
    .by(&[label("kind", &[HeldKind::Dispatch.name(), HeldKind::Delivery.name()])]),
    Metric::counter(
        "nexus_positions_void_total",
        "positions found void: their stream was put back, truncated or recreated",
    )
    .by(&[label("stream", STREAMS)]),
    Metric::gauge(
        "nexus_positions_degraded",
        "positions of this process that are void now",
    ),
    Metric::counter(
        "nexus_kv_buckets_anew_total",
        "buckets that were put back or recreated under a running process",
    )
    .by(&[label("bucket", BUCKETS)]),
    Metric::gauge(
        "nexus_partitions_held",
        "partitions of this replica; 64 over all replicas",
    )
    .by(&[open_label("group")]),
    Metric::gauge(
        "nexus_parts_held",
        "parts that this replica reads; 16 over all replicas",
    )
    .by(&[open_label("group")]),
    Metric::counter("nexus_leases_lost_total", "partitions lost without giving them back"),
    Metric::counter(
        "nexus_tap_let_go_total",
        "owners of partitions of EVENTS that read them by themselves for a time, as they or the read model fell behind",
    ),
];

const STREAMS: &[&str] = &[
    streams::EVENTS,
    streams::DISPATCHES,
    streams::CLAIMS,
    streams::LEDGER,
    streams::DELIVERIES,
    streams::PARKED,
    streams::RECEIPTS,
    streams::INVOCATIONS,
    streams::SCHEDULES,
    streams::AUDIT,
    streams::DLQ,
];

const BUCKETS: &[&str] = &[
    buckets::LEASES,
    buckets::MEMBERS,
    buckets::ATTEMPTS,
    buckets::HOOKS,
    buckets::HOOK_STATE,
    buckets::HOOK_SPEND,
    buckets::HOOK_RESULTS,
    buckets::HOOK_LIMITS,
    buckets::CHANNELS,
    buckets::STOPPED_ACCOUNTS,
    buckets::ACCOUNT_TOKENS,
    buckets::BREAKERS,
    buckets::APPROVALS,
    buckets::INTENTS,
    buckets::SCHEDULES,
    buckets::IDENTITIES,
    buckets::SESSION_OVERRIDES,
    buckets::RESTORE,
    buckets::SESSION_CHECKPOINTS,
    buckets::POSITIONS,
    buckets::WATERMARKS,
    buckets::BACKFILLS,
    buckets::PAIRINGS,
    buckets::HELD,
    buckets::FETCHES,
    buckets::POSTS,
    buckets::MERGES,
    buckets::THREADS,
];

/// Metrics of processes that ask models.
pub const MODELS: &[Metric] = &[
    Metric::counter("nexus_llm_attempts_total", "requests to model providers").by(&[label(
        "outcome",
        &[
            "answered",
            "bad_answer",
            "overloaded",
            "rate_limited",
            "refused",
            "stopped",
            "timed_out",
            "too_long",
            "truncated",
            "unauthorised",
            "unreachable",
        ],
    )]),
    Metric::counter("nexus_llm_tokens_total", "tokens of models").by(&[label("direction", &["in", "out"])]),
    Metric::counter(
        "nexus_llm_cost_microdollars_total",
        "cost of models by the price table, millionths of a US dollar",
    ),
];

/// Metrics of processes that may keep a copy of the read model.
pub const PROJECTION: &[Metric] = &[
    Metric::counter("nexus_projection_messages_total", "messages read into the read model")
        .by(&[label("stream", PROJECTED)]),
    Metric::counter(
        "nexus_projection_unreadable_total",
        "messages that the read model could not read",
    )
    .by(&[label("stream", PROJECTED)]),
    Metric::counter("nexus_projection_embedded_total", "texts embedded here for the search"),
    Metric::counter(
        "nexus_projection_vectors_taken_total",
        "texts whose vectors were taken from another copy of the read model",
    ),
    Metric::gauge(
        "nexus_projection_embedding_backlog_events",
        "events that are found by words alone until they are embedded",
    ),
];

const PROJECTED: &[&str] = &[
    streams::EVENTS,
    streams::INVOCATIONS,
    streams::DISPATCHES,
    streams::LEDGER,
    streams::RECEIPTS,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::topology::topology;

    #[test]
    fn every_stream_and_bucket_has_its_series() {
        // No position is in a stream of objects.
        let streams = topology(1).streams;
        for stream in streams.iter().filter(|stream| !stream.name.starts_with("OBJ_")) {
            let name = stream.name.as_str();
            let bucket = name.strip_prefix("KV_");
            let is_listed = bucket.map_or_else(|| STREAMS.contains(&name), |bucket| BUCKETS.contains(&bucket));
            assert!(is_listed, "{name}");
        }
    }

    #[test]
    fn a_letter_of_any_reason_is_counted() {
        assert_eq!(letter_reason("malformed"), "malformed");
        assert_eq!(letter_reason("made up"), OTHER_REASON);
    }
}
