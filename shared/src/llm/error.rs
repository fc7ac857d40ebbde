//! Errors of requests to a model. *Pure.*

use std::time::Duration;

/// Reason why a model gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskModelError {
    /// The provider rejects the key (401, 403).
    #[error("the model provider rejected the API key: {detail}")]
    Unauthorised {
        /// Error text of the provider, shortened.
        detail: String,
    },
    /// Too many requests (429).
    #[error("rate limited by the model provider: {detail}")]
    RateLimited {
        /// Delay that the provider asks for, if it states one.
        after: Option<Duration>,
        /// Error text of the provider, shortened.
        detail: String,
    },
    /// The provider is unavailable (5xx, or an error of that kind within the stream).
    #[error("the model provider failed or is overloaded ({status}): {detail}")]
    Overloaded {
        /// HTTP status; 0 if the error came within the stream.
        status: u16,
        /// Delay that the provider asks for, if it states one.
        after: Option<Duration>,
        /// Error text of the provider, shortened.
        detail: String,
    },
    /// There is no connection to the provider.
    #[error("the model provider is unreachable: {detail}")]
    Unreachable {
        /// Error of the connection.
        detail: String,
    },
    /// The stream ended before the answer did.
    #[error("the answer ended after {received} bytes: {detail}")]
    Truncated {
        /// Bytes of text received until then.
        received: usize,
        /// Description of how the stream ended.
        detail: String,
    },
    /// No data came for too long.
    #[error("no data from the model for {silent_ms} ms")]
    Silent {
        /// Duration of the silence, in milliseconds.
        silent_ms: u64,
    },
    /// The answer took longer than the request allows.
    #[error("no answer within {waited_ms} ms")]
    TimedOut {
        /// Duration of the wait, in milliseconds.
        waited_ms: u64,
    },
    /// The request does not fit into the model's context.
    #[error("the request is too long for the model: {detail}")]
    TooLong {
        /// Error text of the provider, shortened.
        detail: String,
    },
    /// The provider rejects the request (another 4xx).
    #[error("the model provider rejected the request ({status}): {detail}")]
    Refused {
        /// HTTP status; 0 if the error came within the stream.
        status: u16,
        /// Error text of the provider, shortened.
        detail: String,
    },
    /// The response does not match the provider's interface, or is not the JSON that was requested.
    #[error("malformed answer from the model: {detail}")]
    BadAnswer {
        /// Reason why it cannot be read, shortened.
        detail: String,
    },
    /// The process is stopping.
    #[error("stopped before the answer arrived")]
    Stopped,
}

impl AskModelError {
    /// Whether the same request may succeed later.
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

    /// Delay after which to retry, if the provider stated one.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
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
