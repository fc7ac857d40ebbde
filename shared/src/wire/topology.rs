//! The topology as data: every stream, consumer and bucket with all its options. *Pure.*
//!
//! `shared::bus` creates it and compares it with the server; options are named only here. Source:
//! `docs/design/wire.md` §3.

mod names;

pub use self::names::{buckets, objects, streams};

use std::time::Duration;

/// Number of partitions of events and of deliveries.
pub const PARTITIONS: u16 = 64;
/// Number of parts of the sessions; the subjects of a session's dispatches and claims name its part
/// ([`super::partition::session_part`]).
pub const SESSION_PARTS: u16 = 16;
/// Group of the requests of consumers whose requests have priorities.
pub const REQUEST_GROUP: &str = "all";
/// Time for which a claim is held without a sign of life (`docs/design/sessions.md` §1.1).
pub const CLAIM_ACK_WAIT: Duration = Duration::from_secs(3);
/// Maximum size of a message in input streams, in bytes, headers included. A message too large to be read is still
/// stored up to this size, so that its dead letter (a third longer, in base64) fits into the servers' `max_payload`
/// of 8 MiB.
pub const MAX_STORED_BYTES: i32 = 5 * 1024 * 1024;
/// Consumer of fired schedule timers, shared by all schedulers.
pub const SCHEDULE_TIMERS: &str = "schedule-timers";
/// Maximum number of unacknowledged schedule timers.
pub const MAX_SCHEDULE_TIMERS: i64 = 4_096;
/// Consumer of fired intent timers, shared by all schedulers.
pub const INTENT_TIMERS: &str = "intent-timers";
/// Maximum number of unacknowledged intent timers.
pub const MAX_INTENT_TIMERS: i64 = 4_096;
/// Consumer of fired approval timers, shared by all brokers.
pub const APPROVAL_TIMERS: &str = "approval-timers";
/// Maximum number of unacknowledged approval timers.
pub const MAX_APPROVAL_TIMERS: i64 = 1_024;
/// Maximum number of messages that a partition's owner may process beyond its stored floor: those of a consumer that
/// the server keeps beyond its ack floor (`docs/design/hooks.md` §3; `docs/design/trust.md` §5).
pub const MAX_PAST_FLOOR: i64 = 1_000;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Time for which `RECEIPTS` keeps messages.
pub const RECEIPTS_KEPT: Duration = Duration::from_secs(90 * 24 * 3_600);
/// Time for which `INVOCATIONS` keeps messages.
pub const INVOCATIONS_KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);
const FOR_EVER: Duration = Duration::ZERO;
/// Duplicate window of streams in which ids only guard against quick retries.
const SHORT_WINDOW: Duration = Duration::from_secs(120);

/// The treatment of a message after it was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamRetention {
    /// The message is kept until a limit is reached.
    Limits,
    /// The message is deleted once it is acknowledged.
    WorkQueue,
}

/// A stream with all its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    /// Name of the stream.
    pub name: String,
    /// Subjects that it stores.
    pub subjects: Vec<String>,
    /// Treatment of acknowledged messages.
    pub retention: StreamRetention,
    /// Maximum age of messages; zero = unlimited.
    pub max_age: Duration,
    /// Time for which a `Nats-Msg-Id` is remembered.
    pub duplicate_window: Duration,
    /// Maximum number of messages per subject; -1 = unlimited.
    pub max_per_subject: i64,
    /// Maximum size of a message, in bytes, headers included; -1 = the server's limit.
    pub max_message_bytes: i32,
    /// Maximum size of all messages, in bytes; -1 = unlimited.
    pub max_bytes: i64,
    /// Whether messages over a limit are refused; otherwise the oldest are dropped.
    pub discard_new: bool,
    /// Whether messages over the limit per subject are refused too.
    pub discard_new_per_subject: bool,
    /// Whether files are compressed with S2.
    pub compressed: bool,
    /// Whether direct gets are allowed, which may return old data on replicas.
    pub allow_direct: bool,
    /// Whether roll-up headers are allowed (KV purge).
    pub allow_rollup: bool,
    /// Whether deleting single messages is denied.
    pub deny_delete: bool,
    /// Whether purging is denied.
    pub deny_purge: bool,
    /// Whether messages may have a time to live.
    pub allow_ttl: bool,
    /// Time for which the marker of an expired key is kept; zero = no markers.
    pub marker_ttl: Duration,
    /// Whether message schedules are allowed.
    pub allow_schedules: bool,
    /// Transform from the published to the stored subject, as source and destination.
    pub transform: Option<(String, String)>,
    /// Number of copies on the servers.
    pub replicas: usize,
}

