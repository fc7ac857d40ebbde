//! Small records of coordination: claims, members, leases, quarantine marks, settled floors. *Pure.* Source:
//! `docs/design/wire.md` §3.3; `docs/design/sessions.md` §1.1.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::position::{Place, Position};
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;

use super::envelope::Wire;
use super::settled::{PartitionFloor, Settled};
use super::topology::PARTITIONS;

/// A hint that a session has something to run. Who holds it may try; the ledger decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The session.
    pub session: SessionRef,
}

/// A replica that is there (KV `members`, key `{group}.{instance}`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The replica.
    pub instance: String,
}

/// Who holds something (KV `leases`, key `{group}.{partition}` or a task's name).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The replica.
    pub holder: String,
    /// Counts up with every taking.
    pub epoch: u64,
    /// The place of the message that the holder was last seen to begin with, where it keeps that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_progress: Option<Place>,
    /// How many holders ended uncleanly while at `in_progress`.
    #[serde(default)]
    pub unclean: u32,
    /// Whether the holder gave it back in good order.
    #[serde(default)]
    pub released: bool,
}

/// How often the work of a claim was begun since it was found to come again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimTries {
    /// The claim's place in `CLAIMS`; those of another claim do not count.
    pub claim: Place,
    /// Tries begun.
    pub begun: u32,
}

/// A session that is parked, or on trial (KV `session_overrides`, key = the claim's two tokens).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionMark {
    /// Which session.
    pub session: SessionRef,
    /// Set while it is quarantined: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<String>,
    /// Set while a claim that came again and again is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<ClaimTries>,
    /// Since when.
    pub since: UnixMillis,
}

/// The agent of a running turn cannot be asked at present (KV `session_checkpoints`, key `away.` and the session's two
/// tokens). Written again while that lasts, and removed when it is over; what is left of a broker that died says by
/// itself that it is old.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAway {
    /// Which session.
    pub session: SessionRef,
    /// Its turn.
    pub turn: Ulid,
    /// Why, as the last attempt ended.
    pub why: String,
    /// Since when.
    pub since: UnixMillis,
    /// Unless it is written again, nobody knows about it any more from then on.
    pub until: UnixMillis,
}

/// Key of the sweeper's [`SettledFloor`] in `session_checkpoints`; sessions' keys have two tokens.
pub const SWEEPER: &str = "sweeper";

/// Everything in a stream up to here needs no second look (the sweeper's walk).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SettledFloor {
    /// Stream sequence.
    pub sequence: u64,
    /// The message at that sequence; none = nothing may be inferred from the floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
}

/// How far each partition of a group is settled (KV `attempts`, key `floors.{group}`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PartitionFloors {
    /// By partition: everything in it up to this stream sequence is settled, 0 = nothing is known.
    pub floors: Vec<u64>,
    /// By partition: when the server stored the message at that sequence, nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored_at_ns: Vec<i64>,
    /// The stream's incarnation that all of them are of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incarnation: String,
    /// By partition: how many sequences beyond the floor messages of it were handed out.
    #[serde(default, skip_serializing_if = "are_zero")]
    pub read: Vec<u64>,
    /// By partition: when the server stored the message there, nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_at_ns: Vec<i64>,
    /// By partition: what is settled in between ([`Settled::widths`]).
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
    /// How far `partition` is settled; none = nothing is known.
    #[must_use]
    pub fn position(&self, partition: u16) -> Option<Position> {
        let place = usize::from(partition);
        let sequence = self.floors.get(place).copied().filter(|sequence| *sequence > 0)?;
        Some(Position {
            incarnation: self.incarnation.clone(),
            sequence,
            stored_at_ns: self.stored_at_ns.get(place).copied().unwrap_or(0),
        })
    }

    /// What is stored of `partition`; none = nothing is known.
    #[must_use]
    pub fn of(&self, partition: u16) -> Option<PartitionFloor> {
        let place = usize::from(partition);
        let distance = self.read.get(place).copied().unwrap_or(0);
        let at = match self.position(partition) {
            Some(at) => at,
            // Messages are handed out, and the first of them is not settled.
            None if distance > 0 => Position {
                incarnation: self.incarnation.clone(),
                ..Position::default()
            },
            None => return None,
        };

        let mut floor = PartitionFloor {
            read: at.clone(),
            settled: Settled::default(),
            at,
        };

        if distance > 0 {
            floor.read.sequence = floor.at.sequence.saturating_add(distance);
            floor.read.stored_at_ns = self.read_at_ns.get(place).copied().unwrap_or(0);
            let widths = self.settled.get(place).map_or(&[][..], Vec::as_slice);
            floor.settled = Settled::of_widths(floor.at.sequence, widths);
        }

        Some(floor)
    }

    /// Puts `floor`, of the record's incarnation, in the place of what was stored of `partition`.
    pub fn put(&mut self, partition: u16, floor: &PartitionFloor) {
        self.pad();
        let place = usize::from(partition);
        self.floors[place] = floor.at.sequence;
        self.stored_at_ns[place] = floor.at.stored_at_ns;
        self.read[place] = floor.read.sequence.saturating_sub(floor.at.sequence);
        self.read_at_ns[place] = floor.read.stored_at_ns;
        self.settled[place] = floor.settled.widths(floor.at.sequence);
    }

    /// Gives it a place for every partition.
    fn pad(&mut self) {
        let places = usize::from(PARTITIONS);
        self.floors.resize(places, 0);
        self.stored_at_ns.resize(places, 0);
        self.read.resize(places, 0);
        self.read_at_ns.resize(places, 0);
        self.settled.resize(places, Vec::new());
    }
}

/// Somebody set out to copy the read model (KV `attempts`, key `copy.hook`); until some time after, nobody else does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyMark {
    /// When.
    pub begun_at: UnixMillis,
}

impl Wire for CopyMark {
    const SCHEMA: &'static str = "copy_mark";
}

impl Wire for PartitionFloors {
    const SCHEMA: &'static str = "partition_floors";
}

impl Wire for Claim {
    const SCHEMA: &'static str = "claim";
}

impl Wire for Member {
    const SCHEMA: &'static str = "member";
}

impl Wire for LeaseRecord {
    const SCHEMA: &'static str = "lease";
}

impl Wire for SessionMark {
    const SCHEMA: &'static str = "session_mark";
}

impl Wire for AgentAway {
    const SCHEMA: &'static str = "agent_away";
}

impl Wire for SettledFloor {
    const SCHEMA: &'static str = "settled_floor";
}
