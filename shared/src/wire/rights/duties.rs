//! The rights of each role. *Pure.*

use super::Right::{
    Api, Ask, Delete, Hear, Publish, Purge, Read, ReadFiles, ReadKeys, Serve, WriteFiles, WriteKeys,
};
use super::{BusRole, Right};
use crate::wire::topology::{buckets, objects, streams};

/// Returns the rights of `role`.
pub(super) const fn of(role: BusRole) -> &'static [Right] {
    match role {
        BusRole::Adapter => ADAPTER,
        BusRole::Hook => HOOK,
        BusRole::Broker => BROKER,
        BusRole::Delivery => DELIVERY,
        BusRole::Scheduler => SCHEDULER,
        BusRole::Topology => TOPOLOGY,
        BusRole::Restore => RESTORE,
        BusRole::Admin => ADMIN,
        BusRole::Operator => OPERATOR,
        BusRole::Viewer => VIEWER,
        BusRole::Agent => AGENT,
        BusRole::Edge => EDGE,
        BusRole::System => SYSTEM,
    }
}

/// Returns what `role` may neither publish nor hear although it is within its rights.
pub(super) const fn denied(role: BusRole) -> (&'static [&'static str], &'static [&'static str]) {
    match role {
        BusRole::Admin => (NOT_BY_ADMIN, NOT_HEARD_BY_ADMIN),
        BusRole::Adapter
        | BusRole::Hook
        | BusRole::Broker
        | BusRole::Delivery
        | BusRole::Scheduler
        | BusRole::Topology
        | BusRole::Restore
        | BusRole::Operator
        | BusRole::Viewer
        | BusRole::Agent
        | BusRole::Edge
        | BusRole::System => (&[], &[]),
    }
}

/// Accepts messages of sources, stores them as events, and knows who may write.
const ADAPTER: &[Right] = &[
    Publish("nexus.event.*.*.*"),
    // Codes for strangers, and the decisions about them.
    Publish("nexus.delivery.*.*.*"),
    Publish("nexus.audit.pairing.>"),
    Publish("nexus.dlq.*"),
    Hear("nexus.webchat.*.*"),
    Ask("approval.get"),
    Ask("approval.decide"),
    Ask("events.history"),
    Ask("events.threads"),
    Serve("pairing.*"),
    Serve("replica.status"),
    Hear("$SRV.>"),
    Api("INFO"),
    Api("STREAM.NAMES"),
    Api("STREAM.INFO.*"),
    Api("CONSUMER.INFO.*.*"),
    Read(streams::EVENTS),
    Read(streams::AUDIT),
    ReadKeys(buckets::IDENTITIES),
    WriteKeys(buckets::IDENTITIES),
    ReadKeys(buckets::PAIRINGS),
    WriteKeys(buckets::PAIRINGS),
    ReadKeys(buckets::WATERMARKS),
    WriteKeys(buckets::WATERMARKS),
    ReadKeys(buckets::FETCHES),
    WriteKeys(buckets::FETCHES),
    ReadKeys(buckets::LEASES),
    WriteKeys(buckets::LEASES),
    ReadFiles(objects::ATTACHMENTS),
    WriteFiles(objects::ATTACHMENTS),
];

