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
        /// HTTP status; 0 if the error came within the stream.
        status: u16,
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
    /// There is no connection to the provider, or it broke before the answer began.
    #[error("the model provider at {address} is unreachable: {detail}")]
    Unreachable {
        /// Whether the provider may have received the request.
        sent: bool,
        /// Address of the provider: scheme, host and port.
        address: String,
        /// Cause of the failure.
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
        /// HTTP status; 0 if the error came within the stream.
        status: u16,
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

    /// Whether the provider may charge for the request although it gave no answer. It surely does not if the request
    /// never reached it, or if it rejected the request with a status 4xx. After any other end it may have worked on the
    /// request: a status 5xx can come from a gateway that lost its upstream.
    #[must_use]
    pub const fn may_cost(&self) -> bool {
        match self {
            Self::Unauthorised { .. } => false,
            Self::Unreachable { sent, .. } => *sent,
            Self::RateLimited { status, .. }
            | Self::Overloaded { status, .. }
            | Self::TooLong { status, .. }
            | Self::Refused { status, .. } => !matches!(*status, 400..500),
            Self::Truncated { .. }
            | Self::Silent { .. }
            | Self::TimedOut { .. }
            | Self::BadAnswer { .. }
            | Self::Stopped => true,
        }
    }

    /// Bytes of the answer's text that were received before the error.
    #[must_use]
    pub(super) const fn received_bytes(&self) -> usize {
        match self {
            Self::Truncated { received, .. } => *received,
            Self::Unauthorised { .. }
            | Self::RateLimited { .. }
            | Self::Overloaded { .. }
            | Self::Unreachable { .. }
            | Self::Silent { .. }
            | Self::TimedOut { .. }
            | Self::TooLong { .. }
            | Self::Refused { .. }
            | Self::BadAnswer { .. }
            | Self::Stopped => 0,
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
