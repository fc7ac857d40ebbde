//! Which channels replies can be delivered to. *Pure.*
//!
//! delivery-svc says which accounts it is configured with, in KV `channels`; a hook that needs one (`@needs-channel`) sees
//! events from when it is there. Channels of our own need no account, and are there wherever delivery-svc is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Key of the entry in KV `channels`.
pub const DELIVERED: &str = "delivery";

/// Channels that every delivery-svc has, for any account.
pub const OWN: [&str; 5] = ["webchat", "nats", "cli", "http", "agent"];

/// An entry of KV `channels`: the accounts of delivery-svc.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredChannels {
    /// Accounts by channel. Channels of our own are not among them.
    pub accounts: BTreeMap<String, BTreeSet<String>>,
}

impl ConfiguredChannels {
    /// Whether `need` is there: `channel`, with any account, or `channel:account`.
    #[must_use]
    pub fn has(&self, need: &str) -> bool {
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

    /// The first of `needs` that is not there.
    #[must_use]
    pub fn missing<'a>(&self, needs: &'a [String]) -> Option<&'a str> {
        needs.iter().map(String::as_str).find(|need| !self.has(need))
    }
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
            assert_eq!(known.has(need), is_there, "{need}");
        }

        let needs = ["webchat".to_owned(), "whatsapp:work".to_owned(), "sms".to_owned()];
        assert_eq!(known.missing(&needs), Some("whatsapp:work"));
        assert_eq!(known.missing(&needs[..1]), None);
    }
}