/// Evaluates events, keeps the registry of hooks, and projects the read model from the streams.
const HOOK: &[Right] = &[
    Publish("nexus.dispatch.*.*.*"),
    Publish("nexus.claim.*.*.*"),
    Publish("nexus.invocation.*.*"),
    Publish("nexus.dlq.*"),
    Ask("events.search"),
    Ask("model.*.*"),
    Serve("hook.*"),
    Serve("events.*"),
    Serve("model.*.*"),
    Serve("replica.status"),
    Hear("$SRV.>"),
    Api("INFO"),
    Api("STREAM.NAMES"),
    Api("STREAM.INFO.*"),
    Api("CONSUMER.INFO.*.*"),
    Read(streams::EVENTS),
    Delete(streams::EVENTS),
    Read(streams::DISPATCHES),
    Read(streams::LEDGER),
    Read(streams::DELIVERIES),
    Read(streams::PARKED),
    Read(streams::RECEIPTS),
    Read(streams::INVOCATIONS),
    Read(streams::DLQ),
    ReadKeys(buckets::HOOKS),
    WriteKeys(buckets::HOOKS),
    ReadKeys(buckets::HOOK_STATE),
    WriteKeys(buckets::HOOK_STATE),
    ReadKeys(buckets::HOOK_SPEND),
    WriteKeys(buckets::HOOK_SPEND),
    ReadKeys(buckets::HOOK_RESULTS),
    WriteKeys(buckets::HOOK_RESULTS),
    ReadKeys(buckets::BREAKERS),
    WriteKeys(buckets::BREAKERS),
    ReadKeys(buckets::ATTEMPTS),
    WriteKeys(buckets::ATTEMPTS),
    ReadKeys(buckets::CHANNELS),
    ReadKeys(buckets::HELD),
    WriteKeys(buckets::HELD),
    ReadKeys(buckets::LEASES),
    WriteKeys(buckets::LEASES),
    ReadKeys(buckets::MEMBERS),
    WriteKeys(buckets::MEMBERS),
    ReadKeys(buckets::IDENTITIES),
    ReadKeys(buckets::POSITIONS),
    WriteKeys(buckets::POSITIONS),
    ReadKeys(buckets::SESSION_CHECKPOINTS),
    ReadKeys(buckets::RESTORE),
    ReadFiles(objects::SNAPSHOTS),
    WriteFiles(objects::SNAPSHOTS),
    ReadFiles(objects::ATTACHMENTS),
];

/// Runs turns: one at a time per session, with its tools, approvals and answers.
const BROKER: &[Right] = &[
    Publish("nexus.ledger.*.*"),
    Publish("nexus.delivery.*.*.*"),
    Publish("nexus.dispatch.*.*.*"),
    Publish("nexus.claim.*.*.*"),
    Publish("nexus.event.*.*.*"),
    Publish("nexus.audit.>"),
    Publish("nexus.schedule.approval.*"),
    Publish("nexus.dlq.*"),
    Publish("nexus.agent.*"),
    Publish("nexus.stream.*.*"),
    Publish("nexus.live.*.*.*"),
    Publish("nexus.webchat.*.*"),
    Hear("nexus.dispatch.*.*.*"),
    Hear("nexus.out.*.*"),
    Ask("hook.*"),
    Ask("events.search"),
    Ask("intent.*"),
    Serve("session.*"),
    Serve("approval.*"),
    Serve("turn.gate"),
    Serve("replica.status"),
    Hear("$SRV.>"),
    Api("INFO"),
    Api("STREAM.NAMES"),
    Api("STREAM.INFO.*"),
    Api("CONSUMER.INFO.*.*"),
    Read(streams::DISPATCHES),
    Delete(streams::DISPATCHES),
    Read(streams::CLAIMS),
    Delete(streams::CLAIMS),
    Read(streams::LEDGER),
    Read(streams::EVENTS),
    Read(streams::AUDIT),
    Read(streams::SCHEDULES),
    Read(streams::INVOCATIONS),
    Read(streams::DLQ),
    Read(streams::DELIVERIES),
    ReadKeys(buckets::APPROVALS),
    WriteKeys(buckets::APPROVALS),
    ReadKeys(buckets::SESSION_OVERRIDES),
    WriteKeys(buckets::SESSION_OVERRIDES),
    ReadKeys(buckets::SESSION_CHECKPOINTS),
    WriteKeys(buckets::SESSION_CHECKPOINTS),
    ReadKeys(buckets::HOOK_LIMITS),
    WriteKeys(buckets::HOOK_LIMITS),
    ReadKeys(buckets::BREAKERS),
    WriteKeys(buckets::BREAKERS),
    ReadKeys(buckets::POSITIONS),
    WriteKeys(buckets::POSITIONS),
    ReadKeys(buckets::HELD),
    WriteKeys(buckets::HELD),
    ReadKeys(buckets::LEASES),
    WriteKeys(buckets::LEASES),
    ReadKeys(buckets::MEMBERS),
    WriteKeys(buckets::MEMBERS),
    ReadKeys(buckets::IDENTITIES),
    ReadKeys(buckets::RESTORE),
    ReadFiles(objects::ATTACHMENTS),
];

