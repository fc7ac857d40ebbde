//! Bytes that each account may store in an hour, so that a busy group does not fill the store of all. *Pure.*

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum number of bytes that are stored for an account in an hour, by each replica. The last file may exceed it.
const MAX_BYTES: u64 = 512 * 1024 * 1024;
/// Time for which stored bytes count.
const WINDOW: Duration = Duration::from_hours(1);

/// The bytes that accounts have stored, by channel and account.
#[derive(Debug, Default)]
pub(super) struct StoredBytes {
    accounts: BTreeMap<(String, String), AccountHour>,
}

#[derive(Debug)]
struct AccountHour {
    began: Instant,
    bytes: u64,
}

impl StoredBytes {
    /// Returns whether a file of `account` on `channel` may be stored at `now`.
    pub(super) fn has_room(&mut self, channel: &str, account: &str, now: Instant) -> bool {
        self.hour_of(channel, account, now).bytes < MAX_BYTES
    }

    /// Counts `bytes` that were stored at `now`.
    pub(super) fn add(&mut self, channel: &str, account: &str, bytes: u64, now: Instant) {
        let hour = self.hour_of(channel, account, now);
        hour.bytes = hour.bytes.saturating_add(bytes);
    }

    fn hour_of(&mut self, channel: &str, account: &str, now: Instant) -> &mut AccountHour {
        let fresh = || AccountHour { began: now, bytes: 0 };
        let hour = self
            .accounts
            .entry((channel.to_owned(), account.to_owned()))
            .or_insert_with(fresh);
        if now.saturating_duration_since(hour.began) >= WINDOW {
            *hour = fresh();
        }
        hour
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn an_account_that_has_stored_enough_waits_for_the_next_hour() {
        let (mut stored, began) = (StoredBytes::default(), SystemClock.monotonic());
        stored.add("telegram", "main", MAX_BYTES - 1, began);
        assert!(stored.has_room("telegram", "main", began));
        stored.add("telegram", "main", 1, began);
        assert!(!stored.has_room("telegram", "main", began));
        assert!(stored.has_room("telegram", "other", began) && stored.has_room("slack", "main", began));

        let just_before = began + WINDOW.checked_sub(Duration::from_millis(1)).expect("an hour");
        assert!(!stored.has_room("telegram", "main", just_before));
        assert!(stored.has_room("telegram", "main", began + WINDOW));
    }
}
