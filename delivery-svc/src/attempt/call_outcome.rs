//! How a call to a platform ended, in terms that every platform has, and the effect of making it again. *Pure.*
//!
//! Source: `docs/adr/0026-outcomes-of-calls.md`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::platform::policy::DoubtPolicy;

/// The outcome of a call to a platform, in terms that every platform has. In JSON, replicas exchange the outcomes of
/// their own calls with it (`former_owners`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum CallOutcome {
    /// The platform accepted the part.
    Accepted {
        /// Platform's ids of the sent messages.
        platform_ids: Vec<String>,
        /// On channels with open pages: whether a page was connected.
        live: Option<bool>,
    },
    /// The platform limits calls, and names the wait until the next one.
    Limited {
        /// Minimum wait before the next call.
        after: Duration,
        /// Calls that the wait is for.
        scope: LimitScope,
        /// Description of the limit, for people.
        reason: String,
    },
    /// The platform refused the part, or failed at it: an error status, an unknown peer, a blocked sender. Also
    /// returned if the account is not configured or the address is invalid, without a call.
    Refused {
        /// Whether the same call may succeed later.
        refusal: Refusal,
        /// Description of the failure, for people.
        reason: String,
    },
    /// The platform refused the account's credentials. Every call of the account would be refused.
    Reauth {
        /// Description of the failure, for people.
        reason: String,
    },
    /// The platform does not allow a message to this peer before the peer writes (again).
    WindowClosed {
        /// Description of the failure, for people.
        reason: String,
    },
    /// The part is larger than the platform takes.
    TooLarge {
        /// Description of the failure, for people.
        reason: String,
    },
    /// The platform cannot read the part's markup.
    Unformattable {
        /// Description of the failure, for people.
        reason: String,
    },
    /// The platform did not respond: connection refused, reset, or timed out.
    Unreachable {
        /// Whether the platform may have the part nevertheless.
        sent: RequestSent,
        /// Description of the failure, for people.
        reason: String,
    },
    /// The call was not made: the partition was lost before any byte was sent.
    Withheld,
}

/// The calls that a platform limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitScope {
    /// All calls of the account.
    Account,
    /// The calls for the destination of this one.
    Destination,
}

/// Whether a refused call may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The same call would be refused again.
    Permanent,
    /// The same call may succeed later.
    Passing {
        /// Minimum wait before it, if the platform names one.
        after: Option<Duration>,
    },
}

/// Whether a request without a response may have reached the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestSent {
    /// No byte of it was sent: the connection was refused, or the host is unknown.
    No,
    /// The platform may have it, and may have shown the part.
    Maybe,
}

/// The result of a search for a part that an earlier call may have sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartSearch {
    /// The platform has the part.
    Found {
        /// Platform's ids of its messages.
        platform_ids: Vec<String>,
    },
    /// The platform does not have the part.
    Absent,
    /// Unknown: the platform cannot be searched, or not completely.
    Unknown,
    /// The search failed, and may succeed later.
    Failed {
        /// How its call ended.
        outcome: CallOutcome,
    },
}

/// The effect of a call that is made again although the platform may have the part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Repetition {
    /// The platform recognises the repetition, by the id that the call has.
    #[default]
    Recognised,
    /// The part may appear twice. It is sent again, and marked as unconfirmed.
    AtLeastOnce,
    /// The part may appear twice. It is not sent again, and the delivery is given up.
    AtMostOnce,
    /// The platform recognises the repetition for some time.
    RecognisedFor {
        /// Time after the first call for which it does.
        lasts: Duration,
        /// What becomes of the part afterwards.
        then: DoubtPolicy,
    },
}

impl From<DoubtPolicy> for Repetition {
    fn from(policy: DoubtPolicy) -> Self {
        match policy {
            DoubtPolicy::AtLeastOnce => Self::AtLeastOnce,
            DoubtPolicy::AtMostOnce => Self::AtMostOnce,
        }
    }
}

impl Repetition {
    /// Returns the effect of a call that is made `age` after the delivery could be called first: never
    /// [`Repetition::RecognisedFor`].
    #[must_use]
    pub fn at_age(self, age: Duration) -> Self {
        match self {
            Self::Recognised | Self::AtLeastOnce | Self::AtMostOnce => self,
            Self::RecognisedFor { lasts, .. } if age < lasts => Self::Recognised,
            Self::RecognisedFor { then, .. } => then.into(),
        }
    }

    /// Returns whether a call without an answer is a doubt that receipts record, so that a repetition that comes too
    /// late is known as one.
    #[must_use]
    pub const fn keeps_doubts(self) -> bool {
        match self {
            Self::Recognised => false,
            Self::AtLeastOnce | Self::AtMostOnce | Self::RecognisedFor { .. } => true,
        }
    }
}
