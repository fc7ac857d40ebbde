//! Rejections: the typed reason for refusing an intent, so that the agent's next turn can adjust. *Pure.* Source:
//! `docs/design/schedules.md` §3.2 (Kinds); seed 000 §5.

use serde::{Deserialize, Serialize};

/// The reason for refusing an intent at admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "code")]
pub enum IntentRejection {
    /// The registry has no such kind.
    UnknownKind {
        /// Name of the unknown kind.
        kind: String,
    },
    /// The parameters do not match the kind's schema.
    BadParameters {
        /// JSON pointer to the invalid value; empty = the whole.
        path: String,
        /// Error in the value, for people.
        why: String,
    },
    /// The requesting turn lacks a capability.
    NoCapability {
        /// Name of the missing capability.
        capability: String,
    },
    /// The daily budget of the agent is exhausted.
    OverBudget {
        /// Name of the budget: `tokens`, `firings` or `chain_depth`.
        budget: String,
        /// Limit of the budget.
        limit: u64,
        /// Amount that the intent would need.
        needed: u64,
    },
    /// The agent has the maximum number of pending intents.
    TooManyPending {
        /// Maximum number of pending intents.
        limit: u64,
    },
    /// The requesting turn may not request an action of this sensitivity, or an approver denied it.
    Sensitivity {
        /// Reason for the refusal, for people.
        why: String,
    },
    /// The schedule is invalid, lies in the past, or fires too often.
    BadSchedule {
        /// Error in the schedule, for people.
        why: String,
    },
    /// The intent would fire after it expires.
    Expired,
}

impl IntentRejection {
    /// Returns the code on the wire.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownKind { .. } => "unknown_kind",
            Self::BadParameters { .. } => "bad_parameters",
            Self::NoCapability { .. } => "no_capability",
            Self::OverBudget { .. } => "over_budget",
            Self::TooManyPending { .. } => "too_many_pending",
            Self::Sensitivity { .. } => "sensitivity",
            Self::BadSchedule { .. } => "bad_schedule",
            Self::Expired => "expired",
        }
    }
}

impl std::fmt::Display for IntentRejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let code = self.code();
        match self {
            Self::UnknownKind { kind } => write!(f, "{code}: there is no kind `{kind}`"),
            Self::BadParameters { path, why } if path.is_empty() => write!(f, "{code}: {why}"),
            Self::BadParameters { path, why } => write!(f, "{code}: {path}: {why}"),
            Self::NoCapability { capability } => write!(f, "{code}: the turn may not use `{capability}`"),
            Self::OverBudget { budget, limit, needed } => {
                write!(f, "{code}: {needed} {budget} needed, the limit is {limit}")
            }
            Self::TooManyPending { limit } => {
                write!(f, "{code}: too many pending intents; at most {limit} are allowed")
            }
            Self::Sensitivity { why } | Self::BadSchedule { why } => write!(f, "{code}: {why}"),
            Self::Expired => write!(f, "{code}: the intent would fire after it expires"),
        }
    }
}
