//! Small coordination records: claims, members, leases, quarantine marks, settled floors. *Pure.* Source:
//! `docs/design/wire.md` §3.3; `docs/design/sessions.md` §1.1.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::position::{StreamPlace, StreamPosition};
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;

use super::envelope::WireMessage;
use super::settled::{PartitionFloor, SettledSet};
use super::topology::PARTITIONS;

/// A hint that a session has work. Its holder may try to run it; the ledger decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionClaim {
    /// Session that has work.
    pub session: SessionRef,
}

/// A running replica (KV `members`, key `{group}.{instance}`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMember {
    /// Instance name of the replica.
    pub instance: String,
    /// Name of the run of its process, as [`LeaseRecord::runs`] names it.
    #[serde(default)]
    pub run: String,
}

/// The holder of a partition or task (KV `leases`, key `{group}.{partition}` or a task's name).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Instance name of the holder.
    pub holder: String,
    /// Epoch of the lease, which increases each time it is taken.
    pub epoch: u64,
    /// Place of the last message that the holder is known to have started, if it records that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_progress: Option<StreamPlace>,
    /// Runs of processes that have started `in_progress`, oldest first. A run that finds itself here has lost the lease
    /// and lives, and so does a run that a [`GroupMember`] announces; each other one has probably ended there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<String>,
    /// Whether the holder released the lease in an orderly way.
    #[serde(default)]
    pub released: bool,
    /// Session of the holder: the lease lives as long as the session's own record, key `{group}.session.{session}`.
    /// Empty for a lease that has a time to live itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session: String,
}

impl LeaseRecord {
    /// Returns the record of a lease that only names its `holder`.
    #[must_use]
    pub const fn held_by(holder: String) -> Self {
        Self {
            holder,
            epoch: 0,
            in_progress: None,
            runs: Vec::new(),
            released: false,
            session: String::new(),
        }
    }
}

/// The number of times that the work of a claim was started since repeated redelivery was detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimTries {
    /// Place of the claim in `CLAIMS`; tries of another claim do not count.
    pub claim: StreamPlace,
    /// Number of tries that were started.
    pub begun: u32,
}

/// A session that is quarantined or on trial (KV `session_overrides`, key = the claim's two tokens).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMark {
    /// Session that the mark is for.
    pub session: SessionRef,
    /// Reason for the quarantine, while the session is quarantined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<String>,
    /// Tries so far, while a claim that was redelivered repeatedly is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<ClaimTries>,
    /// Time the mark was set.
    pub since: UnixMillis,
}

/// A mark that the agent of a running turn is not reachable (KV `session_checkpoints`, key `away.` and the session's
/// two tokens). The broker writes it again while this lasts and removes it afterwards; a mark left by a broker that
/// died expires by its own `until`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAway {
    /// Session of the turn.
    pub session: SessionRef,
    /// Id of the turn.
    pub turn: Ulid,
    /// Error of the last attempt, for people.
    pub why: String,
    /// Time since which the agent is not reachable.
    pub since: UnixMillis,
    /// Time at which the mark expires unless it is written again.
    pub until: UnixMillis,
}

/// Returns the key in `session_checkpoints` of the [`SettledFloor`] that the sweepers of `part` have left. It is one
/// token, a session's key two.
#[must_use]
pub fn sweeper_key(part: u16) -> String {
    format!("sweeper-{part}")
}

/// A floor up to which all dispatches of a part are settled (the walk of its sweeper).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SettledFloor {
    /// Stream sequence of the floor.
    pub sequence: u64,
    /// Message at that sequence; absent = the floor must not be relied on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<StreamPosition>,
}

/// The settled part of each partition of a group (KV `attempts`, key `floors.{group}`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PartitionFloors {
    /// By partition: stream sequence up to which everything in it is settled; 0 = unknown.
    pub floors: Vec<u64>,
    /// By partition: time the server stored the message at the floor, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored_at_ns: Vec<i64>,
    /// Incarnation of the stream to which all floors belong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incarnation: String,
    /// By partition: number of sequences beyond the floor up to which its messages were handed out.
    #[serde(default, skip_serializing_if = "are_zero")]
    pub read: Vec<u64>,
    /// By partition: time the server stored the last message handed out, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_at_ns: Vec<i64>,
    /// By partition: ranges that are settled beyond the floor ([`SettledSet::widths`]).
    #[serde(default, skip_serializing_if = "are_empty")]
    pub settled: Vec<Vec<u64>>,
}

