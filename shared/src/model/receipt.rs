//! Receipts: the outcome of a delivery. *Pure.* Source: `docs/design/wire.md` §1.6 (`RECEIPTS`);
//! `docs/design/channels.md` §5.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::dispatch::{DeliveryContext, DispatchCause};
use super::session::SessionRef;
use super::time::UnixMillis;

/// The outcome of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum AttemptOutcome {
    /// The platform accepted the part.
    Done,
    /// The attempt failed, and another may follow.
    Retry {
        /// Minimum wait before the next attempt, in milliseconds.
        after_ms: u64,
        /// Reason as reported by the platform.
        reason: String,
    },
    /// The platform asks for a wait. The attempt does not count, because a platform that says so works.
    Limited {
        /// Minimum wait before the next attempt, in milliseconds.
        after_ms: u64,
        /// Reason as reported by the platform.
        reason: String,
    },
    /// The platform refused the part for good.
    Refused {
        /// Reason as reported by the platform.
        reason: String,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One part of a plan, as the platform gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedPart {
    /// Text of the part, in the account's form.
    pub content: String,
    /// Name of the form.
    pub format: String,
    /// The part as plain text; absent if the text is the reply's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<String>,
    /// Styles of the text, on platforms that take them beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub styles: Vec<PlannedStyle>,
    /// File that the part is; absent if it is a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PlannedFile>,
}

/// A file that is a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFile {
    /// SHA-256 of its bytes in hex, under which the object store has them.
    pub hash: String,
    /// Size of its bytes.
    pub size: u64,
    /// Name of the file.
    pub name: String,
    /// MIME type by its content.
    pub mime_type: String,
    /// `image`, `audio`, `voice`, `video` or `document`.
    pub media_type: String,
}

/// A style on a range of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStyle {
    /// Start of the range, in UTF-16 units.
    pub start: usize,
    /// Length of the range, in UTF-16 units.
    pub length: usize,
    /// Name of the style.
    pub style: String,
}

/// The plan of a delivery of several parts, which its first receipts have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReference {
    /// Number of parts.
    pub parts: u32,
    /// SHA-256 of the parts, in hex.
    pub sha256: String,
    /// Sequences in `RECEIPTS` of the pieces of the plan, in order; none if the plan is too large to be stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<u64>,
}

/// One step of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum ReceiptStep {
    /// A piece of the delivery's plan. The pieces are written before the first call, so that every attempt sends parts of
    /// the same plan, whatever the renderer and its settings are by then.
    Planned {
        /// Index of the first part to send, from 0.
        first: u32,
        /// Parts of the piece, in order.
        parts: Vec<PlannedPart>,
    },
    /// A change of the message that shows the answer while it is made. Written before the message is sent, once its id is
    /// known, and before it is deleted. Such receipts are of no copy of the delivery, which begins later.
    Preview {
        /// Platform's id of the message; absent as long as it is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// Whether the message is shown no more.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        closed: bool,
    },
    /// An attempt starts. Written before the call, on channels with calls that may take long.
    AttemptStarted {
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Index of the part, from 0.
        part: u32,
        /// Instance name of the replica that makes the call, and may know its outcome.
        by: String,
        /// Platform's ids of the messages of the parts before it, part by part.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        platform_ids: Vec<Vec<String>>,
        /// Indexes of the parts that the platform may have twice, or may have already: a call for them had no response, and
        /// the platform does not recognise repetitions.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unconfirmed: Vec<u32>,
        /// Number of earlier attempts that do not count towards the maximum: the platform asked for a wait, or a part
        /// was sent after them.
        #[serde(default, skip_serializing_if = "is_zero")]
        uncounted: u32,
        /// Plan of the delivery; absent = it has one part, with the whole text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<PlanReference>,
    },
    /// An attempt ended. Written after the call.
    AttemptFinished {
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Index of the part, from 0.
        part: u32,
        /// Platform's ids of the messages that were sent, part by part: a part may be several messages.
        platform_ids: Vec<Vec<String>>,
        /// Indexes of the parts that the platform may have twice, or may have already: a call for them had no response, and
        /// the platform does not recognise repetitions.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unconfirmed: Vec<u32>,
        /// Number of earlier attempts that do not count towards the maximum: the platform asked for a wait, or a part
        /// was sent after them.
        #[serde(default, skip_serializing_if = "is_zero")]
        uncounted: u32,
        /// Plan of the delivery; absent = it has one part, with the whole text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<PlanReference>,
        /// Outcome of the attempt.
        outcome: AttemptOutcome,
    },
    /// The platform accepted all parts.
    Delivered {
        /// Number of attempts in all.
        attempts: u32,
        /// Number of parts of the delivery.
        parts: u32,
        /// Platform's ids of the messages, part by part.
        platform_ids: Vec<Vec<String>>,
        /// Indexes of the parts that the platform may have twice: a call for them had no response, and
        /// the platform does not recognise repetitions.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unconfirmed: Vec<u32>,
        /// On channels with open pages: whether a page was connected.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        live: Option<bool>,
        /// Plan of the delivery; absent = it has one part, with the whole text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<PlanReference>,
    },
    /// The delivery was given up and became a dead letter.
    GaveUp {
        /// Number of attempts that were made.
        attempts: u32,
        /// Last reason reported by the platform.
        reason: String,
    },
    /// The send policy denied the delivery.
    DeniedByPolicy {
        /// Name of the policy rule.
        rule: String,
    },
}

/// An entry of `RECEIPTS`: one step of a delivery, with its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Id of the delivery, which is the turn's id.
    pub delivery: Ulid,
    /// Session of the turn.
    pub session: SessionRef,
    /// Destination of the delivery.
    pub target: DeliveryContext,
    /// Event that led to the turn.
    pub causation: DispatchCause,
    /// Time of the step.
    pub at: UnixMillis,
    /// Whether the delivery is a card of an approval, which its decision alone may change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub card: bool,
    /// Message that the delivery edits or deletes, as its reply names it; absent if it sends one, or reacts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<String>,
    /// Step of the delivery that happened.
    pub step: ReceiptStep,
}
