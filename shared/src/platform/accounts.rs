//! `channels.yaml`: the installation's accounts on each channel. *Pure.*
//!
//! ```yaml
//! webhook:
//!   accounts:
//!     demo: { url: "https://example.com/hook", secret: "env:DEMO_SECRET" }
//! telegram:
//!   accounts:
//!     bot: { token: "env:TELEGRAM_TOKEN" }
//! slack:
//!   accounts:
//!     app: { token: "env:SLACK_TOKEN", signing_secret: "env:SLACK_SECRET" }
//! ```
//!
//! adapter-svc and delivery-svc read the same file. The accounts of webhooks and bridges concern delivery-svc alone,
//! which reads them as a type of its own (`W`), with their secrets; the others' accounts have the types of this room.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::discord::{self, DISCORD, DiscordAccount};
use super::slack::{self, SLACK, SlackAccount};
use super::telegram::{self, TELEGRAM, TelegramAccount};
use crate::model::channel::ConfiguredChannels;
use crate::model::origin::PLATFORM_CHANNELS;
use crate::process::config::{KeyFault, read_yaml};

/// The content of the file. `W` is the type of an account of `webhook` and of a bridge.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "W: Deserialize<'de>"))]
pub struct ChannelsFile<W> {
    /// Accounts of channel `webhook`.
    #[serde(default)]
    pub webhook: AccountSection<W>,
    /// Accounts of bridged channels, by channel.
    #[serde(default = "BTreeMap::new")]
    pub bridges: BTreeMap<String, AccountSection<W>>,
    /// Bots of Telegram.
    #[serde(default)]
    pub telegram: AccountSection<TelegramAccount>,
    /// Bots of Discord.
    #[serde(default)]
    pub discord: AccountSection<DiscordAccount>,
    /// Apps of Slack.
    #[serde(default)]
    pub slack: AccountSection<SlackAccount>,
}

/// The accounts of one channel, by name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "A: Deserialize<'de>"))]
pub struct AccountSection<A> {
    /// Accounts by name.
    #[serde(default = "BTreeMap::new")]
    pub accounts: BTreeMap<String, A>,
}

// By hand: an empty section needs no default account.
impl<A> Default for AccountSection<A> {
    fn default() -> Self {
        Self {
            accounts: BTreeMap::new(),
        }
    }
}

// By hand, as above.
impl<W> Default for ChannelsFile<W> {
    fn default() -> Self {
        Self {
            webhook: AccountSection::default(),
            bridges: BTreeMap::new(),
            telegram: AccountSection::default(),
            discord: AccountSection::default(),
            slack: AccountSection::default(),
        }
    }
}

impl<W> ChannelsFile<W> {
    /// Returns the channels and accounts of the file, by which delivery-svc sends.
    #[must_use]
    pub fn configured(&self) -> ConfiguredChannels {
        let bridges = self.bridges.iter();
        let called = bridges.map(|(channel, section)| (channel.as_str(), names_of(section)));
        let all = [
            ("webhook", names_of(&self.webhook)),
            (TELEGRAM, names_of(&self.telegram)),
            (DISCORD, names_of(&self.discord)),
            (SLACK, names_of(&self.slack)),
        ];
        let all = all.into_iter().chain(called).filter(|(_, names)| !names.is_empty());
        ConfiguredChannels {
            accounts: all.map(|(channel, names)| (channel.to_owned(), names)).collect(),
        }
    }
}

fn names_of<A>(section: &AccountSection<A>) -> BTreeSet<String> {
    section.accounts.keys().cloned().collect()
}

/// The errors in `channels.yaml`, one per line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ReadAccountsError(pub Vec<KeyFault>);

/// The accounts on platforms that Nexus speaks in both directions, without those of webhooks and bridges.
pub type PlatformAccounts = ChannelsFile<IgnoredAny>;

/// Reads `text`, the content of `channels.yaml`; an empty text has no accounts. `check` returns the faults of the
/// accounts of type `W`.
///
/// # Errors
/// Returns [`ReadAccountsError`] with every invalid key and the value that is expected there.
pub fn read_channels<W: DeserializeOwned>(
    text: &str,
    check: impl FnOnce(&ChannelsFile<W>) -> Vec<KeyFault>,
) -> Result<ChannelsFile<W>, ReadAccountsError> {
    let check = |file: &ChannelsFile<W>| {
        let mut faults = check(file);
        faults.extend(telegram::account_faults("telegram.accounts", &file.telegram.accounts));
        faults.extend(discord::account_faults("discord.accounts", &file.discord.accounts));
        faults.extend(slack::account_faults("slack.accounts", &file.slack.accounts));
        faults
    };
    let read = read_yaml(text, check);
    read.map(Option::unwrap_or_default).map_err(ReadAccountsError)
}

/// Reads the accounts in `text`, the content of `channels.yaml`, except those of webhooks and bridges, whose secrets
/// this process may not have.
///
/// # Errors
/// Returns [`ReadAccountsError`] with every invalid key and the value that is expected there.
///
/// ```
/// use shared::platform::accounts::read_platforms;
///
/// let accounts = read_platforms("webhook: {accounts: {demo: {url: x, secret: 'env:NOT_OURS'}}}")?;
/// assert!(accounts.telegram.accounts.is_empty());
///
/// let error = read_platforms("telegram: {accounts: {bot: {receive: sometimes}}}").unwrap_err();
/// let keys: Vec<&str> = error.0.iter().map(|fault| fault.key.as_str()).collect();
/// assert_eq!(keys, ["telegram.accounts.bot.receive", "telegram.accounts.bot.token"]);
/// # Ok::<(), shared::platform::accounts::ReadAccountsError>(())
/// ```
pub fn read_platforms(text: &str) -> Result<PlatformAccounts, ReadAccountsError> {
    read_channels(text, |_| Vec::new())
}

/// Returns whether `channel` has a section of its own in the file, so that no bridge may have its name. Each of them is a
/// sealed channel ([`crate::model::origin::is_sealed_channel`]): its accounts alone bring its events.
#[must_use]
pub fn is_platform(channel: &str) -> bool {
    PLATFORM_CHANNELS.iter().any(|own| channel.eq_ignore_ascii_case(own))
}

#[cfg(test)]
mod tests;
