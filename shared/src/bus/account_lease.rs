//! The lease on an account of a platform: one replica at a time reads from it (KV `leases`, key
//! `account.{channel}.{account}`, time to live 3 s).
//!
//! Like the holder of a partition, the holder stops by its own deadline, counted from *before* each refresh, so that it
//! has stopped when the server lets the lease lapse and another replica takes it.

use std::time::Duration;

use crate::clock::{SharedClock, pause};
use crate::wire::session_mark::LeaseRecord;
use crate::wire::subject::token;
use crate::wire::topology::buckets;

use super::connect::Bus;
use super::error::{CasError, PublishError};
use super::kv::Kv;
use super::partition::{LeaseDeadline, TICK, lease_message};

/// Maximum time for giving a lease back.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// The lease of one account, as one replica sees it.
#[derive(Debug)]
pub struct AccountLease {
    leases: Kv<LeaseRecord>,
    key: String,
    holder: String,
    clock: SharedClock,
    held: Option<HeldAccount>,
}

#[derive(Debug)]
struct HeldAccount {
    record: LeaseRecord,
    revision: u64,
    deadline: LeaseDeadline,
}

/// Handle to check whether the account is still held.
#[derive(Debug, Clone)]
pub struct AccountHold(LeaseDeadline);

impl AccountHold {
    /// Returns whether this replica may still act on the account.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.0.is_live()
    }

    /// Waits until this replica may no longer act on the account.
    pub async fn wait_ended(&self) {
        loop {
            let left = self.0.left();
            if left.is_zero() {
                return;
            }
            pause(left).await;
        }
    }
}

impl AccountLease {
    /// Returns the lease of `account` on `channel` for the replica `holder`, which does not hold it yet.
    #[must_use]
    pub fn new(bus: &Bus, channel: &str, account: &str, holder: String, clock: SharedClock) -> Self {
        Self {
            leases: bus.kv(buckets::LEASES),
            key: format!("account.{}.{}", token(channel), token(account)),
            holder,
            clock,
            held: None,
        }
    }

    /// Refreshes the lease, or takes it if nobody has it. Returns the hold; `None` if this replica does not hold it, and
    /// everything that it does on the account must end. To be called about every second.
    ///
    /// Between two holds it returns `None` at least once, so that nothing goes on with a hold that is over.
    ///
    /// # Errors
    /// Returns [`CasError`] if the lease is not held and the bucket cannot be asked.
    pub async fn hold(&mut self) -> Result<Option<AccountHold>, CasError> {
        if self.held.as_ref().is_some_and(|held| !held.deadline.is_live()) {
            self.held = None;
            return Ok(None);
        }

        let Some(held) = self.held.as_mut() else {
            return self.take().await;
        };

        let asked_at = held.deadline.now();
        let written = lease_message(&self.key, &held.record, held.revision);
        match self.leases.bus().publish_once(&written, TICK).await {
            Ok(published) => {
                held.revision = published.sequence;
                held.deadline.note_refresh(asked_at);
            }
            // An earlier refresh may have been stored without an ack. The deadline does not move for it, because the
            // time from which the server counts is unknown here.
            Err(PublishError::WrongLastSequence { .. }) => match self.leases.written_here(&self.key).await {
                Ok(Some(entry)) if entry.value == held.record => held.revision = entry.revision,
                Ok(_) => held.deadline.note_loss(),
                Err(error) => tracing::debug!(key = self.key, %error, "failed to read a lease"),
            },
            Err(error) => tracing::debug!(key = self.key, %error, "failed to refresh a lease"),
        }

        let hold = AccountHold(held.deadline.clone());
        Ok(hold.is_live().then_some(hold))
    }

