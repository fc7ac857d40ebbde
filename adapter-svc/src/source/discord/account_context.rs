//! What all parts of a running source use: the account, and the waits after failures.

use std::time::Duration;

use shared::clock::{SharedClock, SharedIds};
use shared::platform::discord::DiscordAccount;
use shared::retry::RetrySchedule;

use super::address_gate::AddressGate;
use super::api_error::ApiCallError;
use crate::source::port::{CALL_RETRY, SourceEnd};

/// Time after which an account that was stopped is tried again.
const AGAIN: Duration = Duration::from_mins(5);

/// Waits between sessions that do not last: one in five minutes stays within the vendor's number.
const START_AGAIN: RetrySchedule = RetrySchedule {
    initial_ms: 2_000,
    max_ms: 300_000,
    factor: 2.0,
    max_attempts: 0,
    jitter: 0.5,
};

/// The end of a source, as the error that ends its loop.
pub(super) type SourceResult<T> = Result<T, SourceEnd>;

/// An account with what reading it needs. Clones share the calls' gate.
#[derive(Debug, Clone)]
pub struct AccountContext {
    /// Name of the account.
    pub name: String,
    /// Settings.
    pub account: DiscordAccount,
    /// Client of all calls.
    pub http: reqwest::Client,
    /// Source of random numbers.
    pub ids: SharedIds,
    /// Clock of waits, which goes on with [`shared::clock::pause`].
    pub timer: SharedClock,
    /// Clock of the process.
    pub clock: SharedClock,
    /// Calls of all accounts from this address.
    pub gate: AddressGate,
}

impl AccountContext {
    /// Returns the wait after the connection or call number `failures` in succession failed.
    #[must_use]
    pub(super) fn retry_wait(&self, failures: u32) -> Duration {
        CALL_RETRY.delay(failures, self.ids.draw_jitter()).unwrap_or(AGAIN)
    }

    /// Returns the wait before another session after `starts` in succession that did not last.
    #[must_use]
    pub(super) fn start_wait(&self, starts: u32) -> Duration {
        START_AGAIN.delay(starts, self.ids.draw_jitter()).unwrap_or(AGAIN)
    }

    /// Returns the wait after the call number `failures` in succession failed with `error`.
    ///
    /// # Errors
    /// Returns the end of the source if the token is not accepted.
    pub(super) fn wait_after(&self, error: &ApiCallError, failures: u32) -> SourceResult<Duration> {
        match error {
            ApiCallError::Unauthorized(_) => Err(stopped(error.to_string())),
            // Never sooner than the vendor says.
            ApiCallError::Limited { after, .. } => Ok((*after).max(self.retry_wait(failures))),
            ApiCallError::Refused { .. } | ApiCallError::Unreachable(_) | ApiCallError::Malformed(_) => {
                Ok(self.retry_wait(failures))
            }
        }
    }
}

/// Returns the end of a source for which an operator must do something: `reason` says what.
#[must_use]
pub(super) fn stopped(reason: String) -> SourceEnd {
    SourceEnd::Stopped {
        reason,
        again: Some(AGAIN),
    }
}