/// Delivers replies, and stores what was sent as events.
const DELIVERY: &[Right] = &[
    Publish("nexus.receipt.*.*.*"),
    Publish("nexus.parked.*.*.*.*"),
    Publish("nexus.event.*.*.*"),
    Publish("nexus.dlq.*"),
    Publish("nexus.webchat.*.*"),
    Publish("nexus.out.*.*"),
    Hear("nexus.live.*.*.*"),
    Ask("delivery-call.*"),
    Serve("delivery-call.*"),
    Serve("replica.status"),
    Api("INFO"),
    Api("STREAM.NAMES"),
    Api("STREAM.INFO.*"),
    Api("CONSUMER.INFO.*.*"),
    Read(streams::DELIVERIES),
    Delete(streams::DELIVERIES),
    Read(streams::PARKED),
    Delete(streams::PARKED),
    Read(streams::RECEIPTS),
    Read(streams::EVENTS),
    Read(streams::LEDGER),
    Read(streams::DLQ),
    ReadKeys(buckets::CHANNELS),
    WriteKeys(buckets::CHANNELS),
    ReadKeys(buckets::STOPPED_ACCOUNTS),
    WriteKeys(buckets::STOPPED_ACCOUNTS),
    ReadKeys(buckets::ATTEMPTS),
    WriteKeys(buckets::ATTEMPTS),
    ReadKeys(buckets::POSITIONS),
    WriteKeys(buckets::POSITIONS),
    ReadKeys(buckets::HELD),
    WriteKeys(buckets::HELD),
    ReadKeys(buckets::LEASES),
    WriteKeys(buckets::LEASES),
    ReadKeys(buckets::MEMBERS),
    WriteKeys(buckets::MEMBERS),
    ReadKeys(buckets::RESTORE),
    WriteKeys(buckets::RESTORE),
];

/// Fires schedules, and runs agents' intents from their admission to their end.
const SCHEDULER: &[Right] = &[
    Publish("nexus.event.*.*.*"),
    Publish("nexus.dispatch.*.*.*"),
    Publish("nexus.claim.*.*.*"),
    Publish("nexus.delivery.*.*.*"),
    Publish("nexus.audit.intent.*"),
    Publish("nexus.schedule.*"),
    Publish("nexus.schedule.intent.*"),
    Publish("nexus.fire.*"),
    Publish("nexus.fire.intent.*"),
    Publish("nexus.dlq.*"),
    Hear("nexus.ledger.*.*"),
    Ask("hook.get"),
    Ask("hook.list"),
    Ask("events.trace"),
    Serve("intent.*"),
    Serve("schedule.*"),
    Serve("replica.status"),
    Hear("$SRV.>"),
    Api("INFO"),
    Api("STREAM.NAMES"),
    Api("STREAM.INFO.*"),
    Api("CONSUMER.INFO.*.*"),
    Read(streams::SCHEDULES),
    Delete(streams::SCHEDULES),
    Purge(streams::SCHEDULES),
    Read(streams::EVENTS),
    Read(streams::DISPATCHES),
    Read(streams::DELIVERIES),
    Read(streams::PARKED),
    Read(streams::LEDGER),
    Read(streams::RECEIPTS),
    Read(streams::INVOCATIONS),
    Read(streams::AUDIT),
    Read(streams::DLQ),
    ReadKeys(buckets::INTENTS),
    WriteKeys(buckets::INTENTS),
    ReadKeys(buckets::SCHEDULES),
    WriteKeys(buckets::SCHEDULES),
    ReadKeys(buckets::APPROVALS),
    WriteKeys(buckets::APPROVALS),
    ReadKeys(buckets::HELD),
    WriteKeys(buckets::HELD),
    ReadKeys(buckets::LEASES),
    WriteKeys(buckets::LEASES),
    ReadKeys(buckets::IDENTITIES),
    ReadKeys(buckets::HOOKS),
];

