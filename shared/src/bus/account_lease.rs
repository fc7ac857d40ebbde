//! The leases on accounts of platforms: one replica at a time reads from each (KV `leases`, key
//! `account.{channel}.{account}`).
//!
//! Like the leases on partitions, those of a replica name its session, the one record that is refreshed
//! ([`super::partition`]): a thousand accounts cost no more writes than one. The holder stops by the session's deadline,
//! counted from *before* each refresh, so that it has stopped when the server lets the session lapse and another replica
//! takes the account. Leases of others are told by a watch; only the leader says that a session is over.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::clock::{SharedClock, pause};
use crate::wire::session_mark::LeaseRecord;
use crate::wire::subject::token;
use crate::wire::topology::buckets;

use super::connect::Bus;
use super::kv::Kv;
use super::partition::{GroupView, LeaseDeadline, LeaseSession, TICK, confirm_free, store_lease};

/// Name of the group of all readers of accounts.
const GROUP: &str = "account";
/// Maximum time for giving a lease back.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// The leases of accounts, as one replica sees them.
#[derive(Debug, Clone)]
pub struct AccountLeases {
    shared: Arc<SharedLeases>,
    /// Refreshes the session; ends with the last clone.
    _refreshing: Arc<JoinSet<()>>,
}

#[derive(Debug)]
struct SharedLeases {
    bus: Bus,
    holder: String,
    clock: SharedClock,
    view: GroupView<String>,
    /// The session of this replica; `None` = it has held nothing since its last one ended.
    session: Mutex<Option<LeaseSession>>,
}

/// Failure to ask for the lease of an account.
#[derive(Debug, thiserror::Error)]
#[error("the leases of accounts cannot be asked for")]
pub struct AskLeaseError;

/// The lease of one account, as one replica sees it.
#[derive(Debug)]
pub struct AccountLease {
    leases: AccountLeases,
    /// Channel and account: the key without the name of the group.
    account: String,
    held: Option<HeldAccount>,
}

#[derive(Debug)]
struct HeldAccount {
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

impl SharedLeases {
    /// Refreshes the session, if there is one, again and again.
    async fn keep_session(&self) {
        loop {
            pause(TICK).await;
            let mut session = self.session.lock().await;
            if let Some(held) = session.as_mut() {
                held.refresh().await;
                if !held.deadline().is_live() {
                    *session = None;
                }
            }
        }
    }

    /// Returns the name of this replica's session, if it has one.
    async fn session_name(&self) -> Option<String> {
        let session = self.session.lock().await;
        session.as_ref().map(|held| held.name().to_owned())
    }

    /// Returns name and deadline of this replica's session, which begins if there is none.
    async fn session(&self) -> Option<(String, LeaseDeadline)> {
        let mut session = self.session.lock().await;
        if session.as_ref().is_none_or(|held| !held.deadline().is_live()) {
            *session = LeaseSession::begin(&self.bus, GROUP, self.holder.clone(), &self.clock).await;
        }
        session
            .as_ref()
            .map(|held| (held.name().to_owned(), held.deadline().clone()))
    }
}

impl AccountLeases {
    /// Watches the leases of all accounts for the replica `holder`, which holds none yet.
    #[must_use]
    pub fn watch(bus: &Bus, holder: String, clock: SharedClock) -> Self {
        let shared = Arc::new(SharedLeases {
            bus: bus.clone(),
            holder,
            view: GroupView::watch_leases(bus, GROUP, &clock),
            clock,
            session: Mutex::default(),
        });

        let mut refreshing = JoinSet::new();
        let kept = Arc::clone(&shared);
        refreshing.spawn(async move { kept.keep_session().await });
        Self {
            shared,
            _refreshing: Arc::new(refreshing),
        }
    }

    /// Returns the lease of `account` on `channel`, which this replica does not hold yet.
    #[must_use]
    pub fn of_account(&self, channel: &str, account: &str) -> AccountLease {
        AccountLease {
            leases: self.clone(),
            account: format!("{}.{}", token(channel), token(account)),
            held: None,
        }
    }
}

impl AccountLease {
    /// Looks whether the lease is still held, or takes it if no replica has it. Returns the hold; `None` if this
    /// replica does not hold it, and everything that it does on the account must end. To be called about every second.
    ///
    /// Between two holds it returns `None` at least once, so that nothing goes on with a hold that is over.
    ///
    /// # Errors
    /// Returns [`AskLeaseError`] if the lease is free and the server does not store it.
    pub async fn hold(&mut self) -> Result<Option<AccountHold>, AskLeaseError> {
        let Some(held) = &self.held else {
            return self.take().await;
        };

        if self.leases.shared.view.is_lost(&self.account, held.revision) {
            held.deadline.note_loss();
        }
        if held.deadline.is_live() {
            return Ok(Some(AccountHold(held.deadline.clone())));
        }
        self.held = None;
        Ok(None)
    }