fn are_zero(distances: &[u64]) -> bool {
    distances.iter().all(|distance| *distance == 0)
}

fn are_empty(lists: &[Vec<u64>]) -> bool {
    lists.iter().all(Vec::is_empty)
}

impl PartitionFloors {
    /// Returns the floor of `partition`; `None` if it is unknown.
    #[must_use]
    pub fn position(&self, partition: u16) -> Option<StreamPosition> {
        let place = usize::from(partition);
        let sequence = self.floors.get(place).copied().filter(|sequence| *sequence > 0)?;
        Some(StreamPosition {
            incarnation: self.incarnation.clone(),
            sequence,
            stored_at_ns: self.stored_at_ns.get(place).copied().unwrap_or(0),
        })
    }

    /// Returns the stored state of `partition`; `None` if it is unknown.
    #[must_use]
    pub fn floor_of(&self, partition: u16) -> Option<PartitionFloor> {
        let place = usize::from(partition);
        let distance = self.read.get(place).copied().unwrap_or(0);
        let at = match self.position(partition) {
            Some(at) => at,
            // Messages are handed out, and the first of them is not settled.
            None if distance > 0 => StreamPosition {
                incarnation: self.incarnation.clone(),
                ..StreamPosition::default()
            },
            None => return None,
        };

        let mut floor = PartitionFloor {
            read: at.clone(),
            settled: SettledSet::default(),
            at,
        };

        if distance > 0 {
            floor.read.sequence = floor.at.sequence.saturating_add(distance);
            floor.read.stored_at_ns = self.read_at_ns.get(place).copied().unwrap_or(0);
            let widths = self.settled.get(place).map_or(&[][..], Vec::as_slice);
            floor.settled = SettledSet::of_widths(floor.at.sequence, widths);
        }

        Some(floor)
    }

    /// Replaces the stored state of `partition` by `floor`, which must be of the record's incarnation.
    pub fn set_floor(&mut self, partition: u16, floor: &PartitionFloor) {
        self.pad_partitions();
        let place = usize::from(partition);
        self.floors[place] = floor.at.sequence;
        self.stored_at_ns[place] = floor.at.stored_at_ns;
        self.read[place] = floor.read.sequence.saturating_sub(floor.at.sequence);
        self.read_at_ns[place] = floor.read.stored_at_ns;
        self.settled[place] = floor.settled.widths(floor.at.sequence);
    }

    /// Extends the lists to one place for every partition.
    fn pad_partitions(&mut self) {
        let places = usize::from(PARTITIONS);
        self.floors.resize(places, 0);
        self.stored_at_ns.resize(places, 0);
        self.read.resize(places, 0);
        self.read_at_ns.resize(places, 0);
        self.settled.resize(places, Vec::new());
    }
}

/// A mark that a replica has started to copy the read model (KV `attempts`, key `copy.hook`). For some time after it,
/// no other replica starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyMark {
    /// Time the copy was started.
    pub begun_at: UnixMillis,
}

impl WireMessage for CopyMark {
    const SCHEMA: &'static str = "copy_mark";
}

impl WireMessage for PartitionFloors {
    const SCHEMA: &'static str = "partition_floors";
}

impl WireMessage for SessionClaim {
    const SCHEMA: &'static str = "claim";
}

impl WireMessage for GroupMember {
    const SCHEMA: &'static str = "member";
}

impl WireMessage for LeaseRecord {
    const SCHEMA: &'static str = "lease";
}

impl WireMessage for SessionMark {
    const SCHEMA: &'static str = "session_mark";
}

impl WireMessage for AgentAway {
    const SCHEMA: &'static str = "agent_away";
}

impl WireMessage for SettledFloor {
    const SCHEMA: &'static str = "settled_floor";
}
