//! Why a model gave no answer. *Pure.*

use std::time::Duration;

/// Why a model gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskModelError {
    /// The provider does not take the key (401, 403).
    #[error("the model's provider refuses the key: {detail}")]
    Unauthorised {
        /// What it said, shortened.
        detail: String,
    },
    /// Too many questions (429).
    #[error("the model's provider wants fewer questions: {detail}")]
    RateLimited {
        /// When to ask again, if it said so.
        after: Option<Duration>,
        /// What it said, shortened.
        detail: String,
    },
    /// The provider cannot at present (5xx, or an error of that kind within the stream).
    #[error("the model's provider is overloaded or broken ({status}): {detail}")]
    Overloaded {
        /// HTTP status; 0 where it was said within the stream.
        status: u16,
        /// When to ask again, if it said so.
        after: Option<Duration>,
        /// What it said, shortened.
        detail: String,
    },
    /// No connection.
    #[error("the model's provider cannot be reached: {detail}")]
    Unreachable {
        /// Why.
        detail: String,
    },
    /// The stream ended before the answer did.
    #[error("the answer broke off after {received} bytes: {detail}")]
    Truncated {
        /// Bytes of text that had come.
        received: usize,
        /// How it ended.
        detail: String,
    },
    /// Nothing came for too long.
    #[error("the model was silent for {silent_ms} ms")]
    Silent {
        /// For how long, milliseconds.
        silent_ms: u64,
    },
    /// The answer took longer than the question allows.
    #[error("no answer within {waited_ms} ms")]
    TimedOut {
        /// For how long, milliseconds.
        waited_ms: u64,
    },
    /// The question does not fit into the model's context.
    #[error("the question is too long for the model: {detail}")]
    TooLong {
        /// What it said, shortened.
        detail: String,
    },
    /// The provider does not take the question (another 4xx).
    #[error("the model's provider refuses the question ({status}): {detail}")]
    Refused {
        /// HTTP status; 0 where it was said within the stream.
        status: u16,
        /// What it said, shortened.
        detail: String,
    },
    /// What came is not what the provider's interface promises, or not the JSON that was asked for.
    #[error("the model's answer cannot be read: {detail}")]
    BadAnswer {
        /// What is wrong, shortened.
        detail: String,
    },
    /// The process stops.
    #[error("stopped before the answer came")]
    Stopped,
}

impl AskModelError {
    /// Whether asking the same again later may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::RateLimited { .. }
            | Self::Overloaded { .. }
            | Self::Unreachable { .. }
            | Self::Truncated { .. }
            | Self::Silent { .. }
            | Self::TimedOut { .. }
            | Self::Stopped => true,
            Self::Unauthorised { .. } | Self::TooLong { .. } | Self::Refused { .. } | Self::BadAnswer { .. } => false,
        }
    }

    /// When to ask again, where the provider said so.
    #[must_use]
    pub const fn after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { after, .. } | Self::Overloaded { after, .. } => *after,
            Self::Unauthorised { .. }
            | Self::Unreachable { .. }
            | Self::Truncated { .. }
            | Self::Silent { .. }
            | Self::TimedOut { .. }
            | Self::TooLong { .. }
            | Self::Refused { .. }
            | Self::BadAnswer { .. }
            | Self::Stopped => None,
        }
    }
}