    async fn take(&mut self) -> Result<Option<AccountHold>, AskLeaseError> {
        let shared = &self.leases.shared;
        // A lease of which nothing was told yet is not free.
        if !shared.view.is_settled() {
            return Ok(None);
        }

        let own = shared.session_name().await;
        let Some(free) = shared.view.free_lease(&self.account, own.as_deref()) else {
            return Ok(None);
        };
        let Some((account, revision)) = confirm_free(&shared.bus, GROUP, vec![free]).await.pop() else {
            return Ok(None);
        };

        let (session, of_session) = shared.session().await.ok_or(AskLeaseError)?;
        let record = LeaseRecord {
            epoch: revision + 1,
            session,
            ..LeaseRecord::held_by(shared.holder.clone())
        };
        match store_lease(&shared.bus, &format!("{GROUP}.{account}"), &record, revision).await {
            Ok(Some(revision)) => {
                let deadline = of_session.of_lease();
                let hold = AccountHold(deadline.clone());
                self.held = Some(HeldAccount { revision, deadline });
                Ok(hold.is_live().then_some(hold))
            }
            // Another replica was faster.
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::debug!(account, %error, "failed to take the lease of an account");
                Err(AskLeaseError)
            }
        }
    }

    /// Gives the lease back, if this replica holds it; if that fails, it ends with the session.
    pub async fn give_back(&mut self) {
        let Some(held) = self.held.take().filter(|held| held.deadline.is_live()) else {
            return;
        };
        held.deadline.note_loss();

        let leases: Kv<LeaseRecord> = self.leases.shared.bus.kv(buckets::LEASES);
        let key = format!("{GROUP}.{}", self.account);
        match tokio::time::timeout(GIVE_BACK, leases.delete(&key, Some(held.revision))).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(key, %error, "lease of an account was not given back"),
            Err(_) => tracing::debug!(key, "lease of an account was not given back in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, SystemClock};
    use crate::testing::{eventually, world};

    fn leases(bus: &Bus, holder: &str) -> AccountLeases {
        AccountLeases::watch(bus, holder.to_owned(), Arc::new(SystemClock))
    }

    fn main(leases: &AccountLeases) -> AccountLease {
        leases.of_account("telegram", "main")
    }

    /// Waits until `lease` holds its account.
    async fn held(lease: &mut AccountLease) -> AccountHold {
        let mut hold = None;
        eventually("the account is held", async || {
            hold = lease.hold().await.expect("asked");
            hold.is_some()
        })
        .await;
        hold.expect("held")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_replica_holds_an_account_and_the_next_one_follows_soon() {
        let (_server, bus) = world().await;
        let (one_replica, other_replica) = (leases(&bus, "one"), leases(&bus, "other"));
        let (mut one, mut other) = (main(&one_replica), main(&other_replica));

        let hold = held(&mut one).await;
        assert!(other.hold().await.expect("asked").is_none());
        assert!(one.hold().await.expect("asked").is_some(), "it goes on holding it");

        one.give_back().await;
        assert!(!hold.is_live());
        let hold = held(&mut other).await;
        assert!(one.hold().await.expect("asked").is_none());

        // A holder that is gone is followed once its session is over, and has stopped by then.
        let begun = SystemClock.monotonic();
        drop((other, other_replica));
        held(&mut one).await;
        assert!(!hold.is_live(), "two replicas never hold it");
        let waited = SystemClock.monotonic().saturating_duration_since(begun);
        assert!(waited < Duration::from_secs(20), "{waited:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_that_is_over_ends_every_hold_and_none_is_followed_by_another_one_unnoticed() {
        let (_server, bus) = world().await;
        let replica = leases(&bus, "one");
        let (mut main, mut second) = (main(&replica), replica.of_account("telegram", "second"));
        let holds = [held(&mut main).await, held(&mut second).await];

        // As for a replica that was stopped, or whose bucket was restored to a time before its session.
        let session = replica.shared.session_name().await.expect("a session");
        let records: Kv<LeaseRecord> = bus.kv(buckets::LEASES);
        records
            .delete(&format!("{GROUP}.session.{session}"), None)
            .await
            .expect("deleted");
        for hold in &holds {
            hold.wait_ended().await;
        }
        assert!(main.hold().await.expect("asked").is_none());
        assert!(second.hold().await.expect("asked").is_none());
        let next = held(&mut main).await;
        assert!(next.is_live() && holds.iter().all(|hold| !hold.is_live()));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_holder_whose_lease_was_replaced_stops() {
        let (_server, bus) = world().await;
        let replica = leases(&bus, "one");
        let mut one = main(&replica);
        let hold = held(&mut one).await;

        let records: Kv<LeaseRecord> = bus.kv(buckets::LEASES);
        let other = LeaseRecord::held_by("other".to_owned());
        records.put("account.telegram.main", &other).await.expect("written");
        eventually("it is told", async || one.hold().await.expect("asked").is_none()).await;
        assert!(!hold.is_live());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hundred_accounts_cost_no_more_writes_than_one() {
        let (_server, bus) = world().await;
        let replica = leases(&bus, "one");
        let mut all: Vec<AccountLease> = (0..100)
            .map(|number| replica.of_account("telegram", &number.to_string()))
            .collect();
        for lease in &mut all {
            held(lease).await;
        }

        let written = async || bus.stream_state("KV_leases").await.expect("the bucket").last;
        let before = written().await;
        for _ in 0..4 {
            pause(TICK).await;
            for lease in &mut all {
                assert!(lease.hold().await.expect("asked").is_some());
            }
        }
        let refreshes = written().await - before;
        assert!((1..=10).contains(&refreshes), "{refreshes}");
    }
}
