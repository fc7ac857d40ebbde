//! Why an intent is refused, in typed form, so that the agent's next turn can adjust. *Pure.* Source:
//! `docs/design/schedules.md` §3.2 (Kinds); seed 000 §5.

use serde::{Deserialize, Serialize};

/// Why an intent is refused at admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "code")]
pub enum Rejection {
    /// The registry has no such kind.
    UnknownKind {
        /// Which.
        kind: String,
    },
    /// The parameters do not fit the kind's schema.
    BadParameters {
        /// JSON pointer to the place; empty = the whole.
        path: String,
        /// What is wrong there.
        why: String,
    },
    /// The asking turn may not do that.
    NoCapability {
        /// What it lacks.
        capability: String,
    },
    /// The budget of the agent's day does not suffice.
    OverBudget {
        /// `tokens`, `firings` or `chain_depth`.
        budget: String,
        /// How much there is.
        limit: u64,
        /// How much would be needed.
        needed: u64,
    },
    /// The agent has as many pending as it may.
    TooManyPending {
        /// How many.
        limit: u64,
    },
    /// The asking turn is not trusted with something as sensitive, or an approver said no.
    Sensitivity {
        /// Why.
        why: String,
    },
    /// The schedule cannot be, or lies in the past, or is too frequent.
    BadSchedule {
        /// What is wrong.
        why: String,
    },
    /// It would fire after it expires.
    Expired,
}

impl Rejection {
    /// Its code on the wire.
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

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let code = self.code();
        match self {
            Self::UnknownKind { kind } => write!(f, "{code}: there is no kind `{kind}`"),
            Self::BadParameters { path, why } if path.is_empty() => write!(f, "{code}: {why}"),
            Self::BadParameters { path, why } => write!(f, "{code}: {path}: {why}"),
            Self::NoCapability { capability } => write!(f, "{code}: the turn may not use `{capability}`"),
            Self::OverBudget { budget, limit, needed } => {
                write!(f, "{code}: {needed} {budget} needed, {limit} are there")
            }
            Self::TooManyPending { limit } => write!(f, "{code}: {limit} are pending, more are not taken"),
            Self::Sensitivity { why } | Self::BadSchedule { why } => write!(f, "{code}: {why}"),
            Self::Expired => write!(f, "{code}: it would fire after it expires"),
        }
    }
}
