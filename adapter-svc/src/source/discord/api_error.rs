//! Calls of Discord's API that failed: what was said, and which calls must wait.
//!
//! Source: <https://discord.com/developers/docs/topics/rate-limits>.

use std::time::Duration;

use crate::source::port::history_calls::HistoryCallError;

/// Wait after a call that was refused. The vendor bars an address after too many, and this process stops all of its calls at
/// a hundred in ten minutes ([`super::address_gate`]).
const REFUSED_PAUSE: Duration = Duration::from_secs(8);

/// Status with which the vendor refuses what the bot may not see.
const FORBIDDEN: u16 = 403;

/// The reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiCallError {
    /// The token is not valid.
    #[error("the token is not accepted ({0})")]
    Unauthorized(String),
    /// Too many calls.
    #[error("too many calls{scope}; retry in {} s", .after.as_secs())]
    Limited {
        /// Wait that the vendor asks for.
        after: Duration,
        /// Calls that must wait.
        scope: LimitScope,
    },
    /// The vendor refused the call.
    #[error("error {status}: {words}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The vendor's words.
        words: String,
    },
    /// There was no answer.
    #[error("no answer: {0}")]
    Unreachable(String),
    /// The answer does not have the form that the vendor documents.
    #[error("unreadable answer: {0}")]
    Malformed(String),
}

/// The calls that a limit is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitScope {
    /// Those of one route and channel.
    Route,
    /// All calls of the bot.
    Account,
    /// All calls from this address, of every bot: the answer is that of a server before the API.
    Address,
}

impl std::fmt::Display for LimitScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Route => "",
            Self::Account => " of the bot",
            Self::Address => " from this address",
        })
    }
}

impl ApiCallError {
    /// Returns whether the vendor counts the call as invalid, so that too many bar this address.
    #[must_use]
    pub const fn is_invalid_call(&self) -> bool {
        match self {
            Self::Unauthorized(_) | Self::Limited { .. } => true,
            Self::Refused { status, .. } => *status == 403,
            Self::Unreachable(_) | Self::Malformed(_) => false,
        }
    }

    /// Returns whether what was asked for is not there, or not for this bot, so that asking again is no use.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Refused { status, .. } => matches!(status, 400..=404),
            Self::Unauthorized(_) | Self::Limited { .. } | Self::Unreachable(_) | Self::Malformed(_) => false,
        }
    }

    /// Returns the error as the reader of histories takes it.
    #[must_use]
    pub fn into_history_error(self) -> HistoryCallError {
        let words = self.to_string();
        match self {
            Self::Unauthorized(_) => HistoryCallError::Unauthorized(words),
            Self::Limited { after, .. } => HistoryCallError::Limited { after, words },
            Self::Refused { status, .. } if self.is_final() => HistoryCallError::Refused {
                words,
                pause: if status == FORBIDDEN {
                    REFUSED_PAUSE
                } else {
                    Duration::ZERO
                },
            },
            Self::Refused { .. } | Self::Unreachable(_) | Self::Malformed(_) => HistoryCallError::Unreachable(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_vendor_counts_against_an_address_is_asked_slowly() {
        let refused = |status| {
            let words = String::new();
            ApiCallError::Refused { status, words }.into_history_error()
        };
        assert!(matches!(refused(403), HistoryCallError::Refused { pause, .. } if pause == REFUSED_PAUSE));
        assert!(matches!(refused(404), HistoryCallError::Refused { pause, .. } if pause.is_zero()));
        assert!(matches!(refused(502), HistoryCallError::Unreachable(_)));
    }
}
