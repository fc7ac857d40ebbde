//! Receipts: what became of a delivery. *Pure.* Source: `wire.md` (`RECEIPTS`); `channels.md` "Channels".

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::dispatch::{Causation, DeliveryContext};
use super::session::SessionRef;
use super::time::UnixMillis;

/// How one attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum AttemptOutcome {
    /// The platform has it.
    Done,
    /// It may be tried again.
    Retry {
        /// Not before this many milliseconds.
        after_ms: u64,
        /// What the platform said.
        reason: String,
    },
    /// It never will be accepted.
    Refused {
        /// What the platform said.
        reason: String,
    },
}

/// One thing that happened to a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum ReceiptStep {
    /// Written before the call, on channels whose calls last.
    AttemptStarted {
        /// First attempt = 1.
        attempt: u32,
        /// First part = 0.
        part: u32,
        /// The replica that makes the call, and may know how it ended.
        by: String,
    },
    /// Written after the call.
    AttemptFinished {
        /// First attempt = 1.
        attempt: u32,
        /// First part = 0.
        part: u32,
        /// The platform's ids of what was sent.
        platform_ids: Vec<String>,
        /// How it ended.
        outcome: AttemptOutcome,
    },
    /// All parts are with the platform.
    Delivered {
        /// How many attempts it took in all.
        attempts: u32,
        /// How many parts it had.
        parts: u32,
        /// The platform's ids, part by part.
        platform_ids: Vec<String>,
        /// On channels with an open page: somebody was looking.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        live: Option<bool>,
    },
    /// It went to the dead letters.
    GaveUp {
        /// How many attempts were made.
        attempts: u32,
        /// What the platform said last.
        reason: String,
    },
    /// The send policy says no.
    DeniedByPolicy {
        /// The rule.
        rule: String,
    },
}

/// An entry of `RECEIPTS`: what happened to which delivery, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The delivery (= the turn).
    pub delivery: Ulid,
    /// The turn's session.
    pub session: SessionRef,
    /// Where it went.
    pub target: DeliveryContext,
    /// The event that led to it.
    pub causation: Causation,
    /// When.
    pub at: UnixMillis,
    /// What.
    pub step: ReceiptStep,
}