/// A durable pull consumer with all its options. Acks are explicit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSpec {
    /// Stream of the consumer.
    pub stream: &'static str,
    /// Name of the consumer.
    pub name: String,
    /// Filter for the subjects it receives.
    pub filter: String,
    /// Time after which an unacknowledged message is delivered again.
    pub ack_wait: Duration,
    /// Maximum number of deliveries of a message; -1 = unlimited.
    pub max_deliver: i64,
    /// Maximum number of unacknowledged messages; -1 = unlimited.
    pub max_ack_pending: i64,
    /// Whether requests have priorities: a message goes to the request with the lowest number, of the group
    /// [`REQUEST_GROUP`].
    pub prioritized: bool,
}

/// The whole topology of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// All streams, including those of KV buckets.
    pub streams: Vec<StreamSpec>,
    /// All durable consumers that are used.
    pub consumers: Vec<ConsumerSpec>,
}

/// Returns the subjects of all parts below `root`. They are named one by one, so that a message for a part that does
/// not exist, which no broker would read, is refused.
fn part_subjects(root: &str) -> Vec<String> {
    (0..SESSION_PARTS).map(|part| format!("{root}.{part}.*.*")).collect()
}

fn stream_spec(name: &str, subjects: &[impl AsRef<str>], replicas: usize) -> StreamSpec {
    StreamSpec {
        name: name.to_owned(),
        subjects: subjects.iter().map(|subject| subject.as_ref().to_owned()).collect(),
        retention: StreamRetention::Limits,
        max_age: FOR_EVER,
        duplicate_window: SHORT_WINDOW,
        max_per_subject: -1,
        max_message_bytes: -1,
        max_bytes: -1,
        discard_new: false,
        discard_new_per_subject: false,
        compressed: false,
        allow_direct: true,
        allow_rollup: false,
        deny_delete: false,
        deny_purge: false,
        allow_ttl: false,
        marker_ttl: Duration::ZERO,
        allow_schedules: false,
        transform: None,
        replicas,
    }
}

fn bucket_spec(name: &str, ttl: bool, replicas: usize) -> StreamSpec {
    StreamSpec {
        max_per_subject: 1,
        discard_new: true,
        allow_rollup: true,
        deny_delete: true,
        allow_ttl: ttl,
        marker_ttl: if ttl { Duration::from_secs(60) } else { Duration::ZERO },
        ..stream_spec(&format!("KV_{name}"), &[&format!("$KV.{name}.>")], replicas)
    }
}

fn ledger_specs(replicas: usize) -> Vec<StreamSpec> {
    vec![
        StreamSpec {
            duplicate_window: HOUR,
            max_message_bytes: MAX_STORED_BYTES,
            compressed: true,
            transform: Some((
                "nexus.event.*.*.*".to_owned(),
                format!(
                    "nexus.ev.{{{{partition({PARTITIONS},1,2,3)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}.{{{{wildcard(3)}}}}"
                ),
            )),
            ..stream_spec(streams::EVENTS, &["nexus.event.*.*.*"], replicas)
        },
        StreamSpec {
            max_age: 30 * DAY,
            max_message_bytes: MAX_STORED_BYTES,
            ..stream_spec(streams::DISPATCHES, &part_subjects("nexus.dispatch"), replicas)
        },
        StreamSpec {
            retention: StreamRetention::WorkQueue,
            max_per_subject: 1,
            max_message_bytes: MAX_STORED_BYTES,
            discard_new: true,
            // A second claim of a session is refused while the first one waits.
            discard_new_per_subject: true,
            ..stream_spec(streams::CLAIMS, &part_subjects("nexus.claim"), replicas)
        },
        stream_spec(streams::LEDGER, &["nexus.ledger.*.*"], replicas),
    ]
}

