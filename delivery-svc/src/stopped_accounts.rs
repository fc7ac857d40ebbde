//! The exchange between replicas about accounts whose token is refused, in KV `stopped_accounts`.
//!
//! A replica that starts, or has not called yet, need not find out by calls of its own. An entry names the token by its
//! hash, so that it has no effect on a replica with another token. The replica whose probe is accepted withdraws the
//! entry, and the others begin again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::clock::{SharedClock, pause};
use shared::model::channel::StoppedAccount;
use shared::process::ShutdownSignal;
use shared::wire::subject::token;
use shared::wire::topology::buckets::STOPPED_ACCOUNTS;

use crate::gate_table::GateTable;

/// Interval in which the bucket is read.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The next step for one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopChange {
    /// Nothing has changed.
    Nothing,
    /// Our call was refused: write the entry.
    Publish,
    /// Our call was accepted: remove the entry.
    Withdraw,
    /// Another replica's call was refused: stop the account here.
    Stop,
    /// Another replica's call was accepted: begin again here.
    Resume,
}

/// Returns the next step for an account that `is_stopped` here, `was_shared` when the bucket was read last, and now
/// `is_shared`: whether the bucket says that its token is refused.
const fn next_change(is_stopped: bool, was_shared: bool, is_shared: bool) -> StopChange {
    match (is_stopped, was_shared, is_shared) {
        (true, false, false) => StopChange::Publish,
        (true, true, false) => StopChange::Resume,
        (false, true, true) => StopChange::Withdraw,
        (false, false, true) => StopChange::Stop,
        (true, _, true) | (false, _, false) => StopChange::Nothing,
    }
}

/// The accounts of this process, and their last known entries in the bucket.
#[derive(Debug)]
pub struct StoppedAccounts {
    kv: Kv<StoppedAccount>,
    gates: Arc<GateTable>,
    /// Hashes of the tokens, by `{channel}:{account}`.
    hashes: BTreeMap<String, String>,
    /// Accounts whose entry was there, or was written, when the bucket was read last.
    shared: BTreeSet<String>,
    clock: SharedClock,
}

/// Returns the key of the account `name`, `{channel}:{account}`.
fn key_of(name: &str) -> String {
    let (channel, account) = name.split_once(':').unwrap_or((name, ""));
    format!("{}.{}", token(channel), token(account))
}

impl StoppedAccounts {
    /// Creates the exchange over `bus` for the accounts with the token hashes `hashes`, by `{channel}:{account}`.
    #[must_use]
    pub fn new(bus: &Bus, gates: Arc<GateTable>, hashes: BTreeMap<String, String>, clock: SharedClock) -> Self {
        Self {
            kv: bus.kv(STOPPED_ACCOUNTS),
            gates,
            hashes,
            shared: BTreeSet::new(),
            clock,
        }
    }

    /// Exchanges until `stop` is requested.
    pub async fn keep_exchanged(mut self, stop: ShutdownSignal) {
        let mut changes = self.gates.watch_stopped();
        while !self.hashes.is_empty() {
            changes.mark_unchanged();
            if let Err(error) = self.exchange().await {
                tracing::warn!(%error, "failed to exchange refused tokens with other replicas; retrying");
            }

            tokio::select! {
                () = stop.requested() => return,
                () = pause(LOOK_EVERY) => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Reads the bucket once, and makes the next step for each account.
    ///
    /// # Errors
    /// Returns [`CasError`] if the bucket cannot be read or written. The step is made again then.
    pub async fn exchange(&mut self) -> Result<(), CasError> {
        let entries: BTreeMap<_, _> = self.kv.entries().await?.into_iter().collect();
        for (name, hash) in &self.hashes {
            let key = key_of(name);
            let entry = entries.get(&key);
            let is_shared = entry.is_some_and(|entry| entry.value.token_hash == *hash);
            let is_stopped = self.gates.watch_stopped().borrow().contains(name);

            match next_change(is_stopped, self.shared.contains(name), is_shared) {
                StopChange::Nothing => {}
                StopChange::Publish => {
                    let value = StoppedAccount {
                        token_hash: hash.clone(),
                        since: self.clock.now(),
                    };
                    // An entry of another token, or of a replica that was faster, gives way.
                    self.kv.put(&key, &value).await?;
                    self.shared.insert(name.clone());
                    continue;
                }
                StopChange::Withdraw => {
                    self.kv.delete(&key, entry.map(|entry| entry.revision)).await?;
                    self.shared.remove(name);
                    continue;
                }
                StopChange::Stop => self.gates.stop(name),
                StopChange::Resume => self.gates.resume(name),
            }

            if is_shared {
                self.shared.insert(name.clone());
            } else {
                self.shared.remove(name);
            }
        }

        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_here_is_told_and_what_is_new_there_is_followed() {
        for (is_stopped, was_shared, is_shared, expected) in [
            (false, false, false, StopChange::Nothing),
            (true, false, false, StopChange::Publish),
            (true, true, true, StopChange::Nothing),
            (false, true, true, StopChange::Withdraw),
            (false, false, true, StopChange::Stop),
            (true, true, false, StopChange::Resume),
            (true, false, true, StopChange::Nothing),
            (false, true, false, StopChange::Nothing),
        ] {
            assert_eq!(next_change(is_stopped, was_shared, is_shared), expected);
        }
    }

    #[test]
    fn a_key_is_made_of_tokens() {
        assert_eq!(key_of("telegram:a.b"), "telegram.a=2Eb");
    }
}
