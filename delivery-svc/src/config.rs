//! The configuration section `[delivery]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::retry::RetrySchedule;

use crate::policy::SendPolicy;

/// Maximum configurable timeout of a call, in milliseconds: the consumer's ack wait is twice as long.
const MAX_CALL_TIMEOUT_MS: u64 = 30_000;

/// Maximum configurable wait for a replica that does not respond, in milliseconds: outcomes of its calls are kept
/// longer.
const MAX_MUTE_MS: u64 = 600_000;

/// Maximum configurable wait after a refused token, in milliseconds.
const MAX_REAUTH_WAIT_MS: u64 = 3_600_000;

/// The section `[delivery]`; times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryConfig {
    /// Maximum number of deliveries that run at once in one partition, each to another destination.
    pub max_in_flight: usize,
    /// Maximum number of attempts at parked replies that run at once in the process.
    pub max_parked_in_flight: usize,
    /// Maximum time for a platform to accept a connection.
    pub connect_timeout_ms: u64,
    /// Maximum time of a call to a platform.
    pub call_timeout_ms: u64,
    /// Maximum time for an open web chat page to respond before the part counts as not seen live.
    pub webchat_answer_ms: u64,
    /// Maximum wait for a replica that started a call, did not record its outcome, and does not respond: the replica
    /// may be stopped, with the response in its socket. The call is made again after that. 0 = no wait.
    pub mute_owner_wait_ms: u64,
    /// Wait after a refused token before one call of the account tries it again.
    pub reauth_wait_ms: u64,
    /// Waits between attempts, if the platform does not set one. The default is 8 attempts over about 1 h with full
    /// jitter.
    pub retry: RetrySchedule,
    /// Policy that decides which replies may be sent.
    pub send_policy: SendPolicy,
}

impl Default for DeliveryConfig {
    fn default() -> Self {
        Self {
            max_in_flight: 256,
            max_parked_in_flight: 64,
            connect_timeout_ms: 5_000,
            call_timeout_ms: 8_000,
            webchat_answer_ms: 200,
            mute_owner_wait_ms: 150_000,
            reauth_wait_ms: 60_000,
            retry: RetrySchedule {
                initial_ms: 5_000,
                max_ms: 1_500_000,
                factor: 3.0,
                max_attempts: 8,
                jitter: 1.0,
            },
            send_policy: SendPolicy::default(),
        }
    }
}

impl DeliveryConfig {
    /// Returns the errors that types cannot express, as `key: expectation`.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, fault: &str| {
            if !holds {
                faults.push(fault.to_owned());
            }
        };

        check(
            (1..=10_000).contains(&self.max_in_flight),
            "max_in_flight: expected 1 to 10000",
        );
        check(
            (1..=10_000).contains(&self.max_parked_in_flight),
            "max_parked_in_flight: expected 1 to 10000",
        );
        check(
            (1..=MAX_CALL_TIMEOUT_MS).contains(&self.call_timeout_ms),
            "call_timeout_ms: expected 1 to 30000",
        );

        check(
            (1..=self.call_timeout_ms).contains(&self.connect_timeout_ms),
            "connect_timeout_ms: expected 1 to call_timeout_ms",
        );
        check(
            (1..=MAX_CALL_TIMEOUT_MS).contains(&self.webchat_answer_ms),
            "webchat_answer_ms: expected 1 to 30000",
        );
        check(
            self.mute_owner_wait_ms <= MAX_MUTE_MS,
            "mute_owner_wait_ms: expected at most 600000",
        );

        check(
            (1_000..=MAX_REAUTH_WAIT_MS).contains(&self.reauth_wait_ms),
            "reauth_wait_ms: expected 1000 to 3600000",
        );
        check(self.retry.max_attempts > 0, "retry.max_attempts: expected at least 1");
        check(self.retry.factor >= 1.0, "retry.factor: expected at least 1");

        faults
    }

    /// Returns the maximum time of a call.
    #[must_use]
    pub const fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.call_timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_without_fault_and_last_about_an_hour() {
        let config = DeliveryConfig::default();
        assert_eq!(config.faults(), Vec::<String>::new());
        let waits = (1..).map_while(|attempt| config.retry.delay(attempt, 0.5));
        let minutes = waits.sum::<Duration>().as_secs() / 60;
        assert!((45..=75).contains(&minutes), "{minutes} min");
    }

    #[test]
    fn all_faults_at_once() {
        let config = DeliveryConfig {
            max_in_flight: 0,
            call_timeout_ms: 60_000,
            ..DeliveryConfig::default()
        };
        assert_eq!(
            config.faults(),
            [
                "max_in_flight: expected 1 to 10000",
                "call_timeout_ms: expected 1 to 30000"
            ]
        );
    }
}
