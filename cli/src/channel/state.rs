//! States of accounts, from everything that knows of them: the settings, the replicas, and the buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use shared::bus::Bus;
use shared::model::time::UnixMillis;
use shared::platform::accounts::is_platform;
use shared::platform::outline::AccountOutline;
use shared::process::status::{ReplicaStatus, hear_replicas};
use shared::wire::operator::status::{AccountsStatus, Known, StatusPart};
use shared::wire::subject::token;

use crate::system::read_status;

/// Longest wait for the replicas' answers.
const PATIENCE: Duration = Duration::from_secs(3);
/// Service that reads accounts.
const READER: &str = "adapter-svc";

/// The state of one account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct AccountState {
    /// Account as `{channel}/{name}`.
    pub(super) account: String,
    /// Rule for users that write directly; absent for an account that does not receive, or that only a service knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) direct: Option<&'static str>,
    /// Number of users in `allow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allowed: Option<usize>,
    /// Groups that are named.
    pub(super) groups: Vec<String>,
    /// State of the source as the replica says that reads it; absent if none does, or the account does not receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<String>,
    /// Whether the source works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) is_reading: Option<bool>,
    /// Replica that holds the account's lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<String>,
    /// Time up to which everything is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) read_until: Option<UnixMillis>,
    /// Whether delivery-svc has the account.
    pub(super) is_delivered: bool,
    /// Time since which the platform refuses the token to delivery-svc.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused_since: Option<UnixMillis>,
}

impl AccountState {
    /// Returns in words how the account receives.
    pub(super) fn receives(&self) -> String {
        match (&self.source, self.direct) {
            (Some(source), _) => source.clone(),
            (None, Some(_)) => "unknown: no replica of adapter-svc answers that has it".to_owned(),
            (None, None) => "-".to_owned(),
        }
    }

    /// Returns in a word how the account sends.
    pub(super) const fn sends(&self) -> &'static str {
        match (self.refused_since, self.is_delivered) {
            (Some(_), _) => "token refused",
            (None, true) => "yes",
            (None, false) => "unknown to delivery-svc",
        }
    }
}

/// Everything but the settings that knows of accounts.
#[derive(Debug, Default)]
pub(super) struct AccountStates {
    replicas: Vec<ReplicaStatus>,
    known: AccountsStatus,
}

impl AccountStates {
    /// Asks the replicas, and scheduler-svc for what the buckets have.
    ///
    /// # Errors
    /// Fails if scheduler-svc does not answer, or cannot read a bucket.
    pub(super) async fn read(bus: &Bus) -> Result<Self> {
        let replicas = hear_replicas(bus, PATIENCE).await.map_err(anyhow::Error::msg)?.replicas;
        let status = read_status(bus, &[StatusPart::Accounts], 0).await?;
        match status.accounts {
            Some(Known::Known(known)) => Ok(Self { replicas, known }),
            Some(Known::Unknown(why)) => bail!("failed to read the accounts: {why}"),
            None => bail!("scheduler-svc says nothing about accounts"),
        }
    }

    /// Returns the states of the accounts that are `configured` here, and of those that delivery-svc has, by name.
    pub(super) fn of_accounts(&self, configured: Vec<AccountOutline>) -> Vec<AccountState> {
        let known = self.known.delivered.accounts.iter();
        let known = known.flat_map(|(channel, names)| names.iter().map(move |name| (channel.clone(), name.clone())));
        let mut outlines: BTreeMap<(String, String), Option<AccountOutline>> = known.map(|key| (key, None)).collect();
        for one in configured {
            outlines.insert((one.channel.clone(), one.name.clone()), Some(one));
        }

        let state = |((channel, name), outline): ((String, String), Option<AccountOutline>)| {
            self.of_account(&channel, &name, outline.as_ref())
        };
        outlines.into_iter().map(state).collect()
    }

