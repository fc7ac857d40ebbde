//! The channels to which replies can be delivered. *Pure.*
//!
//! delivery-svc publishes the accounts that it is configured with in KV `channels`. A hook that needs an account
//! (`@needs-channel`) sees events as soon as the account is published. Nexus's own channels need no account: every
//! delivery-svc has them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::time::UnixMillis;

/// Key of delivery-svc's entry in KV `channels`.
pub const DELIVERED: &str = "delivery";

/// Nexus's own channels, which every delivery-svc serves for any account.
pub const OWN: [&str; 5] = ["webchat", "nats", "cli", "http", "agent"];

/// An entry of KV `channels`: the accounts that delivery-svc is configured with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredChannels {
    /// Account names by channel, without the channels in [`OWN`].
    pub accounts: BTreeMap<String, BTreeSet<String>>,
}

impl ConfiguredChannels {
    /// Returns whether `need` can be delivered to: `channel` (with any account) or `channel:account`.
    #[must_use]
    pub fn has_channel(&self, need: &str) -> bool {
        let (channel, account) = match need.split_once(':') {
            Some((channel, account)) => (channel, Some(account)),
            None => (need, None),
        };
        if OWN.contains(&channel) {
            return true;
        }

        let Some(accounts) = self.accounts.get(channel) else {
            return false;
        };
        account.map_or(!accounts.is_empty(), |account| accounts.contains(account))
    }

    /// Returns the first of `needs` that cannot be delivered to.
    #[must_use]
    pub fn missing_need<'a>(&self, needs: &'a [String]) -> Option<&'a str> {
        needs.iter().map(String::as_str).find(|need| !self.has_channel(need))
    }
}

/// A value of KV `stopped_accounts`: the platform refuses an account's token. The key is the encoded channel and account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoppedAccount {
    /// Beginning of the hash of the refused token. It says nothing about another one.
    pub token_hash: String,
    /// Time at which it was refused first.
    pub since: UnixMillis,
}

/// A value of KV `account_tokens`: the renewed tokens of an account. The key is the encoded channel and account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountTokens {
    /// Beginnings of the hashes of the configured refresh tokens that were used up for these, oldest first.
    pub seeds: Vec<String>,
    /// Number of renewals; the value with more is the newer one.
    pub generation: u64,
    /// Time at which the platform was asked for them.
    pub renewed_at: UnixMillis,
    /// Time until which the platform accepts the token.
    pub expires_at: UnixMillis,
    /// The token and the one with which it is renewed, sealed with a key that only processes with the app's secret have.
    pub sealed: String,
}

/// A value of KV `threads`: a thread began with a message to an account. The key is the encoded thread, channel, account and
/// conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BegunThread {
    /// Time at which that was noted.
    pub noted_at: UnixMillis,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_met_by_its_account_or_by_any() {
        let accounts = BTreeMap::from([
            ("webhook".to_owned(), BTreeSet::from(["owner".to_owned()])),
            ("sms".to_owned(), BTreeSet::new()),
        ]);
        let known = ConfiguredChannels { accounts };
        for (need, is_there) in [
            ("webhook", true),
            ("webhook:owner", true),
            ("webhook:other", false),
            ("sms", false),
            ("whatsapp", false),
            ("webchat", true),
            ("webchat:any", true),
        ] {
            assert_eq!(known.has_channel(need), is_there, "{need}");
        }

        let needs = ["webchat".to_owned(), "whatsapp:work".to_owned(), "sms".to_owned()];
        assert_eq!(known.missing_need(&needs), Some("whatsapp:work"));
        assert_eq!(known.missing_need(&needs[..1]), None);
    }
}
