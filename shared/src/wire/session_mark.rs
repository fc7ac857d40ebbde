//! Small records of coordination: claims, members, leases, quarantine marks, settled floors. *Pure.* Source: `wire.md`; `sessions.md`.

use serde::{Deserialize, Serialize};

use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;

use super::envelope::Wire;

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
    /// Stream sequence of the message that the holder was last seen to begin with, where it keeps that.
    #[serde(default)]
    pub in_progress: u64,
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
    /// Sequence of the claim in `CLAIMS`; those of another claim do not count.
    pub claim: u64,
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

/// Everything in a stream up to here needs no second look (the sweeper's walk).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SettledFloor {
    /// Stream sequence.
    pub sequence: u64,
}

/// How far each partition of a group is settled (KV `attempts`, key `floors.{group}`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PartitionFloors {
    /// By partition: everything in it up to this stream sequence is settled, 0 = nothing is known.
    pub floors: Vec<u64>,
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

impl Wire for SettledFloor {
    const SCHEMA: &'static str = "settled_floor";
}