    fn of_account(&self, channel: &str, name: &str, outline: Option<&AccountOutline>) -> AccountState {
        let key = format!("{}.{}", token(channel), token(name));
        let access = outline.and_then(|outline| outline.access.as_ref());
        let is_received = is_platform(channel) && (outline.is_none() || access.is_some());
        let (source, is_reading) = match is_received {
            true => self.source_of(&format!("{channel}/{name}"), self.known.holders.get(&key)),
            false => (None, None),
        };

        let names = self.known.delivered.accounts.get(channel);
        AccountState {
            account: format!("{channel}/{name}"),
            direct: access.map(|access| access.direct.name()),
            allowed: access.map(|access| access.allowed),
            groups: access
                .map(|access| access.groups.iter().cloned().collect())
                .unwrap_or_default(),
            source,
            is_reading,
            holder: self.known.holders.get(&key).cloned(),
            read_until: self.known.read_until.get(&key).copied(),
            is_delivered: names.is_some_and(|names: &BTreeSet<String>| names.contains(name)),
            refused_since: self.known.refused_since.get(&key).copied(),
        }
    }

    /// Returns the report of the replica that reads the account `part`, and whether it works: the `holder` of its
    /// lease, else one whose source stopped, else any.
    fn source_of(&self, part: &str, holder: Option<&String>) -> (Option<String>, Option<bool>) {
        let readers = self.replicas.iter().filter(|replica| replica.service == READER);
        let mut found: Vec<_> = readers
            .filter_map(|replica| Some((&replica.instance, replica.parts.get(part)?)))
            .collect();
        found.sort_by_key(|(instance, state)| (Some(*instance) != holder, !state.degraded));
        match found.first() {
            Some((_, state)) => (Some(state.detail.clone()), Some(state.ok && !state.degraded)),
            None => (None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::platform::outline::outline_accounts;
    use shared::process::HealthPart;

    use super::*;

    fn replica(instance: &str, is_degraded: bool, detail: &str) -> ReplicaStatus {
        let part = HealthPart {
            ok: true,
            degraded: is_degraded,
            detail: detail.to_owned(),
        };
        ReplicaStatus {
            service: READER.to_owned(),
            instance: instance.to_owned(),
            version: String::new(),
            pid: 1,
            now: UnixMillis(1),
            ready: true,
            parts: BTreeMap::from([("telegram/main".to_owned(), part)]),
            lost: None,
            metrics: BTreeMap::new(),
        }
    }

    #[test]
    fn an_account_is_as_the_replica_says_that_holds_it() {
        let text = "telegram: {accounts: {main: {token: 'env:A'}}}\nwebhook: {accounts: {demo: {}}}";
        let configured = || outline_accounts(text).expect("read");
        let mut states = AccountStates {
            replicas: vec![
                replica("a", false, "another replica reads it"),
                replica("b", false, "polling as @x"),
            ],
            ..AccountStates::default()
        };
        states.known.holders.insert("telegram.main".to_owned(), "b".to_owned());
        states
            .known
            .read_until
            .insert("telegram.main".to_owned(), UnixMillis(7));
        let names = BTreeSet::from(["main".to_owned(), "other".to_owned()]);
        states.known.delivered.accounts.insert("telegram".to_owned(), names);

        let found = states.of_accounts(configured());
        let names: Vec<&str> = found.iter().map(|state| state.account.as_str()).collect();
        assert_eq!(names, ["telegram/main", "telegram/other", "webhook/demo"]);
        assert_eq!(
            (found[0].receives().as_str(), found[0].direct),
            ("polling as @x", Some("pairing"))
        );
        assert_eq!(
            (found[0].is_reading, found[0].read_until),
            (Some(true), Some(UnixMillis(7)))
        );
        assert_eq!((found[0].sends(), found[2].sends()), ("yes", "unknown to delivery-svc"));
        assert_eq!((found[1].direct, found[2].receives().as_str()), (None, "-"));

        // Nobody holds an account that stopped: the replica counts that says why.
        states.known.holders.clear();
        states.replicas[1] = replica("b", true, "stopped: the token is not accepted");
        states
            .known
            .refused_since
            .insert("telegram.main".to_owned(), UnixMillis(9));
        let found = states.of_accounts(configured());
        assert_eq!((found[0].is_reading, found[0].sends()), (Some(false), "token refused"));
        assert!(found[0].receives().starts_with("stopped"), "{:?}", found[0]);

        states.replicas.clear();
        assert!(states.of_accounts(configured())[0].receives().starts_with("unknown"));
    }
}
