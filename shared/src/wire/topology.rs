//! The whole topology as data: every stream, consumer and bucket, every option spelled out. *Pure.*
//!
//! `shared::bus` creates and compares it; nothing else names an option. Source: `wire.md` "Subjects and streams".

use std::time::Duration;

/// Partitions of events and of deliveries.
pub const PARTITIONS: u16 = 64;
/// How long a claim is held without a sign of life (`sessions.md` rule 1).
pub const CLAIM_ACK_WAIT: Duration = Duration::from_secs(3);
/// Largest message that streams of input store, in bytes, headers included: what is too large to be read is stored up to
/// here, so that its dead letter (a third longer, in base64) is no larger than the servers' `max_payload` of 8 MiB.
pub const MAX_STORED_BYTES: i32 = 5 * 1024 * 1024;
/// Consumer of the schedules' timers that have rung, shared by all schedulers.
pub const SCHEDULE_TIMERS: &str = "schedule-timers";
/// How many of them may be unacked, in messages.
pub const MAX_SCHEDULE_TIMERS: i64 = 4_096;
/// Consumer of the intents' timers that have rung, shared by all schedulers.
pub const INTENT_TIMERS: &str = "intent-timers";
/// How many of them may be unacked, in messages.
pub const MAX_INTENT_TIMERS: i64 = 4_096;
/// Consumer of the approvals' timers that have rung, shared by all brokers.
pub const APPROVAL_TIMERS: &str = "approval-timers";
/// How many of them may be unacked, in messages.
pub const MAX_APPROVAL_TIMERS: i64 = 1_024;
/// How many messages a partition's owner may have in hand past what is stored to be handed out: of a consumer that the
/// server keeps past its ack floor (`hooks.md` "Crash rules"; `trust.md` §5).
pub const MAX_PAST_FLOOR: i64 = 1_000;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// How long `RECEIPTS` keeps messages.
pub const RECEIPTS_KEPT: Duration = Duration::from_secs(90 * 24 * 3_600);
/// How long `INVOCATIONS` keeps messages.
pub const INVOCATIONS_KEPT: Duration = Duration::from_secs(30 * 24 * 3_600);
const FOR_EVER: Duration = Duration::ZERO;
/// Duplicate window where ids only guard against quick retries.
const SHORT_WINDOW: Duration = Duration::from_secs(120);

/// Names of the streams.
pub mod streams {
    /// The Event Ledger.
    pub const EVENTS: &str = "EVENTS";
    /// What fired hooks order.
    pub const DISPATCHES: &str = "DISPATCHES";
    /// One message per session that has something to run.
    pub const CLAIMS: &str = "CLAIMS";
    /// The Agent Ledger.
    pub const LEDGER: &str = "LEDGER";
    /// Replies on their way out.
    pub const DELIVERIES: &str = "DELIVERIES";
    /// Replies of destinations that failed at first, in order, off their partition's way.
    pub const PARKED: &str = "PARKED";
    /// What became of them.
    pub const RECEIPTS: &str = "RECEIPTS";
    /// What every hook did with every event.
    pub const INVOCATIONS: &str = "INVOCATIONS";
    /// Timers.
    pub const SCHEDULES: &str = "SCHEDULES";
    /// Who did what.
    pub const AUDIT: &str = "AUDIT";
    /// What could not be done.
    pub const DLQ: &str = "DLQ";
}