fn outgoing_specs(replicas: usize) -> Vec<StreamSpec> {
    vec![
        StreamSpec {
            retention: StreamRetention::WorkQueue,
            max_age: 30 * DAY,
            max_message_bytes: MAX_STORED_BYTES,
            // Partitioned by channel and account, so that several workers share the stream and each one keeps the
            // order.
            transform: Some((
                "nexus.delivery.*.*.*".to_owned(),
                format!(
                    "nexus.dl.{{{{partition({PARTITIONS},1,2)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}.{{{{wildcard(3)}}}}"
                ),
            )),
            ..stream_spec(streams::DELIVERIES, &["nexus.delivery.*.*.*"], replicas)
        },
        StreamSpec {
            max_age: 30 * DAY,
            ..stream_spec(streams::PARKED, &["nexus.parked.*.*.*.*"], replicas)
        },
        StreamSpec {
            max_age: RECEIPTS_KEPT,
            ..stream_spec(streams::RECEIPTS, &["nexus.receipt.*.*.*"], replicas)
        },
    ]
}

fn record_specs(replicas: usize) -> Vec<StreamSpec> {
    vec![
        StreamSpec {
            max_age: INVOCATIONS_KEPT,
            ..stream_spec(streams::INVOCATIONS, &["nexus.invocation.*.*"], replicas)
        },
        StreamSpec {
            allow_rollup: true,
            allow_ttl: true,
            allow_schedules: true,
            ..stream_spec(
                streams::SCHEDULES,
                &[
                    "nexus.schedule.*",
                    "nexus.fire.*",
                    "nexus.schedule.intent.*",
                    "nexus.fire.intent.*",
                    "nexus.schedule.approval.*",
                    "nexus.fire.approval.*",
                ],
                replicas,
            )
        },
        StreamSpec {
            deny_delete: true,
            deny_purge: true,
            ..stream_spec(streams::AUDIT, &["nexus.audit.>"], replicas)
        },
        StreamSpec {
            max_age: 90 * DAY,
            ..stream_spec(streams::DLQ, &["nexus.dlq.*"], replicas)
        },
    ]
}

fn kv_specs(replicas: usize) -> Vec<StreamSpec> {
    let lasting = [
        buckets::ATTEMPTS,
        buckets::HOOKS,
        buckets::HOOK_STATE,
        buckets::CHANNELS,
        buckets::ACCOUNT_TOKENS,
        buckets::BREAKERS,
        buckets::INTENTS,
        buckets::SCHEDULES,
        buckets::IDENTITIES,
        buckets::SESSION_OVERRIDES,
        buckets::SESSION_CHECKPOINTS,
        buckets::POSITIONS,
        buckets::WATERMARKS,
        buckets::BACKFILLS,
        buckets::RESTORE,
    ];

    // Entries of these buckets may have a time to live.
    let fleeting = [
        buckets::APPROVALS,
        buckets::LEASES,
        buckets::MEMBERS,
        buckets::HOOK_SPEND,
        buckets::HOOK_RESULTS,
        buckets::HOOK_LIMITS,
        buckets::STOPPED_ACCOUNTS,
        buckets::PAIRINGS,
        buckets::HELD,
        buckets::FETCHES,
        buckets::POSTS,
        buckets::MERGES,
        buckets::THREADS,
    ];

    let lasting = lasting.into_iter().map(|name| bucket_spec(name, false, replicas));
    lasting
        .chain(fleeting.into_iter().map(|name| bucket_spec(name, true, replicas)))
        .collect()
}

/// Returns the streams of objects. The remains of an interrupted writer of a snapshot are deleted by age, if not before;
/// those of an attachment by its sweep, as attachments themselves, because one that is used again is kept for longer.
fn file_specs(replicas: usize) -> Vec<StreamSpec> {
    let bucket = |name: &str, max_age: Duration, max_bytes: i64| {
        let subjects = [format!("$O.{name}.C.>"), format!("$O.{name}.M.>")];
        StreamSpec {
            max_age,
            max_bytes,
            discard_new: true,
            allow_rollup: true,
            ..stream_spec(&format!("OBJ_{name}"), &[&subjects[0], &subjects[1]], replicas)
        }
    };
    vec![
        bucket(objects::SNAPSHOTS, 14 * DAY, objects::MAX_SNAPSHOTS_BYTES),
        bucket(objects::ATTACHMENTS, FOR_EVER, objects::MAX_ATTACHMENTS_BYTES),
    ]
}