    async fn take(&mut self) -> Result<Option<AccountHold>, CasError> {
        let (other, revision) = self.leases.find(&self.key).await?;
        if other.is_some() {
            return Ok(None);
        }

        // The deadline counts from before the request, so a slow answer shortens the lease and never lengthens it.
        let asked_at = self.clock.monotonic();
        let record = LeaseRecord {
            epoch: revision + 1,
            ..LeaseRecord::held_by(self.holder.clone())
        };

        let written = lease_message(&self.key, &record, revision);
        match self.leases.bus().publish_once(&written, TICK).await {
            Ok(published) => {
                let deadline = LeaseDeadline::new(self.clock.clone(), asked_at);
                self.held = Some(HeldAccount {
                    record,
                    revision: published.sequence,
                    deadline: deadline.clone(),
                });
                Ok(Some(AccountHold(deadline)))
            }
            // Another replica was faster.
            Err(PublishError::WrongLastSequence { .. }) => Ok(None),
            Err(error) => Err(CasError::Publish(error)),
        }
    }

    /// Gives the lease back, if this replica holds it; if that fails, it lapses.
    pub async fn give_back(&mut self) {
        let Some(held) = self.held.take().filter(|held| held.deadline.is_live()) else {
            return;
        };
        held.deadline.note_loss();
        let deleted = self.leases.delete(&self.key, Some(held.revision));
        match tokio::time::timeout(GIVE_BACK, deleted).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(key = self.key, %error, "lease of an account was not given back"),
            Err(_) => tracing::debug!(key = self.key, "lease of an account was not given back in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock as _, SystemClock};
    use crate::model::time::UnixMillis;
    use crate::testing::{ManualClock, world};

    fn lease(bus: &Bus, holder: &str) -> AccountLease {
        AccountLease::new(bus, "telegram", "main", holder.to_owned(), Arc::new(SystemClock))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_replica_holds_an_account_and_the_next_one_follows_soon() {
        let (_server, bus) = world().await;
        let (mut one, mut other) = (lease(&bus, "one"), lease(&bus, "other"));

        let hold = one.hold().await.expect("asked").expect("free");
        assert!(other.hold().await.expect("asked").is_none());
        assert!(one.hold().await.expect("asked").is_some(), "it goes on holding it");

        one.give_back().await;
        assert!(!hold.is_live());
        assert!(other.hold().await.expect("asked").is_some());
        assert!(one.hold().await.expect("asked").is_none());

        // A holder that is gone is followed once its lease is over, and has stopped by then.
        let hold = other.hold().await.expect("asked").expect("held");
        let begun = SystemClock.monotonic();
        drop(other);
        let next = tokio::time::timeout(Duration::from_secs(30), async {
            while one.hold().await.expect("asked").is_none() {
                pause(Duration::from_millis(50)).await;
            }
        });
        next.await.expect("the lease lapses");
        assert!(!hold.is_live(), "two replicas never hold it");
        let waited = SystemClock.monotonic().saturating_duration_since(begun);
        assert!(waited < Duration::from_secs(20), "{waited:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hold_that_is_over_is_not_followed_by_another_one_unnoticed() {
        let (_server, bus) = world().await;
        let clock = ManualClock::at(UnixMillis(1));
        let shared: SharedClock = Arc::new(clock.clone());
        let mut one = AccountLease::new(&bus, "telegram", "main", "one".to_owned(), shared);
        let hold = one.hold().await.expect("asked").expect("free");

        // The refresh comes late, and the lease has lapsed on the server.
        clock.advance(3_000);
        let leases: Kv<LeaseRecord> = bus.kv(buckets::LEASES);
        leases.delete("account.telegram.main", None).await.expect("lapsed");
        assert!(one.hold().await.expect("asked").is_none());
        let next = one.hold().await.expect("asked").expect("free");
        assert!(next.is_live() && !hold.is_live());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_holder_whose_lease_was_replaced_stops_at_once() {
        let (_server, bus) = world().await;
        let mut one = lease(&bus, "one");
        let hold = one.hold().await.expect("asked").expect("free");

        let leases: Kv<LeaseRecord> = bus.kv(buckets::LEASES);
        let other = LeaseRecord::held_by("other".to_owned());
        leases.put("account.telegram.main", &other).await.expect("written");
        assert!(one.hold().await.expect("asked").is_none());
        assert!(!hold.is_live());
    }
}