/// Names of the KV buckets.
pub mod buckets {
    /// Who holds which partition or task.
    pub const LEASES: &str = "leases";
    /// Which replicas are there.
    pub const MEMBERS: &str = "members";
    /// How often the message that may have killed its handler was tried, per partition.
    pub const ATTEMPTS: &str = "attempts";
    /// The hook registry.
    pub const HOOKS: &str = "hooks";
    /// What happened to hooks.
    pub const HOOK_STATE: &str = "hook_state";
    /// What hooks spent on the model, by day.
    pub const HOOK_SPEND: &str = "hook_spend";
    /// What hooks that asked the model or searched answered, by event.
    pub const HOOK_RESULTS: &str = "hook_results";
    /// What rate limits within turns have counted, by hook, tool and user.
    pub const HOOK_LIMITS: &str = "hook_limits";
    /// Which accounts delivery-svc has.
    pub const CHANNELS: &str = "channels";
    /// Hooks' breakers.
    pub const BREAKERS: &str = "breakers";
    /// What humans are asked.
    pub const APPROVALS: &str = "approvals";
    /// What agents want later.
    pub const INTENTS: &str = "intents";
    /// Schedules.
    pub const SCHEDULES: &str = "schedules";
    /// Who is who.
    pub const IDENTITIES: &str = "identities";
    /// What a session does differently, quarantine among it.
    pub const SESSION_OVERRIDES: &str = "session_overrides";
    /// What a restore has left to be decided.
    pub const RESTORE: &str = "restore";
    /// Where a session's newest checkpoint is, and that its agent cannot be asked at present: hints.
    pub const SESSION_CHECKPOINTS: &str = "session_checkpoints";
    /// How far streams of done-markers had come: their witnesses.
    pub const POSITIONS: &str = "positions";
    /// What nobody can tell to be done or undone, until an operator says it.
    pub const HELD: &str = "held";
}

/// Names of the buckets of objects.
pub mod objects {
    /// Copies of the read model, for replicas that have none.
    pub const SNAPSHOTS: &str = "snapshots";
    /// Largest copy, in bytes.
    pub const MAX_SNAPSHOT_BYTES: u64 = 1 << 29;
    /// Bytes of all of them: two that are kept, one that is being made, and what the pieces need beside. Servers set so
    /// much of their storage aside.
    pub const MAX_SNAPSHOTS_BYTES: i64 = (3 << 29) + (1 << 26);
}

/// What a stream does with a message that was dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Keeps it until a limit says otherwise.
    Limits,
    /// Drops it once acked.
    WorkQueue,
}

/// A stream, every option spelled out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    /// Its name.
    pub name: String,
    /// What it listens to.
    pub subjects: Vec<String>,
    /// What becomes of messages that were dealt with.
    pub retention: Retention,
    /// How long messages stay; zero = for ever.
    pub max_age: Duration,
    /// How long a `Nats-Msg-Id` is remembered.
    pub duplicate_window: Duration,
    /// At most so many messages per subject; -1 = any number.
    pub max_per_subject: i64,
    /// Largest message, in bytes, headers included; -1 = what the server takes.
    pub max_message_bytes: i32,
    /// Bytes of all messages; -1 = any number.
    pub max_bytes: i64,
    /// Refuse what is over a limit instead of dropping the oldest.
    pub discard_new: bool,
    /// Refuse per subject as well.
    pub discard_new_per_subject: bool,
    /// S2 compression on disk.
    pub compressed: bool,
    /// Direct get (may answer stale on replicas).
    pub allow_direct: bool,
    /// Roll-up headers (KV purge).
    pub allow_rollup: bool,
    /// Nobody may delete single messages.
    pub deny_delete: bool,
    /// Nobody may purge.
    pub deny_purge: bool,
    /// Time to live per message.
    pub allow_ttl: bool,
    /// How long the marker of an expired key stays; zero = no markers.
    pub marker_ttl: Duration,
    /// Message schedules.
    pub allow_schedules: bool,
    /// Stored subject = this transform of the published one.
    pub transform: Option<(String, String)>,
    /// Copies.
    pub replicas: usize,
}

/// A durable pull consumer, every option spelled out. Acks are explicit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSpec {
    /// Its stream.
    pub stream: &'static str,
    /// Its name.
    pub name: String,
    /// Which subjects.
    pub filter: String,
    /// How long until an unacked message is delivered again.
    pub ack_wait: Duration,
    /// How often a message is delivered; -1 = without end.
    pub max_deliver: i64,
    /// How many may be unacked; -1 = any number.
    pub max_ack_pending: i64,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Streams, those of KV buckets among them.
    pub streams: Vec<StreamSpec>,
    /// Durable consumers.
    pub consumers: Vec<ConsumerSpec>,
}

