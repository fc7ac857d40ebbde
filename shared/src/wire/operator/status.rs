//! Questions about the whole system (`nexus.svc.system.status`). *Pure.*

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::channel::ConfiguredChannels;
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;

/// Maximum number of things that are named in one list.
pub const MAX_NAMED: usize = 100;
/// Maximum number of sessions that are named.
pub const MAX_BUSY_SESSIONS: usize = 1_000;

/// A part of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatusPart {
    /// The NATS server: version, topology, room, clock, replicas that should answer.
    Server,
    /// Backlogs and what an operator should look at.
    Work,
    /// Positions of the streams, and the sessions that have something to run.
    Streams,
    /// Accounts on platforms.
    Accounts,
}

/// Request of `nexus.svc.system.status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AskStatus {
    /// Parts that are wanted.
    pub parts: Vec<StatusPart>,
    /// Maximum number of sessions that are named with the streams.
    pub sessions: usize,
}

/// Answer of `nexus.svc.system.status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemStatus {
    /// Time of the answer.
    pub at: UnixMillis,
    /// The NATS server, if it was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerStatus>,
    /// The work, if it was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkStatus>,
    /// The streams, if they were wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<Known<StreamsStatus>>,
    /// The accounts, if they were wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounts: Option<Known<AccountsStatus>>,
}

/// A state, or why it is not known: a list that is empty and one that cannot be read are not the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Known<T> {
    /// The state.
    Known(T),
    /// Why it is not known.
    Unknown(String),
}

impl<T, E: std::fmt::Display> From<Result<T, E>> for Known<T> {
    fn from(read: Result<T, E>) -> Self {
        match read {
            Ok(value) => Self::Known(value),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }
}

/// What was found among the values of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surveyed<T> {
    /// What was found.
    pub found: T,
    /// Number of things that are not named, because there are more than [`MAX_NAMED`].
    #[serde(default)]
    pub unnamed: usize,
    /// That some values cannot be read, and the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
}

/// The NATS server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Version of the server that the service is connected to.
    pub version: String,
    /// Differences between the server and the topology of the service's version.
    pub topology: Known<TopologyDifferences>,
    /// Backup that is being restored, if one is.
    pub restoring: Known<Option<String>>,
    /// Room for streams.
    pub storage: Known<StorageUse>,
    /// The server's clock, compared with that of the service's host.
    pub clock: Known<ClockOffset>,
    /// Replicas that have announced themselves within ten minutes and did not withdraw.
    pub announced: Known<BTreeSet<String>>,
}

/// Differences between the server and a topology.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TopologyDifferences {
    /// Number of differences.
    pub count: usize,
    /// One of them in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
}

/// Room for streams on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageUse {
    /// Bytes that the streams take.
    pub used_bytes: u64,
    /// Limit of the account; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
}

/// The server's clock, compared with a host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffset {
    /// Server's clock minus host's clock, in milliseconds.
    pub ahead_ms: i64,
    /// Possible error of the difference in either direction, in milliseconds.
    pub uncertain_ms: i64,
    /// Whether they differ by more than is tolerated.
    pub is_too_large: bool,
}

/// Backlogs, and what an operator should look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkStatus {
    /// Events that wait to be evaluated.
    pub hooks: Known<u64>,
    /// Replies that wait for their destinations.
    pub deliveries: Known<u64>,
    /// Replies that are parked because their destinations fail.
    pub parked: Known<u64>,
    /// Deliveries that wait for a decision since a restore; absent if no restore is undecided.
    pub restored: Known<Option<usize>>,
    /// Dead letters, without those of held messages.
    pub dead_letters: Known<u64>,
    /// Sessions that have something to run.
    pub claimed: Known<u64>,
    /// Sessions that do not run because their ledger cannot be read.
    pub quarantined: Known<Surveyed<Vec<QuarantinedSession>>>,
    /// Held messages without a decision.
    pub held: Known<Surveyed<usize>>,
    /// Streams with a witness.
    pub witnessed: Known<Surveyed<Vec<WitnessedStream>>>,
    /// Hooks that are paused after errors.
    pub paused_hooks: Known<Surveyed<Vec<String>>>,
    /// Schedules.
    pub schedules: Known<Surveyed<ScheduleCount>>,
    /// Pairings of strangers with accounts.
    pub pairings: Known<Surveyed<PairingCount>>,
}

/// A session that does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedSession {
    /// The session.
    pub session: SessionRef,
    /// Reason for the quarantine.
    pub why: String,
}

/// A stream with a witness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessedStream {
    /// Name of the stream.
    pub stream: String,
    /// Time up to which work may be lost, if the stream was restored to an earlier state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled_until: Option<UnixMillis>,
}

/// Number of schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleCount {
    /// All of them.
    pub all: usize,
    /// Those that are paused.
    pub paused: usize,
}

/// Number of pairings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairingCount {
    /// Senders that may write.
    pub paired: usize,
    /// Senders that have a code.
    pub waiting: usize,
    /// Senders about whom the bucket is older than `AUDIT`, as people write them.
    pub restored: Vec<String>,
}

/// Positions of the streams, and sessions that have something to run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamsStatus {
    /// The streams.
    pub streams: Vec<StreamCount>,
    /// Sequence of the event that the newest record in `INVOCATIONS` is about; 0 = there is no record.
    pub evaluated: u64,
    /// Number of sessions that have something to run.
    pub busy: usize,
    /// Some of them, as many as were asked for.
    pub sessions: Vec<BusySession>,
}

/// A session that has something to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusySession {
    /// The session.
    pub session: SessionRef,
    /// Number of its messages in `DISPATCHES`, handled or not.
    pub dispatches: u64,
}

/// Position of one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamCount {
    /// Name of the stream.
    pub name: String,
    /// Sequence of its last message.
    pub last: u64,
    /// Number of messages in it.
    pub messages: u64,
}

/// What the buckets have of accounts on platforms, each by the tokens of channel and account.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AccountsStatus {
    /// Replicas that read an account.
    pub holders: BTreeMap<String, String>,
    /// Times up to which everything of an account is stored.
    pub read_until: BTreeMap<String, UnixMillis>,
    /// Times since which the platform refuses the token to delivery-svc.
    pub refused_since: BTreeMap<String, UnixMillis>,
    /// Accounts that delivery-svc is configured with.
    pub delivered: ConfiguredChannels,
}
