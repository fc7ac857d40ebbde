//! The accounts of `channels.yaml` without their secrets, for programs that may not have those. *Pure.*

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::accounts::{ReadAccountsError, is_platform};
use super::policy::DirectPolicy;
use crate::process::config::{KeyFault, read_yaml};

/// One account as its settings say, on any platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountOutline {
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub name: String,
    /// Settings of receiving; `None` for an account that only sends.
    pub access: Option<AccessOutline>,
}

/// Who may write to an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessOutline {
    /// Who may write directly.
    pub direct: DirectPolicy,
    /// Number of users in `allow`.
    pub allowed: usize,
    /// Groups that are named; `*` = every other one.
    pub groups: BTreeSet<String>,
}

/// The keys of an account that are read here; others are left out, because their meaning is the platform's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OutlineKeys {
    receive: Option<String>,
    direct: DirectPolicy,
    allow: Vec<IgnoredAny>,
    groups: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OutlineSection {
    accounts: BTreeMap<String, Option<OutlineKeys>>,
}

/// Reads the accounts in `text`, the content of `channels.yaml`, by channel and name. Secrets are not resolved, and keys
/// that are not read here may be wrong: `nexus config check` finds those.
///
/// # Errors
/// Returns [`ReadAccountsError`] if the text is no YAML, or an account has no readable form.
///
/// ```
/// use shared::platform::outline::outline_accounts;
/// use shared::platform::policy::DirectPolicy;
///
/// let text = "telegram: {accounts: {main: {token: 'env:NOT_OURS', allow: [5]}}}";
/// let account = outline_accounts(text)?.remove(0);
/// let access = account.access.ok_or("it receives")?;
/// assert_eq!((access.direct, access.allowed), (DirectPolicy::Pairing, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn outline_accounts(text: &str) -> Result<Vec<AccountOutline>, ReadAccountsError> {
    let sections: Option<BTreeMap<String, Value>> = read_yaml(text, |_| Vec::new()).map_err(ReadAccountsError)?;
    let mut accounts = Vec::new();
    for (channel, section) in sections.unwrap_or_default() {
        if channel == "bridges" {
            let bridges: BTreeMap<String, Value> = read_section(&channel, section)?;
            for (bridge, section) in bridges {
                accounts.extend(outline_section(&bridge, section)?);
            }
        } else {
            accounts.extend(outline_section(&channel, section)?);
        }
    }

    Ok(accounts)
}

fn outline_section(channel: &str, section: Value) -> Result<Vec<AccountOutline>, ReadAccountsError> {
    let section: OutlineSection = read_section(channel, section)?;
    let outline = |(name, keys): (String, Option<OutlineKeys>)| {
        let keys = keys.unwrap_or_default();
        let receives = is_platform(channel) && keys.receive.as_deref() != Some("none");
        AccountOutline {
            channel: channel.to_owned(),
            name,
            access: receives.then(|| AccessOutline {
                direct: keys.direct,
                allowed: keys.allow.len(),
                groups: keys.groups.unwrap_or_default().into_keys().collect(),
            }),
        }
    };
    Ok(section.accounts.into_iter().map(outline).collect())
}

/// Reads `section` at the key `channel`; an empty section is one without accounts.
fn read_section<T: serde::de::DeserializeOwned + Default>(
    channel: &str,
    section: Value,
) -> Result<T, ReadAccountsError> {
    if section.is_null() {
        return Ok(T::default());
    }
    let read = serde_json::from_value(section);
    read.map_err(|error| ReadAccountsError(vec![KeyFault::new(channel.to_owned(), error.to_string())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_account_is_named_without_its_secrets() {
        let text = "webhook: {accounts: {demo: {url: 'https://example.com', secret: 'env:A'}}}\n\
                    bridges: {signal: {accounts: {home: {}}}}\n\
                    telegram:\n  accounts:\n    main: {token: 'env:B', direct: allowlist, allow: [1, 2], groups: {'*': {}, '-5':}}\n\
                    \x20   out: {token: 'env:C', receive: none}\n";
        let found = outline_accounts(text).expect("read");
        let names: Vec<String> = found
            .iter()
            .map(|one| format!("{}/{}", one.channel, one.name))
            .collect();
        assert_eq!(names, ["signal/home", "telegram/main", "telegram/out", "webhook/demo"]);
        let receiving: Vec<bool> = found.iter().map(|one| one.access.is_some()).collect();
        assert_eq!(receiving, [false, true, false, false]);

        let access = found[1].access.as_ref().expect("it receives");
        assert_eq!((access.direct, access.allowed), (DirectPolicy::Allowlist, 2));
        assert_eq!(access.groups, ["*", "-5"].map(str::to_owned).into());

        assert_eq!(outline_accounts("").expect("empty"), []);
        assert_eq!(outline_accounts("telegram:\n").expect("an empty section"), []);
        let wrong = outline_accounts("telegram: {accounts: {main: {direct: sometimes}}}").expect_err("no policy");
        assert!(wrong.to_string().contains("telegram"), "{wrong}");
    }
}