fn stream(name: &str, subjects: &[&str], replicas: usize) -> StreamSpec {
    StreamSpec {
        name: name.to_owned(),
        subjects: subjects.iter().map(|&s| s.to_owned()).collect(),
        retention: Retention::Limits,
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

fn bucket(name: &str, ttl: bool, replicas: usize) -> StreamSpec {
    StreamSpec {
        max_per_subject: 1,
        discard_new: true,
        allow_rollup: true,
        deny_delete: true,
        allow_ttl: ttl,
        marker_ttl: if ttl { Duration::from_secs(60) } else { Duration::ZERO },
        ..stream(&format!("KV_{name}"), &[&format!("$KV.{name}.>")], replicas)
    }
}

fn ledgers(replicas: usize) -> Vec<StreamSpec> {
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
            ..stream(streams::EVENTS, &["nexus.event.*.*.*"], replicas)
        },
        StreamSpec {
            max_age: 30 * DAY,
            max_message_bytes: MAX_STORED_BYTES,
            ..stream(streams::DISPATCHES, &["nexus.dispatch.*.*"], replicas)
        },
        StreamSpec {
            retention: Retention::WorkQueue,
            max_per_subject: 1,
            max_message_bytes: MAX_STORED_BYTES,
            discard_new: true,
            discard_new_per_subject: true,
            ..stream(streams::CLAIMS, &["nexus.claim.*.*"], replicas)
        },
        stream(streams::LEDGER, &["nexus.ledger.*.*"], replicas),
    ]
}

fn outgoing(replicas: usize) -> Vec<StreamSpec> {
    vec![
        StreamSpec {
            retention: Retention::WorkQueue,
            max_age: 30 * DAY,
            max_message_bytes: MAX_STORED_BYTES,
            transform: Some((
                "nexus.delivery.*.*.*".to_owned(),
                format!(
                    "nexus.dl.{{{{partition({PARTITIONS},1,2)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}.{{{{wildcard(3)}}}}"
                ),
            )),
            ..stream(streams::DELIVERIES, &["nexus.delivery.*.*.*"], replicas)
        },
        StreamSpec {
            max_age: 30 * DAY,
            ..stream(streams::PARKED, &["nexus.parked.*.*.*.*"], replicas)
        },
        StreamSpec {
            max_age: RECEIPTS_KEPT,
            ..stream(streams::RECEIPTS, &["nexus.receipt.*.*.*"], replicas)
        },
    ]
}