/// Returns the filter for the stored subjects of one partition, or one part, of `stream`.
///
/// # Panics
/// Panics if `stream` has no partitions.
#[must_use]
pub fn partition_filter(stream: &str, partition: u16) -> String {
    let root = match stream {
        streams::EVENTS => "nexus.ev",
        streams::DELIVERIES => "nexus.dl",
        streams::DISPATCHES => "nexus.dispatch",
        streams::CLAIMS => "nexus.claim",
        other => panic!("stream {other} has no partitions"),
    };
    format!("{root}.{partition}.>")
}

/// Returns the name of the consumer of the claims of `part`, which all brokers share.
#[must_use]
pub fn claims_consumer(part: u16) -> String {
    format!("broker-{part}")
}

fn consumer_specs() -> Vec<ConsumerSpec> {
    // Unlimited deliveries: a message that keeps failing is given up by its reader, with a reason.
    let per_partition = |stream: &'static str, group: &'static str| {
        (0..PARTITIONS).map(move |partition| ConsumerSpec {
            stream,
            name: format!("{group}-{partition}"),
            filter: partition_filter(stream, partition),
            ack_wait: Duration::from_secs(60),
            max_deliver: -1,
            max_ack_pending: MAX_PAST_FLOOR,
            prioritized: false,
        })
    };

    // The brokers that read a part come first; any other one helps out.
    let claims = (0..SESSION_PARTS).map(|part| ConsumerSpec {
        stream: streams::CLAIMS,
        name: claims_consumer(part),
        filter: partition_filter(streams::CLAIMS, part),
        ack_wait: CLAIM_ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: -1,
        prioritized: true,
    });

    let intents = ConsumerSpec {
        stream: streams::SCHEDULES,
        name: INTENT_TIMERS.to_owned(),
        filter: "nexus.fire.intent.*".to_owned(),
        ack_wait: Duration::from_secs(30),
        max_deliver: -1,
        max_ack_pending: MAX_INTENT_TIMERS,
        prioritized: false,
    };

    let schedules = ConsumerSpec {
        stream: streams::SCHEDULES,
        name: SCHEDULE_TIMERS.to_owned(),
        filter: "nexus.fire.*".to_owned(),
        ack_wait: Duration::from_secs(15),
        max_deliver: -1,
        max_ack_pending: MAX_SCHEDULE_TIMERS,
        prioritized: false,
    };

    let approvals = ConsumerSpec {
        stream: streams::SCHEDULES,
        name: APPROVAL_TIMERS.to_owned(),
        filter: "nexus.fire.approval.*".to_owned(),
        ack_wait: Duration::from_secs(30),
        max_deliver: -1,
        max_ack_pending: MAX_APPROVAL_TIMERS,
        prioritized: false,
    };

    // Consumers of `EVENTS` are created and deleted by the partitions' owners.
    per_partition(streams::DELIVERIES, "delivery")
        .chain(claims)
        .chain([intents, schedules, approvals])
        .collect()
}

/// Returns the whole topology with `replicas` copies of each stream (1 or 3).
#[must_use]
pub fn topology(replicas: usize) -> Topology {
    let streams = [
        ledger_specs(replicas),
        outgoing_specs(replicas),
        record_specs(replicas),
        kv_specs(replicas),
        file_specs(replicas),
    ]
    .concat();

    Topology {
        streams,
        consumers: consumer_specs(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_consumers_have_their_streams() {
        let all = topology(3);
        let names: BTreeSet<&str> = all.streams.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names.len(), all.streams.len());
        assert!(all.consumers.iter().all(|c| names.contains(c.stream)));
        assert_eq!(all.consumers.len(), usize::from(PARTITIONS + SESSION_PARTS) + 3);
        assert!(all.streams.iter().all(|s| s.replicas == 3));
    }
}