const TOPOLOGY: &[Right] = &[
    Api("INFO"),
    Api("STREAM.NAMES"),
    Api("STREAM.INFO.*"),
    Api("STREAM.CREATE.*"),
    Api("STREAM.UPDATE.*"),
    Api("CONSUMER.INFO.*.*"),
    Api("CONSUMER.CREATE.*.>"),
];

const RESTORE: &[Right] = &[
    Api(">"),
    Publish("$JS.SNAPSHOT.RESTORE.>"),
    Publish("$KV.restore.hold"),
    Ask("replica.status"),
];

const ADMIN: &[Right] = &[Publish(">"), Hear(">")];

/// History is written by the services, and taken away by nobody.
const NOT_BY_ADMIN: &[&str] = &[
    "nexus.ledger.>",
    "nexus.audit.>",
    "$KV.approvals.>",
    "$KV.intents.>",
    "$KV.pairings.>",
    "$KV.fetches.>",
    "$O.attachments.>",
    "$JS.API.STREAM.DELETE.*",
    "$JS.API.STREAM.PURGE.LEDGER",
    "$JS.API.STREAM.PURGE.AUDIT",
    "$JS.API.STREAM.PURGE.EVENTS",
    "$JS.API.STREAM.PURGE.KV_approvals",
    "$JS.API.STREAM.PURGE.KV_intents",
    "$JS.API.STREAM.PURGE.KV_pairings",
    "$JS.API.STREAM.PURGE.KV_fetches",
    "$JS.API.STREAM.PURGE.OBJ_attachments",
];

/// The answers to the services' requests.
const NOT_HEARD_BY_ADMIN: &[&str] = &[
    "_INBOX_adapter.>",
    "_INBOX_hook.>",
    "_INBOX_broker.>",
    "_INBOX_delivery.>",
    "_INBOX_scheduler.>",
    "_INBOX_topology.>",
    "_INBOX_restore.>",
    "_INBOX_operator.>",
    "_INBOX_viewer.>",
    "_INBOX_agent.>",
    "_INBOX_edge.>",
    "_INBOX_system.>",
];

const OPERATOR: &[Right] = &[
    Ask("approval.*"),
    Ask("events.*"),
    Ask("hook.*"),
    Ask("intent.*"),
    Ask("pairing.*"),
    Ask("replica.status"),
    Ask("schedule.*"),
    Ask("session.*"),
];

const VIEWER: &[Right] = &[
    Ask("approval.get"),
    Ask("approval.list"),
    Ask("events.*"),
    Ask("hook.get"),
    Ask("hook.list"),
    Ask("intent.get"),
    Ask("intent.list"),
    Ask("pairing.list"),
    Ask("replica.status"),
    Ask("schedule.list"),
    Ask("schedule.next"),
    Ask("schedule.show"),
    Ask("session.list"),
    Ask("session.show"),
];

/// It decides no approval, asks for no intent, writes no key, no event and no ledger.
const AGENT: &[Right] = &[Ask("turn.gate"), Hear("nexus.agent.>")];

const EDGE: &[Right] = &[Publish("nexus.event.{{tag(channel)}}.{{name()}}.*")];

const SYSTEM: &[Right] = &[Publish("$SYS.REQ.CLAIMS.UPDATE"), Publish("$SYS.REQ.CLAIMS.LIST")];