fn records(replicas: usize) -> Vec<StreamSpec> {
    vec![
        StreamSpec {
            max_age: INVOCATIONS_KEPT,
            ..stream(streams::INVOCATIONS, &["nexus.invocation.*.*"], replicas)
        },
        StreamSpec {
            allow_rollup: true,
            allow_ttl: true,
            allow_schedules: true,
            ..stream(
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
            ..stream(streams::AUDIT, &["nexus.audit.>"], replicas)
        },
        StreamSpec {
            max_age: 90 * DAY,
            ..stream(streams::DLQ, &["nexus.dlq.*"], replicas)
        },
    ]
}

fn kv(replicas: usize) -> Vec<StreamSpec> {
    let lasting = [
        buckets::ATTEMPTS,
        buckets::HOOKS,
        buckets::HOOK_STATE,
        buckets::CHANNELS,
        buckets::BREAKERS,
        buckets::INTENTS,
        buckets::SCHEDULES,
        buckets::IDENTITIES,
        buckets::SESSION_OVERRIDES,
        buckets::SESSION_CHECKPOINTS,
        buckets::POSITIONS,
        buckets::RESTORE,
    ];

    let fleeting = [
        buckets::APPROVALS,
        buckets::LEASES,
        buckets::MEMBERS,
        buckets::HOOK_SPEND,
        buckets::HOOK_RESULTS,
        buckets::HOOK_LIMITS,
        buckets::HELD,
    ];

    let lasting = lasting.into_iter().map(|name| bucket(name, false, replicas));
    lasting
        .chain(fleeting.into_iter().map(|name| bucket(name, true, replicas)))
        .collect()
}

/// Files in pieces; what an interrupted writer leaves behind goes by its age, if not before.
fn files(replicas: usize) -> Vec<StreamSpec> {
    let name = objects::SNAPSHOTS;
    let subjects = [format!("$O.{name}.C.>"), format!("$O.{name}.M.>")];
    vec![StreamSpec {
        max_age: 14 * DAY,
        max_bytes: objects::MAX_SNAPSHOTS_BYTES,
        discard_new: true,
        allow_rollup: true,
        ..stream(&format!("OBJ_{name}"), &[&subjects[0], &subjects[1]], replicas)
    }]
}

/// The subjects of one partition, as they are stored in `stream`.
///
/// # Panics
/// Where `stream` has no partitions.
#[must_use]
pub fn partition_filter(stream: &str, partition: u16) -> String {
    let root = match stream {
        streams::EVENTS => "nexus.ev",
        streams::DELIVERIES => "nexus.dl",
        other => panic!("stream {other} has no partitions"),
    };
    format!("{root}.{partition}.>")
}

fn consumers() -> Vec<ConsumerSpec> {
    let per_partition = |stream: &'static str, group: &'static str| {
        (0..PARTITIONS).map(move |partition| ConsumerSpec {
            stream,
            name: format!("{group}-{partition}"),
            filter: partition_filter(stream, partition),
            ack_wait: Duration::from_secs(60),
            max_deliver: -1,
            max_ack_pending: MAX_PAST_FLOOR,
        })
    };

    let claims = ConsumerSpec {
        stream: streams::CLAIMS,
        name: "broker".to_owned(),
        filter: "nexus.claim.>".to_owned(),
        ack_wait: CLAIM_ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: -1,
    };

    let intents = ConsumerSpec {
        stream: streams::SCHEDULES,
        name: INTENT_TIMERS.to_owned(),
        filter: "nexus.fire.intent.*".to_owned(),
        ack_wait: Duration::from_secs(30),
        max_deliver: -1,
        max_ack_pending: MAX_INTENT_TIMERS,
    };

    let schedules = ConsumerSpec {
        stream: streams::SCHEDULES,
        name: SCHEDULE_TIMERS.to_owned(),
        filter: "nexus.fire.*".to_owned(),
        ack_wait: Duration::from_secs(15),
        max_deliver: -1,
        max_ack_pending: MAX_SCHEDULE_TIMERS,
    };

    let approvals = ConsumerSpec {
        stream: streams::SCHEDULES,
        name: APPROVAL_TIMERS.to_owned(),
        filter: "nexus.fire.approval.*".to_owned(),
        ack_wait: Duration::from_secs(30),
        max_deliver: -1,
        max_ack_pending: MAX_APPROVAL_TIMERS,
    };

    // Those of `EVENTS` come and go with the partitions' owners.
    per_partition(streams::DELIVERIES, "delivery")
        .chain([claims, intents, schedules, approvals])
        .collect()
}

/// Everything, with `replicas` copies of each stream (1 or 3).
#[must_use]
pub fn topology(replicas: usize) -> Topology {
    let streams = [
        ledgers(replicas),
        outgoing(replicas),
        records(replicas),
        kv(replicas),
        files(replicas),
    ]
    .concat();

    Topology {
        streams,
        consumers: consumers(),
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
        assert_eq!(all.consumers.len(), usize::from(PARTITIONS) + 4);
        assert!(all.streams.iter().all(|s| s.replicas == 3));
    }
}
